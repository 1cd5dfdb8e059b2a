"""Edges: what every step reads of every value, in bytes, and how it gets there.

A worked example. An actor of two ranks generates 4 rows of 8 bytes. A judge of one rank on another pool scores them,
and the actor updates on them, each rank on the rows that it has made::

    edge                  bytes  moved  transport
    generate to score     32     32     object store
    generate to update    32     0      in process

``bytes`` are those that all ranks of the reader read, and ``moved`` those of them that another process has made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import starmap
from typing import Self, TypeAlias

from hfdsl.graph.columns import columns_read, row_bytes
from hfdsl.graph.program import Input
from hfdsl.plan.payloads import DRIVER_PROCESS, Process, Topology, planned_topology
from hfdsl.plan.plan import DRIVER, Edge, Plan, Step, Transport
from hfdsl.plan.queues import decides
from hfdsl.plan.reading import Read, locate_reads
from hfdsl.plan.rows import RowTable, most_rows, row_table
from hfdsl.plan.segments import dependencies
from hfdsl.plan.sizes import rows_in
from hfdsl.plan.transports import broadcasts, exchanges, goes_direct
from hfdsl.types.dims import KeptGroups

ProcessPair: TypeAlias = tuple[Process, Process]
"""The producer of a value and a reader of it."""


def sizes_known(plan: Plan) -> bool:
    """Whether the plan was compiled for sizes that give every value its number of rows."""
    rows = [size for value in plan.inference.values if (size := rows_in(value)) is not None]
    return all(atom in plan.dims for size in rows for atom in size.atoms if not isinstance(atom, KeptGroups))


def edges(plan: Plan) -> tuple[Edge, ...]:
    """The edges of a plan: the columns that each step reads of each value; bytes where all sizes are known.

    After a filter, and for rows that are balanced by their weights, the bytes are an upper bound.
    """
    table, topology, balanced_by = _most_rows(plan), planned_topology(plan), _output_balance(plan)
    queue_decides, waits = decides(plan), dependencies(plan)
    broadcast, exchanged = frozenset(broadcasts(plan, waits, topology.direct_groups)), exchanges(plan, waits)
    return tuple(
        edge
        for step in plan.steps
        for edge in _StepReads.of(
            plan,
            step,
            table,
            _rebalanced(plan, step, balanced_by),
            _through_queues(plan, step) if queue_decides else frozenset(),
        ).edges(
            topology,
            broadcast | ({step.sync.export} if step.sync is not None and step.node in exchanged else set()),
        )
    )


def direct_pairs(plan: Plan) -> frozenset[ProcessPair]:
    """Who may read from whom without the object store, as far as is known before launch."""
    return frozenset(pair for _, pair in _direct_reads(plan))


def required_pairs(plan: Plan) -> frozenset[tuple[str, ProcessPair]]:
    """The pairs that must have a direct way: the roles placed with ``transport="cuda ipc"``, with their readers."""
    roles = {step.node: step.role for step in plan.steps if step.role is not None}
    placements = plan.deployment.placements
    return frozenset(
        (roles[node], pair)
        for node, pair in _direct_reads(plan)
        if node in roles and placements[roles[node]].transport == "cuda ipc"
    )


def _direct_reads(plan: Plan) -> Iterator[tuple[int, ProcessPair]]:
    """Each value that goes without the object store, with the processes between which it goes."""
    table, balanced_by = _most_rows(plan), _output_balance(plan)
    direct_groups, queue_decides = planned_topology(plan).direct_groups, decides(plan)
    for step in (step for step in plan.steps if not step.custom):
        by_rank = locate_reads(plan, step, table) if table else None
        for node, pairs in _process_pairs(plan, step, by_rank, _rebalanced(plan, step, balanced_by)).items():
            queued = queue_decides and node in _through_queues(plan, step)
            if goes_direct(plan, direct_groups, node, step.group) and not queued:
                yield from ((node, pair) for pair in pairs)


def _most_rows(plan: Plan) -> RowTable | None:
    return row_table(plan, plan.dims, most_rows(plan, plan.dims)) if sizes_known(plan) else None


def _process_pairs(
    plan: Plan, step: Step, by_rank: Sequence[Sequence[Read]] | None, rebalanced: frozenset[int]
) -> dict[int, set[ProcessPair]]:
    """For every value that a step reads, its producers with their readers in other processes.

    Where rows are unknown, every reader may need every chunk: for all values without a row table, else for rebalanced
    ones.
    """
    pairs: dict[int, set[ProcessPair]] = {node: set() for node, _ in columns_read(plan.graph, step.node)}
    unknown = pairs.keys() if by_rank is None else rebalanced
    any_chunk = {(node, chunk) for node in unknown for chunk in range(plan.layouts[node].chunks)}
    for index, rank in enumerate(step.ranks):
        own_chunks = ((read.node, read.chunk) for read in by_rank[index]) if by_rank is not None else ()
        for node, chunk in any_chunk.union(own_chunks):
            if (producer := plan.layouts[node].producer(chunk)) != (step.group, rank):
                pairs[node].add((producer, (step.group, rank)))
    return pairs


def _output_balance(plan: Plan) -> dict[int, int | None]:
    """By which weights the output of each step is balanced; None for rows in their order."""
    balanced_by: dict[int, int | None] = {}
    padded = {step.node for step in plan.steps if step.pad is not None}
    for step in plan.steps:
        followed = (
            balanced_by[node] for node in step.follows if balanced_by.get(node) is not None and node not in padded
        )
        inherited = next(followed, None) if step.chunks > 1 else None
        balanced_by[step.node] = step.balance.query if step.balance else inherited
    return balanced_by


def _rebalanced(plan: Plan, step: Step, balanced_by: Mapping[int, int | None]) -> frozenset[int]:
    """The values whose rows are balanced by other weights than those of the step that reads them.

    Which of their rows a rank reads is decided by weights, which only a run knows.
    """
    sources = {node for node, _ in columns_read(plan.graph, step.node)}
    return frozenset(node for node in sources if balanced_by.get(node) != balanced_by[step.node])


def _through_queues(plan: Plan, step: Step) -> frozenset[int]:
    """The values that a step reads from a queue.

    If the queue is dynamic, their handles wait in the driver until it decides, so they are in the object
    store, and any rank may read any of their rows.
    """
    sources = {node for node, _ in columns_read(plan.graph, step.node)}
    return frozenset(node for node in sources if plan.split.of[node] != plan.split.of[step.node])


@dataclass(frozen=True, slots=True)
class _StepReads:
    """The reads of a step: the columns of each value and, if the row ``table`` is known, the rows of each rank.

    Of ``rebalanced`` and ``queued`` values any rank may read any rows.
    """

    plan: Plan
    step: Step
    table: RowTable | None
    rebalanced: frozenset[int]
    queued: frozenset[int]
    columns: Mapping[int, Sequence[str]]
    by_rank: Sequence[Sequence[Read]] | None

    @classmethod
    def of(
        cls, plan: Plan, step: Step, table: RowTable | None, rebalanced: frozenset[int], queued: frozenset[int]
    ) -> Self:
        """The reads of a step, without columns that are certainly absent."""
        columns: dict[int, dict[str, None]] = {}
        for node, column in columns_read(plan.graph, step.node):
            names = columns.setdefault(node, {})
            if plan.presence.get(node, {}).get(column, True):
                names[column] = None
        by_name = {node: tuple(names) for node, names in columns.items()}
        by_rank = locate_reads(plan, step, table) if table else None
        return cls(plan, step, table, rebalanced, queued, by_name, by_rank)

    def edges(self, topology: Topology, together: frozenset[int]) -> Iterator[Edge]:
        """The edges to the step; ``together`` are values that processes send each other in one operation."""
        sizes = {
            (node, name): _column_bytes(self.plan, node, name) for node, names in self.columns.items() for name in names
        }
        total, moved = self._bytes({column: size or 0 for column, size in sizes.items()})
        pairs = _process_pairs(self.plan, self.step, self.by_rank, self.rebalanced | self.queued)
        for source, names in self.columns.items():
            has_size = self.table is not None or source in self.plan.value_bytes
            has_bytes = (has_size and all(sizes[source, name] is not None for name in names)) or (
                self.step.sync is not None
            )
            yield Edge(
                source=source,
                target=self.step.node,
                columns=tuple(names),
                bytes=total[source] if has_bytes else None,
                moved=moved[source] if has_bytes else None,
                transport=_together(self.plan, self.step, source)
                if source in together
                else self._transport(source, pairs[source], topology),
            )

    def _bytes(self, row_bytes: Mapping[tuple[int, str], int]) -> tuple[dict[int, int], dict[int, int]]:
        """By value the bytes that all ranks read, and those of them that another process has."""
        plan, step = self.plan, self.step
        total, moved = dict.fromkeys(self.columns, 0), dict.fromkeys(self.columns, 0)
        widths = dict[tuple[int, tuple[str, ...]], int]()
        ranks = step.ranks[:1] if step.custom else step.ranks  # the driver reads once what its functions send on
        for rank, rank_reads in zip(ranks, self.by_rank or (), strict=False):
            for read in rank_reads:
                if (read.node, read.columns) not in widths:
                    widths[read.node, read.columns] = sum(row_bytes.get((read.node, name), 0) for name in read.columns)
                rows = 1 if read.rows is None else sum(stop - start for start, stop in read.rows)
                amount = rows * widths[read.node, read.columns]
                total[read.node] += amount
                if step.custom or plan.layouts[read.node].producer(read.chunk) != (step.group, rank):
                    moved[read.node] += amount
        for source in (source for source in self.columns if source in plan.value_bytes):
            if not plan.layouts[source].lists:
                readers = [DRIVER_PROCESS] if step.custom else [(step.group, rank) for rank in step.ranks]
                value_bytes = plan.value_bytes[source] or 0
                total[source] = value_bytes * len(readers)
                moved[source] = value_bytes * sum(reader != plan.layouts[source].producer(0) for reader in readers)
        if step.sync is not None:
            total[step.sync.export], moved[step.sync.export] = sum(step.sync.schedule.needed), step.sync.moved_bytes
        # The row table has rebalanced rows in their order; with weights, every one of them may have to move.
        for source in (self.rebalanced | self.queued) & self.columns.keys():
            moved[source] = total[source]
        return total, moved

    def _transport(self, source: int, pairs: AbstractSet[ProcessPair], topology: Topology) -> Transport:
        """How a value gets from its producers to the step's processes, which are ``pairs`` where they differ."""
        is_input, is_queued = isinstance(self.plan.node(source).op, Input), source in self.queued
        if self.step.custom or (self.plan.layouts[source].group == DRIVER and not is_input):
            return "through driver"
        if is_input:
            return "from caller"
        if self.table and not pairs and not is_queued:
            return "in process"
        if (
            pairs
            and not is_queued
            and goes_direct(self.plan, topology.direct_groups, source, self.step.group)
            and all(starmap(topology.reaches, pairs))
        ):
            return "cuda ipc"
        crosses_hosts = self.table is None or any(
            topology.host_of(producer) != topology.host_of(reader) for producer, reader in pairs
        )
        return "object store" if crosses_hosts else "shared memory"


def _column_bytes(plan: Plan, node: int, column: str) -> int | None:
    """Bytes of one row of a column; of the whole of a value without rows."""
    if node in plan.value_bytes:
        return plan.value_bytes[node]
    return row_bytes(plan.graph, node, column, plan.dims)


def _together(plan: Plan, step: Step, source: int) -> Transport:
    """The links by which processes send each other weights in a broadcast or an exchange."""
    groups = {plan.layouts[source].group, step.group}
    return "nccl" if all(group.pool.use_gpu for group in plan.groups if group.name in groups) else "gloo"
