"""Advantages are cut into mini-batches beside the rollout, and the index of one is off by one."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> list[ActorMetrics]:
    rollout = actor.generate(prompts)
    parts = hf.minibatches(rollout, 2)
    gains = hf.minibatches(gained(reward.score(rollout), rollout), 2)
    return [actor.update(parts[i], gains[(i + 1) % 2]) for i in range(2)]  # <- HF333


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
