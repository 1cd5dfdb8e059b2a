"""A critic of four ranks learns on rank 0, which is sent the whole batch; three quarters of the values never change."""

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Sequences, Table, Values, prompts_of


class Losses(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Critic(Table):
    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("critic")
    def values(self, sequences: Sequences) -> Values:
        return Values(values=self.said(sequences.ids.tensor).mean(-1))

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.writes("critic")
    def learn(self, sequences: Sequences, values: Values) -> Losses:
        self.table += self.config.learning_rate
        return Losses(loss=float(values.values.tensor.mean()))


@hf.dataflow
def program(prompts: Prompts, actor: Actor, critic: Critic) -> Losses:
    rollout = actor.generate(prompts)
    return critic.learn(rollout, critic.values(rollout))  # <- HF708


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), critic=hf.place(Critic, PolicyConfig(), pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
