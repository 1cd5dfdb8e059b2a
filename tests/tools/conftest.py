"""A program without torch, written to a file as a user would have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAM = '''
import hfdsl as hf
from hfdsl import Dispatch, f32, register


class B(hf.Dim):
    """Rows."""


class P(hf.Dim):
    """Prompt tokens."""


class Questions(hf.Batch):
    text: hf.Obj[str, B]


class Answers(hf.Batch):
    text: hf.Obj[str, B]
    hidden: f32[B, P]


class Lengths(hf.Batch):
    length: hf.Obj[int, B]


class Actor(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def answer(self, questions: Questions) -> Questions:
        return Questions(text=[text.upper() for text in questions.text.objects])

    @register(Dispatch.THREE_D_PROTO)
    def think(self, questions: Questions) -> Answers:
        raise NotImplementedError


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, answers: Questions) -> Lengths:
        return Lengths(length=[len(text) for text in answers.text.objects])

    @register(Dispatch.DP_PROTO)
    def weigh(self, answers: Answers) -> Lengths:
        raise NotImplementedError


@hf.dataflow
def shout(questions: Questions, actor: Actor, judge: Judge) -> tuple[Questions, Lengths]:
    answers = actor.answer(questions)
    return answers, judge.score(answers)


@hf.dataflow
def ponder(questions: Questions, actor: Actor, judge: Judge) -> Lengths:
    return judge.weigh(actor.think(hf.repeat(questions, 2)))


def batches():
    for number in range(3):
        yield Questions(text=[f"a{number}", "b", "c", "d"])


train = hf.ResourcePool([2, 2], use_gpu=False, name="train")
score = hf.ResourcePool([2], use_gpu=False, name="score")
deployment = hf.Deployment(
    actor=hf.place(Actor, pool=train, mesh=hf.Mesh(dp=2, tp=2)), judge=hf.place(Judge, pool=score)
)
experiment = hf.Experiment(shout, deployment, dims={B: 4}, batches=batches)
pondering = hf.Experiment(ponder, deployment, dims={B: 4, P: 256})


def make():
    return experiment


def needs(size):
    return experiment
'''


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """Writes a file into an empty current directory; modules loaded meanwhile are forgotten afterwards."""
    import sys

    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)

    def write_file(name: str, text: str) -> str:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return name

    yield write_file
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def program(write: Callable[[str, str], str]) -> str:
    """The file name of the program."""
    return write("shouting.py", PROGRAM)
