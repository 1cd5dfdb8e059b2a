"""Pairs are dropped where groups of four are compared later, in mini-batches."""

import hfdsl as hf
from tests.corpus.advantages import centered, some_passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> list[ActorMetrics]:
    rollout = actor.generate(hf.repeat(prompts, 4))
    scores = reward.score(rollout)
    kept = hf.fill(hf.filter(rollout, some_passed(scores, group=2).keep, group=2), 32)
    scored = reward.score(kept)
    parts = zip(hf.minibatches(kept, 2), hf.minibatches(scored, 2), strict=True)
    return [
        actor.update(part, centered(part_scores, part, group=4))  # <- HF331
        for part, part_scores in parts
    ]


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
