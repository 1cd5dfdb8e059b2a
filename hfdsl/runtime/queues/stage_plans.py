"""The two stages of a program whose queue decides while it runs, each with a plan of its own.

A queue that waits, and takes out what a step puts in, needs no decisions: its stages follow each other step by step
(``queues.streaming``). Another discipline, or another size of batches, takes groups of several steps. Then each
stage is a plan of its own: the first returns the columns that are read behind the queue, which stay where they are, and
the second has the queue as its input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hfdsl.errors import HfError
from hfdsl.graph.columns import columns_read, origins, result_origins
from hfdsl.graph.program import Node, Output, Queue, Ref, RoleCall
from hfdsl.graph.signatures import VALUE, RecordType
from hfdsl.graph.stages import effects, syncs
from hfdsl.plan.plan import DRIVER, Plan, StageOf, Step
from hfdsl.plan.rows import runtime_queries
from hfdsl.types.batches import schema
from hfdsl.types.columns import MetricSpec
from hfdsl.types.dims import KeptGroups

MASKS = ("response_mask", "loss_mask")
"""The columns that say which tokens are trained: of a group that is masked they are zero."""


@dataclass(frozen=True, slots=True)
class QueueStages:
    """Both stages of a program, and its queue.

    ``sources`` has by column what ``producer`` put in; ``queue_input`` is the node of ``consumer`` that stands for the
    queue, and ``inputs`` are the nodes of the producer's inputs by name. ``masks`` are columns that late rows get zeros
    in. The queue ``loses`` groups where a filter is in front of it. ``loads_wait`` where a role gets weights by a sync,
    and has calls that are submitted only when a filter has run: new weights wait for them. ``subject`` begins an error.
    """

    producer: Plan
    consumer: Plan
    queue: Queue
    sources: Mapping[str, tuple[int, str]]
    rows_of: int
    queue_input: int
    inputs: Mapping[str, int]
    masks: tuple[str, ...]
    loses: bool
    loads_wait: bool
    subject: str


def queue_stages(plan: Plan) -> QueueStages:
    """The stages of a plan whose queue decides.

    Raises:
        HfError: HF765 where a run cannot follow the queue.
    """
    node, queue = plan.split.queues[0]
    _refuse(plan, node, several_queues(plan))
    (first, producing), (second, reading) = plan.stage_plans
    (name,) = first.feeds
    ref = producing.graph.output.value[name].value if isinstance(producing.graph.output.value, dict) else None
    queue_input = next(n.id for n in reading.graph.inputs if n.label == name)
    columns = dict.fromkeys(
        column
        for step in reading.steps
        for read, column in columns_read(reading.graph, step.node)
        if read == queue_input
    )
    rows = producing.inference.rows(ref.node) if isinstance(ref, Ref) else None
    if not isinstance(ref, Ref) or rows is None:  # a queue takes records
        raise TypeError(name)
    masks = tuple(column for column in columns if column in MASKS) if queue.late == "mask" else ()
    problems = (*_stage_problems(producing, reading, ref, queue_input), *_result_problems(first.results, second.inputs))
    if queue.late == "mask" and not masks:
        problems = (*problems, f'late="mask" sets {" or ".join(MASKS)} to zero, and no call behind it reads one')
    elif masks and (unmasked := _unmasked(reading, queue_input)):
        text = f"sets {' and '.join(masks)} to zero, which '{unmasked.label}' does not train with"
        problems = (*problems, f'late="mask" {text}: it would train on late rows')
    _refuse(plan, node, problems)
    outputs = {column: Output(_column_of(producing, ref, column)) for column in columns}
    if any(reading.loads_in_flight(step) for step in reading.steps):  # rows are at their ranks before any call ends
        producing = replace(producing, steps=tuple(replace(step, balance=None) for step in producing.steps))
        _refuse(plan, node, _in_flight_problems(producing))
    in_flight = StageOf(plan.name, 0)
    return QueueStages(
        producer=replace(producing, graph=replace(producing.graph, output=Output({**outputs})), stage_of=in_flight),
        consumer=replace(
            reading,
            graph=replace(reading.graph, output=_renumbered(plan.graph.output, second.nodes)),
            steps=tuple(
                replace(step, balance=None)
                if step.balance is not None and _reads(reading, step.balance.weights, queue_input)
                else step
                for step in reading.steps
            ),
            stage_of=in_flight,
        ),
        queue=queue,
        sources={column: (ref.node, column) for column in columns},
        rows_of=ref.node,
        queue_input=queue_input,
        inputs={n.label: n.id for n in producing.graph.inputs},
        masks=masks,
        loses=any(isinstance(atom, KeptGroups) for atom in rows.atoms),
        loads_wait=any(sync.target.role in _queried_roles(producing) for sync in syncs(plan.graph)),
        subject=_subject(plan, node),
    )


def _unmasked(plan: Plan, queue_input: int) -> Step | None:
    """A step that changes a state with rows of the queue, and nothing that it reads is made with a mask of them."""
    of_queue, masked = {queue_input}, set[int]()
    for step in plan.steps:
        read = columns_read(plan.graph, step.node)
        if any(node in of_queue for node, _ in read):
            of_queue.add(step.node)
            if any(node in masked or (node == queue_input and column in MASKS) for node, column in read):
                masked.add(step.node)
            elif any(effect.kind == "writes" for _, effect in effects(plan.node(step.node))):
                return step
    return None


def _queried_roles(plan: Plan) -> set[str]:
    """The roles of which a method waits for what filters keep or rows weigh."""
    behind = {query.node for query in runtime_queries(plan)}
    for node in plan.graph.nodes:
        if any(ref.node in behind for ref in node.refs):
            behind.add(node.id)
    return {node.op.role for node in plan.graph.nodes if node.id in behind and isinstance(node.op, RoleCall)}


def _renumbered(output: Output, nodes: tuple[int, ...]) -> Output:
    """The result of the program, whose values are all of the stage with these nodes."""
    value = output.value
    if isinstance(value, tuple):
        return replace(output, value=tuple(_renumbered(inner, nodes) for inner in value))
    if isinstance(value, dict):
        return replace(output, value={key: _renumbered(inner, nodes) for key, inner in value.items()})
    return replace(output, value=replace(value, node=nodes.index(value.node))) if isinstance(value, Ref) else output


def _column_of(plan: Plan, ref: Ref, column: str) -> Ref:
    return ref if column == VALUE else Ref(ref.node, column)


def _refuse(plan: Plan, node: Node, problems: tuple[str, ...]) -> None:
    if problems:
        raise HfError("HF765", f"{_subject(plan, node)} decides while it runs, and {problems[0]}")


def _subject(plan: Plan, queue: Node) -> str:
    return f"the queue in line {queue.span.line} of '{plan.name}'"


def several_queues(plan: Plan) -> tuple[str, ...]:
    """Why a run cannot follow the queues of a plan, from the graph alone."""
    count = len(plan.split.queues)
    if count > 1 or plan.split.count != 2:
        return (f"the program has {count} queues: rows of several such queues would not belong together",)
    return ()


def _stage_problems(producing: Plan, reading: Plan, ref: Ref, queue_input: int) -> Iterator[str]:
    result = producing.graph.nodes[ref.node].result
    if isinstance(result, RecordType):
        for name, spec in schema(result.record).fields.items():
            if isinstance(spec, MetricSpec):
                yield f"'{name}' is a metric, of all rows of a step, while groups of several steps are taken together"
    for step in reading.steps:
        if (step.custom is not None or step.group == DRIVER) and any(
            node == queue_input for node, _ in columns_read(reading.graph, step.node)
        ):
            yield f"'{step.label}' reads its rows in the driver, which has none of them"
    for query in runtime_queries(reading):
        if not query.weighs and _reads(reading, query.ref, queue_input):
            yield "a filter reads one of its columns; compute what it keeps behind the queue"
    if any(
        node == queue_input for out in reading.graph.output.refs() for node, _ in result_origins(reading.graph, out)
    ):
        yield "the program returns its rows; return what is computed from them"


def _in_flight_problems(producing: Plan) -> tuple[str, ...]:
    if runtime_queries(producing):
        return ("weights arrive in flight, while a filter in front of it waits for a call; filter behind the queue",)
    return ()


def _reads(plan: Plan, ref: Ref, node: int) -> bool:
    return any(origin == node for origin, _ in origins(plan.graph, ref.node, ref.column or VALUE))


def _result_problems(results: tuple[Ref, ...], inputs: tuple[str, ...]) -> Iterator[str]:
    if results:
        yield "the program returns a value from in front of it: an update has groups of several steps"
    if inputs:
        yield f"'{inputs[0]}' is read behind it: a batch of that input would not belong to the groups of an update"
