"""HF744 against the timed marked graph and the virtual clock: which stages work on two steps at the same time?"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.graph.program import Queue
from hfdsl.plan.throughput import throughput
from hfdsl.runtime.queues.durations import DrawnSeconds
from hfdsl.runtime.queues.plan_simulation import simulate_plan
from tests.runtime.queue_programs import Actor, B, Engine, Judge, Prompts, Samples, Scored, Trained, chain

ENDS = (("engine.generate", "judge.score"), ("judge.score", "actor.update"))
"""The calls before and behind each of two queues in a row."""


class Frozen(hf.Worker):
    """An engine whose weights nothing trains."""

    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Samples:
        raise NotImplementedError


class Silent(Actor):
    """An actor whose updates return nothing."""

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, batch: Scored) -> None:  # type: ignore[override]  # another result
        raise NotImplementedError


@hf.dataflow
def frozen(prompts: Prompts, engine: Frozen, judge: Judge, actor: Actor, *, first: int = 1, second: int = 1) -> Trained:
    """Nothing but the result of an update makes an engine wait."""
    samples = hf.queue(engine.generate(prompts), lag=first, late="wait")
    return actor.update(hf.queue(hf.merge(Scored, samples, judge.score(samples)), lag=second, late="wait"))


@hf.dataflow
def unread(prompts: Prompts, engine: Frozen, judge: Judge, actor: Silent, *, first: int = 1, second: int = 1) -> Scored:
    """Nothing waits for an update but the next one."""
    samples = hf.queue(engine.generate(prompts), lag=first, late="wait")
    scored = hf.merge(Scored, samples, judge.score(samples))
    actor.update(hf.queue(scored, lag=second, late="wait"))
    return scored


@hf.dataflow
def synced(prompts: Prompts, engine: Engine, judge: Judge, actor: Silent, *, first: int = 1, second: int = 1) -> Scored:
    """Weights alone make an engine wait for an update."""
    samples = hf.queue(engine.generate(prompts), lag=first, late="wait")
    scored = hf.merge(Scored, samples, judge.score(samples))
    actor.update(hf.queue(scored, lag=second, late="wait"))
    hf.sync(actor, engine)
    return scored


def places(flow: hf.Dataflow[..., Any]) -> hf.Deployment:
    pools = {name: hf.ResourcePool([1], use_gpu=False, name=name) for name in flow.trace().roles}
    return hf.Deployment(**{name: hf.place(role, pool=pools[name]) for name, role in flow.trace().roles.items()})


@pytest.mark.parametrize("lags", [*product((0, 1, 2), repeat=2)], ids=str)
@pytest.mark.parametrize("flow", [chain, frozen, unread, synced], ids=lambda flow: flow.body.__name__)
def test_stages_are_reported_where_they_work_on_one_step_at_a_time(
    flow: hf.Dataflow[..., Any], lags: tuple[int, int]
) -> None:
    """Two calls of 1 s take 2 s for each step where they wait for each other, and 1 s where they overlap."""
    report = flow.given(first=lags[0], second=lags[1]).check(places(flow), dims={B: 4})
    found = {finding.primary.span.line for finding in report if finding.code == "HF744"}
    plan = flow.compile(places(flow), dims={B: 4})  # of lags with which it is no error
    queues = [node for node, _ in plan.split.queues]
    changed = dict(zip((node.id for node in queues), lags, strict=True))
    nodes = tuple(
        replace(node, op=replace(node.op, lag=changed[node.id])) if isinstance(node.op, Queue) else node
        for node in plan.graph.nodes
    )
    plan = replace(plan, graph=replace(plan.graph, nodes=nodes))
    for node, lag, ends in zip(queues, lags, ENDS, strict=True):
        seconds = throughput(plan, dict.fromkeys(ends, 1.0)).seconds
        results = simulate_plan(plan, dict.fromkeys(ends, DrawnSeconds(1.0)), 40).results
        assert (results[30] - results[10]) / 20 == pytest.approx(seconds)
        assert (node.span.line in found) == (lag == 0 and seconds == 2)
