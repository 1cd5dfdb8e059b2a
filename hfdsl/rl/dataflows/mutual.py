"""Mutual learning: GRPO trains two policies at once, each the reference of the other.

Zhang et al., 2018, Deep Mutual Learning, section 3.2, with rewards in the place of labels. The two may have different
models and placements; each reads the other as it was before this step.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Experience, Outcome, Prompts
from hfdsl.rl.functions import group_advantages, outcome
from hfdsl.rl.losses import Clip
from hfdsl.rl.sampling import sample, synced
from hfdsl.rl.workers import Actor, Reward, Sampler


@hf.dataflow
def mutual(
    prompts: Prompts,
    left: Actor,
    right: Actor,
    reward: Reward,
    left_sampler: Sampler | None = None,
    right_sampler: Sampler | None = None,
    *,
    group: int = 8,
    loss: Clip = Clip(0.2, kl=0.04, aggregation="sequence-mean-token-mean"),
) -> tuple[ActorMetrics, ActorMetrics, Outcome, Outcome]:
    """One step of both policies."""
    questions = hf.repeat(prompts, group)
    lefts = sample(questions, left, synced(left, left_sampler))
    rights = sample(questions, right, synced(right, right_sampler))
    left_scores = reward.score(questions, lefts)
    right_scores = reward.score(questions, rights)
    left_advantages = group_advantages(lefts, left_scores, group=group)
    right_advantages = group_advantages(rights, right_scores, group=group)
    for_left = hf.merge(Experience, lefts, left_advantages, right.log_probs(lefts))
    for_right = hf.merge(Experience, rights, right_advantages, left.log_probs(rights))
    left_metrics = left.update(for_left, loss=loss)
    right_metrics = right.update(for_right, loss=loss)
    return left_metrics, right_metrics, outcome(lefts, left_scores), outcome(rights, right_scores)
