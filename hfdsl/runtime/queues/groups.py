"""Groups of a queue: how many a dispatch puts in, how many a batch has, and which ones filters leave of a dispatch.

A worked example: four prompts, two responses each, and a filter that keeps groups of two; the queue has groups of two::

    rows before the filter     0 1 | 2 3 | 4 5 | 6 7     groups 0 to 3 of the dispatch
    rows behind it                   0 1 |       2 3     ``kept_groups``: 1 and 3

A dispatch counts four groups whatever is kept, since what is kept is known only when the filter has run; then groups 0
and 2 are lost. A batch without ``rows=`` has four groups, too: those of two such dispatches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfdsl.errors import HfError
from hfdsl.plan.plan import Plan
from hfdsl.plan.rows import RowTable, most_rows, row_table
from hfdsl.plan.sizes import rows_in
from hfdsl.runtime.queues.rows import traced_rows
from hfdsl.runtime.queues.stage_plans import QueueStages
from hfdsl.types.dims import KeptGroups


def groups_of(stages: QueueStages, sizes: Mapping[Any, int]) -> tuple[int | None, int | None]:
    """How many groups a step puts in at most, and how many a batch has; None where a size is unknown."""
    put_in = _most_rows(stages, sizes).rows.get(stages.rows_of)
    taken = row_table(stages.consumer, sizes).rows.get(stages.queue_input)
    group = stages.queue.group
    return (None if put_in is None else put_in // group, None if taken is None else taken // group)


def kept_groups(stages: QueueStages, table: RowTable, put_in: int) -> tuple[int, ...]:
    """By group that filters leave of a dispatch, its place among those before all filters.

    None at all where a step between changes places of rows, so that it is unknown.
    """
    plan, first_rows = stages.producer, range(0, table.rows[stages.rows_of], stages.queue.group)
    traced = traced_rows(plan, table, stages.rows_of, first_rows, lambda node: not _is_filtered(plan, node))
    return () if traced is None else tuple(row * put_in // table.rows[traced[0]] for row in traced[1])


def check_groups(stages: QueueStages, sizes: Mapping[Any, int], put_in: int) -> None:
    """Refuse groups of which a run cannot say which ones a filter removes, or of which prompts they are.

    Raises:
        HfError: HF765 for those.
    """
    table = _most_rows(stages, sizes)
    if stages.loses and kept_groups(stages, table, put_in) != tuple(range(put_in)):
        text = "loses groups to a filter, and which they are cannot be followed from its rows back to that"
        raise HfError("HF765", f"{stages.subject} {text}; filter what is put into the queue")
    inputs = {node.label: table.rows[node.id] for node in stages.producer.graph.inputs}
    uneven = [f"the {rows} rows of '{name}'" for name, rows in inputs.items() if rows % put_in]
    if uneven and stages.queue.late == "refill":
        text = f"dispatches the prompts of late groups again, and {uneven[0]} are not the prompts of {put_in} groups"
        raise HfError("HF765", f'{stages.subject} {text}: give every group as many, or late="drop" or "mask"')


def _is_filtered(plan: Plan, node: int) -> bool:
    """Whether only a run says how many rows a value has."""
    rows = rows_in(plan.inference.values[node])
    return rows is not None and any(isinstance(atom, KeptGroups) for atom in rows.atoms)


def _most_rows(stages: QueueStages, sizes: Mapping[Any, int]) -> RowTable:
    """The rows of a dispatch of which filters keep all."""
    return row_table(stages.producer, sizes, most_rows(stages.producer, sizes) if stages.loses else None)
