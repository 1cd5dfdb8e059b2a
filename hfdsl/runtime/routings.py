"""The routings of a plan's steps, which depend on row counts and on measurements of the run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from hfdsl.plan.plan import Plan
from hfdsl.plan.routes import Hints, compute_routes
from hfdsl.plan.rows import row_table
from hfdsl.plan.size_checks import check_sizes
from hfdsl.plan.sizes import row_dims
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.messages import SMALL_PAYLOAD_BYTES
from hfdsl.runtime.rank.store import bytes_of
from hfdsl.runtime.step_routing import Routing
from hfdsl.runtime.timeline import StepRecord
from hfdsl.types.batches import Batch

CALL_SECONDS = 1e-3
"""The cost of a call: a step that takes less time is not worth its own call."""

MEASURED_STEPS = (4, 8, 16, 32)
"""The number of steps after which a run examines how long bodies take."""

CACHED_ROUTINGS = 16
"""The number of routings that a run keeps, most recently used; its processes keep as many specs per segment."""


class Routings:
    """The most recently used routings of a plan, in ``cache``, and the measurements for the next ones."""

    def __init__(self, plan: Plan) -> None:
        self.cache: dict[tuple[tuple[int | None, ...], Hints], Routing] = {}  # least recently used first
        self._plan, self._row_dims = plan, row_dims(plan)
        self._check_sizes = lru_cache(CACHED_ROUTINGS)(lambda sizes: check_sizes(plan, dict(sizes)))
        self._fastest: dict[str, float] = {}  # seconds of the slowest rank, in the fastest step
        self._short_steps: frozenset[int] = frozenset()
        self._measured = 0
        self._generation = 0

    def of(
        self,
        backend: Backend,
        inputs: Mapping[int, Batch],
        sizes: Mapping[Any, int],
        generation: int,
        short_steps: frozenset[int] | None = None,
        queues: frozenset[int] = frozenset(),
    ) -> Routing:
        """The routing for these sizes, in processes of this generation.

        ``short_steps`` are those of an earlier run; the inputs ``queues`` are read where they are. A new routing takes
        the ID of the least recently used one, so its specs replace the old ones in all processes.

        Raises:
            SizeError: HF302, HF319 for sizes that do not work out.
        """
        self._check_sizes(tuple(sizes.items()))
        if generation != self._generation:  # new processes have no specs
            self.cache.clear()
            self._generation = generation
        short_steps = self._find_short_steps() if short_steps is None else short_steps
        hints = Hints(short_steps, self._inline_inputs(inputs) | queues)
        cache, key = self.cache, (tuple(sizes.get(dim) for dim in self._row_dims), hints)
        routing = cache.pop(key, None)
        if routing is None:
            new_routes = compute_routes(self._plan, row_table(self._plan, sizes), backend.topology(self._plan), hints)
            most = max(CACHED_ROUTINGS, self._plan.steps_in_flight + 1)  # those of steps in flight are used last
            routing_id = len(cache) if len(cache) < most else cache.pop(next(iter(cache))).id
            routing = Routing(new_routes, routing_id, hints)
        cache[key] = routing
        return routing

    def measure(self, record: StepRecord) -> None:
        """Record how long the bodies of a step took."""
        self._measured += 1
        if 1 < self._measured <= MEASURED_STEPS[-1]:  # the first step of all loads what bodies import
            slowest: dict[str, float] = {}
            for call in (call for part in record.results for call in part.calls):
                slowest[call.label] = max(slowest.get(call.label, 0.0), call.stop - call.start)
            for label, seconds in slowest.items():
                self._fastest[label] = min(self._fastest.get(label, seconds), seconds)

    def _inline_inputs(self, inputs: Mapping[int, Batch]) -> frozenset[int]:
        """The inputs so small that the average share of a rank of the first step travels with its call."""
        readers = sum(len(step.ranks) for step in self._plan.steps[:1])
        most = readers * SMALL_PAYLOAD_BYTES
        return frozenset(node for node, batch in inputs.items() if bytes_of(batch.__hf_columns__) <= most)

    def _find_short_steps(self) -> frozenset[int]:
        """The steps whose slowest rank took less time than a call, in the fastest of the measured steps.

        On a GPU a body returns before its work is done, so its time says nothing.
        """
        if self._measured in MEASURED_STEPS:
            cpu = {group.name for group in self._plan.groups if not group.pool.use_gpu}
            steps = (step for step in self._plan.steps if step.group in cpu)
            self._short_steps = frozenset(
                step.node for step in steps if self._fastest.get(step.label, CALL_SECONDS) < CALL_SECONDS
            )
        return self._short_steps
