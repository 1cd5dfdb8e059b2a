"""Learning rates and dtypes with which updates change nothing, in deployments written in Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

import hfdsl as hf
from hfdsl.rl.dataflows.ppo import ppo
from hfdsl.rl.dataflows.reward_modeling import reward_modeling
from hfdsl.rl.workers import CriticConfig, ModelConfig, OptimizerConfig, RewardLearner, TrainingConfig
from hfdsl.rl.workers.lora import Lora
from tests.check.test_ready_roles import MODEL, check, places

SIXTEEN_BITS = replace(MODEL, dtype="bfloat16")


def optimizer(**changes: Any) -> TrainingConfig:
    return TrainingConfig(OptimizerConfig(**changes))


def learns(
    role: Literal["actor", "critic"], training: TrainingConfig, model: ModelConfig = MODEL, lora: Lora | None = None
) -> dict[str, hf.Placement[Any]]:
    """The roles of PPO, of which one learns so."""
    roles = places()
    old = roles[role]
    config = replace(old.args[0], training=training, model=model, lora=lora)
    return {**roles, role: hf.place(old.role, config, pool=old.pool)}


@pytest.mark.parametrize("role", ["actor", "critic"])
@pytest.mark.parametrize(
    ("training", "message"),
    [
        (optimizer(learning_rate=0.0), "the learning rate of '{}' is 0: its updates change no parameter"),
        (
            optimizer(schedule="cosine", warmup_steps=100, total_steps=100),
            "'{}' warms up over 100 updates, but its schedule ends at update 100",
        ),
    ],
)
def test_a_rate_that_is_never_above_0_or_at_its_peak(
    role: Literal["actor", "critic"], training: TrainingConfig, message: str
) -> None:
    roles = learns(role, training)
    [finding] = check(ppo, roles).findings
    assert (finding.code, finding.message) == ("HF716", message.format(role))
    assert finding.primary.span == roles[role].span


@pytest.mark.parametrize(
    "training",
    [
        optimizer(learning_rate=1e-9),
        optimizer(schedule="cosine", warmup_steps=99, total_steps=100),
        optimizer(schedule="constant", warmup_steps=100, total_steps=100),
    ],
)
def test_a_rate_that_reaches_its_peak(training: TrainingConfig) -> None:
    assert check(ppo, learns("actor", training)).findings == ()


def test_a_role_that_is_not_trained_needs_no_rate() -> None:
    roles = places()
    scores = hf.place(RewardLearner, CriticConfig(MODEL, optimizer(learning_rate=0.0)), pool=roles["reward"].pool)
    assert check(ppo, {**roles, "reward": scores}).findings == ()
    assert check(reward_modeling, {"reward": scores}).codes == ("HF716",)


@pytest.mark.parametrize(
    ("training", "lora", "is_lost"),
    [
        (optimizer(), None, True),
        (optimizer(learning_rate=1e-4), None, False),
        (replace(optimizer(), master_weights=True), None, False),
        (optimizer(), Lora(rank=2), False),
        (replace(optimizer(), autocast="bfloat16"), None, True),
    ],
)
def test_small_steps_of_16_bit_parameters(training: TrainingConfig, lora: Lora | None, *, is_lost: bool) -> None:
    roles = learns("critic", training, SIXTEEN_BITS, lora)
    findings = check(ppo, roles).findings
    assert [finding.code for finding in findings] == ["HF719"] * is_lost
    if is_lost:
        assert findings[0].message == (
            "'critic' learns parameters in bfloat16 at a rate of 1e-06: rounding discards most of its updates"
        )
        assert findings[0].primary.span == roles["critic"].span
    assert check(ppo, learns("critic", training, MODEL, lora)).findings == ()


@pytest.mark.parametrize("rate", [1e-6, 1e-2])
def test_updates_in_float16_are_no_numbers(rate: float) -> None:
    half = replace(MODEL, dtype="float16")
    assert check(ppo, learns("actor", optimizer(learning_rate=rate), half)).codes == ("HF719",)
    larger = learns("actor", optimizer(learning_rate=rate, epsilon=1e-4), half)
    assert ("HF719" in check(ppo, larger).codes) == (rate < 1e-4)  # rounded away, but a number
    kept = replace(optimizer(learning_rate=rate), master_weights=True)
    assert "HF719" not in check(ppo, learns("actor", kept, half)).codes
    weight = torch.nn.Parameter(torch.ones(8, dtype=torch.float16))
    updates = torch.optim.AdamW([weight], lr=rate)
    for _ in range(2):
        weight.grad = torch.full_like(weight, 1e-4)
        updates.step()
    assert not weight.isfinite().any()
