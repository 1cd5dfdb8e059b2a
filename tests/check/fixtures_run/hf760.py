"""A step that puts more groups into a queue than a batch and its lag leave places for."""

from hfdsl.runtime.schedule import QueueSpec

# good: QueueSpec("scored", lag=2, batch=32, dispatch=96)
QueueSpec("scored", lag=1, batch=32, dispatch=96)  # <- bad
