"""A dispatch into a queue that is full."""

from hfdsl.runtime.schedule import QueueSpec, QueueState

state = QueueState(QueueSpec("scored", lag=0, batch=2)).dispatch([0, 1])
# good: state, batch = state.finish([0, 1]).take()
# good: state.dispatch([2])
state.dispatch([2])  # <- bad
