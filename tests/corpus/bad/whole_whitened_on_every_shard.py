# mypy: disable-error-code="empty-body"
"""Advantages are whitened with the mean and deviation of a shard instead of the batch's.

Seen: https://github.com/THUDM/slime/pull/2235
Elsewhere: silent: every context-parallel rank normalizes its part of the same sequence by different numbers.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor, ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Rollout


class MegatronTrain(hf.Worker):
    @register(Dispatch.THREE_D_PROTO, rows=hf.Whole)
    def compute_advantages(self, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def reinforce_plus_plus(prompts: Prompts, actor: Actor, train: MegatronTrain) -> ActorMetrics:
    rollout = actor.generate(prompts)
    advantages = train.compute_advantages(rollout)  # <- HF421
    return actor.update(rollout, advantages)


pool = hf.ResourcePool([8])
experiment = hf.Experiment(
    reinforce_plus_plus,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool, mesh=hf.Mesh(dp=2, tp=4)),
        train=hf.place(MegatronTrain, pool=pool, mesh=hf.Mesh(dp=4, tp=2)),
    ),
    dims={B: 256, P: 1024, R: 8192},
)
