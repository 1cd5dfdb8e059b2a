"""Online DPO: the policy learns to prefer the better of two responses that it has just generated.

Guo et al., 2024, Direct Language Model Alignment from Online AI Feedback; Rafailov et al., 2023, Direct Preference
Optimization: Your Language Model is Secretly a Reward Model.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import Outcome, PreferenceMetrics, Preferences, Prompts
from hfdsl.rl.functions import better_of_two, outcome
from hfdsl.rl.losses import DPO
from hfdsl.rl.sampling import synced
from hfdsl.rl.workers import Actor, Reference, Reward, Sampler


@hf.dataflow
def online_dpo(
    prompts: Prompts,
    actor: Actor,
    reference: Reference,
    reward: Reward,
    sampler: Sampler | None = None,
    *,
    updates: int = 1,
    loss: DPO = DPO(0.1),
) -> tuple[PreferenceMetrics, Outcome]:
    """One step of online DPO."""
    questions = hf.repeat(prompts, 2)
    rollout = synced(actor, sampler).generate(questions)
    ref = reference.log_probs(rollout)
    scores = reward.score(questions, rollout)
    parts = hf.minibatches(hf.merge(Preferences, rollout, ref, better_of_two(scores)), updates)
    metrics = [actor.prefer(part, loss=loss) for part in parts]
    return metrics[-1], outcome(rollout, scores)
