"""Responses below a score are meant to be dropped, but a filter does not change its argument: all are learned from."""

import hfdsl as hf
from tests.corpus.advantages import gained, passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    scores = reward.score(rollout)
    hf.filter(rollout, passed(scores, least=0.5).keep)  # <- HF602
    return actor.update(rollout, gained(scores, rollout))


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
