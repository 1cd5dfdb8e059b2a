# mypy: disable-error-code="empty-body"
"""PPO with a batch of 2 prompts on 4 GPUs: generation, values and both updates would each split 2 rows in 4.

Seen: https://github.com/Jiayi-Pan/TinyZero/issues/47
Elsewhere: an assertion on equal chunks in the driver when generation is called, after all models are loaded.
"""

import hfdsl as hf
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    Critic,
    CriticMetrics,
    Estimates,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    Values,
)


@hf.function
def gae(rollout: Rollout, scores: Scores, values: Values) -> Estimates: ...


@hf.dataflow
def ppo(prompts: Prompts, actor: Actor, critic: Critic, reward: Reward) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = actor.generate(prompts)  # <- HF310
    estimates = gae(rollout, reward.score(rollout), critic.values(rollout))
    return actor.update(rollout, estimates), critic.update(rollout, estimates)


pool, config = hf.ResourcePool([4]), PolicyConfig()
experiment = hf.Experiment(
    ppo,
    hf.Deployment(
        actor=hf.place(Actor, config, pool=pool),
        critic=hf.place(Critic, config, pool=pool),
        reward=hf.place(Reward, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    dims={B: 2, P: 256, R: 1024},
)
