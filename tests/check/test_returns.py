"""The returns that critics learn, beside the advantages over their values, on the ready-made roles."""

from __future__ import annotations

from typing import Literal

import pytest

import hfdsl as hf
from hfdsl.rl.batches import (
    ActorMetrics,
    Advantages,
    CriticMetrics,
    Experience,
    Prompts,
    Rewards,
    ValueExperience,
    Values,
)
from hfdsl.rl.functions import generalized_advantages, whitened_advantages
from hfdsl.rl.losses import Clip, ClippedValue
from hfdsl.rl.workers import Actor, Critic
from tests.check.test_ready_roles import check, places


@hf.dataflow
def step(
    prompts: Prompts,
    rewards: Rewards,
    others: Rewards,
    actor: Actor,
    critic: Critic,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    of: Literal["rewards", "others"] = "rewards",
    function: Literal["same", "whitened"] = "same",
    values_again: bool = False,
) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = actor.generate(prompts)
    values = critic.values(rollout)
    estimate = generalized_advantages if function == "same" else whitened_advantages
    gains = estimate(rollout, rewards, values)
    other = critic.values(rollout) if values_again else values
    returns = generalized_advantages(rollout, rewards if of == "rewards" else others, other, gamma=gamma, lam=lam)
    targets = hf.merge(ValueExperience, rollout, values, returns)
    return actor.update(hf.merge(Experience, rollout, gains), loss=Clip()), critic.update(targets, loss=ClippedValue())


def test_a_critic_learns_the_returns_that_advantages_take() -> None:
    [finding] = check(step.given(gamma=0.99), places()).findings
    assert finding.code == "HF351"
    assert finding.message == (
        "'critic.update' learns returns of gamma = 0.99, and 'actor.update' advantages of gamma = 1.0 over the same "
        "values: the critic learns other returns than the policy maximizes"
    )
    [finding] = check(step.given(of="others"), places()).findings
    assert finding.message.startswith(
        "'critic.update' learns returns of 'rewards' of 'others', and 'actor.update' advantages of 'rewards' of "
        "'rewards' over the same values"
    )


@hf.function
def less_values(rewards: Rewards, values: Values) -> Advantages:
    return Advantages(advantage=rewards.rewards.tensor - values.values.tensor)


@hf.function
def less_nothing(rewards: Rewards) -> Advantages:
    return Advantages(advantage=rewards.rewards.tensor)


@hf.dataflow
def of_advantages(
    prompts: Prompts, rewards: Rewards, actor: Actor, critic: Critic, *, over_values: bool = True
) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = actor.generate(prompts)
    values = critic.values(rollout)
    gains = less_values(rewards, values) if over_values else less_nothing(rewards)
    targets = ValueExperience(
        ids=rollout.ids,
        mask=rollout.mask,
        response_mask=rollout.response_mask,
        values=values.values,
        returns=gains.advantage,
    )
    return actor.update(hf.merge(Experience, rollout, gains), loss=Clip()), critic.update(targets, loss=ClippedValue())


def test_advantages_are_no_returns() -> None:
    assert check(of_advantages, places()).codes == ("HF351",)
    assert "HF351" not in check(of_advantages.given(over_values=False), places()).codes


@hf.dataflow
def of_single_tokens(
    prompts: Prompts, rewards: Rewards, actor: Actor, critic: Critic, *, gamma: float = 1.0
) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = actor.generate(prompts)
    values = critic.values(rollout)
    gains = generalized_advantages(rollout, rewards, values, gamma=gamma)
    targets = ValueExperience(
        ids=rollout.ids,
        mask=rollout.mask,
        response_mask=rollout.response_mask,
        values=values.values,
        returns=rewards.rewards,
    )
    return actor.update(hf.merge(Experience, rollout, gains), loss=Clip()), critic.update(targets, loss=ClippedValue())


def test_the_reward_of_a_token_is_no_return() -> None:
    [finding] = check(of_single_tokens, places()).findings
    assert finding.code == "HF351"
    assert finding.message == (
        "'critic.update' learns the 'rewards' of single tokens for its 'returns', and 'generalized_advantages' uses "
        "its values as future returns: no token learns from later rewards"
    )
    assert check(of_single_tokens.given(gamma=0.0), places()).findings == ()


@pytest.mark.parametrize("again", [False, True])
def test_estimates_of_one_return(again: bool) -> None:
    assert check(step.given(lam=1.0, values_again=again), places()).findings == ()
    assert check(step.given(gamma=0.99, function="whitened"), places()).findings == ()
