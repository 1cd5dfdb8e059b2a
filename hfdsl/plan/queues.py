"""Queues that decide at run time, and stages that advance in lockstep."""

from __future__ import annotations

from collections.abc import Mapping

from hfdsl.graph.infer import infer
from hfdsl.graph.program import Node, Queue
from hfdsl.graph.queue_problems import loses_groups
from hfdsl.plan.plan import Plan
from hfdsl.plan.rows import row_table


def decides(plan: Plan) -> bool:
    """Whether a queue decides while the plan runs.

    It does not wait, or takes out other rows than a step puts in, or weights arrive in flight, at times that a log has
    to keep.
    """
    if plan.split.queues and any(plan.loads_in_flight(step) for step in plan.steps):
        return True
    rows = row_table(plan, plan.dims).rows
    return any(
        queue.late in ("drop", "refill", "mask") or _takes_other_rows(node, queue, rows)
        for node, queue in plan.split.queues
    )


def out_of_step(plan: Plan) -> bool:
    """Whether a batch of a queue may have rows of several steps: more or fewer than a step puts in, or a filter keeps.

    Such stages are not submitted in rounds, one step of each.
    """
    rows, inference = row_table(plan, plan.dims).rows, infer(plan.graph)
    return any(
        _takes_other_rows(node, queue, rows)
        or (queue.decides and node.batch is not None and loses_groups(inference.rows(node.batch.node)))
        for node, queue in plan.split.queues
    )


def _takes_other_rows(node: Node, queue: Queue, rows: Mapping[int, int]) -> bool:
    """Whether a queue takes out other rows than a step puts in, or rows of which that is unknown."""
    dispatched = rows.get(node.batch.node) if node.batch is not None else None
    return queue.rows is not None and not _equal(rows.get(node.id), dispatched)


def _equal(consumed: int | None, dispatched: int | None) -> bool:
    return consumed is not None and consumed == dispatched
