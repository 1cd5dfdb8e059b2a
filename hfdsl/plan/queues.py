"""Queues that decide at run time, and stages that advance in lockstep."""

from __future__ import annotations

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
        queue.late in ("drop", "refill", "mask")
        or (queue.rows is not None and not _equal(rows.get(node.id), rows.get(node.batch.node if node.batch else -1)))
        for node, queue in plan.split.queues
    )


def _equal(consumed: int | None, dispatched: int | None) -> bool:
    return consumed is not None and consumed == dispatched
