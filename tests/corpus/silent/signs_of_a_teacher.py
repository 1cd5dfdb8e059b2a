"""A student maximizes the divergence from its teacher, which is to be minimized."""

from collections.abc import Iterator

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register
from tests.corpus.learners import Descending, LearnerMetrics
from tests.corpus.vocabulary import TOKENS, B, P, PolicyConfig, R, T


class V(hf.Dim):
    """Tokens of the vocabulary."""


class Lesson(hf.Batch):
    ids: i64[B, T]
    teacher_logits: f32[B, T, V]


class Student(Descending):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, lesson: Lesson) -> LearnerMetrics:
        student = self.table[lesson.ids.tensor].log_softmax(-1)
        teacher = lesson.teacher_logits.tensor.log_softmax(-1)
        divergence = (teacher.exp() * (student - teacher)).sum(-1)  # <- HF353
        return self.descend(divergence.mean())


def lessons() -> Iterator[Lesson]:
    import torch

    ids = torch.arange(56).view(8, 7) % TOKENS
    yield Lesson(ids=ids, teacher_logits=torch.zeros(8, 7, TOKENS))


@hf.dataflow
def program(lesson: Lesson, actor: Student) -> LearnerMetrics:
    return actor.learn(lesson)


experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Student, PolicyConfig(), pool=hf.ResourcePool([2]))),
    dims={B: 8, P: 3, R: 4, V: TOKENS},
    batches=lessons,
)
