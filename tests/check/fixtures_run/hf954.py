"""An engine that fails while it samples."""

import torch

from hfdsl.rl.engines.process import EngineProcess
from tests.rl.engines import fake

# good: PROMPT = [1]
PROMPT = [fake.RAISE]  # bad
engine = EngineProcess(fake.start(), deadline=60)
engine.load([("a", torch.zeros(1)), ("b", torch.zeros(1))], 1)
engine.generate([PROMPT], None)  # <-
engine.close()
