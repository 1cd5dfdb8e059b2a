"""A quarter of 6 rows beside half of 4 prompt tokens: the body rounds down, and a row is lost."""

from typing import Literal

import hfdsl as hf
from hfdsl import Add, Div, i64
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, prompts_of


class Table(hf.Batch):
    ids: i64[Add[Div[B, Literal[4]], Div[P, Literal[2]]], R]


@hf.function
def tabulated(rollout: Rollout) -> Table:
    ids = rollout.ids.tensor
    return Table(ids=ids[: len(ids) // 4 + (ids.shape[1] - 4) // 2, -4:])


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> Table:
    return tabulated(actor.generate(prompts))  # <- HF303


experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([1]))),
    dims={B: 6, P: 4, R: 4},
    batches=prompts_of(6, 4),
)
