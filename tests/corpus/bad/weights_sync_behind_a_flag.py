# mypy: disable-error-code="empty-body"
"""Weights are sent to the engine only if a flag about its cache is set.

Seen: https://github.com/rllm-org/rllm/issues/291
Elsewhere: silent: with the flag off, actor and rollout model drift apart from the first update on.
"""

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.vocabulary import ActorMetrics, B, P, Prompts, R, Reward, Rollout, Scores

FREE_CACHE_ENGINE = False


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout, scores: Scores) -> ActorMetrics: ...

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def state_dict(self) -> dict[str, list[float]]: ...


class VllmEngine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def wake_up(self, weights: dict[str, list[float]]) -> None: ...


@hf.dataflow
def agent_step(prompts: Prompts, actor: Actor, engine: VllmEngine, reward: Reward) -> ActorMetrics:
    rollout = engine.generate(prompts)  # <- HF510
    metrics = actor.update(rollout, reward.score(rollout))
    if FREE_CACHE_ENGINE:
        hf.sync(actor, engine)
    return metrics


pool = hf.ResourcePool([8])
experiment = hf.Experiment(
    agent_step,
    hf.Deployment(
        actor=hf.place(Actor, pool=pool), engine=hf.place(VllmEngine, pool=pool), reward=hf.place(Reward, pool=pool)
    ),
    dims={B: 64, P: 2048, R: 2048},
)
