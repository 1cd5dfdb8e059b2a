"""Baselines that are the score of the response itself, and others, on the ready-made roles."""

from __future__ import annotations

from typing import Literal

import pytest

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Experience, Prompts
from hfdsl.rl.dataflows.remax import remax
from hfdsl.rl.functions import advantages_over, centered_scores, kl_penalized_rewards, length_penalized_scores
from hfdsl.rl.losses import Reinforce
from hfdsl.rl.workers import Actor, Reference, Reward
from tests.check.test_ready_roles import check, places


@hf.dataflow
def step(
    prompts: Prompts,
    actor: Actor,
    reference: Reference,
    reward: Reward,
    *,
    shaped: bool = False,
    baseline: Literal["own", "again", "likeliest", "another", "centered"] = "own",
) -> ActorMetrics:
    many = hf.repeat(prompts, 4)
    rollout = actor.generate(many)
    scores = reward.score(many, rollout)
    charged = length_penalized_scores(rollout, scores, longest=32, buffer=8) if shaped else scores
    rewards = kl_penalized_rewards(rollout, reference.log_probs(rollout), charged)
    if baseline == "own":
        expected = scores
    elif baseline == "again":
        expected = reward.score(many, rollout)
    elif baseline == "centered":
        expected = centered_scores(scores, group=4)
    else:
        expected = reward.score(many, actor.generate(many, greedy=baseline == "likeliest"))
    return actor.update(hf.merge(Experience, rollout, advantages_over(rollout, rewards, expected)), loss=Reinforce())


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize("baseline", ["own", "again"])
def test_a_score_is_no_baseline_of_itself(baseline: Literal["own", "again"], *, shaped: bool) -> None:
    [finding] = check(step.given(baseline=baseline, shaped=shaped), places()).findings
    assert finding.code == "HF344"
    assert finding.message == (
        "'advantages_over' subtracts the score of 'reward.score' from itself: the baseline is the response's own "
        "score, and 'actor.update' learns nothing from it"
    )


@pytest.mark.parametrize("baseline", ["likeliest", "another", "centered"])
def test_other_scores_are_baselines(baseline: Literal["likeliest", "another", "centered"]) -> None:
    assert check(step.given(baseline=baseline), places()).findings == ()
    assert check(remax, places()).findings == ()
