"""ReMax: the greedy response to a prompt is the baseline of a sampled one; no critic.

Li et al., 2024, ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language
Models.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Experience, Outcome, Prompts
from hfdsl.rl.fields import NonNegative
from hfdsl.rl.functions import advantages_over, kl_penalized_rewards, outcome
from hfdsl.rl.losses import Reinforce
from hfdsl.rl.sampling import sample, synced
from hfdsl.rl.workers import Actor, Reference, Reward, Sampler


@hf.dataflow
def remax(
    prompts: Prompts,
    actor: Actor,
    reference: Reference,
    reward: Reward,
    sampler: Sampler | None = None,
    *,
    kl: NonNegative = 0.1,
    loss: Reinforce = Reinforce(aggregation="sequence-mean-token-sum"),
) -> tuple[ActorMetrics, Outcome]:
    """One step of ReMax."""
    source = synced(actor, sampler)
    rollout = sample(prompts, actor, source)
    ref = reference.log_probs(rollout)
    scores = reward.score(prompts, rollout)
    baseline = reward.score(prompts, source.generate(prompts, greedy=True))
    advantages = advantages_over(rollout, kl_penalized_rewards(rollout, ref, scores, kl=kl), baseline)
    policy = actor.update(hf.merge(Experience, rollout, advantages, ref), loss=loss)
    return policy, outcome(rollout, scores)
