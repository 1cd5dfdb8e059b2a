"""GRPO, PPO, DAPO and CISPO with a queue between sampling and training: a sampler works while the actor learns.

Each step has two stages. The first samples from the weights that the last ``hf.sync`` sent, and scores; the second
learns. ``lag`` bounds how many training steps the weights that sampled a row may be behind those that learn from it:
1 is "one step off". Place ``reward`` beside the sampler or on a pool of its own: on the actor's pool, its calls would
wait for the samples of later steps, and the actor's calls for them.

Every row carries the log-probs that it was sampled with, and the loss corrects with them:

- ``decoupled=False``: the ratio is policy / behavior policy, so the clip range surrounds the policy that sampled.
- ``decoupled=True``: the ratio is policy / proximal policy, the actor before the updates of this step, and each token
  weighs proximal / behavior, truncated by the loss's ``correction``. This is decoupled PPO (Hilton et al., 2022, Batch
  Size-Invariance for Policy Optimization; Fu et al., 2025, AReaL, section 5.2). It also corrects for an engine whose
  log-probs differ from the trainer's, and costs one more pass of the actor.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.protocols.queueing import Late
from hfdsl.rl.batches import (
    ActorCriticExperience,
    ActorMetrics,
    CriticMetrics,
    Experience,
    Outcome,
    Prompts,
    Rollout,
    ScoredRollout,
    TokenVersions,
    VersionedScoredRollout,
)
from hfdsl.rl.fields import Count, Lag, NonNegative, Share
from hfdsl.rl.functions import (
    group_advantages,
    informative,
    kl_penalized_rewards,
    length_penalized_scores,
    mixed,
    outcome,
    whitened_advantages,
)
from hfdsl.rl.losses import CISPO, Clip, ClippedValue
from hfdsl.rl.sampling import with_proximal
from hfdsl.rl.workers import Actor, Critic, InFlightSampler, Reference, Reward, Sampler


@hf.dataflow
def async_grpo(
    prompts: Prompts,
    actor: Actor,
    reference: Reference,
    reward: Reward,
    sampler: Sampler,
    *,
    group: int = 8,
    updates: int = 2,
    lag: Count = 1,
    late: Late = "wait",
    decoupled: bool = True,
    loss: Clip = Clip(0.2, kl=0.04, aggregation="sequence-mean-token-mean"),
) -> tuple[ActorMetrics, Outcome]:
    """One step of GRPO, on responses that the policy of up to ``lag`` steps ago sampled."""
    questions = hf.repeat(prompts, group)
    rollout = sampler.generate(questions)
    sampled = hf.merge(ScoredRollout, rollout, reward.score(questions, rollout))
    batch = hf.queue(sampled, group=group, lag=lag, late=late)
    policy = with_proximal(batch, actor) if decoupled else hf.merge(Rollout, batch)
    advantages = group_advantages(batch, batch, group=group)
    experience = hf.merge(Experience, policy, advantages, reference.log_probs(batch))
    metrics = [actor.update(part, loss=loss) for part in hf.minibatches(experience, updates)]
    hf.sync(actor, sampler)
    return metrics[-1], outcome(batch, batch)


@hf.dataflow
def async_grpo_in_flight(
    prompts: Prompts,
    actor: Actor,
    reference: Reference,
    reward: Reward,
    sampler: InFlightSampler,
    *,
    group: int = 8,
    updates: int = 2,
    lag: Count = 1,
    late: Late = "wait",
    decoupled: bool = True,
    loss: Clip = Clip(0.2, kl=0.04, aggregation="sequence-mean-token-mean"),
) -> tuple[ActorMetrics, Outcome]:
    """``async_grpo`` with weights in flight: responses take them between two tokens, and each token has its version."""
    questions = hf.repeat(prompts, group)
    rollout = sampler.generate(questions)
    sampled = hf.merge(VersionedScoredRollout, rollout, reward.score(questions, rollout))
    batch = hf.queue(sampled, group=group, lag=lag, late=late)
    policy = with_proximal(batch, actor) if decoupled else hf.merge(Rollout, batch)
    versions = hf.merge(TokenVersions, batch)
    advantages = group_advantages(batch, batch, group=group)
    experience = hf.merge(Experience, policy, versions, advantages, reference.log_probs(batch))
    metrics = [actor.update(part, loss=loss) for part in hf.minibatches(experience, updates)]
    hf.sync(actor, sampler, during="generate")
    return metrics[-1], outcome(batch, batch)


@hf.dataflow
def async_ppo(
    prompts: Prompts,
    actor: Actor,
    critic: Critic,
    reference: Reference,
    reward: Reward,
    sampler: Sampler,
    *,
    epochs: int = 2,
    mini_batches: int = 2,
    gamma: Share = 1.0,
    lam: Share = 0.95,
    kl: NonNegative = 0.05,
    lag: Count = 1,
    late: Late = "wait",
    decoupled: bool = True,
    loss: Clip = Clip(0.2),
    value_loss: ClippedValue = ClippedValue(0.2),
) -> tuple[ActorMetrics, CriticMetrics, Outcome]:
    """One step of PPO, on responses that the policy of up to ``lag`` steps ago sampled; the critic is current."""
    rollout = sampler.generate(prompts)
    sampled = hf.merge(ScoredRollout, rollout, reward.score(prompts, rollout))
    batch = hf.queue(sampled, lag=lag, late=late)
    policy = with_proximal(batch, actor) if decoupled else hf.merge(Rollout, batch)
    values = critic.values(batch)
    ref = reference.log_probs(batch)
    rewards = kl_penalized_rewards(batch, ref, batch, kl=kl)
    estimates = whitened_advantages(batch, rewards, values, gamma=gamma, lam=lam)
    parts = hf.minibatches(hf.merge(ActorCriticExperience, policy, values, estimates, ref), mini_batches) * epochs
    critic_metrics = [critic.update(part, loss=value_loss) for part in parts]
    actor_metrics = [actor.update(part, loss=loss) for part in parts]
    hf.sync(actor, sampler)
    return actor_metrics[-1], critic_metrics[-1], outcome(batch, batch)


@hf.dataflow
def async_dapo(
    prompts: Prompts,
    actor: Actor,
    reward: Reward,
    sampler: Sampler,
    *,
    group: int = 16,
    rows: int = 8192,
    updates: int = 16,
    longest: int = 20480,
    buffer: int = 4096,
    lag: Count = 1,
    late: Late = "wait",
    decoupled: bool = True,
    loss: Clip = Clip(0.2, 0.28, aggregation="token-mean"),
) -> tuple[ActorMetrics, Outcome]:
    """One step of DAPO, on responses that the policy of up to ``lag`` steps ago sampled.

    ``late`` takes anything but ``"refill"``, since filled-up rows are not in the places of their prompts (HF765);
    ``async_dapo_rounds`` refills.
    """
    questions = hf.repeat(prompts, group)
    rollout = sampler.generate(questions)
    scores = reward.score(questions, rollout)
    choice = informative(scores, group=group)
    selected = hf.filter(hf.merge(ScoredRollout, rollout, scores), choice.keep, group=group)
    batch = hf.queue(hf.fill(selected, rows), group=group, lag=lag, late=late)
    policy = with_proximal(batch, actor) if decoupled else hf.merge(Rollout, batch)
    shaped = length_penalized_scores(batch, batch, longest=longest, buffer=buffer)
    experience = hf.merge(Experience, policy, group_advantages(batch, shaped, group=group))
    metrics = [actor.update(part, loss=loss) for part in hf.minibatches(experience, updates)]
    hf.sync(actor, sampler)
    return metrics[-1], outcome(batch, batch)


@hf.dataflow
def async_dapo_rounds(
    prompts: Prompts,
    actor: Actor,
    reward: Reward,
    sampler: Sampler,
    *,
    group: int = 16,
    rows: int = 8192,
    updates: int = 16,
    longest: int = 20480,
    buffer: int = 4096,
    lag: Lag = 1,
    decoupled: bool = True,
    loss: Clip = Clip(0.2, 0.28, aggregation="token-mean"),
) -> tuple[ActorMetrics, Outcome]:
    """One step of DAPO with dynamic sampling, on ``rows`` responses of the groups whose scores differ.

    Other prompts are sampled in place of the groups that the filter drops, until an update has its rows.
    """
    questions = hf.repeat(prompts, group)
    rollout = sampler.generate(questions)
    sampled = hf.merge(ScoredRollout, rollout, reward.score(questions, rollout))
    selected = hf.filter(sampled, mixed(sampled, group=group).keep, group=group)
    batch = hf.queue(selected, rows=rows, group=group, lag=lag, late="refill")
    policy = with_proximal(batch, actor) if decoupled else hf.merge(Rollout, batch)
    shaped = length_penalized_scores(batch, batch, longest=longest, buffer=buffer)
    experience = hf.merge(Experience, policy, group_advantages(batch, shaped, group=group))
    metrics = [actor.update(part, loss=loss) for part in hf.minibatches(experience, updates)]
    hf.sync(actor, sampler)
    return metrics[-1], outcome(batch, batch)


@hf.dataflow
def async_cispo(
    prompts: Prompts,
    actor: Actor,
    reward: Reward,
    sampler: Sampler,
    *,
    group: int = 16,
    updates: int = 16,
    lag: Count = 1,
    late: Late = "wait",
    decoupled: bool = True,
    loss: CISPO = CISPO(),
) -> tuple[ActorMetrics, Outcome]:
    """One step of CISPO: group advantages and clipped importance weights, so that every token has a gradient."""
    questions = hf.repeat(prompts, group)
    rollout = sampler.generate(questions)
    sampled = hf.merge(ScoredRollout, rollout, reward.score(questions, rollout))
    batch = hf.queue(sampled, group=group, lag=lag, late=late)
    policy = with_proximal(batch, actor) if decoupled else hf.merge(Rollout, batch)
    experience = hf.merge(Experience, policy, group_advantages(batch, batch, group=group))
    metrics = [actor.update(part, loss=loss) for part in hf.minibatches(experience, updates)]
    hf.sync(actor, sampler)
    return metrics[-1], outcome(batch, batch)
