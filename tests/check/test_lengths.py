"""Numbers of tokens in losses and penalties against the length of responses, in deployments written in Python."""

from __future__ import annotations

from typing import Literal

import pytest

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, B, Experience, P, Prompts, R
from hfdsl.rl.dataflows.dapo import dapo
from hfdsl.rl.dataflows.dr_grpo import dr_grpo
from hfdsl.rl.functions import group_advantages
from hfdsl.rl.losses import Clip
from hfdsl.rl.workers import Actor, Reward
from tests.check.test_ready_roles import SIZES, check, places


@pytest.mark.parametrize(("longest", "buffer", "acts"), [(20480, 4096, False), (64, 32, False), (63, 32, True)])
def test_a_penalty_charges_the_longest_responses(longest: int, buffer: int, *, acts: bool) -> None:
    """With R = 32, some response is longer than ``longest - buffer``."""
    flow = dapo.given(longest=longest, buffer=buffer, rows=64)
    findings = check(flow, places()).findings
    assert [finding.code for finding in findings] == ["HF718"] * (not acts)
    if not acts:
        assert findings[0].message == (
            f"'length_penalized_scores' charges responses of more than {longest} - {buffer} = {longest - buffer} "
            "tokens, but none has more than R = 32"
        )


SUM: Literal["sequence-mean-token-sum"] = "sequence-mean-token-sum"


@hf.dataflow
def step(
    prompts: Prompts, actor: Actor, reward: Reward, *, loss: Clip = Clip(aggregation=SUM, constant=3000)
) -> ActorMetrics:
    many = hf.repeat(prompts, 4)
    rollout = actor.generate(many)
    advantages = group_advantages(rollout, reward.score(many, rollout), group=4)
    return actor.update(hf.merge(Experience, rollout, advantages), loss=loss)


def test_a_sum_over_a_response_is_divided_by_the_longest_length() -> None:
    [finding] = check(step, places()).findings
    assert finding.code == "HF721"
    assert finding.message == (
        "the loss of 'actor.update' divides the sum over a response by constant = 3000, but the longest response has "
        "R = 32"
    )
    assert finding.notes[-1] == "set the constant to 32"


@pytest.mark.parametrize(
    "loss", [Clip(aggregation=SUM, constant=divisor) for divisor in (None, 1.0, 32.0)] + [Clip(constant=3000.0)]
)
def test_other_divisors(loss: Clip) -> None:
    """R, the plain sum, and a loss that does not divide by the constant."""
    assert check(step.given(loss=loss), places()).findings == ()
    assert check(dr_grpo, places()).findings == ()


def test_lengths_without_a_size_are_not_known() -> None:
    roles = places()
    deployment = hf.Deployment(actor=roles["actor"], reward=roles["reward"])
    assert "HF721" in step.check(deployment, SIZES).codes
    assert "HF721" not in step.check(deployment, {B: 8, P: 16}).codes
    assert "HF721" in step.check(None, {R: 32}).codes
