"""A role that needs all rows has one rank; another sees all rows behind a protocol that does not split."""

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, Execute, Metric, register
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    prompts_of,
)


class Summary(hf.Batch):
    mean: Metric[float, Literal["mean"]]


class Baseline(hf.Worker):
    """A moving average of the reward over the whole batch."""

    average = 0.0

    @register(Dispatch.DP_PROTO, rows=hf.Whole)
    def advantages(self, scores: Scores, rollout: Rollout) -> Advantages:
        self.average = 0.9 * self.average + 0.1 * float(scores.reward.tensor.mean())
        gain = scores.reward.tensor - self.average
        return Advantages(advantages=gain[:, None] * rollout.response_mask.tensor)


class Board(hf.Worker):
    @register(Dispatch.ALL_TO_ALL, Execute.RANK_ZERO, rows=hf.Whole)
    def note(self, scores: Scores) -> Summary:
        return Summary(mean=float(scores.reward.tensor.mean()))


@hf.dataflow
def program(
    prompts: Prompts, actor: Actor, reward: Reward, baseline: Baseline, board: Board
) -> tuple[ActorMetrics, Summary]:
    rollout = actor.generate(prompts)
    scores = reward.score(rollout)
    return actor.update(rollout, baseline.advantages(scores, rollout)), board.note(scores)


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
        baseline=hf.place(Baseline, pool=hf.ResourcePool([1], use_gpu=False)),
        board=hf.place(Board, pool=hf.ResourcePool([2], use_gpu=False)),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
