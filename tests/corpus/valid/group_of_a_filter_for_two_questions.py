"""A filter keeps pairs of questions on purpose, as a function of the whole batch decides."""

import hfdsl as hf
from tests.corpus.advantages import centered, pairs_passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, 4))
    kept = hf.fill(hf.filter(rollout, pairs_passed(reward.score(rollout)).keep, group=8), 32)
    return actor.update(kept, centered(reward.score(kept), kept, group=4))


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
