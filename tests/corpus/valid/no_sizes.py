"""One data-parallel rank everywhere: no size can matter, and none is given; tensor parallelism alone."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor as Policy
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
    Critic,
    PolicyConfig,
    Prompts,
    Reward,
    Rollout,
    Scores,
    Values,
    prompts_of,
)


class Actor(Policy):
    @register(Dispatch.THREE_D_PROTO)
    def learn(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics:
        return super().update(rollout, advantages)


@hf.function
def surprise(rollout: Rollout, scores: Scores, values: Values) -> Advantages:
    return Advantages(advantages=scores.reward.tensor[:, None] - values.values.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, critic: Critic, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.learn(rollout, surprise(rollout, reward.score(rollout), critic.values(rollout)))


pool, config = hf.ResourcePool([8]), PolicyConfig()
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, config, pool=pool, mesh=hf.Mesh(dp=1, tp=8)),
        critic=hf.place(Critic, config, pool=pool, mesh=hf.Mesh(pp=2, dp=1, tp=4)),
        reward=hf.place(Reward, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    batches=prompts_of(7),
)
