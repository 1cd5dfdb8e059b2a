"""A layout says that the table of a judge is cut over tp; its rows are split over all ranks."""

from typing import Any

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.protocols.layouts import Parameter, Slices
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import (
    ActorMetrics,
    B,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Scores,
    Sequences,
    Table,
    prompts_of,
)


class Judge(Table):
    @staticmethod
    def state_parameters(config: PolicyConfig) -> dict[str, list[Parameter]]:
        return {"judge": [Parameter("table", (8, 8), "float32")]}

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("judge", layout=Slices(1))
    def load(self, weights: dict[str, Any]) -> None:
        self.table = weights["table"]

    @register(Dispatch.DP_PROTO)
    @hf.reads("judge")
    def score(self, sequences: Sequences) -> Scores:  # <- HF426
        return Scores(reward=self.said(sequences.ids.tensor).sum((1, 2)))


@hf.dataflow
def program(prompts: Prompts, learner: Learner, judge: Judge) -> ActorMetrics:
    rollout = learner.generate(prompts)
    return learner.learn(rollout, gained(judge.score(rollout), rollout))


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        judge=hf.place(Judge, PolicyConfig(), pool=pool, mesh=hf.Mesh(dp=2, tp=2)),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
