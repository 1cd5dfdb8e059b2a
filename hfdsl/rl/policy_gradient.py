"""Policy gradients with an optional reference, advantages by name, and mini-batches over epochs.

Each is a step of a trainer of verl or TRL; those share more between algorithms than the ready-made dataflows do. Where
a ready-made dataflow such as ``grpo`` takes the same step, ``hfdsl convert`` writes that dataflow instead.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import hfdsl as hf
from hfdsl.protocols.queueing import Late
from hfdsl.rl.batches import (
    ActorCriticExperience,
    ActorMetrics,
    Advantages,
    CriticMetrics,
    Experience,
    Outcome,
    Prompts,
    ReferenceLogProbs,
    Rewards,
    Rollout,
    ScoredRollout,
    Scores,
    Sequences,
)
from hfdsl.rl.fields import Count, NonNegative, Share
from hfdsl.rl.functions import (
    centered_advantages,
    centered_scores,
    group_advantages,
    kl_penalized_rewards,
    leave_one_out_advantages,
    normalized_leave_one_out_advantages,
    normalized_returns,
    outcome,
    whitened_advantages,
)
from hfdsl.rl.losses import CISPO, Clip, ClippedValue, PolicyLoss, SequenceClip
from hfdsl.rl.sampling import sample, synced, with_proximal
from hfdsl.rl.workers import Actor, Critic, Reference, Reward, Sampler

AdvantageName: TypeAlias = Literal[
    "group", "centered", "leave-one-out", "normalized-leave-one-out", "returns", "centered-returns"
]
"""``group``: scores above the mean of their group, over its standard deviation; ``centered``: without the division;
``leave-one-out``: rewards above the mean of the others in the group; ``normalized-leave-one-out``: scores above that
mean, over the others' standard deviation; ``returns``: returns, normalized over the batch; ``centered-returns``: those
of scores above the mean of their group."""


@hf.function
def last_token_rewards(sequences: Sequences, scores: Scores) -> Rewards:
    """The score at the last token, and 0 elsewhere."""
    from hfdsl.rl.rewards import token_rewards

    return Rewards(rewards=token_rewards(scores.score.tensor, sequences.response_mask.tensor))


PENALIZED: Final = ("leave-one-out", "returns", "centered-returns")
"""Advantages whose rewards a KL to the reference lowers."""


@hf.dataflow
def without_critic(
    prompts: Prompts,
    actor: Actor,
    reward: Reward,
    reference: Reference | None = None,
    sampler: Sampler | None = None,
    *,
    group: int = 8,
    advantages: AdvantageName = "group",
    updates: int = 1,
    epochs: int = 1,
    kl: NonNegative = 0.0,
    loss: Clip | SequenceClip | CISPO = Clip(0.2),
) -> tuple[ActorMetrics, Outcome]:
    """One step of GRPO, RLOO or REINFORCE++; ``kl`` is the weight of the KL to the reference in the rewards."""
    questions = hf.repeat(prompts, group)
    rollout = sample(questions, actor, synced(actor, sampler))
    ref = None if reference is None else reference.log_probs(rollout)
    scores = reward.score(questions, rollout)
    estimates = _advantages(advantages, rollout, ref, scores, group, kl)
    experience = hf.merge(Experience, rollout, estimates, *_for_kl(ref, loss, advantages in PENALIZED))
    parts = hf.minibatches(experience, updates) * epochs
    metrics = [actor.update(part, loss=loss) for part in parts]
    return metrics[-1], outcome(rollout, scores)


def _advantages(
    name: AdvantageName, rollout: Rollout, ref: ReferenceLogProbs | None, scores: Scores, group: int, kl: float
) -> Advantages:
    match name:
        case "group":
            return group_advantages(rollout, scores, group=group)
        case "centered":
            return centered_advantages(rollout, scores, group=group)
        case "leave-one-out":
            return leave_one_out_advantages(rollout, _rewards(rollout, ref, scores, kl), group=group)
        case "normalized-leave-one-out":
            return normalized_leave_one_out_advantages(rollout, scores, group=group)
        case "returns":
            return normalized_returns(rollout, _rewards(rollout, ref, scores, kl))
        case "centered-returns":
            return normalized_returns(rollout, _rewards(rollout, ref, centered_scores(scores, group=group), kl))


def _for_kl(ref: ReferenceLogProbs | None, loss: PolicyLoss, penalized: bool) -> tuple[ReferenceLogProbs, ...]:
    """The reference's log-probs if a KL term reads them: that of the loss, or of ``penalized`` rewards to report it."""
    return (ref,) if ref is not None and (penalized or loss.kl != 0) else ()


def _rewards(rollout: Rollout, ref: ReferenceLogProbs | None, scores: Scores, kl: float) -> Rewards:
    if ref is None:
        return last_token_rewards(rollout, scores)
    return kl_penalized_rewards(rollout, ref, scores, kl=kl)


@hf.dataflow
def async_without_critic(
    prompts: Prompts,
    actor: Actor,
    reward: Reward,
    sampler: Sampler,
    reference: Reference | None = None,
    *,
    group: int = 8,
    advantages: AdvantageName = "group",
    updates: int = 1,
    epochs: int = 1,
    kl: NonNegative = 0.0,
    lag: Count = 1,
    late: Late = "wait",
    decoupled: bool = True,
    loss: Clip | SequenceClip | CISPO = Clip(0.2),
) -> tuple[ActorMetrics, Outcome]:
    """One step of ``without_critic`` on responses that the policy of up to ``lag`` steps ago sampled.

    ``decoupled`` is as in :mod:`hfdsl.rl.dataflows.asynchronous`.
    """
    questions = hf.repeat(prompts, group)
    rollout = sampler.generate(questions)
    sampled = hf.merge(ScoredRollout, rollout, reward.score(questions, rollout))
    batch = hf.queue(sampled, group=group, lag=lag, late=late)
    policy = with_proximal(batch, actor) if decoupled else hf.merge(Rollout, batch)
    ref = None if reference is None else reference.log_probs(batch)
    estimates = _advantages(advantages, policy, ref, batch, group, kl)
    experience = hf.merge(Experience, policy, estimates, *_for_kl(ref, loss, advantages in PENALIZED))
    parts = hf.minibatches(experience, updates) * epochs
    metrics = [actor.update(part, loss=loss) for part in parts]
    hf.sync(actor, sampler)
    return metrics[-1], outcome(batch, batch)


@hf.dataflow
def with_critic(
    prompts: Prompts,
    actor: Actor,
    critic: Critic,
    reward: Reward,
    reference: Reference | None = None,
    sampler: Sampler | None = None,
    *,
    group: int = 1,
    mini_batches: int = 1,
    epochs: int = 1,
    critic_mini_batches: int = 1,
    critic_epochs: int = 1,
    gamma: Share = 1.0,
    lam: Share = 1.0,
    kl: NonNegative = 0.0,
    loss: Clip | SequenceClip | CISPO = Clip(0.2),
    value_loss: ClippedValue = ClippedValue(0.5),
) -> tuple[ActorMetrics, CriticMetrics, Outcome]:
    """One step of PPO; ``kl`` is the weight of the KL to the reference in the rewards."""
    questions = hf.repeat(prompts, group) if group > 1 else prompts
    rollout = sample(questions, actor, synced(actor, sampler))
    values = critic.values(rollout)
    ref = None if reference is None else reference.log_probs(rollout)
    scores = reward.score(questions, rollout)
    estimates = whitened_advantages(rollout, _rewards(rollout, ref, scores, kl), values, gamma=gamma, lam=lam)
    experience = hf.merge(ActorCriticExperience, rollout, values, estimates, *_for_kl(ref, loss, penalized=True))
    critic_parts = hf.minibatches(experience, critic_mini_batches) * critic_epochs
    actor_parts = hf.minibatches(experience, mini_batches) * epochs
    critic_metrics = [critic.update(part, loss=value_loss) for part in critic_parts]
    actor_metrics = [actor.update(part, loss=loss) for part in actor_parts]
    return actor_metrics[-1], critic_metrics[-1], outcome(rollout, scores)
