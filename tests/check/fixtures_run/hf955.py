"""An engine that never answers."""

import torch

from hfdsl.rl.engines.process import EngineProcess
from tests.rl.engines import fake

# good: PROMPT = [1]
PROMPT = [fake.HANG]  # bad
engine = EngineProcess(fake.start(), deadline=60)
engine.load([("a", torch.zeros(1)), ("b", torch.zeros(1))], 1)
engine.deadline = 5
engine.generate([PROMPT], None)  # <-
engine.close()
