"""PPO with an adaptive KL penalty, which keeps the KL of a response near a target.

Ziegler et al., 2019, Fine-Tuning Language Models from Human Preferences, section 2.2.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import ActorCriticExperience, ActorMetrics, CriticMetrics, Outcome, Prompts
from hfdsl.rl.fields import Share
from hfdsl.rl.functions import outcome, whitened_advantages
from hfdsl.rl.losses import Clip, ClippedValue
from hfdsl.rl.sampling import sample, synced
from hfdsl.rl.workers import Actor, Critic, KLPenalty, Reference, Reward, Sampler


@hf.dataflow
def ppo_adaptive_kl(
    prompts: Prompts,
    actor: Actor,
    critic: Critic,
    reference: Reference,
    reward: Reward,
    penalty: KLPenalty,
    sampler: Sampler | None = None,
    *,
    epochs: int = 2,
    mini_batches: int = 2,
    gamma: Share = 1.0,
    lam: Share = 0.95,
    loss: Clip = Clip(0.2),
    value_loss: ClippedValue = ClippedValue(0.2),
) -> tuple[ActorMetrics, CriticMetrics, Outcome]:
    """One step of PPO; unlike in ``ppo``, the penalty is a role."""
    rollout = sample(prompts, actor, synced(actor, sampler))
    values = critic.values(rollout)
    ref = reference.log_probs(rollout)
    scores = reward.score(prompts, rollout)
    estimates = whitened_advantages(rollout, penalty.rewards(rollout, ref, scores), values, gamma=gamma, lam=lam)
    parts = hf.minibatches(hf.merge(ActorCriticExperience, rollout, values, estimates, ref), mini_batches) * epochs
    critic_metrics = [critic.update(part, loss=value_loss) for part in parts]
    actor_metrics = [actor.update(part, loss=loss) for part in parts]
    return actor_metrics[-1], critic_metrics[-1], outcome(rollout, scores)
