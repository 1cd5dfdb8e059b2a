"""A cache that is larger than any memory."""

from hfdsl.rl.engines.process import EngineProcess
from tests.rl.engines import fake

# good: engine = EngineProcess(fake.start(cache_bytes=2**20), deadline=60)
engine = EngineProcess(fake.start(cache_bytes=2**50), deadline=60)  # <- bad
engine.close()
