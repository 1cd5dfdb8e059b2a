"""Safe RLHF: as much reward as a limit on cost allows, enforced by a Lagrange multiplier.

Dai et al., 2024, Safe RLHF: Safe Reinforcement Learning from Human Feedback, appendix B. The cost has its own
critic, the KL penalty is shared between reward and cost, and a step on pretraining text follows the policy's updates.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import (
    ActorCriticExperience,
    ActorMetrics,
    CriticMetrics,
    ImitationMetrics,
    Outcome,
    Prompts,
    Sequences,
    ValueExperience,
)
from hfdsl.rl.fields import NonNegative, Share
from hfdsl.rl.functions import (
    generalized_advantages,
    kl_penalized_costs,
    kl_penalized_rewards,
    outcome,
    safe_advantages,
)
from hfdsl.rl.losses import Clip, ClippedValue
from hfdsl.rl.sampling import sample, synced
from hfdsl.rl.workers import Actor, Critic, LagrangeMultiplier, Reference, Reward, RewardModel, Sampler


@hf.dataflow
def safe_rlhf(
    prompts: Prompts,
    pretraining: Sequences,
    actor: Actor,
    critic: Critic,
    cost_critic: Critic,
    reference: Reference,
    reward: Reward,
    cost: RewardModel,
    multiplier: LagrangeMultiplier,
    sampler: Sampler | None = None,
    *,
    epochs: int = 1,
    mini_batches: int = 2,
    gamma: Share = 1.0,
    lam: Share = 0.95,
    kl: NonNegative = 0.1,
    loss: Clip = Clip(0.2),
    value_loss: ClippedValue = ClippedValue(0.2),
) -> tuple[ActorMetrics, CriticMetrics, CriticMetrics, ImitationMetrics, Outcome]:
    """One step of Safe RLHF."""
    rollout = sample(prompts, actor, synced(actor, sampler))
    values = critic.values(rollout)
    cost_values = cost_critic.values(rollout)
    ref = reference.log_probs(rollout)
    scores = reward.score(prompts, rollout)
    costs = cost.cost(prompts, rollout)
    gains = generalized_advantages(
        rollout, kl_penalized_rewards(rollout, ref, scores, kl=kl / 2), values, gamma=gamma, lam=lam
    )
    harms = generalized_advantages(
        rollout, kl_penalized_costs(rollout, ref, costs, kl=kl / 2), cost_values, gamma=gamma, lam=lam
    )
    safe = safe_advantages(gains, harms, multiplier.after(costs))
    parts = hf.minibatches(hf.merge(ActorCriticExperience, rollout, values, safe, ref), mini_batches) * epochs
    critic_metrics = [critic.update(part, loss=value_loss) for part in parts]
    cost_metrics = [
        cost_critic.update(part, loss=value_loss)
        for part in hf.minibatches(hf.merge(ValueExperience, rollout, cost_values, harms), mini_batches) * epochs
    ]
    actor_metrics = [actor.update(part, loss=loss) for part in parts]
    return actor_metrics[-1], critic_metrics[-1], cost_metrics[-1], actor.imitate(pretraining), outcome(rollout, scores)
