"""The example at the heads of ``routes`` and ``segments``: the plan of two ranks and four rows has their tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from inspect import getdoc
from typing import Literal

import pytest

import hfdsl as hf
import hfdsl.plan.routes
import hfdsl.plan.segments
from hfdsl import Dispatch, f32, i64, register
from hfdsl.graph.program import Filter
from hfdsl.plan.channels import RoutingContext
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.payloads import CALLER, Payload, planned_topology
from hfdsl.plan.plan import Step
from hfdsl.plan.routes import Hints, Routes, compute_routes, phases
from hfdsl.plan.rows import row_table


class B(hf.Dim): ...


class R(hf.Dim): ...


class Prompts(hf.Batch):
    prompt: i64[B, R]


class Rollout(hf.Batch):
    ids: i64[B, R]
    mask: hf.bool_[B, R]


class LogProbs(hf.Batch):
    old: f32[B, R]


class Scores(hf.Batch):
    score: f32[B]


class Advantages(hf.Batch):
    advantage: f32[B]


class Verdicts(hf.Batch):
    keep: hf.bool_[B]


class Loss(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        raise NotImplementedError

    @register(Dispatch.DP_PROTO)
    def log_probs(self, ids: i64[B, R]) -> LogProbs:
        raise NotImplementedError

    @register(Dispatch.DP_PROTO)
    def update(self, rollout: Rollout, old: LogProbs, advantages: Advantages) -> Loss:
        raise NotImplementedError

    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def imitate(self, rollout: Rollout) -> Loss:
        raise NotImplementedError


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, ids: i64[B, R]) -> Scores:
        raise NotImplementedError

    @register(Dispatch.DP_PROTO)
    def accept(self, ids: i64[B, R]) -> Verdicts:
        raise NotImplementedError


@hf.function
def centered(scores: Scores) -> Advantages:
    raise NotImplementedError


@hf.dataflow
def step(prompts: Prompts, actor: Actor, judge: Judge) -> Loss:
    rollout = actor.generate(prompts)
    old = actor.log_probs(rollout.ids)
    scores = judge.score(rollout.ids)
    advantages = centered(scores)
    return actor.update(rollout, old, advantages)


@hf.dataflow
def filtered(prompts: Prompts, actor: Actor, judge: Judge) -> Loss:
    rollout = actor.generate(prompts)
    return actor.imitate(hf.filter(rollout, judge.accept(rollout.ids).keep))


def compiled(flow: hf.Dataflow[..., Loss]) -> CompiledPlan:
    deployment = hf.Deployment(
        actor=hf.place(Actor, pool=hf.ResourcePool([2], use_gpu=False, name="train")),
        judge=hf.place(Judge, pool=hf.ResourcePool([1], use_gpu=False, name="score")),
    )
    return flow.compile(deployment, dims={B: 4, R: 8})


@pytest.fixture
def plan() -> CompiledPlan:
    return compiled(step)


def routed(plan: CompiledPlan, short_steps: frozenset[int] = frozenset()) -> Routes:
    return compute_routes(plan, row_table(plan, plan.dims), planned_topology(plan), Hints(short_steps))


# -- the tables

VALUES = {
    "prompts": "prompts",
    "actor.generate": "rollout",
    "actor.log_probs": "old",
    "judge.score": "scores",
    "centered": "advantages",
    "actor.update": "loss",
}
"""The names that the example gives to the results of its calls."""


def table(lines: Iterable[tuple[str, ...]]) -> str:
    """Columns of text, indented as in a docstring."""
    rows = list(lines)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("    " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def values(plan: CompiledPlan, nodes: Iterable[int]) -> str:
    return ", ".join(VALUES[plan.node(node).label] for node in sorted(nodes))


def method(step: Step) -> str:
    return step.label.rpartition(".")[2]


def contents(payload: Payload) -> str:
    """``ids[0:2]``: rows of a column, counted within its chunk."""
    named = ((part.column, part.rows) for part in payload.slices)
    return ", ".join(f"{name}[{rows[0][0]}:{rows[0][1]}]" if rows else name for name, rows in named)


def routes_table(plan: CompiledPlan) -> Iterator[tuple[str, ...]]:
    current = routed(plan)
    payloads = [*current.driver_sends[CALLER]]
    payloads += [
        p for segment in current.segments for task in current.tasks[segment.number].values() for p in task.sends
    ]
    names = {payload.key: f"P{number}" for number, payload in enumerate(payloads)}

    def sent(from_one: Iterable[Payload]) -> str:
        return ", ".join(f"{names[payload.key]} = {contents(payload)}" for payload in from_one)

    yield "call", "receives", "keeps", "sends", "drops"
    yield "caller", "", "", sent(current.driver_sends[CALLER]), ""
    for segment in current.segments:
        for rank in segment.ranks:
            task = current.tasks[segment.number][rank]
            yield (
                f"{' + '.join(map(method, segment.steps))} on {segment.group} {rank}",
                " ".join(names[key] for key in current.receives[segment.number].get(rank, ())),
                values(plan, task.keeps),
                sent(task.sends),
                values(plan, (node for dropped in task.drops.values() for node in dropped)),
            )
    yield "driver", " ".join(names[key] for key in current.result), "", "", ""


def remote_reads(plan: CompiledPlan) -> dict[int, set[int]]:
    """For each step the values that it reads from other processes."""
    context = RoutingContext.of(plan, row_table(plan, plan.dims), planned_topology(plan), frozenset())
    return {
        step: {read.node for process, reads in by.items() for read in reads if not context.in_place(process, read)}
        for step, by in context.reads.items()
    }


def segments_table(plan: CompiledPlan) -> Iterator[tuple[str, ...]]:
    remote, labels = remote_reads(plan), {step.node: method(step) for step in plan.steps}
    yield "step", "on", "reads from elsewhere", "result is read elsewhere by", "call"
    for number, segment in enumerate(routed(plan).segments, 1):
        for step in segment.steps:
            readers = (labels[reader] for reader, read in remote.items() if step.node in read)
            yield method(step), step.group, values(plan, remote[step.node]), ", ".join(readers), str(number)


def test_the_table_of_routes_is_what_the_plan_does(plan: CompiledPlan) -> None:
    assert table(routes_table(plan)) in (getdoc(hfdsl.plan.routes) or ""), table(routes_table(plan))


def test_the_table_of_segments_is_what_the_plan_does(plan: CompiledPlan) -> None:
    assert table(segments_table(plan)) in (getdoc(hfdsl.plan.segments) or ""), table(segments_table(plan))


def test_one_payload_goes_to_a_host_and_numbers_travel_inline(plan: CompiledPlan) -> None:
    current = routed(plan)
    [prompts] = current.driver_sends[CALLER]
    generate, update = current.segments[0], current.segments[-1]
    assert current.receives[generate.number] == {0: (prompts.key,), 1: (prompts.key,)}, "both ranks are on one host"
    assert all(payload.inline for task in current.tasks[update.number].values() for payload in task.sends)


def test_a_step_that_is_shorter_than_a_call_joins(plan: CompiledPlan) -> None:
    """The judge waits for it then, though it reads nothing of it."""
    log_probs = next(step.node for step in plan.steps if step.label == "actor.log_probs")
    current = routed(plan, frozenset({log_probs}))
    joined = [[method(step) for step in segment.steps] for segment in current.segments]
    assert joined == [["generate", "log_probs"], ["score", "centered"], ["update"]]


def test_a_filter_makes_two_phases_and_what_was_sent_stays_the_same() -> None:
    plan = compiled(filtered)
    query = next(node.id for node in plan.graph.nodes if isinstance(node.op, Filter))
    first, second = phases(plan, plan.dims, query_results={query: (1, 2, 3)})
    submitted = [[method(step) for segment in phase.segments for step in segment.steps] for phase in (first, second)]
    assert submitted == [["generate", "accept"], ["imitate"]]
    assert (first.query, second.query) == (query, None)
    generate = first.segments[0].number
    before, after = (phase.routes.tasks[generate] for phase in (first, second))
    assert [task.sends for task in before.values()] == [task.sends for task in after.values()]
