"""Nodes with 4 and 2 GPUs, and 10 prompts for 6 ranks: padding fills up, and its rows never come back."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor as Policy
from tests.corpus.vocabulary import B, P, PolicyConfig, Prompts, R, Rollout, Scores, Sequences, prompts_of


class Actor(Policy):
    @register(Dispatch.THREE_D_PROTO, pad="cycle")
    def generate(self, prompts: Prompts) -> Rollout:
        return super().generate(prompts)


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def score(self, sequences: Sequences) -> Scores:
        return Scores(reward=sequences.ids.tensor.float().mean(1))


@hf.dataflow
def program(prompts: Prompts, actor: Actor, judge: Judge) -> tuple[Rollout, Scores]:
    rollout = actor.generate(prompts)
    return rollout, judge.score(rollout)


nodes = hf.ResourcePool([4, 2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=nodes), judge=hf.place(Judge, pool=nodes)),
    dims={B: 10, P: 3, R: 4},
    batches=prompts_of(10),
)
