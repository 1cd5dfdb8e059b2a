# mypy: disable-error-code="empty-body"
"""The versions of rows: where a program with queues may count them."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.check.fixtures.hf749_versions import Actor, B, Engine, Experience, Prompts, Rollout, versions


class Sampled(hf.Batch):
    from_version: hf.i64[B]


class Learning(hf.Batch):
    to_version: hf.i64[B]


class Known(Rollout, Sampled): ...


class Replayed(Prompts, Learning): ...


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def judge(self, rollout: Rollout) -> Rollout: ...


@hf.dataflow
def behind(prompts: Prompts, actor: Actor, engine: Engine, judge: Judge) -> None:
    batch = hf.queue(engine.generate(prompts), lag=4, late="wait")
    actor.update(hf.merge(Experience, batch, versions(batch)))
    hf.sync(actor, engine)


@hf.dataflow
def sampled_in_front(prompts: Prompts, actor: Actor, engine: Engine, judge: Judge) -> None:
    rollout = engine.generate(prompts)
    batch = hf.queue(hf.merge(Known, rollout, versions(rollout)), lag=4, late="wait")
    actor.update(hf.merge(Experience, batch, Learning(to_version=versions(batch).to_version)))
    hf.sync(actor, engine)


@hf.dataflow
def between_queues(prompts: Prompts, actor: Actor, engine: Engine, judge: Judge) -> None:
    rollout = judge.judge(hf.queue(engine.generate(prompts), lag=1, late="drop"))
    actor.update(hf.queue(hf.merge(Experience, rollout, versions(rollout)), lag=1, late="drop"))
    hf.sync(actor, engine)


@hf.dataflow
def given(prompts: Replayed, actor: Actor, engine: Engine, judge: Judge) -> None:
    rollout = engine.generate(prompts)
    counted = hf.merge(Experience, rollout, prompts, Sampled(from_version=prompts.ids))
    actor.update(hf.queue(counted, lag=4, late="wait"))
    hf.sync(actor, engine)


@hf.dataflow
def without_lag(prompts: Prompts, actor: Actor, engine: Engine, judge: Judge) -> None:
    rollout = engine.generate(prompts)
    actor.update(hf.queue(hf.merge(Experience, rollout, versions(rollout))))
    hf.sync(actor, engine)


@pytest.mark.parametrize(
    ("program", "codes"),
    [(behind, ()), (sampled_in_front, ()), (between_queues, ("HF749",)), (given, ()), (without_lag, ())],
    ids=lambda value: getattr(value, "name", ""),
)
def test_versions_are_counted_where_the_policy_learns(program: Any, codes: tuple[str, ...]) -> None:
    roles = {"actor": Actor, "engine": Engine, "judge": Judge}
    places = {name: hf.place(role, pool=hf.ResourcePool([2], name=name)) for name, role in roles.items()}
    report = program.check(hf.Deployment(**places), {B: 64})
    assert tuple(code for code in report.codes if code in ("HF749", "HF765", "HF742")) == codes, str(report)
