"""RLOO on three data-parallel ranks: the groups stay whole in a role that compares them."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor, ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Rollout, prompts_of

K = 5


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO, rows=hf.Grouped(K))
    def leave_one_out(self, rollout: Rollout) -> Advantages:
        rewards = (rollout.ids.tensor % 2 == 0).float().mean(1).view(-1, K)
        others = (rewards.sum(1, keepdim=True) - rewards) / (K - 1)
        return Advantages(advantages=(rewards - others).flatten()[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, judge: Judge) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, K))
    return actor.update(rollout, judge.leave_one_out(rollout))


experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([6]), mesh=hf.Mesh(dp=3, tp=2)),
        judge=hf.place(Judge, pool=hf.ResourcePool([3], use_gpu=False)),
    ),
    dims={B: 6, P: 3, R: 4},
    batches=prompts_of(6),
)
