# mypy: disable-error-code="empty-body"
"""What the configurations of ready-made roles have to agree on, in deployments written in Python."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl.batches import (
    ActorMetrics,
    B,
    Experience,
    ImitationMetrics,
    P,
    Prompts,
    R,
    ReferenceLogProbs,
    Scores,
    Sequences,
)
from hfdsl.rl.dataflows.asynchronous import async_grpo
from hfdsl.rl.dataflows.distillation import distillation
from hfdsl.rl.dataflows.dpo import dpo
from hfdsl.rl.dataflows.grpo import grpo
from hfdsl.rl.dataflows.mutual import mutual
from hfdsl.rl.dataflows.online_dpo import online_dpo
from hfdsl.rl.dataflows.ppo import ppo
from hfdsl.rl.functions import advantages_over, group_advantages, kl_penalized_rewards, with_log_probs
from hfdsl.rl.losses import Clip
from hfdsl.rl.workers import (
    Actor,
    ActorConfig,
    Critic,
    CriticConfig,
    GenerationConfig,
    ModelConfig,
    Reference,
    ReferenceConfig,
    Reward,
    RewardConfig,
    RewardModel,
    Sampler,
    SamplerConfig,
    TrainingConfig,
)
from hfdsl.rl.workers.lora import Lora

SIZES = {B: 8, P: 16, R: 32}
MODEL = ModelConfig(config={"model_type": "llama", "pad_token_id": 0, "vocab_size": 64})


def responses(**changes: Any) -> GenerationConfig:
    return GenerationConfig(**{"max_tokens": 32, **changes})


def places(
    *,
    actor: GenerationConfig | None = None,
    sampler: GenerationConfig | None = None,
    reference: float = 1.0,
    separate: bool = False,
) -> dict[str, hf.Placement[Any]]:
    """Roles on one pool, where the temperature is 1 and a response has 32 tokens unless they are given.

    With ``separate`` what samples and scores has a pool of its own.
    """
    pool, policy = hf.ResourcePool([1], name="pool"), ActorConfig(MODEL, actor or responses())
    serving = hf.ResourcePool([1], name="serving") if separate else pool
    teacher = hf.place(Reference, ReferenceConfig(MODEL, temperature=reference), pool=pool)
    samples = hf.place(Sampler, SamplerConfig(MODEL, sampler or responses()), pool=serving)
    roles = {name: hf.place(Actor, policy, pool=pool) for name in ("actor", "left")}
    return {
        **roles,
        "right": hf.place(Actor, ActorConfig(MODEL, responses()), pool=pool),
        "critic": hf.place(Critic, CriticConfig(MODEL), pool=pool),
        "reward": hf.place(RewardModel, RewardConfig(ModelConfig(path="models/reward")), pool=serving),
        "sampler": samples,
        "reference": teacher,
        "teacher": teacher,
    }


def check(flow: Dataflow[..., Any], roles: dict[str, hf.Placement[Any]]) -> hf.Report:
    graph = flow.trace()
    report = flow.check(hf.Deployment(**{name: roles[name] for name in graph.roles}), SIZES)
    return report.without("HF709")  # a dataflow of a few lines need not train what it declares


# -- methods that a role cannot run


@hf.dataflow
def base(sequences: Sequences, actor: Actor) -> ReferenceLogProbs:
    return actor.base_log_probs(sequences)


@hf.dataflow
def sampled(prompts: Prompts, actor: Actor) -> ImitationMetrics:
    return actor.imitate(actor.generate(prompts))


class FrozenCopy(Actor):
    """An actor with a copy of its first weights."""

    @register(Dispatch.THREE_D_PROTO)
    def base_log_probs(self, sequences: Sequences) -> ReferenceLogProbs: ...


class Adapted(Actor):
    """An actor whose own constructor adds the adapter."""

    def __init__(self, config: ActorConfig) -> None:
        super().__init__(replace(config, lora=Lora(rank=8)))


def test_an_actor_without_an_adapter_has_none_to_leave_out() -> None:
    for role, lora, codes in (
        (Actor, None, ("HF812",)),
        (Actor, Lora(rank=8), ()),
        (FrozenCopy, None, ()),
        (Adapted, None, ()),
    ):
        config = replace(ActorConfig(MODEL, responses()), lora=lora)
        deployment = hf.Deployment(actor=hf.place(role, config, pool=hf.ResourcePool([1])))
        assert base.check(deployment, SIZES).without("HF709").codes == codes


# -- caches and copies


@pytest.mark.parametrize("tokens", [1, 47, 48, 49])
def test_a_cache_holds_the_longest_row(tokens: int) -> None:
    """A prompt has up to 16 tokens, and a response up to 32."""
    vllm = responses(engine="vllm", cache_tokens=tokens)
    roles = {**places(), "sampler": hf.place(Sampler, SamplerConfig(MODEL, vllm), pool=hf.ResourcePool([1]))}
    report = check(grpo_with_sampler, roles)
    assert ("HF952" in report.codes) == (tokens < 16 + 32)
    plain = replace(vllm, engine="plain")  # no engine of its own, so no cache of this size
    roles["sampler"] = hf.place(Sampler, SamplerConfig(MODEL, plain), pool=hf.ResourcePool([1]))
    assert "HF952" not in check(grpo_with_sampler, roles).codes


class OwnModel(Sampler):
    """A sampler that builds another model than its configuration says."""

    def __init__(self, config: SamplerConfig) -> None:
        super().__init__(replace(config, model=MODEL))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"vocab_size": 128}, "HF732"),
        ({"hidden_size": 64}, "HF732"),
        ({"num_hidden_layers": 3}, "HF730"),
        ({"rope_theta": 1e6}, "HF960"),
        ({"eos_token_id": 2}, "HF960"),
    ],
    ids=str,
)
def test_a_copy_has_the_model_of_its_weights(change: dict[str, Any], code: str) -> None:
    """Whatever differs is one finding: of the parameters where they show it, and else of the settings."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    values = {**(MODEL.config or {}), **sizes, "num_key_value_heads": 2, "rope_theta": 1e4, "eos_token_id": 1}
    model, other = ModelConfig(config=values), ModelConfig(config={**values, **change})
    pool, serving = hf.ResourcePool([1], name="pool"), hf.ResourcePool([1], name="serving")
    found: list[tuple[str, ...]] = []
    for role, copied in ((Sampler, other), (Sampler, model), (OwnModel, other)):
        roles = {
            **places(separate=True),
            "actor": hf.place(Actor, ActorConfig(model, responses()), pool=pool),
            "reference": hf.place(Reference, ReferenceConfig(model), pool=pool),
            "sampler": hf.place(role, SamplerConfig(copied, responses()), pool=serving),
        }
        found.append(check(grpo_with_sampler, roles).codes)
    assert found[:2] == [(code,), ()]
    assert "HF960" not in found[2]


# -- engines beside trainers


def test_an_engine_has_to_fit_beside_its_trainer() -> None:
    """Where it samples, the actor holds 12 bytes of a weight, the engine 2 bytes, and 32 KiB of cache a token."""
    sizes = {"model_type": "llama", "pad_token_id": 0, "vocab_size": 64, "hidden_size": 1024, "intermediate_size": 4096}
    sizes |= {"num_hidden_layers": 16, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128}
    model, engine = ModelConfig(config=sizes), responses(engine="vllm", cache_tokens=2**20 - 512)
    per_layer = 2 * 1024 * 1024 + 2 * 1024 * 512 + 3 * 1024 * 4096 + 2 * 1024
    weights = 2 * 64 * 1024 + 16 * per_layer + 1024
    cache = 2**20 * 2 * 16 * 4 * 128 * 2
    training = TrainingConfig(autocast="bfloat16")
    deployment = hf.Deployment(actor=hf.place(Actor, ActorConfig(model, engine, training), pool=hf.ResourcePool([1])))

    def found(gib: float) -> list[str]:
        cluster = hf.Cluster(hf.Nodes(1, gpus=1, gpu_memory_gib=gib, cpus=8))
        report = sampled.check(deployment, SIZES, cluster)
        return [finding.message for finding in report if finding.code == "HF504"]

    needed = (weights * (12 + 2) + cache) / 2**30
    assert found(needed + 0.01) == []
    [message] = found(needed - 0.01)
    assert message.startswith(f"while 'actor.generate' runs, 'actor' holds {needed:.1f} GiB of each GPU")


# -- temperatures


@hf.dataflow
def grpo_with_sampler(
    prompts: Prompts, actor: Actor, sampler: Sampler, reference: Reference, reward: Reward
) -> ActorMetrics:
    hf.sync(actor, sampler)
    many = hf.repeat(prompts, 4)
    rollout = sampler.generate(many)
    advantages = group_advantages(rollout, reward.score(many, rollout), group=4)
    experience = hf.merge(Experience, rollout, advantages, reference.log_probs(rollout))
    return actor.update(experience, loss=Clip(kl=0.04))


@hf.dataflow
def rewards_with_kl(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    rollout, tried = actor.generate(prompts), actor.generate(prompts)
    rewards = kl_penalized_rewards(rollout, reference.log_probs(rollout), reward.score(prompts, rollout))
    experience = hf.merge(Experience, rollout, advantages_over(rollout, rewards, reward.score(prompts, tried)))
    return actor.update(experience, loss=Clip())


COLD, WARM = responses(temperature=0.7), responses()


@pytest.mark.parametrize(
    ("flow", "roles", "role"),
    [
        (grpo_with_sampler, places(sampler=COLD), "sampler"),
        (grpo_with_sampler, places(reference=0.7), "reference"),
        (grpo, places(actor=COLD), "reference"),
        (ppo, places(reference=0.7), "reference"),
        (dpo, places(reference=0.7), "reference"),
        (rewards_with_kl, places(reference=0.7), "reference"),
    ],
)
def test_log_probs_that_are_compared_are_of_one_temperature(
    flow: Dataflow[..., Any], roles: dict[str, hf.Placement[Any]], role: str
) -> None:
    [finding] = check(flow, roles).findings
    assert finding.code == "HF712"
    assert finding.message.startswith(f"'{role}' has temperature = ")
    assert finding.message.endswith("their log-probs are of different distributions")
    assert finding.primary.span == roles[role].span


@hf.dataflow
def evaluated(
    prompts: Prompts, actor: Actor, sampler: Sampler, reward: Reward, reference: Reference
) -> tuple[ActorMetrics, Scores]:
    """The sampler's responses are only scored."""
    hf.sync(actor, sampler)
    tested = reward.score(prompts, sampler.generate(prompts))
    rollout, tried = actor.generate(prompts), actor.generate(prompts)
    rewards = kl_penalized_rewards(rollout, reference.log_probs(rollout), reward.score(prompts, rollout))
    experience = hf.merge(Experience, rollout, advantages_over(rollout, rewards, reward.score(prompts, tried)))
    return actor.update(experience, loss=Clip()), tested


@pytest.mark.parametrize(
    ("flow", "roles"),
    [
        (grpo_with_sampler, places()),
        (grpo_with_sampler, places(actor=COLD, sampler=COLD, reference=0.7)),
        (evaluated, places(sampler=COLD)),
        (distillation, places(reference=2.0)),
        (mutual, places(actor=COLD)),
    ],
)
def test_other_temperatures_that_are_meant_are_no_mistake(
    flow: Dataflow[..., Any], roles: dict[str, hf.Placement[Any]]
) -> None:
    """Of an evaluation, a teacher, or a second policy that learns."""
    assert check(flow, roles).findings == ()


# -- responses that differ


@hf.dataflow
def greedy(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    many = hf.repeat(prompts, 4)
    rollout = actor.generate(many, greedy=True)
    advantages = group_advantages(rollout, reward.score(many, rollout), group=4)
    return actor.update(hf.merge(Experience, rollout, advantages), loss=Clip())


@hf.dataflow
def greedy_baseline(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    rollout, likeliest = actor.generate(prompts), actor.generate(prompts, greedy=True)
    rewards = kl_penalized_rewards(rollout, reference.log_probs(rollout), reward.score(prompts, rollout))
    experience = hf.merge(Experience, rollout, advantages_over(rollout, rewards, reward.score(prompts, likeliest)))
    return actor.update(experience, loss=Clip())


@pytest.mark.parametrize(
    ("flow", "roles", "why"),
    [
        (greedy, places(), "(greedy = True)"),
        (grpo, places(actor=responses(top_k=1)), "(top_k = 1)"),
        (grpo_with_sampler, places(sampler=responses(top_k=1)), "(top_k = 1)"),
    ],
)
def test_a_group_has_responses_that_differ(
    flow: Dataflow[..., Any], roles: dict[str, hf.Placement[Any]], why: str
) -> None:
    [finding] = check(flow, roles).findings
    assert finding.code == "HF725"
    assert why in finding.message
    assert "'group_advantages' compares equal scores and every advantage is 0" in finding.message


@pytest.mark.parametrize(
    ("flow", "roles"),
    [
        (greedy_baseline, places()),
        (ppo, places(actor=responses(top_k=1))),
        (grpo, places(actor=responses(top_k=2))),
    ],
)
def test_greedy_responses_that_no_group_has_are_no_mistake(
    flow: Dataflow[..., Any], roles: dict[str, hf.Placement[Any]]
) -> None:
    assert "HF725" not in check(flow, roles).codes


# -- the whole distribution


@hf.dataflow
def greedy_policy(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    rollout, tried = actor.generate(prompts, greedy=True), actor.generate(prompts)
    rewards = kl_penalized_rewards(rollout, reference.log_probs(rollout), reward.score(prompts, rollout))
    experience = hf.merge(Experience, rollout, advantages_over(rollout, rewards, reward.score(prompts, tried)))
    return actor.update(experience, loss=Clip())


@pytest.mark.parametrize(
    ("flow", "roles", "call", "how"),
    [
        (ppo, places(actor=responses(top_k=1)), "actor.generate", "top_k = 1"),
        (grpo, places(actor=responses(top_k=2, top_p=0.5)), "actor.generate", "top_p = 0.5, top_k = 2"),
        (grpo_with_sampler, places(sampler=responses(top_p=0.99)), "sampler.generate", "top_p = 0.99"),
        (distillation, places(actor=responses(top_p=0.9)), "actor.generate", "top_p = 0.9"),
        (greedy_policy, places(), "actor.generate", "greedy = True"),
        (
            async_grpo.given(decoupled=False),
            places(sampler=responses(top_p=0.9), separate=True),
            "sampler.generate",
            "top_p = 0.9",
        ),
    ],
)
def test_a_policy_learns_from_its_whole_distribution(
    flow: Dataflow[..., Any], roles: dict[str, hf.Placement[Any]], call: str, how: str
) -> None:
    [finding] = check(flow, roles).findings
    assert finding.code == "HF727"
    assert finding.message.startswith(f"'{call}' samples from a part of the distribution ({how}), and ")


@hf.dataflow
def imitation(prompts: Prompts, actor: Actor, reward: Reward) -> tuple[ImitationMetrics, Scores]:
    rollout = actor.generate(prompts)
    return actor.imitate(rollout), reward.score(prompts, rollout)


@pytest.mark.parametrize(
    ("flow", "roles"),
    [
        (greedy_baseline, places()),
        (online_dpo, places(actor=responses(top_p=0.9))),
        (imitation, places(actor=responses(top_p=0.9))),
        (evaluated, places(sampler=responses(top_p=0.9))),
        (grpo_with_sampler, places(actor=responses(top_p=0.9))),
    ],
)
def test_other_truncated_samples_are_no_mistake(flow: Dataflow[..., Any], roles: dict[str, hf.Placement[Any]]) -> None:
    """Of a baseline, pairs, demonstrations, an evaluation, and of an actor that samples nothing."""
    assert check(flow, roles).findings == ()


# -- a reference, and lengths


@hf.dataflow
def without_reference(prompts: Prompts, actor: Actor, reward: Reward) -> list[ActorMetrics]:
    many = hf.repeat(prompts, 4)
    rollout = actor.generate(many)
    advantages = group_advantages(rollout, reward.score(many, rollout), group=4)
    parts = hf.minibatches(hf.merge(Experience, rollout, advantages), 2)
    return [actor.update(part, loss=Clip(kl=0.04)) for part in parts]


@hf.dataflow
def without_kl(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    many = hf.repeat(prompts, 4)
    rollout = actor.generate(many)
    advantages = group_advantages(rollout, reward.score(many, rollout), group=4)
    return actor.update(hf.merge(Experience, rollout, advantages), loss=Clip())


@hf.dataflow
def fed(experience: Experience, actor: Actor) -> ActorMetrics:
    """Only the caller knows whether the experience has log-probs of a reference."""
    return actor.update(experience, loss=Clip(kl=0.04))


def test_a_loss_with_a_kl_gets_log_probs_of_a_reference() -> None:
    [finding] = check(without_reference, places()).findings
    assert finding.code == "HF713"
    assert finding.message == (
        "the loss of 'actor.update' has kl = 0.04, but 'without_reference' gives it no log-probs of a reference"
    )
    for valid in (without_kl, fed, grpo_with_sampler):
        assert check(valid, places()).findings == ()


def test_responses_have_the_length_of_their_columns() -> None:
    roles = places(actor=responses(max_tokens=64))
    [finding] = check(without_kl, roles).findings
    assert finding.code == "HF711"
    assert finding.primary.span == roles["actor"].span
    assert finding.message == (
        "'actor.generate' returns columns of R = 64 as 'actor' is configured, but the dataflow has R = 32"
    )
    assert without_kl.check(hf.Deployment(actor=roles["actor"], reward=roles["reward"])).ok, "R has no size"
    assert check(dpo, roles).findings == (), "it generates nothing"


# -- ratios


@hf.dataflow
def recomputed_in_every_epoch(prompts: Prompts, actor: Actor, reward: Reward) -> list[ActorMetrics]:
    many = hf.repeat(prompts, 4)
    rollout = actor.generate(many)
    advantages = group_advantages(rollout, reward.score(many, rollout), group=4)
    return [
        actor.update(hf.merge(Experience, with_log_probs(rollout, actor.log_probs(rollout)), advantages), loss=Clip())
        for _ in range(3)
    ]


@hf.dataflow
def recomputed_once(prompts: Prompts, actor: Actor, reward: Reward) -> list[ActorMetrics]:
    many = hf.repeat(prompts, 4)
    rollout = actor.generate(many)
    advantages = group_advantages(rollout, reward.score(many, rollout), group=4)
    now = with_log_probs(rollout, actor.log_probs(rollout))
    return [actor.update(hf.merge(Experience, now, advantages), loss=Clip()) for _ in range(3)]


@hf.dataflow
def of_the_reference(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    many = hf.repeat(prompts, 4)
    rollout = actor.generate(many)
    advantages = group_advantages(rollout, reward.score(many, rollout), group=4)
    wrong = with_log_probs(rollout, reference.log_probs(rollout))
    return actor.update(hf.merge(Experience, wrong, advantages), loss=Clip())


def test_log_probs_are_followed_through_the_ready_function_that_replaces_them() -> None:
    [again] = check(recomputed_in_every_epoch, places()).findings
    assert again.code == "HF335"
    assert "computed after an update on these rows, so the ratio misses that update" in again.message
    [second_finding] = check(of_the_reference, places()).findings
    assert second_finding.code == "HF335"
    assert "divides by 'log_probs' of 'reference.log_probs'" in second_finding.message
    assert check(recomputed_once, places()).findings == ()


@pytest.mark.parametrize("score", ["score.weight", "lm_head.weight"])
def test_a_reward_model_has_a_score_head(score: str, tmp_path: Path) -> None:
    header = json.dumps({score: {"dtype": "F32", "shape": [1, 16], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    model = ModelConfig(path=str(tmp_path))
    roles = places() | {"reward": hf.place(RewardModel, RewardConfig(model), pool=hf.ResourcePool([1], name="pool"))}
    findings = [finding for finding in check(grpo, roles) if finding.code == "HF967"]
    says = (
        f"'reward' gives every response the same score: the files of '{tmp_path}' have no 'score.weight', so its score"
    )
    assert [finding.message[: len(says)] for finding in findings] == [says] * (score == "lm_head.weight")
    assert all(finding.primary.span.file == __file__ for finding in findings)
    untrained = places() | {"reward": hf.place(RewardModel, RewardConfig(MODEL), pool=hf.ResourcePool([1], name="p"))}
    assert "its model has no files" in str(check(grpo, untrained))
