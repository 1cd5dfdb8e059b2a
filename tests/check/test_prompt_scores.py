# mypy: disable-error-code="empty-body"
"""Scores of prompts and of responses, on the ready-made roles and with functions of a user."""

from __future__ import annotations

from typing import Any, Literal

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl.batches import ActorMetrics, Advantages, Experience, Prompts, Rollout, Scores, Sequences
from hfdsl.rl.dataflows.grpo import grpo
from hfdsl.rl.functions import group_advantages
from hfdsl.rl.losses import Clip
from hfdsl.rl.workers import Actor
from tests.check.test_ready_roles import check, places


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def rate(self, prompts: Prompts) -> Scores: ...

    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts, responses: Sequences) -> Scores: ...


class Forgetful(hf.Worker):
    """It rates prompts, and sees no response in any call."""

    @register(Dispatch.DP_PROTO)
    def rate(self, prompts: Prompts) -> Scores: ...


@hf.function
def spread(rollout: Rollout, scores: Scores) -> Advantages:
    """Reads the mask of the rollout, and not its tokens."""
    return Advantages(advantage=scores.score.tensor[:, None] * rollout.response_mask.tensor)


@hf.function
def checked(rollout: Rollout, scores: Scores) -> Advantages:
    """Looks at tokens itself."""
    even = (rollout.ids.tensor % 2 == 0).float()
    return Advantages(advantage=scores.score.tensor[:, None] * even)


@hf.function
def product(scores: Scores, weights: Scores) -> Scores:
    return Scores(score=scores.score.tensor * weights.score.tensor)


@hf.dataflow
def step(
    prompts: Prompts,
    actor: Actor,
    judge: Judge,
    other: Forgetful,
    *,
    by: Literal["prompts", "responses", "both"] = "prompts",
    gains: Literal["ready", "spread", "checked"] = "ready",
) -> ActorMetrics:
    samples = hf.repeat(prompts, 4)
    rollout = actor.generate(samples)
    scores = other.rate(samples)
    if by != "prompts":
        seen = judge.score(samples, rollout)
        scores = seen if by == "responses" else product(seen, scores)
    advantages = (
        group_advantages(rollout, scores, group=4)
        if gains == "ready"
        else (spread if gains == "spread" else checked)(rollout, scores)
    )
    return actor.update(hf.merge(Experience, rollout, advantages), loss=Clip())


def codes(flow: Dataflow[..., Any]) -> tuple[str, ...]:
    pool = hf.ResourcePool([1])
    roles = {**places(), "judge": hf.place(Judge, pool=pool), "other": hf.place(Forgetful, pool=pool)}
    return check(flow, roles).without("HF509").without("HF602").codes  # a variant need not call all roles


@pytest.mark.parametrize("gains", ["ready", "spread"])
def test_scores_of_prompts_are_no_scores_of_responses(gains: Literal["ready", "spread"]) -> None:
    assert codes(step.given(gains=gains)) == ("HF350",)


@pytest.mark.parametrize(
    "flow",
    [step.given(by="responses"), step.given(by="both"), step.given(gains="checked"), grpo],
    ids=["responses", "both", "checked", "grpo"],
)
def test_scores_that_depend_on_responses(flow: Dataflow[..., Any]) -> None:
    assert codes(flow) == ()


@hf.dataflow
def remembered(prompts: Prompts, actor: Actor, judge: Judge) -> tuple[ActorMetrics, Scores]:
    """A role that got the responses in another call may rate by them."""
    rollout = actor.generate(prompts)
    scores = judge.score(prompts, rollout)
    advantages = spread(rollout, judge.rate(prompts))
    return actor.update(hf.merge(Experience, rollout, advantages), loss=Clip()), scores


def test_a_role_may_remember() -> None:
    assert codes(remembered) == ()
