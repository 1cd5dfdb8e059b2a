"""Every sample is judged twice, and all judgments of a question are compared."""

import hfdsl as hf
from tests.corpus.advantages import centered
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = hf.repeat(actor.generate(hf.repeat(prompts, 4)), 2)
    return actor.update(rollout, centered(reward.score(rollout), rollout, group=8))


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
