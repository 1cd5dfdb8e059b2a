"""On-policy distillation: a teacher scores every token of its student's responses.

The student samples, as in Agarwal et al., 2024, On-Policy Distillation of Language Models: Learning from Self-Generated
Mistakes. It learns by the policy gradient of the reverse KL (Gu et al., 2024, MiniLLM: Knowledge Distillation of Large
Language Models), with log(teacher / student) of each sampled token as that token's advantage. It reads the teacher's
log-probs of the sampled tokens only, not the divergences over the whole vocabulary of Agarwal et al.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Distance, Experience, Prompts
from hfdsl.rl.functions import distance, teacher_advantages
from hfdsl.rl.losses import Clip
from hfdsl.rl.sampling import sample, synced
from hfdsl.rl.workers import Actor, Reference, Sampler


@hf.dataflow
def distillation(
    prompts: Prompts,
    actor: Actor,
    teacher: Reference,
    sampler: Sampler | None = None,
    *,
    updates: int = 1,
    loss: Clip = Clip(0.2),
) -> tuple[ActorMetrics, Distance]:
    """One step of on-policy distillation."""
    rollout = sample(prompts, actor, synced(actor, sampler))
    graded = teacher.log_probs(rollout)
    parts = hf.minibatches(hf.merge(Experience, rollout, teacher_advantages(rollout, graded)), updates)
    metrics = [actor.update(part, loss=loss) for part in parts]
    return metrics[-1], distance(rollout, graded)
