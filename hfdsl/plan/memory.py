"""Memory: the most bytes of columns that each process holds within a step, and what leaves it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hfdsl.graph.columns import row_bytes, stored_spec
from hfdsl.graph.signatures import VALUE, ListType, RecordType
from hfdsl.plan.payloads import ColumnSlice, Payload, PayloadKey, Process
from hfdsl.plan.phases import Phase
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.plan.routes import Routes
from hfdsl.plan.rows import RowTable
from hfdsl.types.batches import schema
from hfdsl.types.columns import MetricSpec, ObjSpec

FEW = 1024
"""Up to so many processes it takes no time worth mentioning to route a step; a plan of more is printed without."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What a process holds and gives in a step.

    ``bytes`` is the most that it holds at once, of what it made and reads again and of what it was brought; ``step`` is
    where. ``payloads`` and ``given`` are the objects that leave it, and their bytes. A column that may be absent is
    counted as if it were there; those in ``open`` are not counted: nobody knows their sizes before they are there.
    """

    process: Process
    bytes: int
    step: str
    payloads: int
    given: int
    open: tuple[str, ...]


def process_memory(plan: Plan, sizes: Mapping[Any, int], order: Iterable[Phase]) -> dict[Process, ProcessMemory]:
    """What every process holds that runs a step, over the phases of the step."""
    stores: dict[Process, _Store] = {}
    payloads: dict[PayloadKey, Payload] = {}
    for phase in order:
        found = phase.routes
        measure = Measure(plan, found.table, sizes)
        payloads |= {payload.key: payload for payload in _payloads(found)}
        for segment in phase.segments:
            if segment.group == DRIVER:
                continue
            for rank in segment.ranks:
                store = stores.setdefault((segment.group, rank), _Store(measure))
                store.measure = measure
                task = found.tasks[segment.number][rank]
                taken = [payloads[key] for key in found.receives[segment.number].get(rank, ())]
                store.bring((cut for payload in taken for cut in payload.slices), task.steps[0])
                for node in task.steps:
                    if node in task.keeps:
                        store.keep(node, plan.layouts[node].holders.index(rank))
                    for dead in task.drops.get(node, ()):
                        store.bytes.pop(dead, None)
                store.give(task.sends)
    labels = {step.node: step.label for step in plan.steps}
    return {
        process: ProcessMemory(process, s.most, labels[s.at], s.payloads, s.given, tuple(s.open))
        for process, s in stores.items()
    }


def peaks(every: Iterable[ProcessMemory]) -> tuple[ProcessMemory, ...]:
    """For each group the process that holds most."""
    found: dict[str, ProcessMemory] = {}
    for one in every:
        group = one.process[0]
        if group not in found or one.bytes > found[group].bytes:
            found[group] = one
    return tuple(found.values())


def _payloads(found: Routes) -> Iterable[Payload]:
    for by_rank in found.tasks.values():
        for task in by_rank.values():
            yield from task.sends
    for puts in found.driver_sends.values():
        yield from puts


@dataclass(slots=True)
class _Store:
    """What a process holds, as ``hfdsl.runtime.store`` counts it."""

    measure: Measure
    bytes: dict[int, int] = field(default_factory=dict)
    most: int = -1
    at: int = 0
    payloads: int = 0
    given: int = 0
    open: dict[str, None] = field(default_factory=dict)

    def bring(self, cuts: Iterable[ColumnSlice], step: int) -> None:
        for cut in cuts:
            self._add(cut.node, self._size(cut), step)
        self._add(step, 0, step)

    def keep(self, node: int, chunk: int) -> None:
        self._add(node, sum(map(self._size, self.measure.chunk(node, chunk))), node)

    def give(self, payloads: Iterable[Payload]) -> None:
        for payload in payloads:
            self.payloads += 1
            self.given += sum(map(self._size, payload.slices))

    def _size(self, cut: ColumnSlice) -> int:
        size = self.measure.size(cut)
        if size is None:
            self.open[self.measure.name(cut)] = None
        return size or 0

    def _add(self, node: int, more: int, step: int) -> None:
        self.bytes[node] = self.bytes.get(node, 0) + more
        now = sum(self.bytes.values())
        if now > self.most:
            self.most, self.at = now, step


class Measure:
    """Bytes of cuts, for one table of rows."""

    def __init__(self, plan: Plan, table: RowTable, sizes: Mapping[Any, int]) -> None:
        self._plan, self._table, self._sizes = plan, table, sizes
        self._rows: dict[tuple[int, str], int | None] = {}

    def chunk(self, node: int, chunk: int) -> tuple[ColumnSlice, ...]:
        """All columns of a chunk."""
        kind = self._plan.node(node).result
        columns = tuple(schema(kind.record).fields) if isinstance(kind, RecordType) else (VALUE,)
        bounds = self._table.bounds.get(node)
        spans = ((0, bounds[chunk + 1] - bounds[chunk]),) if bounds else None
        return tuple(ColumnSlice(node, chunk, column, spans) for column in columns)

    def size(self, cut: ColumnSlice) -> int | None:
        """Bytes of a cut; None where nobody knows them."""
        if not self._plan.presence.get(cut.node, {}).get(cut.column, True):
            return 0
        kind = self._plan.node(cut.node).result
        spec = stored_spec(kind, cut.column)
        if isinstance(spec, MetricSpec):
            return 0
        if isinstance(kind, ListType) or isinstance(spec, ObjSpec):
            return None
        if (cut.node, cut.column) not in self._rows:
            self._rows[cut.node, cut.column] = row_bytes(self._plan.graph, cut.node, cut.column, self._sizes)
        per_row = self._rows[cut.node, cut.column]
        if spec is None or cut.rows is None:
            return 0 if spec is None else None
        return None if per_row is None else per_row * sum(last - first for first, last in cut.rows)

    def name(self, cut: ColumnSlice) -> str:
        """A column in words."""
        return ".".join(filter(None, (self._plan.node(cut.node).label, cut.column)))
