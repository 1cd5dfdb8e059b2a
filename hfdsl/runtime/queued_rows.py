"""The rows of queues in a run: a queue takes out what one step puts in."""

from __future__ import annotations

from hfdsl.errors import HfError
from hfdsl.plan.plan import Plan
from hfdsl.plan.rows import RowTable


def check_queued_rows(plan: Plan, table: RowTable) -> None:
    """Refuse a queue that takes out other numbers of rows than a step puts in.

    Raises:
        HfError: HF765 naming the queue.
    """
    for node, queue in plan.split.queues:
        source = node.batch
        put, taken = table.rows.get(source.node) if source else None, table.rows.get(node.id)
        if put is not None and taken is not None and put != taken:
            raise HfError(
                "HF765",
                f"the queue in line {node.span.line} of '{plan.name}' takes out {taken} rows (rows={queue.rows}), and "
                f"a step puts in {put}; a run takes out what a step puts in, so leave rows= out",
            )
