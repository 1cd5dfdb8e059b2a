"""Mini-batches are made, and the update reads all but the last."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> list[ActorMetrics]:
    rollout = actor.generate(prompts)
    *parts, _ = hf.minibatches(rollout, 2)
    return [actor.update(part, gained(reward.score(part), part)) for part in parts]


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
