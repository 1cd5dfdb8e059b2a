"""Followed queues: can a run follow the decisions of the program's queues, as far as the program shows it?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.rules.queues.sources import batch_rows, put_in
from hfdsl.graph.program import Input, Node, Queue
from hfdsl.graph.queue_problems import queue_problems, takes_weights_in_flight
from hfdsl.graph.row_steps import FillStep, PartStep, QueueStep, TakeStep
from hfdsl.graph.signatures import RecordType
from hfdsl.types.batches import schema
from hfdsl.types.dims import Answer


def runs_follow_queues(context: Context) -> Iterator[Finding]:
    """HF765: results, masks and stages of a program are such that its queues can decide during a run."""
    program = context.program
    if not surely_decides(context):
        return
    reported = set[int]()
    for queue, problem in queue_problems(program.graph, program.inference):
        if queue.id not in reported:
            reported.add(queue.id)
            node = program.graph.nodes[problem.node] if problem.node is not None else None
            yield _finding(queue, problem.text, (Label(node.span, f"'{node.label}'"),) if node is not None else ())


def runs_follow_groups(context: Context) -> Iterator[Finding]:
    """HF765: the groups of a step are of as many prompts, or groups in front, and alike in all queues of a stage."""
    split = context.program.split
    first = dict[int, Node]()
    for node, queue in split.queues if surely_decides(context) else ():
        groups = _groups(context, node, queue)
        stage = split.producer(node)
        neighbor = first.setdefault(stage, node)
        if groups is None:
            continue
        dispatched, batch = groups
        if queue.late == "refill":
            yield from _uneven_prompts(context, node, dispatched)
        yield from _other_groups(context, node, dispatched)
        if neighbor is node or not isinstance(neighbor.op, Queue):
            continue
        others = _groups(context, neighbor, neighbor.op)
        shown = (Label(neighbor.span, "is fed by the same stage"),)
        if others is not None and others != groups:
            text = f"gets {dispatched} groups a step and has {batch} in a batch, but another queue of its stage gets "
            yield _finding(node, f"{text}{others[0]} and has {others[1]}: one would fill up before the other", shown)
        elif "drop" in (queue.late, neighbor.op.late) and batch % dispatched:
            text = f"a batch of {batch} groups is not made of whole steps of {dispatched}, where queues of one stage "
            yield _finding(node, f"{text}drop groups: one queue could fill up, and the other never", shown)


def _other_groups(context: Context, node: Node, dispatched: int) -> Iterator[Finding]:
    """A queue whose stage takes other groups from the queue in front than it makes of them."""
    split = context.program.split
    for in_front, queue in split.queues:
        groups = _groups(context, in_front, queue) if split.of[in_front.id] == split.producer(node) else None
        if groups is not None and groups[1] != dispatched:
            text = (
                f"gets {dispatched} groups from a stage that takes {groups[1]} from the queue in front of it, so a run "
            )
            shown = (Label(in_front.span, f"in groups of {queue.group}"),)
            yield _finding(node, f"{text}could not tell which prompts they belong to: give both the same group=", shown)


def _uneven_prompts(context: Context, node: Node, dispatched: int) -> Iterator[Finding]:
    """Rows that are not the prompts of a queue's groups: those of an input, or a part of the rows of a step."""
    split, graph = context.program.split, context.program.graph
    for source in graph.nodes:
        if isinstance(source.op, Input) and split.of[source.id] == split.producer(node):
            rows = context.program.inference.rows(source.id)
            count = None if rows is None else context.known(rows).value
            if count is not None and count % dispatched:
                text = f"dispatches the prompts of late groups again, but the {count} rows of '{source.label}' are not "
                advice = 'give every group equally many, or use late="drop" or "mask"'
                yield _finding(node, f"{text}the prompts of {dispatched} groups: {advice}", ())
                return
    if (part := next(_parts(context, node), None)) is not None:
        text = "dispatches the prompts of late groups again, but a group's place is not that of its prompt: it gets"
        yield _finding(node, f'{text} {part}; put in all rows, or use late="drop" or "mask"', ())


def _parts(context: Context, queue: Node) -> Iterator[str]:
    """Parts of the rows of a step that are put into a queue, in words."""
    if queue.batch is None or not isinstance(queue.result, RecordType):
        return
    for column in schema(queue.result.record).fields:
        origin = context.program.origins.rows_of(queue.batch.node, column)
        for step in takewhile(lambda step: not isinstance(step, QueueStep), origin.steps if origin else ()):
            if isinstance(step, (TakeStep, FillStep)) and context.known(step.before).value not in (None, step.rows):
                yield step.words(f"{context.known(step.before).value} rows")
            elif isinstance(step, PartStep) and step.count > 1:
                yield step.words("the rows of a step")


def surely_decides(context: Context) -> bool:
    """Whether a queue certainly decides.

    Late groups leave, a batch has other rows than a step puts in, or weights arrive in flight.
    """
    program = context.program
    in_flight = takes_weights_in_flight(program.graph)
    return not (program.split.around or program.graph.misuses or program.inference.misfits) and any(
        in_flight
        or queue.late in ("drop", "refill", "mask")
        or (queue.rows is not None and batch_rows(context, node, queue).equals(put_in(context, node)) is Answer.REFUTED)
        for node, queue in program.split.queues
    )


def _groups(context: Context, node: Node, queue: Queue) -> tuple[int, int] | None:
    """The groups that a step puts into a queue, and those of a batch; None if unknown, or not whole (HF745)."""
    rows = [size.value for size in (put_in(context, node), batch_rows(context, node, queue))]
    if any(not count or count % queue.group for count in rows):
        return None
    dispatched, batch = (int(count or 0) // queue.group for count in rows)
    return dispatched, batch


def _finding(queue: Node, text: str, shown: tuple[Label, ...]) -> Finding:
    return Finding("HF765", f"the queue is dynamic, and {text}", Label(queue.span, "dynamic"), shown)
