"""Processes that send weights by a collective operation, and wait for their readers until these have them."""

from __future__ import annotations

from collections.abc import Mapping

from hfdsl.graph.columns import columns_read
from hfdsl.plan.payloads import Process, planned_topology
from hfdsl.plan.plan import Plan
from hfdsl.plan.segments import dependencies
from hfdsl.plan.transports import broadcasts, exchanges


def weight_senders(plan: Plan) -> Mapping[int, tuple[Process, ...]]:
    """By load, the processes that send its weights from the memory in which they train.

    They do nothing else until the load has ended, so they wait for calls that its processes run before it. Weights that
    are copied first, in flight or through the object store, have no senders here.
    """
    waits, steps = dependencies(plan), {step.node: step for step in plan.steps}
    senders = {
        load: tuple(process for process in participants if process[0] != steps[load].group)
        for load, participants in exchanges(plan, waits).items()
    }
    for export, participants in broadcasts(plan, waits, planned_topology(plan).direct_groups).items():
        for step in plan.steps:
            if any(node == export for node, _ in columns_read(plan.graph, step.node)):
                senders[step.node] = participants[:1]
    return senders
