"""The call of a step on a rank, as its body sees it, and the names of the rank's rows in messages."""

from __future__ import annotations

from collections.abc import Callable

from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.rows import RowTable
from hfdsl.protocols.call import Call, WeightLoads
from hfdsl.runtime.messages import SegmentCall
from hfdsl.runtime.queues.rows import queued_versions


def call_of_step(
    plan: Plan,
    call: SegmentCall,
    step: Step,
    index: int,
    table: RowTable,
    *,
    rank: int,
    seed: int,
    loads: WeightLoads | None,
) -> Call:
    """The call of a step on a rank, which is at ``index`` among those of the step."""
    row_split, chunk = table.splits.get(step.node), step.chunk_of[index]
    rows = row_split.chunk_size if row_split else None
    balanced = row_split.positions(chunk) if row_split else None
    version, rows_version = plan.counts.versions(step.node, call.step, call.stage_steps)
    row_versions = queued_versions(plan, table, step, chunk, call.row_versions) if call.row_versions else None
    return Call(
        seed=seed,
        step=call.step,
        node=step.call,
        rank=rank,
        first_row=balanced[0] if balanced else chunk * (rows or 0),
        row_count=rows,
        dataflow=plan.dataflow,
        balanced_rows=balanced,
        version=version,
        rows_version=rows_version if row_versions is None else min(row_versions, default=version),
        row_versions=row_versions,
        loads=loads,
    )


def row_name(call: Call) -> Callable[[int], str]:
    """The name of a row of a rank's chunk in messages: its number in the call, and that on the rank.

    >>> row_name(Call(seed=0, step=1, node=2, rank=1, first_row=4, row_count=4))(2)
    'row 6 (row 2 of rank 1)'
    """

    def name(row: int) -> str:
        if call.row_count is None or row >= call.row_count:
            return f"row {row} of rank {call.rank}"
        number = call.balanced_rows[row] if call.balanced_rows else call.first_row + row
        return f"row {number} (row {row} of rank {call.rank})"

    return name
