"""A third of 6 rows and a sixth of them."""

from typing import Literal

import hfdsl as hf
from hfdsl import Add, Div, i64
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, prompts_of


class Chosen(hf.Batch):
    ids: i64[Add[Div[B, Literal[3]], Div[B, Literal[6]]], Add[P, R]]


@hf.function
def chosen(rollout: Rollout) -> Chosen:
    ids = rollout.ids.tensor
    return Chosen(ids=ids[: len(ids) // 3 + len(ids) // 6])


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> Chosen:
    return chosen(actor.generate(prompts))


experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([1]))),
    dims={B: 6, P: 3, R: 4},
    batches=prompts_of(6),
)
