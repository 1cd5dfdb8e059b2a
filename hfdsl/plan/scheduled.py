"""Scheduled syncs: each rank that loads weights gets its parts from ranks that hold them, without a full copy.

A worked example. An actor on ``tp=2`` exports a weight of 8 rows as ``Slices(0)``, two engines load all of it::

    node   step            reads
    4      actor.weights   -
    5      engine.load     on rank 0: "weights for 5 0" of chunks 0 and 1
                           on rank 1: "weights for 5 1" of chunks 0 and 1

The result of ``actor.weights`` is a value on both ranks, and no rank reads all of it. Its columns are the parts that a
reader needs of it: ``{"weight": {((0, 4), (0, 4)): tensor}}``. So parts travel as columns of any value do: in place
where the reader is in the same process, else directly from GPU to GPU or through the object store, each once.

A sync has a schedule if the layouts of both sides and the parameters are known, and a side declares its layout.

Between processes that share no device the parts do not wait in the store: both sides go through the buckets of the
schedule together (``hfdsl.runtime.weights.exchange``). ``participants`` are those who do, the ranks that send first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hfdsl.plan.resharding import Schedule
from hfdsl.protocols.layouts import Layout

WEIGHTS_FOR = "weights for "
"""Prefix of the columns with the parts of a state for one reader; no declared column has spaces in its name."""


class KeptLayouts(dict[tuple[Any, ...], Any]):
    """Layouts in the memory of a process, which stay there when what they belong to goes to another one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptLayouts, ()


@dataclass(frozen=True)
class ScheduledSync:
    """A load of weights by schedule; nodes are those of the steps, and layouts those of ``schedule``'s two sides.

    With ``broadcast`` rank 0 sends all of it to all ranks at once, in buckets. With ``deltas`` an exchange sends only
    the elements that have changed since the last one. ``stated`` are the names of all parameters that the exporting
    role states, also of those that the other one does not load; ``defaulted`` those of loaded parameters whose dtype is
    the default, unless the exporting role says that it has no more bits.
    """

    state: str
    export: int
    load: int
    schedule: Schedule
    source_layout: Layout
    target_layout: Layout
    broadcast: bool = False
    deltas: bool = False
    stated: frozenset[str] = frozenset()
    defaulted: frozenset[str] = frozenset()

    def column(self, target: int) -> str:
        """The column with the parts for a target rank."""
        return f"{WEIGHTS_FOR}{self.load} {target}"

    @cached_property
    def places(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The local storage of each parameter by side and rank; runs fill it in, always with the same values."""
        return {}

    @cached_property
    def kept(self) -> KeptLayouts:
        """Layouts of its messages that runs in this process have made, by side and rank."""
        return KeptLayouts()

    @property
    def moved_bytes(self) -> int:
        """The bytes that go from process to process."""
        return sum(self.schedule.received)

    @cached_property
    def senders(self) -> tuple[int, ...]:
        """The ranks of the source from which some rank gets a part."""
        return tuple(sorted({source for sources in self.schedule.sources for source in sources}))
