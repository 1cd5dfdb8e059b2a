"""Numbers far outside of what is usual: of losses, of calls, of rates, and of temperatures."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl.batches import ActorMetrics, Experience
from hfdsl.rl.dataflows.grpo import grpo, grpo_without_reference
from hfdsl.rl.dataflows.ppo import ppo
from hfdsl.rl.dataflows.remax import remax
from hfdsl.rl.losses import CISPO, Clip, PolicyLoss, Reinforce, SequenceClip
from hfdsl.rl.workers import (
    Actor,
    ActorConfig,
    Critic,
    CriticConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
)
from hfdsl.rl.workers.lora import Lora
from tests.check.test_ready_roles import MODEL, check, places, responses

SAVED = ModelConfig(path="model")


@pytest.mark.parametrize(
    ("loss", "number"),
    [
        (Clip(kl=20.0), "kl = 20, where at most 1"),
        (Clip(0.2, 28.0), "high = 28, where at most 1"),
        (SequenceClip(3e-4, 4.0), "high = 4, where at most 1"),
        (Clip(entropy=1.0), "entropy = 1, where at most 0.1"),
        (Reinforce(kl=2.0), "kl = 2, where at most 1"),
    ],
)
def test_numbers_of_losses(loss: PolicyLoss, number: str) -> None:
    [finding] = check(step.given(loss=loss), places()).without("HF713").findings
    assert (finding.code, finding.message) == ("HF947", f"the loss of 'actor.update' has {number} is usual")
    assert finding.notes


@hf.dataflow
def step(experience: Experience, actor: Actor, *, loss: PolicyLoss = Clip(kl=1.0, entropy=0.1)) -> ActorMetrics:
    return actor.update(experience, loss=loss)


@pytest.mark.parametrize("loss", [Clip(kl=1.0, entropy=0.1), Clip(inf, inf), Clip(1.0, 1.0), CISPO(), SequenceClip()])
def test_numbers_of_losses_that_are_meant(loss: PolicyLoss) -> None:
    assert check(step.given(loss=loss), places()).without("HF713").findings == ()


def test_a_clip_in_percent_is_one_mistake() -> None:
    assert check(step.given(loss=Clip(20.0, 28.0)), places()).codes == ("HF946",)


@pytest.mark.parametrize("flow", [ppo, remax], ids=["ppo", "remax"])
def test_numbers_of_calls(flow: Dataflow[..., Any]) -> None:
    [finding] = check(flow.given(kl=5.0), places()).findings
    assert finding.code == "HF947"
    assert finding.message == "'kl' of 'kl_penalized_rewards' is usually at most 1, and is 5.0"
    assert check(flow.given(kl=1.0), places()).findings == ()


def rated(rate: float, model: ModelConfig, lora: Lora | None = None) -> dict[str, hf.Placement[Any]]:
    pool, training = hf.ResourcePool([1], name="pool"), TrainingConfig(OptimizerConfig(rate))
    return {
        **places(),
        "actor": hf.place(Actor, ActorConfig(model, responses(), training, lora=lora), pool=pool),
        "critic": hf.place(Critic, CriticConfig(MODEL), pool=pool),
    }


def test_rates_of_saved_weights() -> None:
    [finding] = check(grpo, rated(0.01, SAVED)).findings
    assert finding.code == "HF947"
    assert finding.message == (
        "'actor' learns saved weights at a rate of 0.01, where at most 0.005 is usual: a few updates overwrite what "
        "the model has learned"
    )


@pytest.mark.parametrize(
    ("rate", "model", "lora"),
    [(5e-3, SAVED, None), (0.01, MODEL, None), (0.01, SAVED, Lora(rank=8))],
    ids=["small", "new weights", "an adapter"],
)
def test_rates_that_overwrite_nothing(rate: float, model: ModelConfig, lora: Lora | None) -> None:
    assert "HF947" not in check(grpo, rated(rate, model, lora)).codes


def test_temperatures_of_policies_that_learn_by_ratios() -> None:
    cold = replace(responses(), temperature=0.001)
    [finding] = check(grpo_without_reference, places(actor=cold)).findings
    assert (finding.code, finding.primary.text) == ("HF947", "has temperature = 0.001")
    assert "1,000 times as much" in finding.message
    assert check(grpo_without_reference, places(actor=replace(cold, temperature=0.1))).findings == ()
    assert "HF947" not in check(remax.given(loss=Reinforce()), places(actor=cold)).codes  # it forms no ratio
