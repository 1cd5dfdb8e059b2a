"""A function with a metric is never cut, so that its mean is that of all rows."""

from typing import Literal

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Reward, Scores, prompts_of


class Relative(Scores):
    mean: hf.Metric[float, Literal["mean"]]


@hf.function
def relative(scores: Scores) -> Relative:
    mean = scores.reward.tensor.mean()
    return Relative(reward=scores.reward.tensor - mean, mean=float(mean))


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> Relative:
    return relative(reward.score(actor.generate(prompts)))


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
