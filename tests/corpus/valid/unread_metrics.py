"""Updates whose metrics nobody reads: they are called for what they do."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    advantages = gained(reward.score(rollout), rollout)
    actor.update(rollout, advantages)
    return actor.update(rollout, advantages)


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
