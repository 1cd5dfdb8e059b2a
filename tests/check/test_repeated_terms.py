"""A reference that holds twice, and updates without a ratio on the same rows, on the ready-made roles."""

from __future__ import annotations

import pytest

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Experience, Prompts
from hfdsl.rl.dataflows.grpo import grpo
from hfdsl.rl.dataflows.ppo import ppo
from hfdsl.rl.dataflows.reinforce_plus_plus import reinforce_plus_plus
from hfdsl.rl.functions import group_advantages
from hfdsl.rl.losses import Clip, PolicyLoss, Reinforce
from hfdsl.rl.workers import Actor, Reward
from tests.check.test_ready_roles import check, places


@pytest.mark.parametrize(("rewards", "loss", "twice"), [(0.05, 0.04, True), (0.0, 0.04, False), (0.05, 0.0, False)])
def test_a_policy_is_held_to_its_reference_once(rewards: float, loss: float, *, twice: bool) -> None:
    for flow in (ppo, reinforce_plus_plus):
        findings = check(flow.given(kl=rewards, loss=Clip(kl=loss)), places()).findings
        assert [finding.code for finding in findings] == ["HF343"] * twice
        if twice:
            assert findings[0].message == (
                "the loss of 'actor.update' has kl = 0.04, and 'kl_penalized_rewards' charges kl = 0.05 in the "
                "rewards: the policy is tied to its reference twice"
            )
    assert check(grpo, places()).findings == ()


@hf.dataflow
def step(
    prompts: Prompts, actor: Actor, reward: Reward, *, epochs: int = 1, parts: int = 1, loss: PolicyLoss = Reinforce()
) -> list[ActorMetrics]:
    many = hf.repeat(prompts, 4)
    rollout = actor.generate(many)
    advantages = group_advantages(rollout, reward.score(many, rollout), group=4)
    experience = hf.merge(Experience, rollout, advantages)
    return [actor.update(part, loss=loss) for part in hf.minibatches(experience, parts) * epochs]


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_a_loss_without_a_ratio_learns_once_from_a_row(epochs: int, parts: int) -> None:
    findings = check(step.given(epochs=epochs, parts=parts), places()).findings
    assert [finding.code for finding in findings] == ["HF342"] * (epochs > 1)
    assert check(step.given(epochs=epochs, parts=parts, loss=Clip()), places()).findings == ()


@hf.dataflow
def with_both(
    prompts: Prompts, actor: Actor, reward: Reward, *, first: PolicyLoss = Clip(), then: PolicyLoss = Reinforce()
) -> list[ActorMetrics]:
    many = hf.repeat(prompts, 4)
    rollout = actor.generate(many)
    experience = hf.merge(Experience, rollout, group_advantages(rollout, reward.score(many, rollout), group=4))
    return [actor.update(experience, loss=loss) for loss in (first, then)]


def test_the_loss_of_the_later_update_needs_the_ratio() -> None:
    assert check(with_both, places()).codes == ("HF342",)
    assert check(with_both.given(first=Reinforce(), then=Clip()), places()).codes == ()


def test_rows_are_learned_a_few_times() -> None:
    assert check(ppo.given(epochs=20), places()).findings == ()
    [finding] = check(ppo.given(epochs=21), places()).findings
    assert finding.code == "HF352"
    assert finding.message == (
        "'actor.update' learns 21 times from the same rows in a step, where at most 20 is usual: after the first few "
        "times the clip holds it back, and the policy overfits to the noise of these samples"
    )


def test_other_rows_are_other_times() -> None:
    assert check(ppo.given(mini_batches=4, epochs=8), places()).findings == ()
