"""The mini-batches that policies and critics learn from, on the ready-made roles."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import hfdsl as hf
from hfdsl.rl.batches import ActorCriticExperience, ActorMetrics, CriticMetrics, Prompts, Rewards
from hfdsl.rl.functions import generalized_advantages
from hfdsl.rl.losses import Clip, ClippedValue
from hfdsl.rl.workers import Actor, Critic
from tests.check.test_ready_roles import check, places


@hf.dataflow
def step(
    prompts: Prompts,
    rewards: Rewards,
    actor: Actor,
    critic: Critic,
    *,
    policy: Sequence[int] = (0, 1, 2, 3),
    values: Sequence[int] = (0, 1, 2, 3),
) -> list[ActorMetrics | CriticMetrics]:
    rollout = actor.generate(prompts)
    given = critic.values(rollout)
    estimates = generalized_advantages(rollout, rewards, given)
    parts = hf.minibatches(hf.merge(ActorCriticExperience, rollout, given, estimates), 4)
    taught = [critic.update(parts[part], loss=ClippedValue()) for part in values]
    return [*taught, *(actor.update(parts[part], loss=Clip()) for part in policy)]


NOT_TAUGHT = "it uses values of rows whose returns the critic never learns"
NOT_LEARNED = "it never learns from the rows that the critic is trained for"


@pytest.mark.parametrize(
    ("policy", "values", "learned", "taught", "effect"),
    [
        ((0, 1), (2, 3), "from mini-batches 1 and 2 of 4", "from mini-batches 3 and 4 of 4", NOT_TAUGHT),
        ((0, 1, 2, 3), (0, 0, 0, 0), "from all 4 mini-batches", "4 times from mini-batch 1 of 4", NOT_TAUGHT),
        ((1, 1, 1, 1), (0, 1, 2, 3), "4 times from mini-batch 2 of 4", "from all 4 mini-batches", NOT_LEARNED),
    ],
)
def test_rows_are_left_out(
    policy: Sequence[int], values: Sequence[int], learned: str, taught: str, effect: str
) -> None:
    [finding] = check(step.given(policy=policy, values=values), places()).findings
    assert finding.code == "HF349"
    assert finding.message == (f"'critic.update' learns {taught}, and the policy of 'actor.update' {learned}: {effect}")


@pytest.mark.parametrize(
    ("policy", "values"),
    [
        ((0, 1, 2, 3), (0, 1, 2, 3)),
        ((3, 2, 1, 0), (0, 1, 2, 3)),
        ((0, 1, 2, 3) * 2, (0, 1, 2, 3)),
        ((0,), (0, 1, 2, 3)),
        ((0, 1, 2, 3), (0, 1)),
        ((0, 1), (0, 1)),
    ],
)
def test_rows_that_both_learn_from(policy: Sequence[int], values: Sequence[int]) -> None:
    assert "HF349" not in check(step.given(policy=policy, values=values), places()).codes
