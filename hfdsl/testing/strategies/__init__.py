"""Hypothesis strategies for values, records, meshes, pools and programs.

Importing this registers them, as the entry point of the installed package does: ``st.from_type(Rollout)`` works.
"""

from __future__ import annotations

try:
    import hypothesis as _hypothesis  # noqa: F401  # said in our words, where it is missing
except ImportError:
    raise ImportError("hfdsl.testing.strategies needs hypothesis: pip install 'hfdsl[testing]'") from None

from hfdsl.testing.registration import register
from hfdsl.testing.strategies.batches import batches, tensors
from hfdsl.testing.strategies.graphs import Program, graphs
from hfdsl.testing.strategies.lookup import strategy_of
from hfdsl.testing.strategies.places import clusters, meshes, pools
from hfdsl.testing.strategies.protocols import placements, protocols
from hfdsl.testing.strategies.records import records
from hfdsl.testing.strategies.schedules import QueueSchedule, schedules
from hfdsl.testing.strategies.sizes import bindings, dims

__all__ = [
    "Program",
    "QueueSchedule",
    "batches",
    "bindings",
    "clusters",
    "dims",
    "graphs",
    "meshes",
    "placements",
    "pools",
    "protocols",
    "records",
    "schedules",
    "tensors",
]

register(strategy_of)
