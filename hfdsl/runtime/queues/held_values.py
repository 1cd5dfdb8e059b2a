"""Whether the rows in the queues of a checkpoint are the rows that a program reads from its own queues.

A file has values by the numbers of nodes (``queues.files``), and groups are runs of rows of these values. So the stages
in front of the queues must be those of the run that saved it, and the same columns must be read behind them. Whatever
else changes behind a queue, such as a loss, may change. For a program whose queue has groups of two rows::

    0 prompts -> x: i64[B]
    1 repeat(0) of times=2
    2 engine.generate(1) -> y: i64[B]
    3 queue(2) of rows=None, group=2
    2.y is read behind a queue
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import zip_longest

from hfdsl.errors import CheckpointError
from hfdsl.graph.columns import columns_read, result_origins
from hfdsl.graph.program import Derived, Node, Queue
from hfdsl.graph.signatures import RecordType
from hfdsl.plan.plan import Plan
from hfdsl.plan.queues import decides
from hfdsl.runtime.queues.files import SavedStream
from hfdsl.types.batches import schema


def held_values(plan: Plan) -> tuple[str, ...]:
    """The contents of queues in words: the stages in front of them, and the columns that are read behind them."""
    return tuple(_held_values(plan))


def _held_values(plan: Plan) -> Iterator[str]:
    graph, stages = plan.graph, plan.split.of
    in_front = {plan.split.producer(queue) for queue, _ in plan.split.queues}
    for node in graph.nodes:
        if stages[node.id] in in_front or (isinstance(node.op, Queue) and node.op.splits):
            yield f"{node.id} {_in_words(node)}"
    reads = [(call.id, value) for call in graph.calls for value in columns_read(graph, call.id)]
    reads += [(ref.node, value) for ref in graph.output.refs() for value in result_origins(graph, ref)]
    behind = sorted({value for reader, value in reads if stages[value[0]] != stages[reader]})
    yield from (f"{number}.{column} is read behind a queue" for number, column in behind)


def _in_words(node: Node) -> str:
    """A node without the options of calls, and without what a queue does with late groups, which is compared apart."""
    read = [f"{ref.node}.{ref.column}" if ref.column else str(ref.node) for ref in node.refs]
    text = f"{node.label}({', '.join(read)})" if read else node.label
    if isinstance(node.op, Derived):
        options = {field.name: getattr(node.op, field.name) for field in fields(node.op)}
        words = [
            f"{name}={getattr(option, '__name__', option)}"
            for name, option in options.items()
            if name not in ("lag", "late", "record")
        ]
        return f"{text} of {', '.join(words)}" if words else text
    if isinstance(node.result, RecordType):
        columns = schema(node.result.record).fields
        return f"{text} -> {', '.join(f'{name}: {spec}' for name, spec in columns.items())}"
    return f"{text} -> {node.result}"


def check_held_values(plan: Plan, saved: SavedStream) -> None:
    """Check that a run of this plan can continue with the queues of a checkpoint.

    Raises:
        CheckpointError: HF905 if the rows in them are not those that the plan would put in.
    """
    if saved.plan != plan.name:
        text = f"the state has rows in the queues of '{saved.plan}', and '{plan.name}' cannot continue with them"
        raise CheckpointError("HF905", text)
    _check_queues(plan, saved)
    pairs = zip_longest(saved.values, held_values(plan), fillvalue="nothing") if saved.values else ()
    for former, current in pairs:
        if former != current:
            text = f"the stages in front of the queues of '{plan.name}' differ: '{former}' there, '{current}' here"
            raise CheckpointError("HF905", f"{text}; continue with the dataflow and the options that saved it")


def _check_queues(plan: Plan, saved: SavedStream) -> None:
    """Check that the rows of a checkpoint keep the lags of a plan.

    A larger lag holds for them, too. A smaller one holds behind a single queue that tests every group before it is
    trained; of two queues, one could lose all of its groups while the other is full.
    """
    declared = [(queue.lag or 0, queue.late or "wait") for _, queue in plan.split.queues]
    former = [(queue.lag, queue.late) for queue in saved.queues]
    in_words = f"{_queues_in_words(former)} there, {_queues_in_words(declared)} here"
    text, advice = "the state comes from a run with other queues", "continue with the dataflow and the options that"
    if len(declared) != len(former):
        raise CheckpointError("HF905", f"{text}: {in_words}; {advice} saved it")
    if decides(plan) != (saved.decided is not None):
        steps, groups = "take whole steps in order", "take groups of several steps"
        took, take = (steps, groups) if decides(plan) else (groups, steps)
        advice = (
            "give compile the dims= of the run that saved it"
            if declared == former
            else f"{in_words}; {advice} saved it"
        )
        raise CheckpointError("HF905", f"{text}: they {took} there, and {take} here; {advice}")
    tests_groups = len(declared) == 1 and declared[0][1] != "wait"
    keep = (late == was_late and lag >= was for (lag, late), (was, was_late) in zip(declared, former, strict=True))
    if not tests_groups and not all(keep):
        allowed = (
            "a lag may become larger, and behind a single queue that drops, refills or masks, lag= and late= may be"
        )
        raise CheckpointError("HF905", f"{text}: {in_words}, so its rows may be later than these allow: {allowed} any")


def _queues_in_words(queues: Sequence[tuple[int, str]]) -> str:
    return " and ".join(f'lag={lag} with late="{late}"' for lag, late in queues) or "no queue with a lag"
