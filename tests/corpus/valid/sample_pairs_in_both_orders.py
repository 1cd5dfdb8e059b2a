"""A judge compares two responses in both orders, and each of them learns from one verdict."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Scores, Sequences, prompts_of


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def compare(self, left: Sequences, right: Sequences) -> Scores:
        return Scores(reward=(left.ids.tensor.sum(1) - right.ids.tensor.sum(1)).float().sign())


@hf.dataflow
def program(prompts: Prompts, actor: Actor, judge: Judge) -> list[ActorMetrics]:
    left, right = actor.generate(prompts), actor.generate(prompts)
    wins, losses = judge.compare(left, right), judge.compare(right, left)
    return [actor.update(left, gained(wins, left)), actor.update(right, gained(losses, right))]


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        judge=hf.place(Judge, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
