# mypy: disable-error-code="empty-body"
"""Log-probs of the current policy that a function passes on to an update behind a queue, with and without others."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import f32
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl.batches import (
    ActorMetrics,
    Advantages,
    B,
    Experience,
    Prompts,
    ReferenceLogProbs,
    Rollout,
    ScoredRollout,
    Sequences,
)
from hfdsl.rl.functions import group_advantages, with_log_probs
from hfdsl.rl.losses import Clip
from hfdsl.rl.sampling import with_proximal
from hfdsl.rl.workers import Actor, Reference, Reward, Sampler

LOSS = Clip(0.2)


class Summed(ScoredRollout):
    total: f32[B]


class Weighted(Experience):
    total: f32[B]


class Total(hf.Batch):
    total: f32[B]


class Learner(Actor):
    @hf.register(hf.Dispatch.THREE_D_PROTO)
    @hf.writes("policy", ratio="log_probs")
    def learn(self, experience: Weighted, *, loss: Clip) -> ActorMetrics: ...


def sampled(prompts: Prompts, sampler: Sampler, reward: Reward) -> ScoredRollout:
    questions = hf.repeat(prompts, 8)
    rollout = sampler.generate(questions)
    return hf.merge(ScoredRollout, rollout, reward.score(questions, rollout))


@hf.function
def packed(rollout: Rollout, advantages: Advantages) -> Experience:
    return Experience(
        ids=rollout.ids.tensor,
        mask=rollout.mask.tensor,
        response_mask=rollout.response_mask.tensor,
        log_probs=rollout.log_probs.tensor,
        advantage=advantages.advantage.tensor / 2,
    )


@hf.function
def packed_with_both(rollout: Rollout, advantages: Advantages) -> Experience:
    return Experience(
        ids=rollout.ids.tensor,
        mask=rollout.mask.tensor,
        response_mask=rollout.response_mask.tensor,
        log_probs=rollout.log_probs.tensor,
        engine_log_probs=rollout.engine_log_probs,
        advantage=advantages.advantage.tensor / 2,
    )


@hf.function
def copied(rollout: Rollout, advantages: Advantages) -> Experience:
    columns: dict[str, Any] = {name: getattr(rollout, name) for name in ("ids", "mask", "response_mask", "log_probs")}
    return Experience(**columns, advantage=advantages.advantage)


@hf.function
def recomputed(sequences: Sequences, policy: ReferenceLogProbs) -> Rollout:
    return Rollout(
        ids=sequences.ids.tensor,
        mask=sequences.mask.tensor,
        response_mask=sequences.response_mask.tensor,
        log_probs=policy.ref_log_probs.tensor,
    )


@hf.function
def summed(rollout: Rollout) -> Total:
    return Total(total=rollout.log_probs.tensor.sum(1))


@hf.dataflow
def left_out(prompts: Prompts, actor: Actor, sampler: Sampler, reward: Reward) -> ActorMetrics:
    batch = hf.queue(sampled(prompts, sampler, reward), group=8, lag=2, late="wait")
    experience = packed(with_proximal(batch, actor), group_advantages(batch, batch, group=8))
    metrics = actor.update(experience, loss=LOSS)
    hf.sync(actor, sampler)
    return metrics


@hf.dataflow
def never_read(prompts: Prompts, actor: Actor, sampler: Sampler, reward: Reward) -> ActorMetrics:
    batch = hf.queue(sampled(prompts, sampler, reward), group=8, lag=2, late="drop")
    policy = recomputed(batch, actor.log_probs(batch))
    experience = hf.merge(Experience, policy, group_advantages(batch, batch, group=8))
    metrics = [actor.update(part, loss=LOSS) for part in hf.minibatches(experience, 2)]
    hf.sync(actor, sampler)
    return metrics[-1]


@hf.dataflow
def beside_a_reference(
    prompts: Prompts, actor: Actor, sampler: Sampler, reward: Reward, reference: Reference
) -> ActorMetrics:
    batch = hf.queue(sampled(prompts, sampler, reward), group=8, lag=2, late="wait")
    policy = recomputed(batch, actor.log_probs(batch))
    advantages = group_advantages(batch, batch, group=8)
    experience = hf.merge(Experience, policy, advantages, reference.log_probs(batch))
    metrics = actor.update(experience, loss=Clip(0.2, kl=0.04))
    hf.sync(actor, sampler)
    return metrics


@pytest.mark.parametrize("flow", [left_out, never_read, beside_a_reference])
def test_a_function_that_passes_on_current_log_probs_alone(flow: Dataflow[..., Any]) -> None:
    [finding] = flow.check().findings
    assert finding.code == "HF750"
    assert "'actor.update' divides by log-probs that 'actor.log_probs' computes behind the queue" in finding.message
    function = "packed" if flow is left_out else "recomputed"
    assert finding.notes == (f"let '{function}' read the log-probs of sampling, and return them as well",)


def test_without_a_lag_there_is_nothing_to_correct() -> None:
    @hf.dataflow
    def flow(prompts: Prompts, actor: Actor, sampler: Sampler, reward: Reward) -> ActorMetrics:
        hf.sync(actor, sampler)
        batch = sampled(prompts, sampler, reward)
        experience = packed(with_proximal(batch, actor), group_advantages(batch, batch, group=8))
        return actor.update(experience, loss=LOSS)

    assert flow.check().codes == ()


@hf.dataflow
def passed_on(prompts: Prompts, actor: Actor, sampler: Sampler, reward: Reward) -> ActorMetrics:
    batch = hf.queue(sampled(prompts, sampler, reward), group=8, lag=2, late="wait")
    experience = packed_with_both(with_proximal(batch, actor), group_advantages(batch, batch, group=8))
    metrics = actor.update(experience, loss=LOSS)
    hf.sync(actor, sampler)
    return metrics


@hf.dataflow
def read_by_name(prompts: Prompts, actor: Actor, sampler: Sampler, reward: Reward) -> ActorMetrics:
    batch = hf.queue(sampled(prompts, sampler, reward), group=8, lag=2, late="wait")
    experience = copied(with_proximal(batch, actor), group_advantages(batch, batch, group=8))
    metrics = actor.update(experience, loss=LOSS)
    hf.sync(actor, sampler)
    return metrics


@hf.dataflow
def by_the_ready_function(prompts: Prompts, actor: Actor, sampler: Sampler, reward: Reward) -> ActorMetrics:
    batch = hf.queue(sampled(prompts, sampler, reward), group=8, lag=2, late="wait")
    policy = with_log_probs(batch, actor.log_probs(batch))
    metrics = actor.update(hf.merge(Experience, policy, group_advantages(batch, batch, group=8)), loss=LOSS)
    hf.sync(actor, sampler)
    return metrics


@hf.dataflow
def of_sampling(prompts: Prompts, actor: Actor, sampler: Sampler, reward: Reward) -> ActorMetrics:
    batch = hf.queue(sampled(prompts, sampler, reward), group=8, lag=2, late="wait")
    metrics = actor.update(packed(batch, group_advantages(batch, batch, group=8)), loss=LOSS)
    hf.sync(actor, sampler)
    return metrics


@hf.dataflow
def as_a_sum(prompts: Prompts, actor: Learner, sampler: Sampler, reward: Reward) -> ActorMetrics:
    scored = sampled(prompts, sampler, reward)
    batch = hf.queue(hf.merge(Summed, scored, summed(scored)), group=8, lag=2, late="wait")
    policy = recomputed(batch, actor.log_probs(batch))
    advantages = group_advantages(batch, batch, group=8)
    metrics = actor.learn(hf.merge(Weighted, policy, advantages, hf.merge(Total, batch)), loss=LOSS)
    hf.sync(actor, sampler)
    return metrics


@pytest.mark.parametrize("flow", [passed_on, read_by_name, by_the_ready_function, of_sampling, as_a_sum])
def test_log_probs_of_sampling_may_reach_the_update(flow: Dataflow[..., Any]) -> None:
    assert flow.check().codes == ()
