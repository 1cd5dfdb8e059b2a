"""The dtype of copies: which pairs of roles are compared, on the ready-made roles."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import pytest

import hfdsl as hf
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl import workers as w
from hfdsl.rl.batches import ActorMetrics, B, Experience, ImitationMetrics, P, Prompts, R, Scores
from hfdsl.rl.functions import group_advantages, with_log_probs
from hfdsl.rl.losses import Clip
from hfdsl.rl.sampling import sample

MODEL = w.ModelConfig(path="model")
GENERATION = w.GenerationConfig(8)
POOL = hf.ResourcePool([4], name="pool")
OldLogProbs: TypeAlias = Literal["the sampler's", "the actor's", "the actor's, by a function"]


@hf.dataflow
def step(
    prompts: Prompts, actor: w.Actor, sampler: w.Sampler, reward: w.Reward, *, old: OldLogProbs = "the sampler's"
) -> ActorMetrics:
    hf.sync(actor, sampler)
    questions = hf.repeat(prompts, 4)
    rollout = sample(questions, actor, sampler) if old == "the actor's" else sampler.generate(questions)
    advantages = group_advantages(rollout, reward.score(questions, rollout), group=4)
    if old == "the actor's, by a function":
        rollout = with_log_probs(rollout, actor.log_probs(rollout))
    return actor.update(hf.merge(Experience, rollout, advantages), loss=Clip())


@hf.dataflow
def imitation(
    prompts: Prompts, actor: w.Actor, sampler: w.Sampler, reward: w.Reward
) -> tuple[ImitationMetrics, Scores]:
    hf.sync(actor, sampler)
    rollout = sampler.generate(prompts)
    return actor.imitate(rollout), reward.score(prompts, rollout)


def codes(
    actor: str | None, sampler: str | None, dtype: Any = "float32", flow: Dataflow[..., Any] = step
) -> tuple[str, ...]:
    trained = w.ActorConfig(MODEL, GENERATION, w.TrainingConfig(autocast=actor))  # type: ignore[arg-type]  # a name
    copy = w.SamplerConfig(w.ModelConfig(path="model", dtype=dtype), GENERATION, sampler)  # type: ignore[arg-type]
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, trained, pool=POOL),
        sampler=hf.place(w.Sampler, copy, pool=POOL),
        reward=hf.place(w.Verifier, w.VerifierConfig(function="math:fsum"), pool=POOL),
    )
    return flow.check(deployment, {B: 64, P: 8, R: 8}).codes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sampler", [None, "float32", "bfloat16"])
@pytest.mark.parametrize("actor", [None, "float32", "bfloat16"])
def test_a_copy_is_reported_where_the_dtypes_of_its_products_differ(
    actor: str | None, sampler: str | None, dtype: str
) -> None:
    alike = (actor or "float32") == (sampler or dtype)
    assert codes(actor, sampler, dtype) == (() if alike else ("HF942",))


def test_log_probs_of_the_policy_itself_have_no_other_dtype() -> None:
    """As the page and the message advise: the update divides by what the actor has computed."""
    assert codes(None, "bfloat16") == ("HF942",)
    for old in ("the actor's", "the actor's, by a function"):
        assert codes(None, "bfloat16", flow=step.given(old=old)) == ()


def test_an_update_without_log_probs_divides_by_nothing() -> None:
    assert codes(None, "bfloat16", flow=imitation) == ("HF346",)  # no HF942; it imitates all of its own samples


def test_without_a_deployment_nothing_is_known() -> None:
    assert "HF942" not in step.check().codes
