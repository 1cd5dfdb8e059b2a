# mypy: disable-error-code="empty-body"
"""Generations that were cut off by a failure are dropped, and the rest is split over the actor's ranks.

Seen: https://github.com/verl-project/verl-ascend-recipe/pull/109
Elsewhere: the remainder may not be divisible by the data-parallel size; dispatch fails until a trim is added.
"""

import hfdsl as hf
from hfdsl import Dispatch, bool_, register
from tests.corpus.vocabulary import B, P, Prompts, R, RefLogProbs, Rollout


class Partial(Rollout):
    complete: bool_[B]


class ElasticRollout(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Partial: ...


class Actor(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def compute_log_prob(self, rollout: Rollout) -> RefLogProbs: ...


@hf.dataflow
def step(prompts: Prompts, engine: ElasticRollout, actor: Actor) -> RefLogProbs:
    partial = engine.generate(hf.repeat(prompts, 4))
    return actor.compute_log_prob(hf.filter(partial, partial.complete))  # <- HF321


engines, trainers = hf.ResourcePool([8, 8]).split([8, 8])
experiment = hf.Experiment(
    step,
    hf.Deployment(
        engine=hf.place(ElasticRollout, pool=engines),
        actor=hf.place(Actor, pool=trainers, mesh=hf.Mesh(dp=4, tp=2)),
    ),
    dims={B: 64, P: 2048, R: 8192},
)
