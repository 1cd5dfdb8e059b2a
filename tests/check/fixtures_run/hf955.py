"""An engine that never answers."""

from hfdsl.rl.engines.process import EngineProcess
from tests.rl.engines import fake

# good: PROMPT = [1]
PROMPT = [fake.HANG]  # bad
engine = EngineProcess(fake.start(), deadline=60)
engine.deadline = 5
engine.generate([PROMPT], None)  # <-
engine.close()
