"""Pairs that differ are kept, and an odd number of them is split over two ranks: the last pair learns twice."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, prompts_of


class Kept(hf.Batch):
    keep: hf.bool_[B]


class Policy(Actor):
    @register(Dispatch.DP_PROTO, rows=hf.Grouped(2), pad="repeat_last")
    def prefer(self, rollout: Rollout) -> None:
        self.table += rollout.log_probs.tensor.mean()


@hf.function(rows=hf.Grouped(2))
def unlike(rollout: Rollout) -> Kept:
    last = rollout.ids.tensor[:, -1].view(-1, 2)
    return Kept(keep=(last[:, 0] != last[:, 1]).repeat_interleave(2))


@hf.dataflow
def program(prompts: Prompts, actor: Policy) -> Rollout:
    rollout = actor.generate(hf.repeat(prompts, 2))
    actor.prefer(hf.filter(rollout, unlike(rollout).keep, group=2))  # <- HF317
    return rollout


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Policy, PolicyConfig(), pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
