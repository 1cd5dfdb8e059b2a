"""Several critics, and the values that the returns of each one bootstrap from, on the ready-made roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

import hfdsl as hf
from hfdsl.check.repair.edits import apply
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl.batches import (
    ActorMetrics,
    AdvantagesAndReturns,
    CriticMetrics,
    Experience,
    Prompts,
    Rewards,
    Sequences,
    ValueExperience,
    Values,
)
from hfdsl.rl.dataflows.safe_rlhf import safe_rlhf
from hfdsl.rl.functions import generalized_advantages, safe_advantages, whitened_advantages
from hfdsl.rl.losses import Clip, ClippedValue
from hfdsl.rl.workers import Actor, Critic
from tests.check.test_kl_signs import report
from tests.check.test_ready_roles import places

Which = Literal["first", "second"]


@hf.function
def smaller(first: Values, second: Values) -> Values:
    return Values(values=first.values.tensor.minimum(second.values.tensor))


@hf.dataflow
def step(
    prompts: Prompts,
    rewards: Rewards,
    costs: Rewards,
    actor: Actor,
    critic: Critic,
    cost_critic: Critic,
    *,
    gains_over: Which = "first",
    harms_over: Which = "second",
    learned: Which = "first",
    cost_learned: Which = "second",
    old: Which = "second",
    lam: float = 0.95,
    same_rewards: bool = False,
    shared: bool = False,
    whitens: bool = False,
) -> tuple[ActorMetrics, CriticMetrics, CriticMetrics]:
    rollout = actor.generate(prompts)
    values: dict[Which, Values] = {"first": critic.values(rollout), "second": cost_critic.values(rollout)}
    both = smaller(values["first"], values["second"])
    estimate = whitened_advantages if whitens else generalized_advantages
    gains = estimate(rollout, rewards, both if shared else values[gains_over], lam=lam)
    harms = estimate(rollout, rewards if same_rewards else costs, both if shared else values[harms_over], lam=lam)
    estimates: dict[Which, AdvantagesAndReturns] = {"first": gains, "second": harms}
    targets = hf.merge(ValueExperience, rollout, values["first"], estimates[learned])
    cost_targets = hf.merge(ValueExperience, rollout, values[old], estimates[cost_learned])
    return (
        actor.update(hf.merge(Experience, rollout, safe_advantages(gains, harms, 0.5)), loss=Clip()),
        critic.update(targets, loss=ClippedValue()),
        cost_critic.update(cost_targets, loss=ClippedValue()),
    )


def codes(**options: Any) -> tuple[str, ...]:
    return report(step.given(**options)).codes


EFFECT = "returns are advantages plus values, so it learns what another critic predicts"


@pytest.mark.parametrize("whitens", [False, True])
def test_a_critic_learns_over_its_own_values(*, whitens: bool) -> None:
    [finding] = report(step.given(harms_over="first", whitens=whitens)).findings
    assert finding.code == "HF354"
    assert finding.message == (
        f"'cost_critic.update' learns returns computed with 'critic.values', not with its own values: {EFFECT}"
    )


@pytest.mark.parametrize(
    "options",
    [{"gains_over": "second", "harms_over": "first"}, {"learned": "second", "cost_learned": "first"}],
    ids=["estimates", "updates"],
)
def test_two_critics_that_are_crossed_are_one_mistake(options: dict[str, Any]) -> None:
    [finding] = report(step.given(**options)).findings
    assert finding.code == "HF354"
    assert finding.message == (
        "'critic.update' learns returns computed with 'cost_critic.values', and 'cost_critic.update' those with "
        f"'critic.values': {EFFECT}"
    )


def test_returns_over_its_own_values_are_not_left_unlearned() -> None:
    [finding] = report(step.given(cost_learned="first")).findings
    assert finding.code == "HF354"
    assert finding.message == (
        "'cost_critic.update' learns returns computed with 'critic.values', and nothing learns those with its own "
        f"values: {EFFECT}"
    )


def test_the_old_values_of_another_critic_are_one_mistake_with_its_returns() -> None:
    assert codes(harms_over="first", old="first") == ("HF348",)


@pytest.mark.parametrize(
    "options", [{}, {"whitens": True}, {"harms_over": "first", "lam": 1.0}, {"shared": True}], ids=str
)
def test_returns_that_are_meant(options: dict[str, Any]) -> None:
    assert codes(**options) == ()


@pytest.mark.parametrize(
    "options",
    [{"harms_over": "first"}, {"learned": "second", "cost_learned": "first"}, {"cost_learned": "first"}],
    ids=str,
)
def test_critics_of_the_same_rewards_may_bootstrap_from_each_other(options: dict[str, Any]) -> None:
    assert "HF354" in codes(**options)
    assert "HF354" not in codes(same_rewards=True, **options)


@hf.dataflow
def over_a_critic_of_whole_returns(
    sequences: Sequences, rewards: Rewards, costs: Rewards, critic: Critic, cost_critic: Critic
) -> tuple[CriticMetrics, CriticMetrics]:
    """What the first critic predicts is not known: its returns have no values in them."""
    values, others = critic.values(sequences), cost_critic.values(sequences)
    whole = generalized_advantages(sequences, rewards, values, lam=1.0)
    estimates = generalized_advantages(sequences, rewards, values)
    return (
        critic.update(hf.merge(ValueExperience, sequences, values, whole), loss=ClippedValue()),
        cost_critic.update(hf.merge(ValueExperience, sequences, others, estimates), loss=ClippedValue()),
    )


@hf.dataflow
def auxiliary(
    sequences: Sequences, rewards: Rewards, critic: Critic, cost_critic: Critic
) -> tuple[CriticMetrics, CriticMetrics]:
    """The second critic learns the returns of the first one, and nothing estimates over its values."""
    values, others = critic.values(sequences), cost_critic.values(sequences)
    estimates = generalized_advantages(sequences, rewards, values)
    return (
        critic.update(hf.merge(ValueExperience, sequences, values, estimates), loss=ClippedValue()),
        cost_critic.update(hf.merge(ValueExperience, sequences, others, estimates), loss=ClippedValue()),
    )


@hf.dataflow
def frozen(sequences: Sequences, rewards: Rewards, critic: Critic, left: Critic) -> CriticMetrics:
    """Values of a critic that nothing trains here are a target."""
    estimates = generalized_advantages(sequences, rewards, left.values(sequences))
    targets = hf.merge(ValueExperience, sequences, critic.values(sequences), estimates)
    return critic.update(targets, loss=ClippedValue())


@pytest.mark.parametrize("flow", [auxiliary, over_a_critic_of_whole_returns, safe_rlhf], ids=lambda flow: flow.__name__)
def test_critics_that_are_meant(flow: Dataflow[..., Any]) -> None:
    assert report(flow).codes == ()


def test_a_target_critic_is_meant() -> None:
    roles = {"critic": places()["critic"], "left": places()["critic"]}
    assert "HF354" not in frozen.check(hf.Deployment(**roles)).codes


@hf.dataflow
def written(
    sequences: Sequences, rewards: Rewards, costs: Rewards, critic: Critic, cost_critic: Critic
) -> tuple[CriticMetrics, CriticMetrics]:
    values, cost_values = critic.values(sequences), cost_critic.values(sequences)
    gains = generalized_advantages(sequences, rewards, values)
    harms = generalized_advantages(sequences, costs, values=values)
    return (
        critic.update(hf.merge(ValueExperience, sequences, values, gains), loss=ClippedValue()),
        cost_critic.update(hf.merge(ValueExperience, sequences, cost_values, harms), loss=ClippedValue()),
    )


def test_the_values_that_are_meant_are_an_edit() -> None:
    [finding] = report(written).findings
    assert finding.help == ("write cost_values",)
    [fix] = finding.fixes
    text = apply(Path(__file__).read_text("utf-8"), fix.edits)
    assert "    harms = generalized_advantages(sequences, costs, values=cost_values)\n" in text
