"""The placed policy returns its rollout with the version of its weights."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    prompts_of,
)


class Versioned(Rollout):
    version: hf.Obj[int, B]


class Engine(Actor):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Versioned:
        rollout = super().generate(prompts)
        rows = len(rollout.ids.tensor)
        return Versioned(
            ids=rollout.ids, response_mask=rollout.response_mask, log_probs=rollout.log_probs, version=[0] * rows
        )


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Engine, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
