"""Every other token of 4 prompt tokens and of 4 response tokens."""

from typing import Literal

import hfdsl as hf
from hfdsl import Add, Div, i64
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, prompts_of


class Thinned(hf.Batch):
    ids: i64[B, Add[Div[P, Literal[2]], Div[R, Literal[2]]]]


@hf.function
def thinned(rollout: Rollout) -> Thinned:
    ids = rollout.ids.tensor
    return Thinned(ids=ids[:, ::2])


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> Thinned:
    return thinned(actor.generate(prompts))


experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([1]))),
    dims={B: 8, P: 4, R: 4},
    batches=prompts_of(8, 4),
)
