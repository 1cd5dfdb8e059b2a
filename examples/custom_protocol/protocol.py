"""A transfer protocol of one's own, a role whose method is registered with it, and a dataflow that calls the method."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import register
from hfdsl.rl.batches import ActorMetrics, Experience, Outcome, Prompts, Scores, Sequences
from hfdsl.rl.functions import group_advantages, outcome
from hfdsl.rl.losses import Clip
from hfdsl.rl.workers import Actor, Verifier

# Ranks of pp and tp, which 3D_PROTO gives the same rows as their neighbors, have rows of their own, too.
EVERY_RANK = hf.Protocol(
    "EVERY_RANK",
    split=("pp", "dp", "tp"),
    collect={"pp": "join", "dp": "join", "tp": "join"},
)


class ParallelVerifier(Verifier):
    """A verifier all of whose ranks work, wherever they are on the mesh of a role that they share processes with."""

    @register(EVERY_RANK)
    def score_parts(self, prompts: Prompts, sequences: Sequences) -> Scores:
        """The score of every response."""
        return self.score(prompts, sequences)


@hf.dataflow
def grpo(
    prompts: Prompts,
    actor: Actor,
    reward: ParallelVerifier,
    *,
    group: int = 8,
    updates: int = 2,
    loss: Clip = Clip(0.2, aggregation="sequence-mean-token-mean"),
) -> tuple[ActorMetrics, Outcome]:
    """The ready ``grpo_without_reference`` with another call of its reward."""
    questions = hf.repeat(prompts, group)
    rollout = actor.generate(questions)
    scores = reward.score_parts(questions, rollout)
    advantages = group_advantages(rollout, scores, group=group)
    parts = hf.minibatches(hf.merge(Experience, rollout, advantages), updates)
    policy = [actor.update(part, loss=loss) for part in parts]
    return policy[-1], outcome(rollout, scores)
