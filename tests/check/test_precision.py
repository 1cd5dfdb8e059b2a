"""The dtype of copies: which pairs of roles are compared, on the ready roles."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.batches import ActorMetrics, B, Experience, P, Prompts, R
from hfdsl.rl.functions import group_advantages, with_log_probs
from hfdsl.rl.losses import Clip

MODEL = w.ModelConfig(path="model")
GENERATION = w.GenerationConfig(8)
POOL = hf.ResourcePool([4], name="pool")


@hf.dataflow
def step(prompts: Prompts, actor: w.Actor, sampler: w.Sampler, reward: w.Reward) -> ActorMetrics:
    hf.sync(actor, sampler)
    questions = hf.repeat(prompts, 4)
    rollout = sampler.generate(questions)
    advantages = group_advantages(rollout, reward.score(questions, rollout), group=4)
    with_own = with_log_probs(rollout, actor.log_probs(rollout))
    return actor.update(hf.merge(Experience, with_own, advantages), loss=Clip())


def codes(actor: str | None, sampler: str | None, dtype: Any = "float32") -> tuple[str, ...]:
    trained = w.ActorConfig(MODEL, GENERATION, w.TrainingConfig(autocast=actor))  # type: ignore[arg-type]  # a name
    copy = w.SamplerConfig(w.ModelConfig(path="model", dtype=dtype), GENERATION, sampler)  # type: ignore[arg-type]
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, trained, pool=POOL),
        sampler=hf.place(w.Sampler, copy, pool=POOL),
        reward=hf.place(w.Verifier, w.VerifierConfig(function="math:fsum"), pool=POOL),
    )
    return step.check(deployment, {B: 64, P: 8, R: 8}).codes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sampler", [None, "float32", "bfloat16"])
@pytest.mark.parametrize("actor", [None, "float32", "bfloat16"])
def test_a_copy_is_reported_where_the_dtypes_of_its_products_differ(
    actor: str | None, sampler: str | None, dtype: str
) -> None:
    alike = (actor or "float32") == (sampler or dtype)
    assert codes(actor, sampler, dtype) == (() if alike else ("HF942",))


def test_without_a_deployment_nothing_is_known() -> None:
    assert "HF942" not in step.check().codes
