"""Dispatch functions of its own for a few rows."""

from typing import Any

import hfdsl as hf
from hfdsl import register
from tests.corpus.vocabulary import (
    Actor,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Scores,
    Sequences,
    prompts_of,
)


def halves(group: Any, sequences: Sequences) -> Any:
    half = len(sequences) // 2
    return ([sequences[:half], sequences[half:]],), {}


def joined(group: Any, scores: Any) -> Any:
    import torch

    return Scores(reward=torch.cat([part.reward.tensor for part in scores]))


class Judge(Reward):
    @register({"dispatch_fn": halves, "collect_fn": joined})
    def score(self, sequences: Sequences) -> Scores:
        return super().score(sequences)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Judge) -> Scores:
    return reward.score(actor.generate(prompts))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), reward=hf.place(Judge, pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
