"""Copies of scored responses are compared mini-batch by mini-batch."""

import hfdsl as hf
from tests.corpus.advantages import centered
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> list[ActorMetrics]:
    answers = actor.generate(prompts)
    scores, rollout = hf.repeat(reward.score(answers), 4), hf.repeat(answers, 4)
    parts = zip(hf.minibatches(rollout, 2), hf.minibatches(scores, 2), strict=True)
    return [
        actor.update(part, centered(part_scores, part, group=4))  # <- HF337
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
