"""Memory: the most bytes of columns that each process holds within a step, and what leaves it.

A worked example: a rank of an actor generates 8 rows of 1,000 bytes from prompts of 100 bytes, and later updates on
them with advantages of 4 bytes::

    segment    event                         holds
    generate   receives 8 prompts              800
               keeps the rollout             8,800    the most
               drops the prompts             8,000    nothing here reads them any more
    update     receives 8 advantages         8,032

These events are those of the rank's ``Store``, in the same order, so the run holds as much. Tensors that bodies make
for themselves are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hfdsl.graph.columns import row_bytes, stored_spec
from hfdsl.graph.signatures import VALUE, ListType, RecordType
from hfdsl.plan.payloads import ColumnSlice, Payload, PayloadKey, Process
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.plan.routes import Phase, Routes
from hfdsl.plan.rows import RowTable
from hfdsl.plan.scheduled import WEIGHTS_FOR
from hfdsl.plan.segments import Task
from hfdsl.types.batches import schema
from hfdsl.types.columns import MetricSpec, ObjSpec

MAX_PRINTED_PROCESSES = 1024
"""Processes of the largest plan that is printed with its memory: beyond it, routing a step takes noticeable time."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The bytes that a process holds and sends in a step.

    ``bytes`` is the most that it holds at once: results that it reads again, and what it received; ``step`` is where.
    ``payloads`` and ``sent_bytes`` are the number and the size of what leaves it. A column that may be absent is
    counted as present. Columns in ``unsized`` are not counted: their sizes are not known before a run.
    ``sends_unsized`` says whether some of them leave the process.
    """

    process: Process
    bytes: int
    step: str
    payloads: int
    sent_bytes: int
    unsized: tuple[str, ...]
    sends_unsized: bool = False


def process_memory(plan: Plan, sizes: Mapping[Any, int], order: Iterable[Phase]) -> dict[Process, ProcessMemory]:
    """The memory of every process that runs a step, over the phases of the step."""
    stores: dict[Process, _Store] = {}
    payloads: dict[PayloadKey, Payload] = {}
    for phase in order:
        measure = Measure(plan, phase.routes.table, sizes)
        # Phases differ in what is known: a payload of an earlier one may be received in a later one.
        payloads |= {payload.key: payload for payload in _payloads(phase.routes)}
        for segment in (segment for segment in phase.segments if segment.group != DRIVER):
            for rank in segment.ranks:
                store = stores.setdefault((segment.group, rank), _Store(measure))
                store.measure = measure
                task = phase.routes.tasks[segment.number][rank]
                received = [payloads[key] for key in phase.routes.receives[segment.number].get(rank, ())]
                received = [payload for payload in received if not _is_exchanged(payload)]
                store.run(task, received, {node: plan.layouts[node].holders.index(rank) for node in task.keeps})
    labels = {step.node: step.label for step in plan.steps}
    return {
        process: ProcessMemory(
            process=process,
            bytes=store.peak,
            step=labels[store.peak_step],
            payloads=store.payloads,
            sent_bytes=store.sent_bytes,
            unsized=tuple(store.unsized),
            sends_unsized=store.sends_unsized,
        )
        for process, store in stores.items()
    }


def peaks(processes: Iterable[ProcessMemory]) -> tuple[ProcessMemory, ...]:
    """For each group the process that holds most."""
    fullest: dict[str, ProcessMemory] = {}
    for memory in processes:
        group = memory.process[0]
        if group not in fullest or memory.bytes > fullest[group].bytes:
            fullest[group] = memory
    return tuple(fullest.values())


def _payloads(routes: Routes) -> Iterable[Payload]:
    for by_rank in routes.tasks.values():
        for task in by_rank.values():
            yield from task.sends
    for payloads in routes.driver_sends.values():
        yield from payloads


def _is_exchanged(payload: Payload) -> bool:
    """Whether it has weights that arrive bucket by bucket: those are never in the store of their reader."""
    return bool(payload.broadcast) and payload.slices[0].column.startswith(WEIGHTS_FOR)


@dataclass(slots=True)
class _Store:
    """The bytes that a process holds, counted as ``hfdsl.runtime.rank.store`` counts them."""

    measure: Measure
    bytes: dict[int, int] = field(default_factory=dict)
    peak: int = -1
    peak_step: int = 0
    payloads: int = 0
    sent_bytes: int = 0
    unsized: dict[str, None] = field(default_factory=dict)
    sends_unsized: bool = False

    def run(self, task: Task, received: Iterable[Payload], kept_chunks: Mapping[int, int]) -> None:
        """Count a segment: what it receives, what each of its steps keeps and drops, and what it sends."""
        first = task.steps[0]
        for part in (part for payload in received for part in payload.slices):
            self._add(part.node, self._size(part), first)
        self._add(first, 0, first)
        for node in task.steps:
            if node in kept_chunks:
                self._add(node, sum(map(self._size, self.measure.chunk(node, kept_chunks[node]))), node)
            for dropped in task.drops.get(node, ()):
                self.bytes.pop(dropped, None)
        for payload in task.sends:
            self.payloads += 1
            self.sent_bytes += sum(map(self._size, payload.slices))
            self.sends_unsized |= any(self.measure.size(part) is None for part in payload.slices)

    def _size(self, part: ColumnSlice) -> int:
        size = self.measure.size(part)
        if size is None:
            self.unsized[self.measure.name(part)] = None
        return size or 0

    def _add(self, node: int, more: int, step: int) -> None:
        self.bytes[node] = self.bytes.get(node, 0) + more
        total = sum(self.bytes.values())
        if total > self.peak:
            self.peak, self.peak_step = total, step


class Measure:
    """Bytes of column slices, for one table of rows."""

    def __init__(self, plan: Plan, table: RowTable, sizes: Mapping[Any, int]) -> None:
        self._plan, self._table, self._sizes = plan, table, sizes
        self._rows: dict[tuple[int, str], int | None] = {}
        self._parts = dict[tuple[int, int], dict[str, int]]()
        for sync in (step.sync for step in plan.steps if step.sync is not None):
            for target, by_source in enumerate(sync.schedule.traffic):
                for source, size in by_source.items():
                    self._parts.setdefault((sync.export, source), {})[sync.column(target)] = size

    def chunk(self, node: int, chunk: int) -> tuple[ColumnSlice, ...]:
        """All columns of a chunk."""
        result_type = self._plan.node(node).result
        columns = tuple(schema(result_type.record).fields) if isinstance(result_type, RecordType) else (VALUE,)
        columns = tuple(self._parts.get((node, chunk), columns))
        bounds = self._table.bounds.get(node)
        rows = ((0, bounds[chunk + 1] - bounds[chunk]),) if bounds else None
        return tuple(ColumnSlice(node, chunk, column, rows) for column in columns)

    def size(self, part: ColumnSlice) -> int | None:
        """Bytes of a slice; None if unknown before a run."""
        if not self._plan.presence.get(part.node, {}).get(part.column, True):
            return 0
        result_type = self._plan.node(part.node).result
        spec = stored_spec(result_type, part.column)
        if isinstance(spec, MetricSpec):
            return 0
        if (parts := self._parts.get((part.node, part.chunk))) is not None:
            return parts[part.column]
        if part.node in self._plan.value_bytes:
            return self._plan.value_bytes[part.node]
        if isinstance(result_type, ListType) or isinstance(spec, ObjSpec):
            return None
        if (part.node, part.column) not in self._rows:
            self._rows[part.node, part.column] = row_bytes(self._plan.graph, part.node, part.column, self._sizes)
        per_row = self._rows[part.node, part.column]
        if per_row is None or part.rows is None:
            return None
        return per_row * sum(stop - start for start, stop in part.rows)

    def name(self, part: ColumnSlice) -> str:
        """A column in words."""
        return ".".join(filter(None, (self._plan.node(part.node).label, part.column)))
