"""A filter keeps or drops eight rows together where four responses are sampled: two questions at a time."""

import hfdsl as hf
from tests.corpus.advantages import centered, passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, 4))
    verdicts = passed(reward.score(rollout))
    kept = hf.fill(hf.filter(rollout, verdicts.keep, group=8), 32)  # <- HF330
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
