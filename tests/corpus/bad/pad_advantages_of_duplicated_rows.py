# mypy: disable-error-code="empty-body"
"""Rows are duplicated until they divide over the ranks, and the update learns from the duplicates too.

Seen: https://github.com/verl-project/verl-omni/pull/602
Elsewhere: silent: the last rows count twice in the gradient, and in the KL and clip fraction that are logged.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor, ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Rollout


class DiffusionActor(Actor):
    @register(Dispatch.THREE_D_PROTO, pad="repeat_last")
    def update(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics: ...


@hf.function
def advantages_of(rollout: Rollout) -> Advantages: ...


@hf.dataflow
def flow_grpo(prompts: Prompts, engine: Actor, actor: DiffusionActor) -> ActorMetrics:
    rollout = engine.generate(hf.repeat(prompts, 3))
    return actor.update(rollout, advantages_of(rollout))  # <- HF317


experiment = hf.Experiment(
    flow_grpo,
    hf.Deployment(
        engine=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([2])),
        actor=hf.place(DiffusionActor, PolicyConfig(), pool=hf.ResourcePool([4])),
    ),
    dims={B: 10, P: 77, R: 16},
)
