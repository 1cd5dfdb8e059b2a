# mypy: disable-error-code="empty-body"
"""Discounts of rewards at the end of a response, on the ready-made dataflows and on functions of a user."""

from __future__ import annotations

from typing import Literal

import pytest

import hfdsl as hf
from hfdsl import f32
from hfdsl.rl.batches import ActorMetrics, Advantages, B, Experience, P, Prompts, R, Rewards, Rollout, Scores
from hfdsl.rl.dataflows.ppo import ppo
from hfdsl.rl.losses import Clip
from hfdsl.rl.workers import Actor, Reward

LONG = {B: 8, P: 16, R: 1024}


def codes(gamma: float, tokens: int) -> tuple[str, ...]:
    return ppo.given(gamma=gamma).check(None, {**LONG, R: tokens}).codes


@pytest.mark.parametrize(("gamma", "tokens"), [(0.99, 1024), (0.9, 128), (0.0, 2), (0.5, 12)])
def test_nothing_reaches_the_first_tokens(gamma: float, tokens: int) -> None:
    assert codes(gamma, tokens) == ("HF948",)


@pytest.mark.parametrize(("gamma", "tokens"), [(1.0, 1024), (0.99, 512), (0.9, 64), (0.0, 1), (0.5, 10)])
def test_something_reaches_the_first_tokens(gamma: float, tokens: int) -> None:
    assert codes(gamma, tokens) == ()


def test_the_numbers() -> None:
    [finding] = ppo.given(gamma=0.99).check(None, LONG).findings
    assert finding.message == (
        "'whitened_advantages' has gamma = 0.99: of a reward at the last of R = 1024 tokens, 0.99 ** 1023 = 3.4e-05 "
        "reaches the first; half of it is lost every 69 tokens"
    )
    assert finding.notes == ("1 is usual if the reward comes at the end; 0.99933 leaves half of it",)
    assert round(0.99933**1023, 2) == 0.5
    assert ppo.given(gamma=0.99).check(None, {B: 8}).codes == ()  # a length that is not known


@hf.function
def at_the_end(rollout: Rollout, scores: Scores) -> f32[B, R]:
    from hfdsl.rl.rewards import token_rewards

    return token_rewards(scores.score.tensor, rollout.response_mask.tensor)  # type: ignore[return-value]


@hf.function
def everywhere(rollout: Rollout, scores: Scores) -> f32[B, R]:
    return scores.score.tensor[:, None] * rollout.response_mask.tensor  # type: ignore[return-value]


@hf.function
def discounted(rewards: f32[B, R], *, discount: float) -> Advantages: ...


@hf.dataflow
def step(
    prompts: Prompts,
    rewards: Rewards,
    actor: Actor,
    reward: Reward,
    *,
    place: Literal["end", "everywhere", "input"] = "end",
) -> ActorMetrics:
    rollout = actor.generate(prompts)
    scores = reward.score(prompts, rollout)
    made = rewards.rewards if place == "input" else (at_the_end if place == "end" else everywhere)(rollout, scores)
    return actor.update(hf.merge(Experience, rollout, discounted(made, discount=0.5)), loss=Clip())


def test_functions_of_a_user() -> None:
    assert step.check(None, LONG).codes == ("HF948",)
    assert step.given(place="everywhere").check(None, LONG).codes == ()
    assert "HF948" not in step.given(place="input").check(None, LONG).codes


def test_a_fix_is_for_the_author_to_decide() -> None:
    [finding] = step.check(None, LONG).findings
    assert finding.help == ("set it to 1.0",)
    assert finding.fixes == ()
