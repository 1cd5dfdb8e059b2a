"""Each response is centered by the mean of its own tokens."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    gains,
    prompts_of,
)


@hf.function
def centered(advantages: Advantages, rollout: Rollout) -> Advantages:
    mask = rollout.response_mask.tensor.float()
    values = advantages.advantages.tensor * mask
    mean = values.sum(-1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return Advantages(advantages=(values - mean).flip(1).cumsum(-1).flip(1))


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, centered(gains(reward.score(rollout), rollout), rollout))


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
