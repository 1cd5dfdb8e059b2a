"""A judge by rule beside its sliced weights: it reads none of them, so that any rank takes any row."""

import hfdsl as hf
from hfdsl import Dispatch, register
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
    @register(Dispatch.DP_PROTO)
    def score(self, sequences: Sequences) -> Scores:
        return Scores(reward=(sequences.ids.tensor % 2 == 0).float().mean(1))

    @staticmethod
    def sliced(config: PolicyConfig) -> dict[str, int]:
        return {"width": 8}


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
