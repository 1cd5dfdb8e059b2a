"""Timelines: what every process does within a step and when, as a run measured it or as a plan predicts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Literal, NamedTuple, TypeAlias

from hfdsl.plan.payloads import Payload, Process
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.rows import RowTable

IntervalKind: TypeAlias = Literal["call", "fused", "wait", "driver"]
"""A node on a rank; several nodes in one call; waiting; the driver's own work."""

# Named tuples, since a step has very many, and making one costs less than making a frozen dataclass.


class Interval(NamedTuple):
    """What a process does from ``start`` to ``stop``; ``rows`` are those that a call is given, where it has some."""

    process: Process
    kind: IntervalKind
    name: str
    start: float
    stop: float
    rows: int | None = None


class Transfer(NamedTuple):
    """Columns on their way: given at ``sent`` and taken at ``arrived``."""

    source: Process
    target: Process
    name: str
    bytes: int
    sent: float
    arrived: float


class MemoryLevel(NamedTuple):
    """How many bytes of columns a process holds at a time."""

    process: Process
    time: float
    bytes: int


class Imbalance(NamedTuple):
    """Of a balanced node the weight of the heaviest chunk, pad rows included, over the mean of all chunks.

    ``in_order`` is what it would be with the rows in their order, ``balanced`` what it is.
    """

    in_order: float
    balanced: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step of a plan: intervals of every process, and what went from one to another.

    ``imbalances`` says of each balanced node what that does to it; of one whose rows were best in their order nothing.

    Times are in seconds; those of a run are since the epoch, each by the clock of the node that its process is on.
    Clocks of several nodes differ: what is on one node can be compared to the microsecond, the rest as far as
    the cluster keeps its clocks.
    """

    plan: str
    number: int
    start: float
    stop: float
    intervals: tuple[Interval, ...]
    transfers: tuple[Transfer, ...] = ()
    levels: tuple[MemoryLevel, ...] = ()
    imbalances: Mapping[str, Imbalance] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long the step took."""
        return self.stop - self.start

    @property
    def calls(self) -> tuple[Interval, ...]:
        """Every rank's part of every node."""
        return tuple(interval for interval in self.intervals if interval.kind == "call")

    @property
    def nodes(self) -> dict[str, tuple[float, float]]:
        """For each node its first rank's start and its last rank's end, counted from the start of the step.

        >>> step = Timeline("flow", 0, 10.0, 12.0, (Interval(("pool", 0), "call", "role.f", 10.5, 11.5),))
        >>> step.nodes, step.seconds
        ({'role.f': (0.5, 1.5)}, 2.0)
        """
        found: dict[str, tuple[float, float]] = {}
        for interval in self.calls:
            start, stop = found.get(interval.name, (interval.start, interval.stop))
            found[interval.name] = min(start, interval.start), max(stop, interval.stop)
        return {name: (start - self.start, stop - self.start) for name, (start, stop) in found.items()}

    @property
    def overlaps(self) -> frozenset[tuple[str, str]]:
        """The pairs of nodes of which some ranks worked at the same time, each in alphabetical order.

        >>> f, g = Interval(("a", 0), "call", "f", 0.0, 2.0), Interval(("b", 0), "call", "g", 1.0, 3.0)
        >>> sorted(Timeline("flow", 0, 0.0, 3.0, (f, g)).overlaps)
        [('f', 'g')]
        """
        found: set[tuple[str, str]] = set()
        open_: list[Interval] = []
        for call in sorted(self.calls, key=lambda call: call.start):
            open_ = [other for other in open_ if other.stop > call.start]
            found |= {(min(call.name, o.name), max(call.name, o.name)) for o in open_ if o.name != call.name}
            open_.append(call)
        return frozenset(found)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as a trace that Perfetto and ``chrome://tracing`` open.

        Raises:
            OSError: where the file cannot be written.
        """
        from hfdsl.plan.trace import TraceFile

        with TraceFile(path) as file:
            file.add(self)


def node_labels(plan: Plan) -> dict[int, str]:
    """The names of all values that are made or given in a step."""
    return {node.id: node.label for node in plan.graph.inputs} | {step.node: step.label for step in plan.steps}


def payload_name(payload: Payload, labels: Mapping[int, str]) -> str:
    """What a payload holds, in words: ``actor.generate (ids, mask)``."""
    columns: dict[int, dict[str, None]] = {}
    for column_slice in payload.slices:
        columns.setdefault(column_slice.node, {})[column_slice.column] = None
    named = ((labels[node], ", ".join(filter(None, own))) for node, own in columns.items())
    return ", ".join(f"{label} ({own})" if own else label for label, own in named)


def call_rows(step: Step, rank: int, table: RowTable) -> int | None:
    """How many rows a rank of a step is given, pad rows included; None where it is given whole values."""
    row_split = table.splits.get(step.node)
    return None if row_split is None else row_split.chunk_size
