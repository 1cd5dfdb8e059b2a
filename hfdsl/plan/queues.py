"""Queues that decide at run time, and stages that advance in lockstep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hfdsl.graph.ancestry import descendants
from hfdsl.graph.infer import infer
from hfdsl.graph.program import Node, Queue, RoleCall
from hfdsl.graph.queue_problems import loses_groups
from hfdsl.graph.stages import effects
from hfdsl.plan.plan import Plan
from hfdsl.plan.rows import row_table, runtime_queries


def decides(plan: Plan) -> bool:
    """Whether the plan has a dynamic queue, which decides while it runs.

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


def training_calls(plan: Plan) -> frozenset[int]:
    """The calls that train a state, by which a step ends that has no result: weights may arrive later.

    A load waits for the calls of its process that were submitted before it, which are of later steps.
    """
    training = (node.id for node in plan.graph.calls if any(effect.kind == "writes" for _, effect in effects(node)))
    return frozenset(training)


def queried_calls(plan: Plan) -> Iterator[tuple[Node, RoleCall]]:
    """The calls of roles that wait for the rows that filters keep, or for row weights."""
    behind = descendants(plan.graph, [query.node for query in runtime_queries(plan)])
    yield from ((node, node.op) for node in plan.graph.calls if isinstance(node.op, RoleCall) and node.id in behind)


def _takes_other_rows(node: Node, queue: Queue, rows: Mapping[int, int]) -> bool:
    """Whether a queue takes out other rows than a step puts in, or rows of which that is unknown."""
    dispatched = rows.get(node.batch.node) if node.batch is not None else None
    return queue.rows is not None and not _equal(rows.get(node.id), dispatched)


def _equal(consumed: int | None, dispatched: int | None) -> bool:
    return consumed is not None and consumed == dispatched
