"""An engine that does not know the model."""

from hfdsl.rl.engines.process import EngineProcess
from tests.rl.engines import fake

# good: engine = EngineProcess(fake.start(fake.FakeEngine), deadline=60)
engine = EngineProcess(fake.start(fake.Refusing), deadline=60)  # <- bad
engine.close()
