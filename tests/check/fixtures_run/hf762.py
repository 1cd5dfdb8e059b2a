"""A filter that keeps no group."""

from hfdsl.runtime.schedule import QueueSpec
from hfdsl.runtime.simulation import Slots, simulate

slots = Slots(4, group=lambda number: 1.0, update=lambda update: 1.0)
spec = QueueSpec("scored", lag=1, batch=2)
# good: simulate(spec, slots, updates=8, lost=lambda number: number % 2 == 0)
simulate(spec, slots, updates=8, lost=lambda number: True)  # <- bad
