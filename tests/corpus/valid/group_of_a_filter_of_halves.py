"""A filter keeps halves of the groups, and each response is compared with no other."""

import hfdsl as hf
from tests.corpus.advantages import gained, some_passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, 4))
    kept = hf.fill(hf.filter(rollout, some_passed(reward.score(rollout), group=2).keep, group=2), 32)
    return actor.update(kept, gained(reward.score(kept), kept))


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
