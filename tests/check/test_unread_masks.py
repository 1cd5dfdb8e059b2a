# mypy: disable-error-code="empty-body"
"""Masks of the tokens that are to be learned, on the ready-made roles and on records of a user."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, bool_, register
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl.batches import (
    ActorMetrics,
    Advantages,
    B,
    Experience,
    ImitationMetrics,
    P,
    Prompts,
    R,
    Rollout,
    Sequences,
)
from hfdsl.rl.losses import Clip
from hfdsl.rl.workers import Actor


class Episodes(Rollout):
    loss_mask: bool_[B, R]


class MaskedExperience(Experience):
    loss_mask: bool_[B, R]


class Answers(Sequences):
    train_mask: bool_[B, R]


class Turns(Rollout):
    ended: bool_[B, R]
    action_mask: bool_[B, R]
    image_loss_mask: bool_[B, P]


class Two(Rollout):
    loss_mask: bool_[B, R]
    action_mask: bool_[B, R]


class Agent(Actor):
    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def play(self, prompts: Prompts) -> Episodes: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def turns(self, prompts: Prompts) -> Turns: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def two(self, prompts: Prompts) -> Two: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy", ratio="log_probs")
    def learn(self, experience: MaskedExperience) -> ActorMetrics: ...


@hf.function
def within(episodes: Episodes, gains: Advantages) -> Advantages:
    return Advantages(advantage=gains.advantage.tensor * episodes.loss_mask.tensor)


def experience_of(rollout: Any, mask: Any, gains: Advantages) -> Experience:
    return Experience(
        ids=rollout.ids,
        mask=rollout.mask,
        response_mask=mask,
        log_probs=rollout.log_probs,
        advantage=gains.advantage,
    )


@hf.dataflow
def left_out(prompts: Prompts, gains: Advantages, actor: Agent) -> ActorMetrics:
    return actor.update(hf.merge(Experience, actor.play(prompts), gains), loss=Clip())


@hf.dataflow
def left_out_of_a_call(prompts: Prompts, gains: Advantages, actor: Agent) -> list[ActorMetrics]:
    experience = hf.merge(MaskedExperience, actor.play(prompts), gains)
    return [actor.update(part, loss=Clip()) for part in hf.minibatches(experience, 2)]


@hf.dataflow
def left_out_of_data(answers: Answers, actor: Agent) -> ImitationMetrics:
    return actor.imitate(answers)


@pytest.mark.parametrize(
    ("flow", "maker", "mask"),
    [
        (left_out, "actor.play", "loss_mask"),
        (left_out_of_a_call, "actor.play", "loss_mask"),
        (left_out_of_data, "answers", "train_mask"),
    ],
    ids=lambda value: str(getattr(value, "__name__", value)),
)
def test_a_mask_that_nothing_reads(flow: Dataflow[..., Any], maker: str, mask: str) -> None:
    [finding] = flow.check(None, {B: 8, P: 4, R: 4}).findings
    assert finding.code == "HF356"
    assert f"learns from tokens of '{maker}', and nothing reads their '{mask}'" in finding.message


@hf.dataflow
def renamed(prompts: Prompts, gains: Advantages, actor: Agent) -> ActorMetrics:
    episodes = actor.play(prompts)
    return actor.update(experience_of(episodes, episodes.loss_mask, gains), loss=Clip())


@hf.dataflow
def read_by_a_role(prompts: Prompts, gains: Advantages, actor: Agent) -> ActorMetrics:
    return actor.learn(hf.merge(MaskedExperience, actor.play(prompts), gains))


@hf.dataflow
def in_a_function(prompts: Prompts, gains: Advantages, actor: Agent) -> ActorMetrics:
    episodes = actor.play(prompts)
    return actor.update(hf.merge(Experience, episodes, within(episodes, gains)), loss=Clip())


@hf.dataflow
def one_of_two(prompts: Prompts, gains: Advantages, actor: Agent) -> ActorMetrics:
    rollout = actor.two(prompts)
    return actor.update(experience_of(rollout, rollout.action_mask, gains), loss=Clip())


@hf.dataflow
def through_a_queue(prompts: Prompts, gains: Advantages, actor: Agent) -> ActorMetrics:
    experience = hf.merge(MaskedExperience, actor.play(prompts), gains)
    return actor.learn(hf.queue(experience, lag=1))


@hf.dataflow
def other_names(prompts: Prompts, gains: Advantages, actor: Agent) -> ActorMetrics:
    return actor.update(hf.merge(Experience, actor.turns(prompts), gains), loss=Clip())


def test_a_queue_hands_on_a_mask() -> None:
    assert "HF356" not in through_a_queue.check(None, {B: 8, P: 4, R: 4}).codes


@hf.dataflow
def without_an_update(prompts: Prompts, actor: Agent) -> Episodes:
    return actor.play(prompts)


@pytest.mark.parametrize(
    "flow",
    [renamed, read_by_a_role, in_a_function, one_of_two, other_names, without_an_update],
    ids=lambda flow: flow.__name__,
)
def test_masks_that_are_read_or_not_of_learned_tokens(flow: Dataflow[..., Any]) -> None:
    assert flow.check(None, {B: 8, P: 4, R: 4}).codes == ()
