# mypy: disable-error-code="empty-body"
"""Numbers of tokens in the place of advantages, old values and old log-probs, on the ready-made roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.check.repair.edits import apply
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl.batches import (
    ActorMetrics,
    Advantages,
    B,
    CriticMetrics,
    Experience,
    Prompts,
    R,
    Rewards,
    Rollout,
    Sequences,
    ValueExperience,
    Values,
)
from hfdsl.rl.dataflows.ppo import ppo
from hfdsl.rl.functions import generalized_advantages, with_log_probs
from hfdsl.rl.losses import Clip, ClippedValue
from hfdsl.rl.workers import Actor, Critic, CriticConfig, Reference
from tests.check.test_ready_roles import MODEL, check, places

Advantage = Literal["advantage", "log_probs", "values", "ref", "rewards"]


@hf.dataflow
def step(
    prompts: Prompts,
    rewards: Rewards,
    actor: Actor,
    critic: Critic,
    reference: Reference,
    *,
    advantage: Advantage = "advantage",
    old_log_probs: Literal["log_probs", "advantage", "ref"] = "log_probs",
    old_values: Literal["values", "returns", "advantage", "rewards"] = "values",
    clip: float | None = 0.2,
) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = actor.generate(prompts)
    values, ref = critic.values(rollout), reference.log_probs(rollout)
    estimates = generalized_advantages(rollout, rewards, values)
    columns: dict[str, Any] = {
        "log_probs": rollout.log_probs,
        "values": values.values,
        "returns": estimates.returns,
        "rewards": rewards.rewards,
        "ref": ref.ref_log_probs,
        "advantage": estimates.advantage,
    }
    masks: dict[str, Any] = {"ids": rollout.ids, "mask": rollout.mask, "response_mask": rollout.response_mask}
    experience = Experience(
        **masks, log_probs=columns[old_log_probs], advantage=columns[advantage], ref_log_probs=ref.ref_log_probs
    )
    targets = ValueExperience(**masks, values=columns[old_values], returns=estimates.returns)
    return actor.update(experience, loss=Clip(kl=0.1)), critic.update(targets, loss=ClippedValue(clip))


LIKELY = "each token is weighted by how likely it was, and no reward reaches the policy"
EXPECTED = "each token is weighted by what was expected, however the response ended"


@pytest.mark.parametrize(
    ("advantage", "taken", "effect"),
    [
        ("log_probs", "log-probs of 'actor.generate'", LIKELY),
        ("ref", "log-probs of 'reference.log_probs'", LIKELY),
        ("values", "values of 'critic.values'", EXPECTED),
    ],
)
def test_advantages_say_how_good_a_token_is(advantage: Advantage, taken: str, effect: str) -> None:
    [finding] = check(step.given(advantage=advantage), places()).findings
    assert finding.code == "HF347"
    assert finding.message == f"'Experience' takes the {taken} for its 'advantage': {effect}"
    assert finding.notes or finding.help


@pytest.mark.parametrize("old_values", ["returns", "advantage"])
def test_old_values_are_what_the_critic_gave(old_values: Literal["returns", "advantage"]) -> None:
    [finding] = check(step.given(old_values=old_values), places()).findings
    assert finding.code == "HF348"
    assert finding.message == (
        f"'ValueExperience' takes '{old_values}' of 'generalized_advantages' for the 'values' that 'critic.values' "
        "returns: clipping and advantages then use numbers that the critic never returned"
    )


def test_a_ratio_divides_by_log_probs() -> None:
    [finding] = check(step.given(old_log_probs="advantage"), places()).findings
    assert (finding.code, finding.primary.text) == ("HF348", "an update reads it as 'advantage'")
    assert finding.message.endswith("the ratio of an update is then not a ratio of probabilities")


def test_the_log_probs_of_another_policy_are_a_mistake_of_their_own() -> None:
    assert check(step.given(old_log_probs="ref"), places()).codes == ("HF335",)


class Gains(hf.Batch):
    gain: f32[B, R]


@hf.function
def doubled(gains: Gains) -> Gains:
    return Gains(gain=gains.gain.tensor * 2)


@hf.function
def confidence(rollout: Rollout) -> Advantages:
    return Advantages(advantage=rollout.log_probs.tensor)


@hf.function
def bounded(values: Values) -> f32[B, R]:
    return values.values.tensor.clamp(-1, 1)  # type: ignore[return-value]


@hf.dataflow
def confident(prompts: Prompts, actor: Actor) -> ActorMetrics:
    """A function makes a reward of log-probs."""
    rollout = actor.generate(prompts)
    return actor.update(hf.merge(Experience, rollout, confidence(rollout)), loss=Clip())


@hf.dataflow
def recomputed(prompts: Prompts, rewards: Rewards, actor: Actor, critic: Critic) -> tuple[ActorMetrics, CriticMetrics]:
    """Old log-probs of the trainer, and old values that a function bounds."""
    rollout = actor.generate(prompts)
    own = with_log_probs(rollout, actor.log_probs(rollout))
    values = critic.values(rollout)
    estimates = generalized_advantages(rollout, rewards, values)
    targets = ValueExperience(
        ids=rollout.ids,
        mask=rollout.mask,
        response_mask=rollout.response_mask,
        values=bounded(values),
        returns=estimates.returns,
    )
    return actor.update(hf.merge(Experience, own, estimates), loss=Clip()), critic.update(targets, loss=ClippedValue())


class Estimates(hf.Batch):
    gae: f32[B, R]
    returns: f32[B, R]


class Estimator(Critic):
    """A critic that compares its values with the rewards itself."""

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("critic")
    def estimate(self, sequences: Sequences, rewards: Rewards) -> Estimates: ...


@hf.dataflow
def in_the_critic(
    prompts: Prompts, rewards: Rewards, actor: Actor, critic: Estimator
) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = actor.generate(prompts)
    estimates = critic.estimate(rollout, rewards)
    masks: dict[str, Any] = {"ids": rollout.ids, "mask": rollout.mask, "response_mask": rollout.response_mask}
    targets = ValueExperience(**masks, values=critic.values(rollout).values, returns=estimates.returns)
    experience = Experience(**masks, log_probs=rollout.log_probs, advantage=estimates.gae)
    return actor.update(experience, loss=Clip()), critic.update(targets, loss=ClippedValue())


def test_a_critic_may_give_advantages() -> None:
    critic = hf.place(Estimator, CriticConfig(MODEL), pool=hf.ResourcePool([1], name="other"))
    assert check(in_the_critic, {**places(), "critic": critic}).findings == ()


@hf.dataflow
def gains_for_log_probs(prompts: Prompts, gains: Gains, actor: Actor) -> ActorMetrics:
    rollout = actor.generate(prompts)
    masks: dict[str, Any] = {"ids": rollout.ids, "mask": rollout.mask, "response_mask": rollout.response_mask}
    better = doubled(gains)
    return actor.update(Experience(**masks, log_probs=better.gain, advantage=better.gain), loss=Clip())


def test_one_number_in_two_places_is_one_mistake() -> None:
    assert check(gains_for_log_probs, places()).codes == ("HF348",)


@pytest.mark.parametrize(
    "flow",
    [step, step.given(advantage="rewards"), step.given(old_values="returns", clip=None), confident, recomputed, ppo],
    ids=["step", "rewards", "without a clip", "confident", "recomputed", "ppo"],
)
def test_numbers_that_are_meant(flow: Dataflow[..., Any]) -> None:
    assert check(flow, places()).findings == ()


@hf.dataflow
def written(prompts: Prompts, rewards: Rewards, actor: Actor, critic: Critic) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = actor.generate(prompts)
    values = critic.values(rollout)
    estimates = generalized_advantages(rollout, rewards, values)
    old = Values(values=estimates.returns)
    targets = hf.merge(ValueExperience, rollout, old, estimates)
    return actor.update(hf.merge(Experience, rollout, estimates), loss=Clip()), critic.update(
        targets, loss=ClippedValue()
    )


def test_the_column_that_is_meant_is_an_edit() -> None:
    [finding] = check(written, places()).findings
    assert finding.help == ("write values.values",)
    text = Path(__file__).read_text("utf-8")
    [fix] = finding.fixes
    assert "    old = Values(values=values.values)\n" in apply(text, fix.edits)
