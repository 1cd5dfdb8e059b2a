"""What critics learn, and which of their values a policy learns from, on the ready-made roles."""

from __future__ import annotations

from typing import Literal

import pytest

import hfdsl as hf
from hfdsl.rl.batches import (
    ActorMetrics,
    AdvantagesAndReturns,
    CriticMetrics,
    Experience,
    Prompts,
    Rewards,
    ValueExperience,
    Values,
)
from hfdsl.rl.dataflows.ppo import ppo
from hfdsl.rl.dataflows.safe_rlhf import safe_rlhf
from hfdsl.rl.functions import generalized_advantages
from hfdsl.rl.losses import Clip, ClippedValue
from hfdsl.rl.workers import Actor, Critic
from tests.check.test_ready_roles import check, places


@hf.function
def halved(values: Values) -> AdvantagesAndReturns:
    half = values.values.tensor / 2
    return AdvantagesAndReturns(advantage=half, returns=half)


@hf.dataflow
def step(
    prompts: Prompts,
    rewards: Rewards,
    actor: Actor,
    critic: Critic,
    *,
    learns: Literal["returns", "values", "halves"] = "returns",
    late: bool = False,
    epochs: int = 1,
) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = actor.generate(prompts)
    values = critic.values(rollout)
    estimates = generalized_advantages(rollout, rewards, values)
    if learns == "values":
        targets = ValueExperience(
            ids=rollout.ids,
            mask=rollout.mask,
            response_mask=rollout.response_mask,
            values=values.values,
            returns=values.values,
        )
    else:
        targets = hf.merge(ValueExperience, rollout, values, estimates if learns == "returns" else halved(values))
    learned = [critic.update(part, loss=ClippedValue()) for part in hf.minibatches(targets, 2) * epochs]
    advantages = generalized_advantages(rollout, rewards, critic.values(rollout)) if late else estimates
    return actor.update(hf.merge(Experience, rollout, advantages), loss=Clip()), learned[-1]


@pytest.mark.parametrize("epochs", [1, 3])
def test_rewards_reach_a_critic(epochs: int) -> None:
    for learns in ("values", "halves"):
        [finding] = check(step.given(learns=learns, epochs=epochs), places()).findings
        assert finding.code == "HF729"
        assert finding.message == (
            "'critic.update' learns 'returns' computed only from 'critic.values': no reward reaches the critic"
        )


@pytest.mark.parametrize("epochs", [1, 3])
def test_advantages_are_over_the_values_from_before(epochs: int) -> None:
    [finding] = check(step.given(late=True, epochs=epochs), places()).findings
    assert finding.code == "HF345"
    assert finding.message == (
        "'actor.update' learns from values that 'critic.values' computes after 'critic.update' has learned the returns "
        "of these rows: what the critic has just learned is missing from the advantages"
    )


@hf.dataflow
def estimated_again(prompts: Prompts, rewards: Rewards, actor: Actor, critic: Critic) -> list[hf.Batch]:
    """Every epoch estimates again, and trains both on what it gives."""
    rollout, metrics = actor.generate(prompts), list[hf.Batch]()
    for _ in range(3):
        values = critic.values(rollout)
        estimates = generalized_advantages(rollout, rewards, values)
        metrics += [
            critic.update(hf.merge(ValueExperience, rollout, values, estimates), loss=ClippedValue()),
            actor.update(hf.merge(Experience, rollout, estimates), loss=Clip()),
        ]
    return metrics


@hf.dataflow
def of_other_rows(
    prompts: Prompts, more: Prompts, rewards: Rewards, actor: Actor, critic: Critic
) -> tuple[ActorMetrics, CriticMetrics]:
    """A critic learns from some rows first, and gives the values of others."""
    first, second = actor.generate(prompts), actor.generate(more)
    values = critic.values(first)
    learned = critic.update(
        hf.merge(ValueExperience, first, values, generalized_advantages(first, rewards, values)), loss=ClippedValue()
    )
    advantages = generalized_advantages(second, rewards, critic.values(second))
    return actor.update(hf.merge(Experience, second, advantages), loss=Clip()), learned


def test_critics_that_learn_returns() -> None:
    for flow in (step, step.given(epochs=2), estimated_again, of_other_rows, ppo):
        assert check(flow, places()).findings == ()
    assert not {"HF345", "HF729"} & set(safe_rlhf.check(None, {}).codes)
