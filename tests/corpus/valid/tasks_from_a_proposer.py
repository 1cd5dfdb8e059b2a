# mypy: disable-error-code="valid-type, arg-type"
"""A proposer writes four tasks from each seed: a record with a multiple of the rows; the solver learns from them."""

from collections.abc import Iterator
from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, Mul, f32, i64, register
from tests.corpus.vocabulary import (
    TOKENS,
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
)

Many = Mul[B, Literal[4]]


class Seeds(hf.Batch):
    seed: i64[B]


class Tasks(hf.Batch):
    ids: i64[Many, P]
    answer: hf.Obj[str, Many]


class Difficulty(hf.Batch):
    hard: f32[B]


class Proposer(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def propose(self, seeds: Seeds) -> Tasks:
        import torch

        ids = (seeds.seed.tensor.repeat_interleave(4)[:, None] + torch.arange(3)) % TOKENS
        return Tasks(ids=ids, answer=["?"] * len(ids))

    @register(Dispatch.DP_PROTO)
    def learn(self, seeds: Seeds, difficulty: Difficulty) -> ActorMetrics:
        return ActorMetrics(loss=float(difficulty.hard.tensor.mean()))


@hf.function
def gained(scores: Scores, rollout: Rollout) -> Advantages:
    return Advantages(advantages=scores.reward.tensor[:, None] * rollout.response_mask.tensor)


@hf.function
def seeds_as_hard(seeds: Seeds) -> Difficulty:
    return Difficulty(hard=seeds.seed.tensor.float())


@hf.dataflow
def program(seeds: Seeds, proposer: Proposer, solver: Actor, reward: Reward) -> tuple[ActorMetrics, ActorMetrics]:
    tasks = proposer.propose(seeds)
    rollout = solver.generate(Prompts(ids=tasks.ids, answer=tasks.answer))
    updated = solver.update(rollout, gained(reward.score(rollout), rollout))
    return proposer.learn(seeds, seeds_as_hard(seeds)), updated


def batches() -> Iterator[Seeds]:
    import torch

    yield Seeds(seed=torch.arange(4))


left, right = hf.ResourcePool([2]), hf.ResourcePool([8])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        proposer=hf.place(Proposer, pool=left),
        solver=hf.place(Actor, PolicyConfig(mini_batch=16), pool=right),
        reward=hf.place(Reward, pool=left),
    ),
    dims={B: 4, P: 3, R: 4},
    batches=batches,
)
