"""The routing of a step: first from its initial sizes, then from the results of its runtime queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hfdsl.graph.program import Filter
from hfdsl.plan.plan import Plan
from hfdsl.plan.routes import Hints, Routes, compute_routes
from hfdsl.plan.rows import row_table, runtime_queries
from hfdsl.plan.segments import Segment
from hfdsl.plan.size_checks import check_sizes
from hfdsl.plan.sizes import rows_in
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.driver_reads import DriverReads
from hfdsl.runtime.messages import SegmentSpec
from hfdsl.runtime.timeline import StepLog


@dataclass(slots=True)
class Routing:
    """Routes with an ID, by which ranks find the specs sent to them; a negative ID is for one step alone.

    ``sent_to`` are the segments whose ranks have their specs.
    """

    routes: Routes
    id: int
    hints: Hints
    sent_to: set[int] = field(default_factory=set)

    def specs(self, segment: Segment, *, beside: bool = False) -> list[SegmentSpec | None]:
        """The specs to send to a segment's ranks; None for each rank that has its spec.

        A call that runs ``beside`` others may begin before earlier ones, and has its own.
        """
        if segment.number in self.sent_to and not beside:
            return [None] * len(segment.ranks)
        self.sent_to.add(segment.number)
        tasks = self.routes.tasks[segment.number]
        return [SegmentSpec(tasks[rank], self.routes.table) for rank in segment.ranks]


class StepRouting:
    """The ``current`` routing of a step, and the results of its runtime queries so far."""

    def __init__(self, plan: Plan, backend: Backend, routing: Routing, sizes: Mapping[Any, int], log: StepLog) -> None:
        self._plan, self._backend, self._log = plan, backend, log
        self.current = routing
        self.query_results = log.query_results
        self.sizes = sizes
        self._all_sizes: dict[Any, int] = dict(sizes)  # and, once filters have run, how many rows they keep

    @property
    def routes(self) -> Routes:
        """The transfers of the step, as far as known."""
        return self.current.routes

    @property
    def open_queries(self) -> list[int]:
        """The runtime queries without a result."""
        return [query for query in self.routes.query_payloads if query not in self.query_results]

    def resolve(self, node: int, reads: DriverReads) -> None:
        """Read the rows that a filter keeps, or row weights, and compute the resulting routes.

        Raises:
            SizeError: HF313, HF319, HF321 for what a filter keeps.
        """
        query = next(query for query in runtime_queries(self._plan) if query.node == node)
        with self._log.timed("reads what rows weigh" if query.weighs else "reads what a filter keeps"):
            reader = reads.reader(self.routes.query_payloads[node], self.routes.table)
            if query.weighs:
                rows = reads.row_weights(query, reader)
            else:
                rows = reads.kept_rows(query, reader)
                self._check_kept(node, len(rows))
        self.follow({node: rows})

    def follow(self, results: Mapping[int, tuple[int, ...]]) -> None:
        """Compute the routes from further results."""
        self.query_results |= results
        table, hints = row_table(self._plan, self.sizes, self.query_results), self.current.hints
        new_routes = compute_routes(self._plan, table, self._backend.topology(self._plan), hints)
        self.current = Routing(new_routes, -1 - len(self.query_results), hints)

    def _check_kept(self, filter_node: int, rows: int) -> None:
        """Check the sizes that depend on a filter; HF319 if they do not fit."""
        node, size = self._plan.node(filter_node), rows_in(self._plan.inference.values[filter_node])
        group_size = node.op.group if isinstance(node.op, Filter) else 1
        self._all_sizes |= dict.fromkeys(size.atoms if size is not None else (), rows // group_size)
        check_sizes(self._plan, self._all_sizes)
