"""Each response is judged twice, and a filter keeps all eight judgments of a question."""

import hfdsl as hf
from tests.corpus.advantages import gained, some_passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = hf.repeat(actor.generate(hf.repeat(prompts, 4)), 2)
    kept = hf.fill(hf.filter(rollout, some_passed(reward.score(rollout), group=8).keep, group=8), 64)
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
