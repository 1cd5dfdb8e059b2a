"""Dataflows whose values say which rows they are, and everything that one change can make of them.

A sample is numbered ``question * 10_000 + node * 100 + row``, and every value that is made of it carries this number.
So the update that trains on a row sees whether its log-probs and its advantage are of the same sample, and whether the
advantage was made from a group of samples of one question.
"""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.errors import HfError

PER_QUESTION = 10_000


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


class Questions(hf.Batch):
    question: hf.i64[B, P]


class Samples(hf.Batch):
    question: hf.i64[B, P]
    ids: hf.i64[B, R]
    log_probs: hf.f32[B, R]


class Reference(hf.Batch):
    reference: hf.f32[B, R]


class Scores(hf.Batch):
    reward: hf.f32[B]
    keep: hf.bool_[B]


class Advantages(hf.Batch):
    advantages: hf.f32[B, R]


class Trained(hf.Batch):
    """What an update has seen of each row: the sample of each argument, and whether its group was of one question."""

    sample: hf.i64[B]
    reference: hf.i64[B]
    advantage: hf.i64[B]
    pure: hf.bool_[B]


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, questions: Questions) -> Samples:
        call = hf.current_call()
        number = questions.question.tensor[:, 0] * PER_QUESTION + call.node * 100 + torch.tensor(list(call.rows))
        ids = number[:, None].expand(-1, 2).clone()
        return Samples(question=questions.question.tensor, ids=ids, log_probs=ids.float())

    @register(Dispatch.DP_PROTO)
    def refer(self, samples: Samples) -> Reference:
        return Reference(reference=samples.log_probs.tensor.clone())

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, samples: Samples, reference: Reference, advantages: Advantages) -> Trained:
        advantage = advantages.advantages.tensor
        return Trained(
            sample=samples.log_probs.tensor[:, 0].long(),
            reference=reference.reference.tensor[:, 0].long(),
            advantage=advantage[:, 0].long(),
            pure=advantage[:, 1] > 0,
        )


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, samples: Samples) -> Scores:
        """Every third question is too easy: all its samples go."""
        return Scores(reward=samples.log_probs.tensor[:, 0].clone(), keep=samples.question.tensor[:, 0] % 3 != 0)


def _in_groups(scores: Scores, size: int) -> Advantages:
    reward = scores.reward.tensor
    question = (reward.long() // PER_QUESTION).view(-1, size)
    pure = (question == question[:, :1]).all(1, keepdim=True).expand(-1, size).flatten()
    return Advantages(advantages=torch.stack([reward, pure.float()], 1))


@hf.function(rows=hf.Grouped(2))
def in_pairs(scores: Scores) -> Advantages:
    return _in_groups(scores, 2)


@hf.function(rows=hf.Grouped(4))
def in_fours(scores: Scores) -> Advantages:
    return _in_groups(scores, 4)


@hf.function(rows=hf.Grouped(8))
def in_eights(scores: Scores) -> Advantages:
    return _in_groups(scores, 8)


HEAD = """
import hfdsl as hf
from tests.testing.row_programs import *

@hf.dataflow
def program(questions: Questions, actor: Actor, judge: Judge):
"""
TAIL = """
pool = hf.ResourcePool([2], name="pool")
deployment = hf.Deployment(actor=hf.place(Actor, pool=pool), judge=hf.place(Judge, pool=pool))
"""
QUESTIONS = 8
DIMS = "dims = {B: 8, P: 1, R: 2}\n"

SAMPLES = """q1 = hf.repeat(questions, 2)
s1 = actor.generate(q1)
r1 = actor.refer(s1)
x1 = judge.score(s1)
a1 = in_pairs(x1)
"""
FILTERED = "x2 = hf.fill(hf.filter(x1, x1.keep, group=2), 8)"
PROGRAMS = {
    "whole": f"{SAMPLES}t1 = actor.update(s1, r1, a1)",
    "mini-batches": f"""{SAMPLES}s2 = hf.minibatches(s1, 2)
r2 = hf.minibatches(r1, 2)
a2 = hf.minibatches(a1, 2)
t1 = actor.update(s2[0], r2[0], a2[0])
t2 = actor.update(s2[1], r2[1], a2[1])""",
    "filtered": f"""{SAMPLES}s2 = hf.filter(s1, x1.keep, group=2)
r2 = hf.filter(r1, x1.keep, group=2)
a2 = hf.filter(a1, x1.keep, group=2)
s3 = hf.fill(s2, 8)
r3 = hf.fill(r2, 8)
a3 = hf.fill(a2, 8)
t1 = actor.update(s3, r3, a3)""",
    "filtered first": f"""{SAMPLES.replace("a1 = in_pairs(x1)", FILTERED)}a1 = in_pairs(x2)
s2 = hf.fill(hf.filter(s1, x1.keep, group=2), 8)
r2 = hf.fill(hf.filter(r1, x1.keep, group=2), 8)
t1 = actor.update(s2, r2, a1)""",
    "two generations": f"""{SAMPLES}s2 = actor.generate(q1)
r2 = actor.refer(s2)
x2 = judge.score(s2)
a2 = in_pairs(x2)
t1 = actor.update(s1, r1, a1)
t2 = actor.update(s2, r2, a2)""",
    "fours": SAMPLES.replace("questions, 2", "questions, 4").replace("in_pairs", "in_fours")
    + "t1 = actor.update(s1, r1, a1)",
}
"""Valid programs. A name begins with the letter of its type, so that names of one letter can be swapped."""

USE = re.compile(r"\b([qsrxa])(\d)(?:\[(\d)\])?(?!\d* =)")
RESIZED = (
    "hf.take({}, 8)",
    "hf.repeat({}, 2)",
    "hf.take(hf.repeat({}, 2), 16)",
    "hf.fill(hf.take({}, 6), 16)",
    "hf.fill(hf.take({}, 8), 16)",
    "hf.fill(hf.filter({}, x1.keep), 16)",
    "hf.fill(hf.filter({}, x1.keep, group=2), 16)",
    "hf.minibatches({}, 2)[1]",
)
REGROUPED = (
    ("in_pairs", ("in_fours", "in_eights")),
    ("in_fours", ("in_pairs", "in_eights")),
    ("questions, 2", ("questions, 4", "questions, 1")),
    ("questions, 4", ("questions, 2", "questions, 8")),
    (", group=2", ("", ", group=4")),
    (", 8)", (", 10)", ", 16)")),
    ("minibatches(s1, 2)", ("minibatches(s1, 4)",)),
    ("minibatches(a1, 2)", ("minibatches(a1, 4)",)),
)


@dataclass(frozen=True)
class Mutant:
    """A program after one change, or several."""

    program: str
    changes: tuple[str, ...]
    text: str

    def mutate(self) -> Iterator[Mutant]:
        """Everything that one change more makes of it."""
        for change, text in _changed(self.text):
            yield Mutant(self.program, (*self.changes, change), text)

    def __str__(self) -> str:
        return f"{self.program}: {' then '.join(self.changes)}\n{self.text}"


def _changed(text: str) -> Iterator[tuple[str, str]]:
    """(change, changed text): names swapped, rows dropped or repeated, mini-batches crossed, groups of another size."""
    for use in USE.finditer(text):
        letter, _, index = use.groups()
        name = use[0]
        before = text[: use.start()]
        others = set(re.findall(rf"^({letter}\d) =", before, re.MULTILINE)) - {name.split("[")[0]}
        if index is not None:
            others = {f"{other}[{index}]" for other in others if f"{other} = hf.minibatches" in before}
            others.add(name.replace(index, str(1 - int(index))))
        else:
            others = {other for other in others if f"{other} = hf.minibatches" not in before}
        is_row_mask = text[use.end() : use.end() + 5] == ".keep"
        wraps = [wrap.format(name) for wrap in RESIZED if not is_row_mask and "x1" in before]
        line = text.count("\n", 0, use.start()) + 1
        for replacement in [*sorted(others), *wraps]:
            yield f"line {line}: {name} -> {replacement}", before + replacement + text[use.end() :]
    for old, news in REGROUPED:
        for place, new in product(re.finditer(re.escape(old), text), news):
            line = text.count("\n", 0, place.start()) + 1
            yield f"line {line}: {old} -> {new}", text[: place.start()] + new + text[place.end() :]


@dataclass(frozen=True)
class Verdict:
    """What came of a program: the codes of a check, the error of a run, or the rows that it trained on."""

    codes: tuple[str, ...] = ()
    error: str = ""
    trained: Counter[int] | None = None
    wrong: tuple[tuple[int, int, int, bool], ...] = ()

    @property
    def kind(self) -> str:
        """``"found"``, ``"raised"``, ``"silent"`` (a row beside those of another) or ``"runs"``."""
        if self.codes:
            return "found"
        return "raised" if self.error else "silent" if self.wrong else "runs"


def judge(text: str) -> Verdict:
    """Check a program and, where nothing is found, run it and compare row by row."""
    names: dict[str, Any] = {}
    returned = ", ".join(sorted(set(re.findall(r"^(t\d) =", text, re.MULTILINE))))
    body = "".join(f"    {line}\n" for line in text.splitlines())

    file, source = f"<rows {hash(text)}>", f"{HEAD}{body}    return [{returned}]\n{TAIL}{DIMS}"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    try:
        exec(compile(source, file, "exec"), names)  # noqa: S102  # a program of the table above
        report = names["program"].check(names["deployment"], names["dims"])
        if report.findings:
            return Verdict(codes=tuple(sorted({finding.code for finding in report.findings})))
        plan = names["program"].compile(names["deployment"], names["dims"])
        with plan.launch(backend="local") as running:
            updates = running.step(Questions(question=torch.arange(QUESTIONS)[:, None]))
    except HfError as error:
        return Verdict(error=f"{error.code}: {error}")
    finally:
        del linecache.cache[file]
    rows = [
        row
        for update in updates
        for row in zip(
            update.sample.tensor.tolist(),
            update.reference.tensor.tolist(),
            update.advantage.tensor.tolist(),
            update.pure.tensor.tolist(),
            strict=True,
        )
    ]
    wrong = tuple(row for row in rows if not (row[0] == row[1] == row[2] and row[3]))
    return Verdict(trained=Counter(row[0] for row in rows), wrong=wrong)
