"""Critics that nothing trains, and roles that are no such critics, on the ready-made roles."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl.batches import (
    ActorCriticExperience,
    ActorMetrics,
    AdvantagesAndReturns,
    Experience,
    Prompts,
    Rewards,
    Values,
)
from hfdsl.rl.dataflows.distillation import distillation
from hfdsl.rl.dataflows.online_dpo import online_dpo
from hfdsl.rl.dataflows.ppo import ppo
from hfdsl.rl.functions import normalized_returns, teacher_advantages, whitened_advantages
from hfdsl.rl.losses import Clip, ClippedValue
from hfdsl.rl.workers import Actor, Critic, CriticConfig, RewardLearner
from tests.check.test_ready_roles import MODEL, check, places


@hf.dataflow
def step(
    prompts: Prompts, rewards: Rewards, actor: Actor, critic: Critic, *, epochs: int = 1, updates: int = 0
) -> list[ActorMetrics]:
    rollout = actor.generate(prompts)
    values = critic.values(rollout)
    estimates = whitened_advantages(rollout, rewards, values)
    experience = hf.merge(ActorCriticExperience, rollout, values, estimates)
    parts = hf.minibatches(experience, 2) * epochs
    for part in parts[:updates]:
        critic.update(part, loss=ClippedValue())
    return [actor.update(part, loss=Clip()) for part in parts]


@pytest.mark.parametrize("epochs", [1, 3])
def test_values_that_a_policy_learns_from_are_trained(epochs: int) -> None:
    [finding] = check(step.given(epochs=epochs), places()).findings
    assert finding.code == "HF728"
    assert finding.message == (
        "'actor.update' learns from 'critic.values', and nothing trains 'critic': its values stay as they were at the "
        "start"
    )
    assert check(step.given(updates=2), places()).findings == ()
    assert check(ppo, places()).findings == ()


@hf.dataflow
def sampling(prompts: Prompts, rewards: Rewards, actor: Actor, critic: Critic) -> tuple[Values, AdvantagesAndReturns]:
    """The experience of another dataflow's updates."""
    rollout = actor.generate(prompts)
    values = critic.values(rollout)
    return values, whitened_advantages(rollout, rewards, values)


@hf.dataflow
def reported(prompts: Prompts, rewards: Rewards, actor: Actor, critic: Critic) -> tuple[ActorMetrics, Values]:
    """The policy learns from rewards alone."""
    rollout = actor.generate(prompts)
    experience = hf.merge(Experience, rollout, normalized_returns(rollout, rewards))
    return actor.update(experience, loss=Clip()), critic.values(rollout)


@hf.dataflow
def taught(prompts: Prompts, actor: Actor, left: Actor) -> ActorMetrics:
    """A teacher of the policy's own class, which could learn and does not."""
    rollout = actor.generate(prompts)
    advantages = teacher_advantages(rollout, left.log_probs(rollout))
    return actor.update(hf.merge(Experience, rollout, advantages), loss=Clip())


@pytest.mark.parametrize("flow", [sampling, reported, taught, distillation])
def test_other_roles_are_no_critics(flow: Dataflow[..., Any]) -> None:
    assert "HF728" not in check(flow, places()).codes


def test_a_reward_model_that_could_learn_may_only_score() -> None:
    roles = places()
    frozen = hf.place(RewardLearner, CriticConfig(MODEL), pool=roles["reward"].pool)
    for flow in (ppo, online_dpo):
        assert check(flow, {**roles, "reward": frozen}).findings == ()
