"""Why a run cannot follow dynamic queues, as far as the graph shows it.

A queue with ``late="drop"``, ``"refill"`` or ``"mask"`` decides which groups an update gets; they may be of several
steps. A worked example::

    rollout = engine.generate(prompts)                        # stage 0
    batch = hf.queue(rollout, lag=1, late="drop")
    return actor.update(batch), reward.mean(rollout)          # of which step would be the mean?

So a result comes from behind all queues, a batch of the caller's is read in front of them, and so on. A check reports
these problems, and a launch refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hfdsl.graph.columns import columns_read, origins, result_origins
from hfdsl.graph.infer import Inference, infer
from hfdsl.graph.program import Filter, FunctionCall, Graph, Node, Queue, Ref, RoleCall
from hfdsl.graph.signatures import VALUE, RecordType
from hfdsl.graph.stages import Split, Stage, effects, split, stages
from hfdsl.types.batches import schema
from hfdsl.types.columns import MetricSpec
from hfdsl.types.dims import KeptGroups, Size

MASKS = ("response_mask", "loss_mask")
"""The columns that mark the trained tokens; they are zero for a masked group."""


@dataclass(frozen=True, slots=True)
class QueueProblem:
    """Why a run cannot follow a queue, and the number of the node that shows it, if one does."""

    text: str
    node: int | None = None


def loses_groups(rows: Size | None) -> bool:
    """Whether a filter removes groups of a value with these rows."""
    return rows is not None and any(isinstance(atom, KeptGroups) for atom in rows.atoms)


def takes_weights_in_flight(graph: Graph) -> bool:
    """Whether a role takes weights between the tokens of a call."""
    return any(isinstance(node.op, RoleCall) and node.op.during is not None for node in graph.calls)


def queue_problems(graph: Graph, inference: Inference) -> Iterator[tuple[Node, QueueProblem]]:
    """The problems of each queue of a program with dynamic queues; the program has no value that bypasses a queue."""
    parts, staged = split(graph), stages(graph, inference)
    in_flight = takes_weights_in_flight(graph)
    inferences = [infer(stage.graph) for stage in staged]
    for node, queue in parts.queues:
        feeding, reading = staged[parts.producer(node)], staged[parts.of[node.id]]
        queue_input = next(i.id for i in reading.graph.inputs if reading.reads.get(i.label) == node.id)
        read = [column for call in reading.graph.calls for column in columns_read(reading.graph, call.id)]
        masks = tuple(name for name in MASKS if queue.late == "mask" and (queue_input, name) in read)
        put_in = node.batch.node if node.batch is not None else node.id
        loses = loses_groups(inferences[feeding.number].rows(feeding.nodes.index(put_in)))
        problems = (
            *_topology_problems(parts, node),
            *(_moved(problem, reading) for problem in _driver_problems(reading.graph, queue_input)),
            *(_moved(problem, reading) for problem in _column_problems(node, reading.graph, queue_input)),
            *_result_problems(feeding, reading, queue_input),
            *(_moved(problem, reading) for problem in _mask_problems(queue, masks, reading.graph, queue_input)),
            *_group_problems(parts, node, loses=loses),
            *(_in_flight_problems(parts, node) if in_flight else ()),
        )
        yield from ((node, problem) for problem in problems)


def _moved(problem: QueueProblem, stage: Stage) -> QueueProblem:
    """A problem of a stage's graph, with the number that its node has in the program."""
    return problem if problem.node is None else replace(problem, node=stage.nodes[problem.node])


def _topology_problems(parts: Split, node: Node) -> Iterator[QueueProblem]:
    """The problems of the stages around a queue."""
    before, behind = parts.producer(node), parts.of[node.id]
    if behind not in {parts.producer(queue) for queue, _ in parts.queues}:
        return
    op = node.op
    if isinstance(op, Queue) and op.late in ("wait", "mask"):
        why = "its reader trains nothing" if op.late == "mask" else "updates continue while its reader waits"
        where = f'it is in front of another queue, where late="{op.late}" bounds nothing'
        yield QueueProblem(f'{where}, since {why}: use "drop" or "refill"')
    for call in parts.calls(behind):
        for holder, effect in effects(call):
            if effect.kind == "writes":
                yield QueueProblem(
                    f"'{call.label}' trains '{holder.state}' of '{holder.role}' between two queues, where its updates "
                    "are not those of the results: train it behind the last queue",
                    call.id,
                )
    if sum(parts.of[queue.id] == behind for queue, _ in parts.queues) > 1:
        text = "the stage behind it reads several queues and feeds another: its rows would have several prompts"
        yield QueueProblem(text)
    if len(_fed_by(parts, before)) > 1:
        text = "the stage in front of it feeds several queues, one of which is in front of another and might fill up"
        yield QueueProblem(text)


def _driver_problems(reading: Graph, queue_input: int) -> Iterator[QueueProblem]:
    """The problems of calls that would read rows of a queue in the driver, which has none of them."""
    has_processes = any(isinstance(node.op, RoleCall) and not _runs_in_driver(node.op) for node in reading.calls)
    for node in reading.calls:
        if not any(read == queue_input for read, _ in columns_read(reading, node.id)):
            continue
        text = f"'{node.label}' reads its rows in the driver, which has none of them"
        if isinstance(node.op, FunctionCall) and not has_processes:
            advice = "its stage calls no role: call it in front of the queue, or in a stage that calls a role"
            yield QueueProblem(f"{text}, since {advice}", node.id)
        elif isinstance(node.op, RoleCall) and _runs_in_driver(node.op):
            advice = "its protocol is a pair of functions: register it with one of Dispatch, or an hf.Protocol"
            yield QueueProblem(f"{text}, since {advice}", node.id)


def _runs_in_driver(call: RoleCall) -> bool:
    registration = call.signature.registration
    return registration is not None and registration.functions is not None


def _column_problems(queue: Node, reading: Graph, queue_input: int) -> Iterator[QueueProblem]:
    """The problems of the columns of a queue, which the node ``queue_input`` stands for in the graph of its reader."""
    fields = schema(queue.result.record).fields if isinstance(queue.result, RecordType) else {}
    for name, spec in fields.items():
        if isinstance(spec, MetricSpec):
            text = f"'{name}' is a metric over all rows of a step, but a batch has groups of several steps"
            yield QueueProblem(text)
    for node in reading.nodes:
        keep = dict(node.arguments)["keep"] if isinstance(node.op, Filter) else None
        if isinstance(keep, Ref) and any(
            origin == queue_input for origin, _ in origins(reading, keep.node, keep.column or VALUE)
        ):
            yield QueueProblem("a filter reads one of its columns; compute what it keeps behind the queue", node.id)


def _result_problems(feeding: Stage, reading: Stage, queue_input: int) -> Iterator[QueueProblem]:
    """The problems of what the caller gives and gets."""
    if feeding.results:
        text = (
            "the program returns a value made in front of it, but an update has groups of several steps; return what "
            "the update computes"
        )
        yield QueueProblem(text, feeding.results[0].node)
    moved = (replace(ref, node=reading.nodes.index(ref.node)) for ref in reading.results)
    if queue_input in {node for ref in moved for node, _ in result_origins(reading.graph, ref)}:
        yield QueueProblem("the program returns its rows; return what is computed from them")
    if reading.inputs:
        name = reading.inputs[0]
        text = f"'{name}' is read behind it: a batch of that input would not belong to the groups of an update"
        yield QueueProblem(text)


def _mask_problems(queue: Queue, masks: Sequence[str], reading: Graph, queue_input: int) -> Iterator[QueueProblem]:
    """The problems of ``late="mask"``: every update uses one of the ``masks`` that the reader of the queue reads."""
    if queue.late == "mask" and not masks:
        text = f'late="mask" sets {" or ".join(MASKS)} to zero, and no call behind it reads them'
        yield QueueProblem(text)
    elif masks and (update := _unmasked(reading, queue_input)):
        text = f"sets {' and '.join(masks)} to zero, which '{update.label}' does not train with"
        yield QueueProblem(f'late="mask" {text}: it would train on late rows', update.id)


def _unmasked(reading: Graph, queue_input: int) -> Node | None:
    """The first call that changes a state with rows of the queue without reading a mask of them."""
    of_queue, masked = {queue_input}, set[int]()
    for node in reading.calls:
        columns = list(columns_read(reading, node.id))
        if any(maker in of_queue for maker, _ in columns):
            of_queue.add(node.id)
            if any(maker in masked or (maker == queue_input and column in MASKS) for maker, column in columns):
                masked.add(node.id)
            elif any(effect.kind == "writes" for _, effect in effects(node)):
                return node
    return None


def _group_problems(parts: Split, node: Node, *, loses: bool) -> Iterator[QueueProblem]:
    """The problems of a queue that dispatches prompts again, or ``loses`` groups to a filter."""
    first_filter = _filter_before(parts.graph, node)
    refills = isinstance(node.op, Queue) and node.op.late == "refill"
    follows = any(parts.of[queue.id] == parts.producer(node) for queue, _ in parts.queues)
    if loses and follows and isinstance(node.op, Queue) and not node.op.decides:
        text = "has batches of what a filter keeps of one step, while those of a dynamic queue all have one size"
        yield QueueProblem(f'{text}: use late="drop" or "refill"', first_filter)
    if refills and first_filter is not None and not loses:
        text = "dispatches the prompts of late groups again, but hf.fill or hf.take moves rows behind a filter"
        yield QueueProblem(f'{text}: put what the filter keeps into the queue, or use late="drop"', first_filter)
    if len(_fed_by(parts, parts.producer(node))) > 1:
        if refills:
            text = "dispatches prompts again, which would enter the other queues of its stage a second time"
            yield QueueProblem(f'{text}: use late="drop"')
        if loses:
            text = "loses groups to a filter while other queues of its stage keep theirs, and fill up"
            yield QueueProblem(f"{text}: put all columns into one queue", first_filter)


def _in_flight_problems(parts: Split, node: Node) -> Iterator[QueueProblem]:
    """The problems of a queue while weights arrive in flight: one queue has the loads of its dispatches in its log."""
    first, *others = [queue for queue, _ in parts.queues]
    if others and node is first:
        text = f"weights arrive in flight, but the program has {len(parts.queues)} queues"
        yield QueueProblem(f"{text}: leave out during=", others[0].id)
    for other in parts.graph.nodes:
        if isinstance(other.op, Filter) and parts.of[other.id] == parts.producer(node):
            text = "weights arrive in flight, but a filter in front of it waits for a call"
            yield QueueProblem(f"{text}: filter behind the queue, or leave out during=", other.id)


def _filter_before(graph: Graph, queue: Node) -> int | None:
    """A filter in the stage in front of a queue that what is put in depends on."""
    behind, visited = [ref.node for ref in queue.refs], set[int]()
    while behind:
        node = graph.nodes[behind.pop()]
        if isinstance(node.op, Filter):
            return node.id
        visited.add(node.id)
        is_end = isinstance(node.op, Queue) and node.op.splits
        behind += [ref.node for ref in node.refs if ref.node not in visited and not is_end]
    return None


def _fed_by(parts: Split, stage: int) -> list[Node]:
    return [queue for queue, _ in parts.queues if parts.producer(queue) == stage]
