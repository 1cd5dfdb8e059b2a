"""Channels: which process reads which rows of a value, and how they get there.

Which rows a step reads may depend on a runtime query, such as a filter. A step is *ready* once the results of all
queries that it depends on are in the row table, and *pending* before. What ready steps read is known row by row; of
pending ones, only which columns of which values. In ``actor.update(hf.filter(rollout, critic.accept(rollout)))``::

    step      before the filter has run               after it
    generate  ready: reads its prompts                the same
    accept    ready: reads the rows of its chunks     the same
    update    pending: reads columns of the rollout   ready: reads the kept rows of its chunk

Generate sends before anybody knows which rows update reads. So the columns that update reads leave whole
(``RoutingContext.whole_columns``), before the filter as after it: the ranks that sent them are not called again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hfdsl.graph.columns import columns_read, is_row_weight, origins, result_origins, row_weight_of
from hfdsl.graph.signatures import VALUE
from hfdsl.plan.payloads import ANY_HOST, DRIVER_PROCESS, Destination, Process, Topology
from hfdsl.plan.plan import DRIVER, Plan, Step
from hfdsl.plan.reading import Read, locate_arguments, locate_reads, locate_result, locate_row_weights, locate_whole
from hfdsl.plan.rows import RowTable, RuntimeQuery, runtime_queries
from hfdsl.plan.scheduled import WEIGHTS_FOR
from hfdsl.plan.segments import Dependencies, dependencies
from hfdsl.plan.transports import broadcasts, exchanges, goes_direct

# Named tuples here and in ``deliveries``: they are hashed for every read of every rank.


class Channel(NamedTuple):
    """The channel of rows to a reader: ``direct`` or through the object store, and its destination."""

    direct: bool
    destination: Destination


class ColumnReader(NamedTuple):
    """A stored column of a value, and who reads it: a step or the node of a query or result, and its process group."""

    reader: int
    group: str
    value: int
    column: str


@dataclass(frozen=True, slots=True)
class RoutingContext:
    """Who reads what, as far as the resolved runtime queries decide it.

    ``ready`` are the steps whose rows are known, ``reads[step][process]`` what each process reads in them;
    ``query_reads[query]`` and ``result`` are what the driver reads. ``pending_values`` have a pending reader;
    ``pending_reads`` are the (group, value) pairs that pending steps read. ``whole_columns[value, direct]`` are columns
    that leave before their readers' rows are known, so all rows leave. ``broadcast[value]`` are the processes that take
    part if a value is broadcast, ``exchanged[column]`` those that exchange weights for one reader.
    """

    plan: Plan
    table: RowTable
    topology: Topology
    inline_inputs: frozenset[int]
    dependencies: Dependencies
    ready: tuple[Step, ...]
    reads: Mapping[int, Mapping[Process, tuple[Read, ...]]]
    query_reads: Mapping[int, tuple[Read, ...]]
    result: tuple[Read, ...]
    whole_columns: Mapping[tuple[int, bool], tuple[str, ...]]
    pending_values: frozenset[int]
    pending_reads: frozenset[tuple[str, int]]
    broadcast: Mapping[int, tuple[Process, ...]]
    exchanged: Mapping[str, tuple[Process, ...]]

    @classmethod
    def of(cls, plan: Plan, table: RowTable, topology: Topology, inline_inputs: frozenset[int]) -> RoutingContext:
        """The context of a plan, for the queries whose results are in the row table."""
        graph, waits, readers = plan.graph, dependencies(plan), tuple(_column_readers(plan))

        def known(node: int) -> bool:
            return waits.queries[node] <= table.resolved

        ready = tuple(step for step in plan.steps if known(step.node))
        pending = tuple(step for step in plan.steps if not known(step.node))
        return cls(
            plan=plan,
            table=table,
            topology=topology,
            inline_inputs=inline_inputs,
            dependencies=waits,
            ready=ready,
            reads={step.node: _reads_by_process(plan, step, table) for step in ready},
            query_reads={
                query.node: tuple(_query_reads(plan, query, table))
                for query in runtime_queries(plan)
                if known(query.ref.node)
            },
            result=tuple(
                read for ref in graph.output.refs() if known(ref.node) for read in locate_result(plan, ref, table)
            ),
            whole_columns=_whole_columns(plan, readers, waits, topology),
            pending_values=frozenset(read.value for read in readers if not known(read.reader)),
            pending_reads=frozenset(
                (step.group, node) for step in pending for node, _ in columns_read(graph, step.node)
            ),
            broadcast=broadcasts(plan, waits, topology.direct_groups),
            exchanged=_exchanged(plan, exchanges(plan, waits, topology.exchanging)),
        )

    def producer(self, node: int, chunk: int) -> Process:
        """The process that makes a chunk."""
        return self.plan.layouts[node].producer(chunk)

    def in_place(self, process: Process, read: Read) -> bool:
        """Whether a process reads a chunk that it made itself, without any transfer."""
        return self.plan.optimize.residency and self.producer(read.node, read.chunk) == process

    def channel(self, process: Process, read: Read) -> Channel:
        """The way in which a process receives a value.

        Through the object store rows go to a host once, for all who read them there. Directly they go to each process
        separately, so that none receives rows that only another one reads; so do parts of weights. Row weights go to
        the driver, apart from the rows themselves.
        """
        producer = self.producer(read.node, read.chunk)
        direct = goes_direct(self.plan, self.topology.direct_groups, read.node, process[0])
        # Any process may turn out to read a whole column, so it goes directly only if all of them can reach each other.
        all_connected = direct and (producer[0], process[0]) not in self.topology.partly_connected
        if (read.node, all_connected) in self.whole_columns and not is_row_weight(read.columns[0]):
            return Channel(all_connected, ANY_HOST)
        direct = direct and self.topology.reaches(producer, process)
        separate = direct or read.node in self.inline_inputs or read.columns[0].startswith(WEIGHTS_FOR)
        return Channel(direct, process if separate else self.topology.host_of(process))

    def all_reads(self) -> Iterator[tuple[Process, Read]]:
        """Every read, in program order."""
        for step in self.ready:
            for process, process_reads in self.reads[step.node].items():
                yield from ((process, read) for read in process_reads)
        for driver_reads in (*self.query_reads.values(), self.result):
            yield from ((DRIVER_PROCESS, read) for read in driver_reads)


def _reads_by_process(plan: Plan, step: Step, table: RowTable) -> Mapping[Process, tuple[Read, ...]]:
    if step.custom is not None:
        return {DRIVER_PROCESS: tuple(locate_arguments(plan, step, table))}
    by_rank = zip(step.ranks, locate_reads(plan, step, table), strict=True)
    return {(step.group, rank): rank_reads for rank, rank_reads in by_rank}


def _exchanged(plan: Plan, participants: Mapping[int, tuple[Process, ...]]) -> Mapping[str, tuple[Process, ...]]:
    """The columns with the parts for each reader in an exchange."""
    syncs = [step.sync for step in plan.steps if step.sync is not None and step.node in participants]
    return {
        sync.column(target): participants[sync.load]
        for sync in syncs
        for target in range(sync.schedule.target_mesh.world_size)
    }


def _query_reads(plan: Plan, query: RuntimeQuery, table: RowTable) -> Iterator[Read]:
    if query.weighs:
        return locate_row_weights(plan, query.ref, table)
    return locate_whole(plan, query.ref, (query.ref.column or VALUE,), table)


def _whole_columns(
    plan: Plan, readers: Sequence[ColumnReader], waits: Dependencies, topology: Topology
) -> Mapping[tuple[int, bool], tuple[str, ...]]:
    """The columns with a reader that depends on a query on which the value itself does not depend.

    This depends on the plan alone, never on which queries are resolved: a value that left before a query was resolved
    must leave in the same payloads in the routes after it, since those who sent it are not called again.
    """
    columns: dict[tuple[int, bool], dict[str, None]] = {}
    for reader, group, value, column in readers:
        if not waits.queries[reader] <= waits.queries[value] | waits.early_queries:
            all_connected = (plan.layouts[value].group, group) not in topology.partly_connected
            direct = all_connected and goes_direct(plan, topology.direct_groups, value, group)
            columns.setdefault((value, direct), {})[column] = None
    return {key: tuple(names) for key, names in columns.items()}


def _column_readers(plan: Plan) -> Iterator[ColumnReader]:
    """The columns that steps, queries and the caller read, independent of rows."""
    graph = plan.graph
    for step in plan.steps:
        group = DRIVER if step.custom else step.group
        yield from (ColumnReader(step.node, group, *pair) for pair in columns_read(graph, step.node))
    for query in runtime_queries(plan):
        for node, column in origins(graph, query.ref.node, query.ref.column or VALUE):
            yield ColumnReader(query.ref.node, DRIVER, node, row_weight_of(column) if query.weighs else column)
    for ref in graph.output.refs():
        yield from (ColumnReader(ref.node, DRIVER, *pair) for pair in result_origins(graph, ref))
