# mypy: disable-error-code="empty-body"
"""Generation inside the actor's mesh, in smaller groups: the rows are split over micro-data-parallel replicas."""

import hfdsl as hf
from hfdsl import Dispatch, PerRank, PerStage, register
from tests.check.programs.vocabulary import ActorMetrics, B, P, Prompts, R, Reward, Rollout, Scores


class Actor(hf.Worker):
    @register(Dispatch.THREE_D_ALL_MICRO_DP)
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.THREE_D_PROTO)
    def update(self, rollout: Rollout, scores: Scores) -> ActorMetrics: ...

    @register(Dispatch.ONE_TO_ALL)
    def memory(self) -> float: ...

    @register(Dispatch.THREE_D_PP_ONLY)
    def stage_norm(self) -> float: ...

    @register(Dispatch.ONE_TO_ALL)
    def keep(self, used: PerRank[float], norms: PerStage[float]) -> None: ...


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> tuple[ActorMetrics, PerRank[float]]:
    rollout = actor.generate(prompts)
    metrics = actor.update(rollout, reward.score(rollout))
    used = actor.memory()
    actor.keep(used, actor.stage_norm())
    return metrics, used


train = hf.ResourcePool([8, 8])
deployment = hf.Deployment(
    actor=hf.place(Actor, pool=train, mesh=hf.Mesh(pp=2, dp=2, tp=4, gen_pp=1, gen_tp=2)),
    reward=hf.place(Reward, pool=hf.ResourcePool([1])),
)
dims = {B: 24, P: 16, R: 16}
