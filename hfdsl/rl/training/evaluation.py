"""How good a policy is: its likeliest answers to prompts that it does not train on."""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import Outcome, Prompts, Rollout, Scores
from hfdsl.rl.functions import outcome
from hfdsl.rl.sampling import synced
from hfdsl.rl.workers import Actor, Reward, Sampler


@hf.dataflow
def evaluate(
    prompts: Prompts, actor: Actor, reward: Reward, sampler: Sampler | None = None
) -> tuple[Outcome, Rollout, Scores]:
    """Greedy answers and their scores; the answers come along to be read."""
    rollout = synced(actor, sampler).generate(prompts, greedy=True)
    scores = reward.score(prompts, rollout)
    return outcome(rollout, scores), rollout, scores
