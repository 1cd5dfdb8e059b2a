"""REINFORCE++: one response per prompt, no critic; advantages are normalized over the whole batch.

Hu et al., 2025, REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Experience, Outcome, Prompts
from hfdsl.rl.fields import NonNegative
from hfdsl.rl.functions import kl_penalized_rewards, normalized_returns, outcome
from hfdsl.rl.losses import Clip
from hfdsl.rl.sampling import sample, synced
from hfdsl.rl.workers import Actor, Reference, Reward, Sampler


@hf.dataflow
def reinforce_plus_plus(
    prompts: Prompts,
    actor: Actor,
    reference: Reference,
    reward: Reward,
    sampler: Sampler | None = None,
    *,
    updates: int = 2,
    kl: NonNegative = 0.01,
    loss: Clip = Clip(0.2),
) -> tuple[ActorMetrics, Outcome]:
    """One step of REINFORCE++."""
    rollout = sample(prompts, actor, synced(actor, sampler))
    ref = reference.log_probs(rollout)
    scores = reward.score(prompts, rollout)
    advantages = normalized_returns(rollout, kl_penalized_rewards(rollout, ref, scores, kl=kl))
    parts = hf.minibatches(hf.merge(Experience, rollout, advantages, ref), updates)
    metrics = [actor.update(part, loss=loss) for part in parts]
    return metrics[-1], outcome(rollout, scores)
