"""On-policy distillation: a teacher on a mesh of its own gives logits over the vocabulary for the student's tokens."""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import (
    TOKENS,
    ActorMetrics,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Rollout,
    Sequences,
    Table,
    prompts_of,
)
from tests.corpus.vocabulary import Actor as Policy


class V(hf.Dim):
    """Words of the vocabulary that teacher and student share."""


class TeacherLogits(hf.Batch):
    logits: f32[B, R, V]


class Teacher(Table):
    @register(Dispatch.THREE_D_PROTO)
    def logits(self, sequences: Sequences) -> TeacherLogits:
        return TeacherLogits(logits=self.said(sequences.ids.tensor) + 0.5)


class Student(Policy):
    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("V == vocabulary")
    def distil(self, rollout: Rollout, teacher: TeacherLogits) -> ActorMetrics:
        own = self.said(rollout.ids.tensor).log_softmax(-1)
        theirs = teacher.logits.tensor.log_softmax(-1)
        return ActorMetrics(loss=float((own.exp() * (own - theirs)).sum(-1).mean()))

    def __init__(self, config: PolicyConfig, vocabulary: int) -> None:
        super().__init__(config, vocabulary)


@hf.dataflow
def program(prompts: Prompts, student: Student, teacher: Teacher) -> ActorMetrics:
    rollout = student.generate(prompts)
    return student.distil(rollout, teacher.logits(rollout))


experiment = hf.Experiment(
    program,
    hf.Deployment(
        student=hf.place(Student, PolicyConfig(), vocabulary=TOKENS, pool=hf.ResourcePool([2])),
        teacher=hf.place(Teacher, PolicyConfig(), pool=hf.ResourcePool([4, 4]), mesh=hf.Mesh(pp=2, dp=1, tp=4)),
    ),
    dims={B: 4, P: 3, R: 4, V: TOKENS},
    batches=prompts_of(4),
)
