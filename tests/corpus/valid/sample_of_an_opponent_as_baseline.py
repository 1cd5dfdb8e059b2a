"""The score of an opponent's response is the baseline: one number a question."""

import hfdsl as hf
from tests.corpus.advantages import above
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, opponent: Actor, reward: Reward) -> ActorMetrics:
    mine, theirs = actor.generate(prompts), opponent.generate(prompts)
    return actor.update(mine, above(reward.score(mine), reward.score(theirs), mine))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        opponent=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
