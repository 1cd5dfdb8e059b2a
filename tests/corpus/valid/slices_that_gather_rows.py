"""Each rank of a sliced judge is given other responses, and gathers those of its group first."""

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
    @hf.reads("judge")
    def score(self, sequences: Sequences) -> Scores:
        import torch

        group, rows = self.axis("tp"), len(sequences.ids.tensor)
        ids = torch.cat(group.all_gather(sequences.ids.tensor))
        half = self.table.shape[1] // 2
        part = self.said(ids)[..., half * group.rank : half * (group.rank + 1)].sum((1, 2))
        return Scores(reward=group.all_reduce(part, "sum")[rows * group.rank : rows * (group.rank + 1)])

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
