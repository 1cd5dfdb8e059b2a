# mypy: disable-error-code="empty-body"
"""Weights are sent once, before the first of two updates, so later rollouts use those of the previous epoch.

Seen: https://github.com/verl-project/verl/pull/4248
Elsewhere: silent: the rollout model lags behind, training is extremely off-policy and may not converge.
"""

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.vocabulary import ActorMetrics, B, P, Prompts, R, Rollout


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout) -> ActorMetrics: ...

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, list[float]]: ...


class Engine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def update_weights(self, weights: dict[str, list[float]]) -> None: ...


@hf.dataflow
def epoch(prompts: Prompts, actor: Actor, engine: Engine) -> list[ActorMetrics]:
    hf.sync(actor, engine)
    first = actor.update(engine.generate(prompts))
    second = actor.update(engine.generate(prompts))  # <- HF701
    return [first, second]


pool = hf.ResourcePool([8])
experiment = hf.Experiment(
    epoch,
    hf.Deployment(actor=hf.place(Actor, pool=pool), engine=hf.place(Engine, pool=pool)),
    dims={B: 64, P: 1024, R: 1024},
)
