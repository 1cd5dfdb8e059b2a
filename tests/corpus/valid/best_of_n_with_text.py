# mypy: disable-error-code="valid-type, arg-type"
"""Best-of-n on text alone: Python objects, an exact quotient of the rows, n = 3 over three ranks."""

from collections.abc import Iterator
from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, Div, register
from tests.corpus.vocabulary import B

N = 3


class Questions(hf.Batch):
    question: hf.Obj[str, B]


class Answers(hf.Batch):
    answer: hf.Obj[str, B]


class Best(hf.Batch):
    answer: hf.Obj[str, Div[B, Literal[3]]]


class Writer(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def write(self, questions: Questions) -> Answers:
        rows = hf.current_call().rows
        return Answers(answer=[f"{q} {i % N * '!'}" for i, q in zip(rows, questions.question.objects, strict=True)])


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO, rows=hf.Grouped(N))
    def longest(self, answers: Answers) -> Best:
        texts = answers.answer.objects
        return Best(answer=[max(texts[i : i + N], key=len) for i in range(0, len(texts), N)])


@hf.dataflow
def program(questions: Questions, writer: Writer, judge: Judge) -> Best:
    return judge.longest(writer.write(hf.repeat(questions, N)))


def batches() -> Iterator[Questions]:
    yield Questions(question=[f"q{i}" for i in range(4)])


experiment = hf.Experiment(
    program,
    hf.Deployment(writer=hf.place(Writer, pool=hf.ResourcePool([3])), judge=hf.place(Judge, pool=hf.ResourcePool([2]))),
    dims={B: 4},
    batches=batches,
)
