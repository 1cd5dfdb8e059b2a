"""GSPO: the ratio and the clip are per response, not per token.

Zheng et al., 2025, Group Sequence Policy Optimization.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Experience, Outcome, Prompts
from hfdsl.rl.functions import group_advantages, outcome
from hfdsl.rl.losses import SequenceClip
from hfdsl.rl.sampling import sample, synced
from hfdsl.rl.workers import Actor, Reward, Sampler


@hf.dataflow
def gspo(
    prompts: Prompts,
    actor: Actor,
    reward: Reward,
    sampler: Sampler | None = None,
    *,
    group: int = 8,
    updates: int = 4,
    loss: SequenceClip = SequenceClip(3e-4, 4e-4),
) -> tuple[ActorMetrics, Outcome]:
    """One step of GSPO."""
    questions = hf.repeat(prompts, group)
    rollout = sample(questions, actor, synced(actor, sampler))
    scores = reward.score(questions, rollout)
    advantages = group_advantages(rollout, scores, group=group)
    parts = hf.minibatches(hf.merge(Experience, rollout, advantages), updates)
    metrics = [actor.update(part, loss=loss) for part in parts]
    return metrics[-1], outcome(rollout, scores)
