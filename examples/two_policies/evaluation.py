"""How many held-out problems each of two policies solves."""

from __future__ import annotations

from typing import Literal

import hfdsl as hf
from hfdsl.rl.batches import Prompts, Scores
from hfdsl.rl.workers import Actor, Reward


class Solved(hf.Batch):
    """The shares of problems that the policies solve."""

    left_solved: hf.Metric[float, Literal["mean"]]
    right_solved: hf.Metric[float, Literal["mean"]]


@hf.function
def shares(left: Scores, right: Scores) -> Solved:
    """The mean score of each."""
    return Solved(left_solved=float(left.score.tensor.mean()), right_solved=float(right.score.tensor.mean()))


@hf.dataflow
def evaluate(prompts: Prompts, left: Actor, right: Actor, reward: Reward) -> Solved:
    """Greedy answers of both."""
    lefts = reward.score(prompts, left.generate(prompts, greedy=True))
    rights = reward.score(prompts, right.generate(prompts, greedy=True))
    return shares(lefts, rights)
