"""Generation in smaller groups than training: the folds of pp and tp give 12 replicas inside a mesh with dp=2."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor as Policy
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    prompts_of,
)


class Actor(Policy):
    @register(Dispatch.THREE_D_ALL_MICRO_DP)
    def generate(self, prompts: Prompts) -> Rollout:
        return super().generate(prompts)


@hf.function
def rewarded(scores: Scores, rollout: Rollout) -> Advantages:
    return Advantages(advantages=scores.reward.tensor[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, rewarded(reward.score(rollout), rollout))


mesh = hf.Mesh(pp=2, dp=2, tp=6, gen_pp=1, gen_tp=2)
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([12, 12]), mesh=mesh),
        reward=hf.place(Reward, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    dims={B: 24, P: 3, R: 4},
    batches=prompts_of(24),
)
