# mypy: disable-error-code="empty-body, arg-type"
"""Rollouts have no log-probabilities, but training puts them into a record that always has them.

Seen: https://github.com/THUDM/slime/pull/945
Elsewhere: a column of length 0 stands in for the missing one, and subtracting the old ones from it fails on shapes.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import ActorMetrics, B, P, Prompts, R, Rollout, Sequences


class Samples(Sequences):
    rollout_log_probs: f32[B, R] | None = None


class SglangEngine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Samples: ...


class FsdpActor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def train(self, rollout: Rollout) -> ActorMetrics: ...


@hf.dataflow
def step(prompts: Prompts, engine: SglangEngine, actor: FsdpActor) -> ActorMetrics:
    samples = engine.generate(prompts)
    rollout = Rollout(
        ids=samples.ids,
        response_mask=samples.response_mask,
        log_probs=samples.rollout_log_probs,  # <- HF231
    )
    return actor.train(rollout)


engines, trainers = hf.ResourcePool([8]).split([4, 4])
experiment = hf.Experiment(
    step,
    hf.Deployment(engine=hf.place(SglangEngine, pool=engines), actor=hf.place(FsdpActor, pool=trainers)),
    dims={B: 256, P: 1024, R: 8192},
)
