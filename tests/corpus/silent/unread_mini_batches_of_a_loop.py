"""A loop over the mini-batches updates with the first in every turn."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> list[ActorMetrics]:
    rollout = actor.generate(prompts)
    parts = hf.minibatches(rollout, 2)
    metrics = []
    for _turn in range(len(parts)):
        advantages = gained(reward.score(parts[0]), parts[0])  # <- HF602
        metrics.append(actor.update(parts[0], advantages))
    return metrics


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
