# mypy: disable-error-code="empty-body, arg-type, valid-type"
"""Best-of-n: n responses of a prompt become one, so a record has an exact quotient of the rows."""

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, Div, register
from tests.check.programs.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Reward, Rollout, Scores, T

N = 16


class Best(hf.Batch):
    ids: hf.i64[Div[B, Literal[16]], T]
    reward: hf.f32[Div[B, Literal[16]]]


class Sft(hf.Batch):
    ids: hf.i64[B, T]


class Student(hf.Worker):
    @register(Dispatch.THREE_D_PROTO, pad="cycle")
    def learn(self, examples: Sft, prompts: Prompts) -> Scores: ...


@hf.function(rows=hf.Grouped(N))
def best_of(rollout: Rollout, scores: Scores) -> Best: ...


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward, student: Student) -> Scores:
    rollout = actor.generate(hf.repeat(prompts, N))
    best = best_of(rollout, reward.score(rollout))
    return student.learn(Sft(ids=best.ids), prompts)


pool = hf.ResourcePool([2, 2])
deployment = hf.Deployment(
    actor=hf.place(Actor, PolicyConfig(), pool=pool, mesh=hf.Mesh(dp=2, tp=2)),
    reward=hf.place(Reward, pool=pool),
    student=hf.place(Student, pool=hf.ResourcePool([3])),
)
dims = {B: 10, P: 64, R: 64}
