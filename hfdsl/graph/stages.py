"""Stages: queues split a program into ordinary programs, which run independently.

A worked example, in which nodes 7 and 8 are what ``hf.sync`` calls::

    0  prompts                                          stage 0
    1  rollout = engine.generate(prompts)               stage 0
    2  scores  = reward.score(rollout)                  stage 0
    3  scored  = hf.merge(Scored, rollout, scores)      stage 0, fed into the queue
    4  batch   = hf.queue(scored, lag=4, late="wait")   read by stage 1, where it is an input
    5  ref     = reference.log_probs(batch)             stage 1
    6  metrics = actor.update(batch, ref)               stage 1, a result of the program
    7  weights = actor.weights()                        stage 1: 'actor' writes its weights there
    8  engine.load(weights)                             stage 1: it reads node 7

Values that are read together belong to one step, so a stage is a connected component of the graph without the edges
into queues: 0 to 3, and 4 to 6. A node connected to neither, here 7 and 8, belongs to the stage that writes the
weights it exports, else to the stage of an earlier call of one of its roles, else to the first stage.

Why this is right. In a component every value is made in the same step as what reads it, so it is an ordinary dataflow;
between two components there are queues only. A component that is behind a queue and feeds it too, at once or through
other queues, would wait for itself: somewhere it reads, in one step, rows of this step and rows of another one. A value
goes around the queue, which is a mistake (HF742) and has no stages. That value is found at one queue at least of every
cycle of components: at a queue without one, all of the component that reads it is made from its rows, so around a
cycle of such queues the first would be made from its own rows, which no program can write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from hfdsl.errors import WiringError
from hfdsl.graph.ancestry import descendants
from hfdsl.graph.infer import Inference
from hfdsl.graph.program import Graph, Input, Node, Operand, Output, Queue, Ref, RoleCall
from hfdsl.protocols.state import Effect, effects_of


class HeldState(NamedTuple):
    """A state that a role holds."""

    role: str
    state: str


class Sync(NamedTuple):
    """Weights on their way: the role that exports them, the one that loads them, and the nodes of both calls."""

    source: HeldState
    target: HeldState
    export: int
    load: int


class Around(NamedTuple):
    """A value that reaches the stage behind a queue without passing through the queue."""

    queue: Node
    value: Node
    reader: Node


@dataclass(frozen=True)
class Stage:
    """A part of a program that steps on its own; nodes of queues and syncs are numbered as in the whole program.

    ``graph`` is an ordinary dataflow. Its inputs are those of the program that it reads, and the queues in ``reads``,
    by the name of the input. It returns a dict: by the same names what it puts into each of the queues ``feeds``, and
    at ``"results"`` the tuple of those of the program's ``results`` that it makes. ``nodes`` has for each node of
    ``graph`` its number in the program.
    """

    number: int
    graph: Graph
    nodes: tuple[int, ...]
    reads: Mapping[str, int] = field(default_factory=dict)
    feeds: Mapping[str, int] = field(default_factory=dict)
    results: tuple[Ref, ...] = ()
    syncs: tuple[Sync, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of the program that it reads."""
        return tuple(node.label for node in self.graph.inputs if node.label not in self.reads)


@dataclass(frozen=True)
class Split:
    """The stage of every node. ``around`` lists values that bypass a queue; with any of them, stages have no meaning.

    ``of`` has by node the stage that it is a value of; a queue is a value of the stage that reads it.
    """

    graph: Graph
    of: tuple[int, ...]
    count: int
    around: tuple[Around, ...] = ()

    @cached_property
    def queues(self) -> tuple[tuple[Node, Queue], ...]:
        """The queues that separate stages."""
        return queues_of(self.graph)

    def producer(self, queue: Node) -> int:
        """The stage that feeds a queue."""
        source = queue.batch
        return self.of[source.node] if source is not None else 0

    def calls(self, stage: int) -> Iterator[Node]:
        """The calls of a stage."""
        return (node for node in self.graph.calls if self.of[node.id] == stage)


def queues_of(graph: Graph) -> tuple[tuple[Node, Queue], ...]:
    """The queues of a program that separate stages: those with a lag."""
    return tuple((node, node.op) for node in graph.nodes if isinstance(node.op, Queue) and node.op.splits)


def split(graph: Graph) -> Split:
    """The stage of every node."""
    queues = queues_of(graph)
    if not queues:
        return Split(graph, (0,) * len(graph.nodes), 1)
    parts = _components(graph, {node.id for node, _ in queues})
    feeds: dict[int, set[int]] = {parts[queue.id]: set() for queue, _ in queues}
    for queue, _ in queues:
        for ref in queue.refs:
            feeds.setdefault(parts[ref.node], set()).add(parts[queue.id])
    reached = {part: _reached(feeds, part) for part in feeds}
    on_a_cycle = (
        queue for queue, _ in queues if any(parts[ref.node] in reached[parts[queue.id]] for ref in queue.refs)
    )
    meetings = (_around(graph, parts, queue) for queue in on_a_cycle)
    around = tuple(meeting for meeting in meetings if meeting is not None)
    depth = _depths(feeds)
    order = sorted(feeds, key=lambda part: (depth[part], part))
    stage_of = {part: number for number, part in enumerate(order)}
    _attach(graph, parts, stage_of)
    return Split(graph, tuple(stage_of[part] for part in parts), len(order), around)


def _components(graph: Graph, queues: set[int]) -> list[int]:
    """By node the first node that is connected to it without passing into a queue."""
    parent = list(range(len(graph.nodes)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for node in graph.nodes:
        for ref in node.refs if node.id not in queues else ():
            first, second = sorted((root(ref.node), root(node.id)))
            parent[second] = first
    return [root(node) for node in range(len(parent))]


def _reached(feeds: Mapping[int, set[int]], part: int) -> set[int]:
    """A component and all that it feeds, at once or through others."""
    reached: set[int] = set()
    waiting = [part]
    while waiting:
        part = waiting.pop()
        if part not in reached:
            reached.add(part)
            waiting.extend(feeds[part])
    return reached


def _around(graph: Graph, parts: Sequence[int], queue: Node) -> Around | None:
    """The first value in front of the queue that is read together with one behind it."""
    behind = descendants(graph, [queue.id])
    meetings = (
        Around(queue, graph.nodes[ref.node], graph.nodes[reader])
        for reader in sorted(behind - {queue.id})
        for ref in graph.nodes[reader].refs
        if ref.node not in behind and parts[ref.node] == parts[queue.id]
    )
    return next(meetings, None)


def _depths(feeds: Mapping[int, set[int]]) -> dict[int, int]:
    """By component the most queues on a way to it."""
    depth = dict.fromkeys(feeds, 0)
    for _ in feeds:  # a way passes each component once at most, in an order that need not be the program's
        for part, fed in feeds.items():
            depth |= {target: max(depth[target], depth[part] + 1) for target in fed}
    return depth


def _attach(graph: Graph, parts: Sequence[int], stage_of: dict[int, int]) -> None:
    """Assign components without a queue to a stage: that of the writer of the states they export, or of a role."""
    writers: dict[HeldState, int] = {}
    roles: dict[str, int] = {}
    for node in graph.calls:
        if parts[node.id] in stage_of and isinstance(node.op, RoleCall):
            writers |= {holder: stage_of[parts[node.id]] for holder, effect in effects(node) if effect.kind == "writes"}
            roles.setdefault(node.op.role, stage_of[parts[node.id]])
    loose: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if parts[node.id] not in stage_of:
            loose.setdefault(parts[node.id], []).append(node)
    for part, nodes in loose.items():
        exported = (
            writers.get(holder) for node in nodes for holder, effect in effects(node) if effect.kind == "exports"
        )
        called = (roles.get(node.op.role) for node in nodes if isinstance(node.op, RoleCall))
        stages = (stage for stage in (*exported, *called) if stage is not None)
        stage_of[part] = next(stages, 0)


def effects(node: Node) -> Iterator[tuple[HeldState, Effect]]:
    """The effects of a call, each with the state that it is on."""
    if isinstance(node.op, RoleCall):
        for effect in effects_of(node.op.signature.body):
            yield HeldState(node.op.role, effect.state), effect


def syncs(graph: Graph) -> tuple[Sync, ...]:
    """Every load of weights with the exports that it reads."""
    exports: list[frozenset[int]] = []
    for node in graph.nodes:
        exporters = {node.id} if any(effect.kind == "exports" for _, effect in effects(node)) else set[int]()
        exports.append(frozenset(exporters.union(*(exports[ref.node] for ref in node.refs))))
    return tuple(
        Sync(source, target, export, node.id)
        for node in graph.calls
        for target, loading in effects(node)
        if loading.kind == "loads"
        for export in sorted(exports[node.id] - {node.id})
        for source, exporting in effects(graph.nodes[export])
        if exporting.kind == "exports"
    )


def stages(graph: Graph, inference: Inference | None = None) -> tuple[Stage, ...]:
    """The stages of a program, each after those that feed it; a program without queues is one stage.

    ``inference`` gives the inputs that are queues the numbers of rows that they have; without it they are those that
    their records declare.

    Raises:
        WiringError: HF742 if a value goes around a queue.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Questions(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> class Model(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def answer(self, questions: Questions) -> Questions: ...
    >>> @hf.dataflow
    ... def flow(questions: Questions, model: Model, judge: Model) -> Questions:
    ...     answers = hf.queue(model.answer(questions), lag=1, late="wait")
    ...     return judge.answer(answers)
    >>> for stage in stages(flow.trace()):
    ...     print(stage.number, [node.label for node in stage.graph.nodes], dict(stage.reads), dict(stage.feeds))
    0 ['questions', 'model.answer'] {} {'queue': 2}
    1 ['queue', 'judge.answer'] {'queue': 2} {}
    """
    parts = split(graph)
    for queue, value, reader in parts.around:
        text = f"'{reader.label}' reads '{value.label}' of this step together with rows of the queue at {queue.span}"
        raise WiringError("HF742", text)
    if parts.count == 1:
        return (_stage(parts, 0, inference, {}),)
    names = _names(graph, parts)
    return tuple(_stage(parts, number, inference, names) for number in range(parts.count))


def _names(graph: Graph, parts: Split) -> dict[int, str]:
    """A name for each queue that no parameter of the dataflow has."""
    reserved = {*graph.roles, *(node.label for node in graph.inputs), "results"}
    names: dict[int, str] = {}
    for position, (node, _) in enumerate(parts.queues):
        name = f"queue{position + 1}" if len(parts.queues) > 1 else "queue"
        while name in reserved:
            name += "_"
        names[node.id] = name
    return names


def _stage(parts: Split, number: int, inference: Inference | None, names: Mapping[int, str]) -> Stage:
    graph = parts.graph
    numbers = tuple(node for node in range(len(graph.nodes)) if parts.of[node] == number)
    new = {node: position for position, node in enumerate(numbers)}
    fed = {names[node.id]: node for node, _ in parts.queues if parts.producer(node) == number}
    results = tuple(ref for ref in graph.output.refs() if ref.node in new)
    outputs: dict[str, Output] = {
        name: Output(_renumbered_operand(node.arguments[0][1], new)) for name, node in fed.items()
    }
    results_made = Output(tuple(Output(_renumbered_operand(ref, new)) for ref in results))
    nodes = [_renumbered(graph.nodes[node], new, names, inference) for node in numbers]
    calls = [graph.nodes[node] for node in numbers]
    called = {node.op.role for node in calls if isinstance(node.op, RoleCall)}
    only_stage = parts.count == 1
    return Stage(
        number=number,
        graph=graph
        if only_stage
        else replace(
            graph,
            name=f"{graph.name}.{number}",
            nodes=tuple(nodes),
            roles={name: role for name, role in graph.roles.items() if name in called},
            output=Output({**outputs, "results": results_made}),
            misuses=(),
            optional_reads=(),
            inner_calls=(),
        ),
        nodes=numbers,
        reads={names[node.id]: node.id for node, _ in parts.queues if parts.of[node.id] == number},
        feeds={name: node.id for name, node in fed.items()},
        results=results,
        syncs=tuple(sync for sync in syncs(graph) if sync.load in new),
    )


def _renumbered(node: Node, new: Mapping[int, int], names: Mapping[int, str], inference: Inference | None) -> Node:
    """A node of a stage: a queue that it reads is an input."""
    if node.id in names and isinstance(node.op, Queue):
        kind = node.result
        record = getattr(kind, "record", None)
        if record is None:
            raise TypeError(node)
        rows = inference.rows(node.id) if inference is not None else None
        return replace(node, id=new[node.id], op=Input(names[node.id], record, rows), arguments=())
    arguments = tuple((port, _renumbered_operand(operand, new)) for port, operand in node.arguments)
    return replace(node, id=new[node.id], arguments=arguments)


def _renumbered_operand(operand: Operand, new: Mapping[int, int]) -> Operand:
    return replace(operand, node=new[operand.node]) if isinstance(operand, Ref) else operand
