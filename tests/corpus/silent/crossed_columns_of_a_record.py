"""The targets of a critic: returns go to the column of advantages, and advantages to that of returns."""

import hfdsl as hf
from hfdsl import f32
from tests.corpus.advantages import less_values
from tests.corpus.vocabulary import (
    Actor,
    Advantages,
    B,
    Critic,
    CriticMetrics,
    Estimates,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Values,
    prompts_of,
)


class Returns(hf.Batch):
    returns: f32[B, R]


@hf.function
def summed(advantages: Advantages, values: Values) -> Returns:
    """What the advantages were above."""
    return Returns(returns=advantages.advantages.tensor + values.values.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, critic: Critic, reward: Reward) -> CriticMetrics:
    rollout = actor.generate(prompts)
    values = critic.values(rollout)
    gains = less_values(rollout, values, reward.score(rollout))
    sums = summed(gains, values)
    targets = Estimates(advantages=sums.returns, returns=gains.advantages)  # <- HF230
    return critic.update(rollout, targets)


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        critic=hf.place(Critic, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
