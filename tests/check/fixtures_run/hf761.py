"""A log of metrics where that of decisions is asked for."""

from hfdsl.runtime.decisions import from_lines

# good: from_lines('{"kind": "take", "queue": "scored", "version": 0, "groups": [0, 1]}')
from_lines('{"step": 1, "loss": 0.5}')  # <- bad
