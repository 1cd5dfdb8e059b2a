"""GRPO: no critic; each response is compared with the others to its prompt, with a reference or without one.

Shao et al., 2024, DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Experience, Outcome, Prompts
from hfdsl.rl.functions import group_advantages, outcome
from hfdsl.rl.losses import Clip
from hfdsl.rl.sampling import sample, synced
from hfdsl.rl.workers import Actor, Reference, Reward, Sampler


@hf.dataflow
def grpo(
    prompts: Prompts,
    actor: Actor,
    reference: Reference,
    reward: Reward,
    sampler: Sampler | None = None,
    *,
    group: int = 8,
    updates: int = 2,
    loss: Clip = Clip(0.2, kl=0.04, aggregation="sequence-mean-token-mean"),
) -> tuple[ActorMetrics, Outcome]:
    """One step of GRPO."""
    questions = hf.repeat(prompts, group)
    rollout = sample(questions, actor, synced(actor, sampler))
    ref = reference.log_probs(rollout)
    scores = reward.score(questions, rollout)
    advantages = group_advantages(rollout, scores, group=group)
    parts = hf.minibatches(hf.merge(Experience, rollout, advantages, ref), updates)
    metrics = [actor.update(part, loss=loss) for part in parts]
    return metrics[-1], outcome(rollout, scores)


@hf.dataflow
def grpo_without_reference(
    prompts: Prompts,
    actor: Actor,
    reward: Reward,
    sampler: Sampler | None = None,
    *,
    group: int = 8,
    updates: int = 2,
    loss: Clip = Clip(0.2, aggregation="sequence-mean-token-mean"),
) -> tuple[ActorMetrics, Outcome]:
    """One step of GRPO whose loss has no KL term, so that no reference is loaded or run."""
    questions = hf.repeat(prompts, group)
    rollout = sample(questions, actor, synced(actor, sampler))
    scores = reward.score(questions, rollout)
    advantages = group_advantages(rollout, scores, group=group)
    parts = hf.minibatches(hf.merge(Experience, rollout, advantages), updates)
    metrics = [actor.update(part, loss=loss) for part in parts]
    return metrics[-1], outcome(rollout, scores)
