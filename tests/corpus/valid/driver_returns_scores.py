"""Scores of many long responses: the driver fetches one number for each."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    Actor,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Scores,
    prompts_of,
)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> Scores:
    return reward.score(actor.generate(prompts))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
