"""The mean length of the responses that are kept counts copies of the first ones."""

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, prompts_of


class Kept(hf.Batch):
    keep: hf.bool_[B]


@hf.function
def even(rollout: Rollout) -> Kept:
    return Kept(keep=rollout.ids.tensor[:, -1] % 2 == 0)


class Lengths(hf.Batch):
    length: hf.Metric[float, Literal["mean"]]


class Policy(Actor):
    @register(Dispatch.DP_PROTO, pad="cycle")
    def lengths(self, rollout: Rollout) -> Lengths:
        return Lengths(length=float(rollout.response_mask.tensor.sum(1).float().mean()))


@hf.dataflow
def program(prompts: Prompts, actor: Policy) -> Lengths:
    rollout = actor.generate(prompts)
    return actor.lengths(hf.filter(rollout, even(rollout).keep))  # <- HF317


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Policy, PolicyConfig(), pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
