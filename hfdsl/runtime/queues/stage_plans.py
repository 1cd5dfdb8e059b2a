"""The stages of a program with dynamic queues, each with its own plan.

A queue that waits, and whose batches are exactly what a step puts in, needs no decisions: its stages follow each other
step by step (``queues.streaming``). With another discipline or batch size, a batch has groups of several steps. Then
each stage is a plan of its own: a stage that feeds queues returns the columns that are read behind them, which stay
where they are, and a stage that reads queues takes them as inputs. Columns that a stage between two queues passes on
unchanged are read where they were made::

    rollout = engine.generate(prompts)                     stage 0
    batch   = hf.queue(rollout, ...)                       queue1: its sources are columns of rollout
    scored  = hf.merge(Scored, batch, judge.score(batch))  stage 1
    scored  = hf.queue(scored, ...)                        queue2: its source is the score, others are through queue1
    metrics = actor.update(scored)                         stage 2

The stages that feed no queue make the results, and step together: a version is one update of all of them. So no other
stage may train a state, since that state would have different versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hfdsl.errors import HfError
from hfdsl.graph.columns import columns_read, origins
from hfdsl.graph.program import Node, Output, Queue, Ref
from hfdsl.graph.queue_problems import MASKS, loses_groups, queue_problems
from hfdsl.graph.signatures import VALUE
from hfdsl.graph.stages import Stage, effects, syncs
from hfdsl.plan.plan import DRIVER, Plan, StageOf
from hfdsl.plan.queues import queried_calls
from hfdsl.runtime.queues.links import TRAINER, QueueLink, QueueLinks
from hfdsl.runtime.rank.in_flight import InFlightSync, in_flight_sync

CHANGES = ("writes", "loads")
"""The effects that give a state another version."""


@dataclass(frozen=True, slots=True)
class StagedQueue:
    """A queue, with the plans of the stages before and behind it.

    ``sources`` maps each column to what ``producer`` put in; ``through`` maps each column that the producer passes on
    unchanged to the column of the queue in front. ``queue_input`` is the node of ``consumer`` that stands for the
    queue. ``masks`` are the columns that get zeros in late rows. The queue ``loses`` groups if a filter is in front of
    it. ``subject`` is the beginning of errors about it. ``reads`` is the number of the stage behind it.
    """

    name: str
    reads: int
    producer: Plan
    consumer: Plan
    queue: Queue
    sources: Mapping[str, tuple[int, str]]
    rows_of: int
    queue_input: int
    masks: tuple[str, ...]
    loses: bool
    subject: str
    through: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueStages:
    """The stages of a program, and its queues.

    ``inputs`` are the nodes of the caller's inputs in each stage, by name. Each of the last stages returns its part of
    the results in order; ``stage_of`` gives the stage of each value in the program's ``output``. ``loads_wait`` is true
    if a role that gets weights by a sync has calls that are submitted only after a filter has run: new weights wait for
    these calls. A program with one queue may have an ``in_flight_sync``. ``generating`` has for each stage the node of
    its generating call: a dispatch is in progress in a process until the process has ended that call.
    """

    plans: tuple[Plan, ...]
    queues: tuple[StagedQueue, ...]
    links: QueueLinks
    inputs: tuple[Mapping[str, int], ...]
    output: Output
    stage_of: Mapping[Ref, int]
    loads_wait: bool
    in_flight_sync: InFlightSync
    generating: tuple[int | None, ...]

    @property
    def last(self) -> list[int]:
        """The stages that make the results."""
        return [stage for stage in range(len(self.plans)) if stage not in (*self.links.sources, *self.links.between)]

    def with_steps_in_flight(self, steps: int) -> QueueStages:
        """A copy of the stages, each with ``steps`` steps in flight."""
        plans = tuple(
            replace(plan, stage_of=StageOf(plan.dataflow, steps, number)) for number, plan in enumerate(self.plans)
        )
        queues = (
            replace(queue, producer=plans[link.feeds], consumer=plans[queue.reads])
            for queue, link in zip(self.queues, self.links.of, strict=True)
        )
        return replace(self, plans=plans, queues=tuple(queues))


@dataclass(frozen=True, slots=True)
class _Ends:
    """A queue between two stages: the value put in by the first, and the node that represents it in the second."""

    node: Node
    queue: Queue
    name: str
    feeds: int
    reads: int
    ref: Ref
    queue_input: int


def queue_stages(plan: Plan) -> QueueStages:
    """The stages of a plan with a dynamic queue.

    Raises:
        HfError: HF765 if a run cannot follow its queues.
    """
    staged = [stage for stage, _ in plan.stage_plans]
    ends = [_ends(plan, node, queue) for node, queue in plan.split.queues]
    last = {stage.number for stage in staged if not stage.feeds}
    links = QueueLinks(
        QueueLink(end.feeds, TRAINER if end.reads in last else end.reads, plan.counts.making[end.node.id] < end.feeds)
        for end in ends
    )
    compiled = [of_stage for _, of_stage in plan.stage_plans]
    for node, problem in queue_problems(plan.graph, plan.inference):
        raise HfError("HF765", f"{subject_of(plan, node)} is dynamic, and {problem.text}")
    read_columns = _columns_read(compiled, ends, links)
    queues = [_staged(plan, compiled, ends, index, columns) for index, columns in enumerate(read_columns)]
    plans = [
        _running_alone(
            of_stage,
            stage,
            plan.name,
            [queue for end, queue in zip(ends, queues, strict=True) if end.feeds == stage.number],
        )
        for stage, of_stage in zip(staged, compiled, strict=True)
    ]
    in_flight = InFlightSync((), ())
    if any(of_stage.loads_in_flight(step) for of_stage in compiled for step in of_stage.steps):
        in_flight = in_flight_sync(plans[ends[0].feeds], plans[ends[0].reads])
    return QueueStages(
        plans=tuple(plans),
        queues=tuple(
            replace(queue, producer=plans[end.feeds], consumer=plans[end.reads])
            for end, queue in zip(ends, queues, strict=True)
        ),
        links=links,
        inputs=tuple(
            {node.label: node.id for node in stage.graph.inputs if node.label in stage.inputs} for stage in staged
        ),
        output=plan.graph.output,
        stage_of={ref: stage.number for stage in staged for ref in stage.results},
        loads_wait=not {sync.target.role for sync in syncs(plan.graph)}.isdisjoint(
            call.role for stage_plan in compiled for _, call in queried_calls(stage_plan)
        ),
        in_flight_sync=in_flight,
        generating=tuple(_generating(plan, of_stage) for of_stage in plans),
    )


def _ends(plan: Plan, node: Node, queue: Queue) -> _Ends:
    feeds, reads = plan.split.producer(node), plan.split.of[node.id]
    (first, producing), (_, reading) = plan.stage_plans[feeds], plan.stage_plans[reads]
    name = next(name for name, fed in first.feeds.items() if fed == node.id)
    put_in = producing.graph.output.value
    ref = put_in[name].value if isinstance(put_in, dict) else None
    if not isinstance(ref, Ref):  # a queue takes records
        raise TypeError(name)
    queue_input = next(node_read.id for node_read in reading.graph.inputs if node_read.label == name)
    return _Ends(node=node, queue=queue, name=name, feeds=feeds, reads=reads, ref=ref, queue_input=queue_input)


def _columns_read(plans: Sequence[Plan], ends: Sequence[_Ends], links: QueueLinks) -> list[list[str]]:
    """By queue, the columns that later stages read, directly or through other queues."""
    names: list[list[str]] = [[] for _ in ends]
    for index, end in sorted(enumerate(ends), key=lambda item: -item[1].reads):  # a stage feeds only later ones
        graph = plans[end.reads].graph
        columns = [column for step in plans[end.reads].steps for column in columns_read(graph, step.node)]
        for feeding in links.fed_by(end.reads) if end.reads in links.between else ():
            columns += [source for name in names[feeding] for source in origins(graph, ends[feeding].ref.node, name)]
        names[index] = [*dict.fromkeys(column for node, column in columns if node == end.queue_input)]
    return names


def _staged(
    plan: Plan, plans: Sequence[Plan], ends: Sequence[_Ends], index: int, columns: Sequence[str]
) -> StagedQueue:
    end = ends[index]
    producing = plans[end.feeds]
    in_front = {other_end.queue_input for other_end in ends if other_end.reads == end.feeds}
    sources = {name: next(origins(producing.graph, end.ref.node, name), None) for name in columns}
    through = {name: source[1] for name, source in sources.items() if source is not None and source[0] in in_front}
    rows = producing.inference.rows(end.ref.node)
    if rows is None:
        raise TypeError(end.name)
    return StagedQueue(
        name=end.name,
        reads=end.reads,
        producer=producing,
        consumer=plans[end.reads],
        queue=end.queue,
        sources={name: (end.ref.node, name) for name in columns if name not in through},
        through=through,
        rows_of=end.ref.node,
        queue_input=end.queue_input,
        masks=tuple(name for name in columns if name in MASKS) if end.queue.late == "mask" else (),
        loses=loses_groups(rows),
        subject=subject_of(plan, end.node),
    )


def _running_alone(plan: Plan, stage: Stage, dataflow: str, feeds: Sequence[StagedQueue]) -> Plan:
    """The plan of a stage whose output is all that its queues hold, or its part of the results."""
    columns = {
        f"{queue.name}.{name}": Output(_column_of(*source)) for queue in feeds for name, source in queue.sources.items()
    }
    output = Output({**columns}) if feeds else _results(stage)
    return replace(plan, graph=replace(plan.graph, output=output), stage_of=StageOf(dataflow, 0, stage.number))


def _results(stage: Stage) -> Output:
    """The part of the results that a stage makes, in order."""
    return Output(tuple(Output(replace(ref, node=stage.nodes.index(ref.node))) for ref in stage.results))


def _generating(program: Plan, plan: Plan) -> int | None:
    """The last call of a stage that reads weights which the program changes; if none does, the first call.

    Everything in front of that call, such as a filter of prompts, belongs to the same dispatch.
    """
    changed = {state for node in program.graph.calls for state, effect in effects(node) if effect.kind in CHANGES}
    calls = [step.node for step in plan.steps if step.group != DRIVER]
    reading = [
        call
        for call in calls
        if any(effect.kind == "reads" and state in changed for state, effect in effects(plan.node(call)))
    ]
    return next(iter((*reading[-1:], *calls)), None)


def _column_of(node: int, column: str) -> Ref:
    return Ref(node) if column == VALUE else Ref(node, column)


def subject_of(plan: Plan, queue: Node) -> str:
    """The beginning of errors about a queue."""
    return f"the queue in line {queue.span.line} of '{plan.name}'"
