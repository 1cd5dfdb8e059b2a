"""Advantages are filtered by a stricter bound than the rollout beside them."""

import hfdsl as hf
from tests.corpus.advantages import gained, passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    scores = reward.score(rollout)
    kept = hf.fill(hf.filter(rollout, passed(scores, least=0.1).keep), 8)
    gains = hf.filter(gained(scores, rollout), passed(scores, least=0.5).keep)
    return actor.update(kept, hf.fill(gains, 8))  # <- HF333


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
