"""The longest response that is kept is the same with copies of the last row."""

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
    longest: hf.Metric[int, Literal["max"]]


class Policy(Actor):
    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def lengths(self, rollout: Rollout) -> Lengths:
        return Lengths(longest=int(rollout.response_mask.tensor.sum(1).max()) if len(rollout) else 0)


@hf.dataflow
def program(prompts: Prompts, actor: Policy) -> Lengths:
    rollout = actor.generate(prompts)
    return actor.lengths(hf.filter(rollout, even(rollout).keep))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Policy, PolicyConfig(), pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
