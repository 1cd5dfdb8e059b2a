"""A reward model with dispatch functions of its own: 5 GiB of tokens pass the driver in every step."""

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
    return scores


class Judge(Reward):
    @register({"dispatch_fn": halves, "collect_fn": joined})
    def score(self, sequences: Sequences) -> Scores:
        return super().score(sequences)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Judge) -> Scores:
    return reward.score(actor.generate(prompts))  # <- HF804


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(8192), pool=pool), reward=hf.place(Judge, pool=pool)),
    dims={B: 65536, P: 1024, R: 8192},
    batches=prompts_of(8),
)
