"""Dr. GRPO: GRPO without the divisions that favor long wrong responses and easy or hard questions.

Liu et al., 2025, Understanding R1-Zero-Like Training: A Critical Perspective. The loss divides by R, the
longest response that generation allows.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Experience, Outcome, Prompts
from hfdsl.rl.functions import centered_advantages, outcome
from hfdsl.rl.losses import Clip
from hfdsl.rl.sampling import sample, synced
from hfdsl.rl.workers import Actor, Reward, Sampler


@hf.dataflow
def dr_grpo(
    prompts: Prompts,
    actor: Actor,
    reward: Reward,
    sampler: Sampler | None = None,
    *,
    group: int = 8,
    updates: int = 2,
    loss: Clip = Clip(0.2, aggregation="sequence-mean-token-sum", constant=None),
) -> tuple[ActorMetrics, Outcome]:
    """One step of Dr. GRPO."""
    questions = hf.repeat(prompts, group)
    rollout = sample(questions, actor, synced(actor, sampler))
    scores = reward.score(questions, rollout)
    advantages = centered_advantages(rollout, scores, group=group)
    parts = hf.minibatches(hf.merge(Experience, rollout, advantages), updates)
    metrics = [actor.update(part, loss=loss) for part in parts]
    return metrics[-1], outcome(rollout, scores)
