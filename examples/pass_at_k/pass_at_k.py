"""pass@k: the chance that one of k samples is right."""

from __future__ import annotations

from math import comb
from typing import Literal

import hfdsl as hf
from hfdsl.rl.batches import Outcome, Prompts, Rollout, Scores
from hfdsl.rl.functions import outcome
from hfdsl.rl.workers import Actor, Reward

SAMPLES = 16


class PassAtK(hf.Batch):
    """The mean over all problems, for several k."""

    pass_1: hf.Metric[float, Literal["mean"]]
    pass_2: hf.Metric[float, Literal["mean"]]
    pass_4: hf.Metric[float, Literal["mean"]]
    pass_8: hf.Metric[float, Literal["mean"]]
    pass_16: hf.Metric[float, Literal["mean"]]


def pass_at(k: int, right: int, samples: int = SAMPLES) -> float:
    """The chance that one of k samples is right, where ``right`` of all ``samples`` are, without bias.

    1 - C(samples - right, k) / C(samples, k): Chen et al., 2021, Evaluating Large Language Models Trained on Code,
    equation 1. With k = 1 it is their share.

    >>> pass_at(1, 4), pass_at(16, 1), pass_at(8, 1), pass_at(2, 0)
    (0.25, 1.0, 0.5, 0.0)
    """
    return 1 - comb(samples - right, k) / comb(samples, k)


@hf.function(rows=hf.Grouped(SAMPLES))
def passes(scores: Scores) -> PassAtK:
    """How many samples of each problem are right, and what that says of every k."""
    rights = (scores.score.tensor.view(-1, SAMPLES) >= 1).sum(1).tolist()

    def mean(k: int) -> float:
        return sum(pass_at(k, right) for right in rights) / len(rights)

    return PassAtK(pass_1=mean(1), pass_2=mean(2), pass_4=mean(4), pass_8=mean(8), pass_16=mean(16))


@hf.dataflow
def pass_at_k(prompts: Prompts, actor: Actor, reward: Reward) -> tuple[PassAtK, Outcome, Rollout, Scores]:
    """Several samples of every problem; the first ones come along to be read."""
    questions = hf.repeat(prompts, SAMPLES)
    rollout = actor.generate(questions)
    scores = reward.score(questions, rollout)
    return passes(scores), outcome(rollout, scores), rollout, scores
