"""RLOO: REINFORCE with the other responses to a prompt as the baseline of each; whole responses are the actions.

Ahmadian et al., 2024, Back to Basics: Revisiting REINFORCE-Style Optimization for Learning from Human Feedback in LLMs.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Experience, Outcome, Prompts
from hfdsl.rl.fields import NonNegative
from hfdsl.rl.functions import kl_penalized_rewards, leave_one_out_advantages, outcome
from hfdsl.rl.losses import Reinforce
from hfdsl.rl.sampling import sample, synced
from hfdsl.rl.workers import Actor, Reference, Reward, Sampler


@hf.dataflow
def rloo(
    prompts: Prompts,
    actor: Actor,
    reference: Reference,
    reward: Reward,
    sampler: Sampler | None = None,
    *,
    group: int = 4,
    kl: NonNegative = 0.03,
    loss: Reinforce = Reinforce(aggregation="sequence-mean-token-sum"),
) -> tuple[ActorMetrics, Outcome]:
    """One step of RLOO."""
    questions = hf.repeat(prompts, group)
    rollout = sample(questions, actor, synced(actor, sampler))
    ref = reference.log_probs(rollout)
    scores = reward.score(questions, rollout)
    advantages = leave_one_out_advantages(rollout, kl_penalized_rewards(rollout, ref, scores, kl=kl), group=group)
    policy = actor.update(hf.merge(Experience, rollout, advantages, ref), loss=loss)
    return policy, outcome(rollout, scores)
