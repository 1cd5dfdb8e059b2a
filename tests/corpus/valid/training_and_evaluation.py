"""Evaluation beside training: held-out questions come 64 at a time, then the last 10, which are padded to divide."""

from collections.abc import Iterator
from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, Metric, f32, i64, register
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
    T,
    prompts_of,
)


class E(hf.Dim):
    """Rows of the evaluation set that are answered in one step."""


class Questions(hf.Batch):
    ids: i64[E, P]


class Answers(hf.Batch):
    ids: i64[E, T]


class Grades(hf.Batch):
    grade: f32[E]


class Accuracy(hf.Batch):
    accuracy: Metric[float, Literal["mean"]]


class Policy(Actor):
    @register(Dispatch.THREE_D_PROTO, pad="cycle")
    def answer(self, questions: Questions) -> Answers:
        rollout = super().generate(Prompts(ids=questions.ids.tensor, answer=[""] * len(questions)))
        return Answers(ids=rollout.ids.tensor)


class Verifier(Reward):
    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def grade(self, answers: Answers) -> Grades:
        return Grades(grade=(answers.ids.tensor[:, -4:] % 2 == 0).float().mean(1))


@hf.function
def gained(scores: Scores, rollout: Rollout) -> Advantages:
    return Advantages(advantages=(scores.reward.tensor[:, None] - 0.5) * rollout.response_mask.tensor)


@hf.function(rows=hf.Whole)
def accuracy(grades: Grades) -> Accuracy:
    return Accuracy(accuracy=float((grades.grade.tensor >= 0.5).float().mean()))


@hf.dataflow
def program(
    prompts: Prompts, questions: Questions, policy: Policy, verifier: Verifier
) -> tuple[ActorMetrics, Accuracy]:
    rollout = policy.generate(prompts)
    metrics = policy.update(rollout, gained(verifier.score(rollout), rollout))
    return metrics, accuracy(verifier.grade(policy.answer(questions)))


def batches() -> Iterator[tuple[Prompts, Questions]]:
    [prompts], [held_out] = prompts_of(16)(), prompts_of(10)()
    yield prompts, Questions(ids=held_out.ids.tensor)


experiment = hf.Experiment(
    program,
    hf.Deployment(
        policy=hf.place(Policy, PolicyConfig(mini_batch=4), pool=hf.ResourcePool([8])),
        verifier=hf.place(Verifier, pool=hf.ResourcePool([4], use_gpu=False)),
    ),
    dims={B: 16, E: (64, 10), P: 3, R: 4},
    batches=batches,
)
