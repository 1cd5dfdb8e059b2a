"""Groups of a queue: how many a dispatch adds, how many a batch takes, and which ones filters keep.

A worked example: four prompts, two responses each, and a filter that keeps groups of two; the queue has groups of two::

    rows before the filter     0 1 | 2 3 | 4 5 | 6 7     groups 0 to 3 of the dispatch
    rows behind it                   0 1 |       2 3     ``kept_groups``: 1 and 3

A dispatch counts as four groups whatever is kept, since the kept groups are known only after the filter has run; groups
0 and 2 are then lost. A batch without ``rows=`` has four groups, too, which here come from two dispatches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from hfdsl.errors import HfError, SizeError
from hfdsl.plan.plan import Plan
from hfdsl.plan.rows import RowTable, most_rows, row_table
from hfdsl.plan.sizes import rows_in
from hfdsl.protocols.queueing import batches_in_words
from hfdsl.runtime.queues.links import TRAINER, QueueLinks
from hfdsl.runtime.queues.rows import input_rows, traced_rows
from hfdsl.runtime.queues.stage_plans import QueueStages, StagedQueue
from hfdsl.runtime.schedule import QueueSpec
from hfdsl.types.dims import KeptGroups


def queue_specs(stages: QueueStages, sizes: Mapping[Any, int]) -> list[QueueSpec]:
    """The queues of a program, for these sizes.

    Raises:
        HfError: HF765 if a run cannot follow their groups.
        SizeError: HF745 if rows are not whole groups, HF760 if a queue would never fill a batch.
    """
    queues, links = stages.queues, stages.links
    specs = [_spec(queue, sizes, trains=link.reads == TRAINER) for queue, link in zip(queues, links.of, strict=True)]
    for index, (queue, spec) in enumerate(zip(queues, specs, strict=True)):
        check_groups(queue, sizes, spec.dispatch)
        for in_front in links.read_by(links.of[index].feeds):
            check_handed_on(queue, queues[in_front], sizes, specs[in_front].batch)
    check_side_by_side(queues, specs, links)
    check_sources(queues, specs, links)
    return specs


def _spec(queue: StagedQueue, sizes: Mapping[Any, int], *, trains: bool) -> QueueSpec:
    put_in, batch_groups = groups_of(queue, sizes)
    return QueueSpec(
        name=queue.name,
        lag=queue.queue.lag or 0,
        late=queue.queue.late or "wait",
        batch=batch_groups or 1,
        dispatch=put_in or 1,
        loses=queue.loses,
        trains=trains,
    )


def groups_of(queue: StagedQueue, sizes: Mapping[Any, int]) -> tuple[int | None, int | None]:
    """The maximum number of groups per step, and the number per batch; None if a size is unknown.

    Raises:
        SizeError: HF745 if the rows of either are not whole groups.
    """
    put_in = dispatched_rows(queue, sizes).rows.get(queue.rows_of)
    batch_rows = row_table(queue.consumer, sizes).rows.get(queue.queue_input)
    group = queue.queue.group
    for words, rows in (("a step puts in", put_in), ("a batch has", batch_rows)):
        if rows is not None and rows % group:
            raise SizeError("HF745", cut_group(queue.subject, words, rows, group))
    return (None if put_in is None else put_in // group, None if batch_rows is None else batch_rows // group)


def cut_group(subject: str, words: str, rows: int, group: int) -> str:
    """The text of an error about rows that are not whole groups of a queue."""
    text = f"{words} a number of rows, {rows}, that is not divisible by its group={group}"
    return f"{subject} cuts a group: {text}; give every step whole groups"


def are_known(queue: StagedQueue, sizes: Mapping[Any, int]) -> bool:
    """Whether these sizes determine the groups of a queue, and the rows of the inputs that they come from."""
    rows = dispatched_rows(queue, sizes).rows
    return None not in groups_of(queue, sizes) and all(node.id in rows for node in queue.producer.graph.inputs)


def kept_groups(queue: StagedQueue, table: RowTable, put_in: int) -> tuple[int, ...]:
    """The place of each kept group of a dispatch among all of its groups.

    Empty if the places are unknown, since a step in between moves rows.
    """
    plan, first_rows = queue.producer, range(0, table.rows[queue.rows_of], queue.queue.group)
    traced = traced_rows(plan, table, queue.rows_of, first_rows, lambda node: not _is_filtered(plan, node))
    return () if traced is None else tuple(row * put_in // table.rows[traced[0]] for row in traced[1])


def check_groups(queue: StagedQueue, sizes: Mapping[Any, int], put_in: int) -> None:
    """Refuse groups for which a run cannot determine which ones a filter removes, or which prompts they belong to.

    Raises:
        HfError: HF765 for those.
    """
    table = dispatched_rows(queue, sizes)
    if queue.loses and kept_groups(queue, table, put_in) != tuple(range(put_in)):
        text = "loses groups to a filter, and its rows cannot be traced back to that filter to tell which ones"
        raise HfError("HF765", f"{queue.subject} {text}; filter what is put into the queue")
    inputs = {node.label: table.rows[node.id] for node in queue.producer.graph.inputs}
    uneven = [f"the {rows} rows of '{name}'" for name, rows in inputs.items() if rows % put_in]
    if queue.queue.late != "refill":
        return
    again = f"{queue.subject} dispatches the prompts of late groups again"
    if uneven:
        text = f"{uneven[0]} are not the prompts of {put_in} groups: give every group equally many"
        raise HfError("HF765", f'{again}, and {text}, or use late="drop" or "mask"')
    rows = range(table.rows[queue.rows_of])
    traced = input_rows(queue.producer, table, queue.rows_of, rows)
    if traced is not None:
        per_group = table.rows[traced[0]] // put_in
        if [row // per_group for row in traced[1]] != [row // queue.queue.group for row in rows]:
            text = "but a group's place is not that of its prompt, since it gets a part of the rows of a step"
            raise HfError("HF765", f'{again}, {text}; put in all rows, or use late="drop" or "mask"')


def check_handed_on(queue: StagedQueue, in_front: StagedQueue, sizes: Mapping[Any, int], batch: int) -> None:
    """Refuse a stage between two queues that makes other groups than it takes, since their prompts would be unknown.

    Raises:
        HfError: HF765 for those.
    """
    plan, table = queue.producer, dispatched_rows(queue, sizes)
    rows = range(table.rows[queue.rows_of])
    traced = input_rows(plan, table, queue.rows_of, rows)
    source_groups = None if traced is None else [row // in_front.queue.group for row in traced[1]]
    if source_groups != [row // queue.queue.group for row in rows] or len(rows) != batch * queue.queue.group:
        raise HfError(
            "HF765",
            f"{queue.subject} follows another queue, and the stage between them does not make one group from each of "
            f"the {batch} that it takes, in order: a run could not tell which prompts the groups belong to",
        )


def check_side_by_side(queues: Sequence[StagedQueue], specs: Sequence[QueueSpec], links: QueueLinks) -> None:
    """Refuse queues of one stage if one can be full while another has too few groups for a batch.

    A worked example: two queues with places for 2 R groups, batches of R groups, and a step that puts equally many
    groups into both. The second queue drops late groups, the first does not. After an update, the first has R free
    places. If D divides R, whole dispatches of D groups then add R groups to the second queue: they have the current
    version, so none of them is late, and another update follows. If D does not divide R, the first queue is full before
    R groups are added.

    Raises:
        HfError: HF765 for those.
    """
    for stage in (*links.sources, *links.between):
        fed = [(queues[index], specs[index]) for index in links.fed_by(stage)]
        (first, first_spec), *others = fed
        for queue, spec in others:
            if (spec.dispatch, spec.batch) != (first_spec.dispatch, first_spec.batch):
                has = f"gets {spec.dispatch} groups a step and has {spec.batch} in a batch"
                first_has = f"{first.subject}, of the same stage, gets {first_spec.dispatch} and has {first_spec.batch}"
                raise HfError("HF765", f"{queue.subject} {has}, and {first_has}: one would fill up before the other")
        for queue, spec in fed if others else ():
            if spec.late == "drop" and spec.batch % spec.dispatch:
                text = f"drops groups, while other queues of its stage keep theirs, and a batch of {spec.batch} groups"
                why = f"is not made of whole steps of {spec.dispatch}: one queue could fill up, and the other never"
                raise HfError("HF765", f"{queue.subject} {text} {why}")


def check_sources(queues: Sequence[StagedQueue], specs: Sequence[QueueSpec], links: QueueLinks) -> None:
    """Refuse sources from which an update takes different shares of the loader's batches.

    A worked example: a batch of the loader has four prompts of each of two sources, and an update takes two groups of
    the first source and four of the second. After v updates, the first source has dispatched v / 2 batches plus what
    fits into its queues, and the second source v batches, so v / 2 batches wait in the driver. With equal shares, the
    sources are at most as far apart as their queues have places, apart from groups that are dropped or filtered.

    Raises:
        HfError: HF765 for those.
    """
    shares = {
        Fraction(specs[index].batch, specs[links.fed_by(stage)[0]].dispatch): index
        for stage in links.sources
        for index in links.behind(stage)
        if specs[index].trains
    }
    if len(shares) > 1:
        least, most = min(shares), max(shares)
        less, more = batches_in_words(least), batches_in_words(most)
        text = f"takes {more} of the loader for an update, and {queues[shares[least]].subject} {less}"
        why = "more and more prompts of the latter would wait in the driver; give both a rows= of equally many steps"
        raise HfError("HF765", f"{queues[shares[most]].subject} {text}; {why}")


def _is_filtered(plan: Plan, node: int) -> bool:
    """Whether the number of a value's rows is known only in a run."""
    rows = rows_in(plan.inference.values[node])
    return rows is not None and any(isinstance(atom, KeptGroups) for atom in rows.atoms)


def dispatched_rows(queue: StagedQueue, sizes: Mapping[Any, int]) -> RowTable:
    """The rows of a dispatch whose filters keep everything."""
    return row_table(queue.producer, sizes, most_rows(queue.producer, sizes) if queue.loses else None)
