"""The reference of a KL or a preference: which one is the policy itself, and of which dtype it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeAlias

import pytest

import hfdsl as hf
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl.batches import (
    ActorMetrics,
    Experience,
    Pairs,
    PreferenceMetrics,
    Preferences,
    Prompts,
    Rollout,
    Sequences,
)
from hfdsl.rl.dataflows.distillation import distillation
from hfdsl.rl.dataflows.dpo import dpo
from hfdsl.rl.dataflows.grpo import grpo
from hfdsl.rl.dataflows.mutual import mutual
from hfdsl.rl.dataflows.ppo import ppo
from hfdsl.rl.functions import (
    group_advantages,
    kl_penalized_rewards,
    normalized_returns,
    teacher_advantages,
    with_log_probs,
)
from hfdsl.rl.losses import DPO, Clip
from hfdsl.rl.workers import Actor, Reference, Reward
from hfdsl.rl.workers.lora import Lora
from hfdsl.rl.workers.model_config import FloatDType
from tests.check.test_ready_roles import MODEL, check, places

Of: TypeAlias = Literal["the actor", "its base", "the reference"]


@hf.dataflow
def preferred(pairs: Pairs, actor: Actor, *, of: Of = "the actor", loss: DPO = DPO()) -> PreferenceMetrics:
    ref = actor.log_probs(pairs) if of == "the actor" else actor.base_log_probs(pairs)
    return actor.prefer(hf.merge(Preferences, pairs, ref), loss=loss)


@hf.dataflow
def penalized(
    prompts: Prompts, actor: Actor, reward: Reward, *, of: Of = "the actor", kl: float = 0.05
) -> ActorMetrics:
    rollout = actor.generate(prompts)
    ref = actor.log_probs(rollout) if of == "the actor" else actor.base_log_probs(rollout)
    rewards = kl_penalized_rewards(rollout, ref, reward.score(prompts, rollout), kl=kl)
    return actor.update(hf.merge(Experience, rollout, normalized_returns(rollout, rewards)), loss=Clip())


@hf.dataflow
def in_the_loss(
    prompts: Prompts, actor: Actor, reward: Reward, *, of: Of = "the actor", loss: Clip = Clip(kl=0.04)
) -> list[ActorMetrics]:
    many = hf.repeat(prompts, 4)
    rollout = actor.generate(many)
    ref = actor.log_probs(rollout) if of == "the actor" else actor.base_log_probs(rollout)
    advantages = group_advantages(rollout, reward.score(many, rollout), group=4)
    parts = hf.minibatches(hf.merge(Experience, rollout, advantages, ref), 2)
    return [actor.update(part, loss=loss) for part in parts]


def with_adapter() -> dict[str, hf.Placement[Any]]:
    roles = places()
    return {**roles, "actor": hf.place(Actor, replace(roles["actor"].args[0], lora=Lora()), pool=roles["actor"].pool)}


@pytest.mark.parametrize(
    ("flow", "compares"),
    [(preferred, "actor.prefer"), (penalized, "kl_penalized_rewards"), (in_the_loss, "actor.update")],
)
def test_a_policy_is_not_its_own_reference(flow: Dataflow[..., Any], compares: str) -> None:
    [finding] = check(flow, with_adapter()).findings
    assert finding.code == "HF340"
    assert finding.message.startswith(f"'{compares}' uses 'actor.log_probs', whose weights 'actor.")
    assert check(flow.given(of="its base"), with_adapter()).findings == ()


@hf.dataflow
def proximal(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    """The policy's own log-probs are those of the ratio, and a reference's those of the KL."""
    many = hf.repeat(prompts, 4)
    rollout = actor.generate(many)
    advantages = group_advantages(rollout, reward.score(many, rollout), group=4)
    now = with_log_probs(rollout, actor.log_probs(rollout))
    return actor.update(hf.merge(Experience, now, advantages, reference.log_probs(rollout)), loss=Clip(kl=0.04))


@pytest.mark.parametrize(
    "flow", [in_the_loss.given(loss=Clip()), penalized.given(kl=0.0), proximal, grpo, ppo, dpo, mutual]
)
def test_other_references(flow: Dataflow[..., Any]) -> None:
    """A loss without a KL only reports it; two policies may be each other's references."""
    assert check(flow, places()).findings == ()


# -- teachers


@hf.function
def with_hint(prompts: Prompts, rollout: Rollout) -> Sequences:
    import torch

    length = prompts.ids.tensor.shape[1]
    ids = torch.cat([prompts.ids.tensor.flip(1), rollout.ids.tensor[:, length:]], dim=1)
    return Sequences(ids=ids, mask=rollout.mask.tensor, response_mask=rollout.response_mask.tensor)


@hf.dataflow
def taught(prompts: Prompts, actor: Actor, teacher: Reference, *, by: str = "itself") -> ActorMetrics:
    rollout = actor.generate(prompts)
    if by == "a teacher":
        graded = teacher.log_probs(rollout)
    else:
        graded = actor.log_probs(with_hint(prompts, rollout) if by == "itself with a hint" else rollout)
    return actor.update(hf.merge(Experience, rollout, teacher_advantages(rollout, graded)), loss=Clip())


def test_a_policy_is_not_its_own_teacher() -> None:
    [finding] = check(taught, places()).without("HF509").findings
    assert finding.code == "HF340"
    assert finding.message == (
        "'teacher_advantages' uses 'actor.log_probs', whose weights 'actor.update' trains, as a teacher: the policy "
        "is compared with itself"
    )
    assert check(taught.given(by="itself with a hint"), places()).without("HF509").findings == ()
    assert check(taught.given(by="a teacher"), places()).findings == ()


# -- its dtype


def of_dtypes(actor: FloatDType, reference: FloatDType) -> dict[str, hf.Placement[Any]]:
    roles = places()
    policy, frozen = roles["actor"].args[0], roles["reference"].args[0]
    training = replace(policy.training, autocast=actor)
    half = hf.place(Reference, replace(frozen, model=replace(MODEL, dtype=reference)), pool=roles["actor"].pool)
    return {
        **roles,
        "actor": hf.place(Actor, replace(policy, training=training), pool=roles["actor"].pool),
        "reference": half,
        "teacher": half,
    }


BITS: tuple[FloatDType, ...] = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("reference", BITS)
@pytest.mark.parametrize("actor", BITS)
@pytest.mark.parametrize("flow", [grpo, ppo, dpo])
def test_a_reference_has_as_many_bits_as_the_policy(
    flow: Dataflow[..., Any], actor: FloatDType, reference: FloatDType
) -> None:
    is_less = BITS.index(reference) > BITS.index(actor)
    roles = of_dtypes(actor, reference)
    findings = check(flow, roles).findings
    assert [finding.code for finding in findings] == ["HF944"] * is_less
    for finding in findings:
        assert finding.message.startswith(f"'reference' computes in {reference}, and 'actor', ")
        assert finding.primary.span == roles["reference"].span


def test_a_teacher_may_have_fewer_bits() -> None:
    assert check(distillation, of_dtypes("float32", "bfloat16")).findings == ()
