"""Odd answers are dropped, and the update pads what is left: copies of the last row learn too."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, prompts_of


class Kept(hf.Batch):
    keep: hf.bool_[B]


@hf.function
def even(rollout: Rollout) -> Kept:
    return Kept(keep=rollout.ids.tensor[:, -1] % 2 == 0)


class Policy(Actor):
    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def imitate(self, rollout: Rollout) -> None:
        self.table += rollout.log_probs.tensor.mean()


@hf.dataflow
def program(prompts: Prompts, actor: Policy) -> Rollout:
    rollout = actor.generate(prompts)
    actor.imitate(hf.filter(rollout, even(rollout).keep))  # <- HF317
    return rollout


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Policy, PolicyConfig(), pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
