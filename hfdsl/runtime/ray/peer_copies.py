"""Copies of states in the memory of a second node, which survive the loss of the first one.

>>> peer_of("b", ["a", "b", "c"]), peer_of("c", ["a", "b", "c"]), peer_of("a", ["a"])
('c', 'a', None)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hfdsl.runtime.saving.state_files import FlatState
from hfdsl.runtime.transports.serialization import StateCopy


class Copied(NamedTuple):
    """References to the copy of a rank's states: to a small flag that it exists, to the copy, and its node.

    ``peer`` is the same on another node.
    """

    done: Any
    states: Any
    node: str
    peer: Copied | None = None

    def exists(self) -> list[Any]:
        """The references to the flags that it exists, including the peer's copy."""
        return [self.done, *(self.peer.exists() if self.peer is not None else ())]

    def reachable(self, nodes: set[str]) -> Any:
        """The reference to a copy on one of these nodes; the first copy if there is none."""
        return self.peer.states if self.peer is not None and self.node not in nodes else self.states


def peer_of(node: str, nodes: Sequence[str]) -> str | None:
    """The node that keeps the copies of another: the next one in a ring, so that all keep the same amount."""
    return nodes[(nodes.index(node) + 1) % len(nodes)] if len(nodes) > 1 else None


def copied_to(copy: Copied, node: str) -> Copied:
    """The copy with a second one on another node, which a Ray task makes there while steps continue."""
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    keep: Any = ray.remote(_keep).options(num_cpus=0, num_returns=2, max_retries=0, scheduling_strategy=where)
    saved, states = keep.remote(copy.states)
    return copy._replace(peer=Copied(saved, states, node))


def _keep(states: Mapping[str, FlatState]) -> tuple[None, StateCopy]:
    return None, StateCopy(states)


def live_nodes() -> set[str]:
    """The live nodes of the cluster."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call]  # of Ray
