"""Loads of weights that arrive in flight: calls in a separate thread, beside the call that runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.reading import Reader
from hfdsl.plan.rows import RowTable
from hfdsl.protocols.call import Call
from hfdsl.runtime.messages import CallResult, SegmentCall, SegmentResult, SegmentSpec
from hfdsl.runtime.rank.arguments import call_arguments
from hfdsl.runtime.rank.in_flight import InFlight
from hfdsl.runtime.rank.role_workers import RoleWorkers
from hfdsl.runtime.rank.store import PayloadContent, Store
from hfdsl.runtime.weights.syncs import loading

CallOf: TypeAlias = Callable[[SegmentCall, Step, int, RowTable], Call]
"""The call of a step on the rank ``step.ranks[index]``."""


@dataclass(slots=True)
class Arrivals:
    """The loads of a rank; they do not affect the running step, since their values and specs are kept separately."""

    group: str
    rank: int
    plans: Mapping[str, Plan]
    steps: Mapping[tuple[str, int], Step]
    workers: RoleWorkers
    in_flight: InFlight
    call_of: CallOf
    _specs: dict[tuple[str, int, int], SegmentSpec] = field(default_factory=dict)

    def arrive(self, call: SegmentCall, spec: SegmentSpec | None, payloads: Sequence[PayloadContent]) -> SegmentResult:
        """Register weights that have arrived, to be loaded between two tokens of the running call."""
        start, store = time.time(), Store()
        for content in payloads:
            store.receive(content)
        key = call.plan, call.routing, call.segment
        if spec is not None:
            self._specs[key] = spec
        spec = self._specs[key]
        plan, calls = self.plans[call.plan], []
        for node in spec.task.steps:
            step = self.steps[call.plan, node]
            index, reader = step.ranks.index(self.rank), Reader(plan.graph.nodes, plan.layouts, spec.table, store.read)
            current = self.call_of(call, step, index, spec.table)
            worker = self.workers[step.role or ""]
            body, arguments = getattr(worker, step.signature.name), call_arguments(step, index, reader)
            if step.sync is not None:
                body, arguments = loading(step, worker, body, arguments, in_place=True)
            arrived, _ = self.in_flight.arriving(call, step, current, body, arguments)
            arrived()
            calls.append(CallResult(step.label, self.rank, start, time.time()))
        return SegmentResult(
            group=self.group,
            rank=self.rank,
            start=start,
            stop=time.time(),
            calls=tuple(calls),
            payload_bytes=(),
            held_bytes=0,
            peak_bytes=0,
        )
