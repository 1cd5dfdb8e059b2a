"""From a type of hfdsl to its strategy, for ``st.from_type``."""

from __future__ import annotations

from typing import Any

from hfdsl.testing.registration import is_of_hfdsl
from hfdsl.testing.strategies.batches import batches
from hfdsl.testing.strategies.places import clusters, meshes, pools
from hfdsl.types.batches import Batch


def strategy_of(kind: Any) -> Any:
    """The strategy of a type of hfdsl, None for any other."""
    if not is_of_hfdsl(kind):
        return None
    if issubclass(kind, Batch):
        return None if kind is Batch else batches(kind)
    others: Any = {"Mesh": meshes, "ResourcePool": pools, "Cluster": clusters}
    return others[kind.__name__]() if kind.__name__ in others else None
