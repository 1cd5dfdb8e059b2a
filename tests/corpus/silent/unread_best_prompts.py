"""The prompts that are worth a second attempt are chosen, and the second attempt has them all."""

import hfdsl as hf
from tests.corpus.advantages import gained, passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    first = actor.generate(prompts)
    scores = reward.score(first)
    hf.filter(prompts, passed(scores).keep)  # <- HF602
    second = actor.generate(prompts)
    return actor.update(second, gained(reward.score(second), second))


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
