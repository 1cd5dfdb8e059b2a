"""Provenance against what runs: pipelines whose rows carry their identities, and what meets in their bodies.

Every row carries its question, the position of its prompt, and its sample. Random pipelines of repeats, filters, takes,
fills, mini-batches and bodies run on the local backend for several draws of what their filters keep. The bodies note
whether the rows that they are given belong together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, i64, register
from tests.nightly import examples

QUESTIONS = 12
GROUPS = (2, 3, 4, 6)
DRAWS = 6


class B(hf.Dim): ...


class Rows(hf.Batch):
    question: i64[B]
    sample: i64[B]


class Kept(hf.Batch):
    keep: hf.bool_[B]


@dataclass
class Notes:
    """What the bodies saw: questions side by side that differ, groups in which they differ, cut groups of the data."""

    side_by_side: bool = False
    mixed: bool = False
    cut: bool = False
    tiled: bool = False  # groups as large as the number of times that rows start over: fill in the place of repeat
    data_groups: frozenset[int] = frozenset()  # of how many prompts, where groups are read of rows not repeated
    mixes_of: frozenset[int] = frozenset()  # sizes of such groups of prompts with which a body still sees a mixture


NOTES = Notes()


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def judge(self, rows: Rows) -> Rows:
        return Rows(question=rows.question, sample=rows.sample)


@hf.function
def beside(left: Rows, right: Rows) -> Rows:
    NOTES.side_by_side |= not torch.equal(left.question.tensor, right.question.tensor)
    return Rows(question=left.question, sample=left.sample)


def are_repeated(rows: Rows) -> bool:
    """Whether a question has several rows; groups of other rows are those of the data."""
    questions = rows.question.tensor
    return bool((questions[1:] == questions[:-1]).any())


def note_groups(rows: Rows, group: int) -> None:
    """Note what is in groups of so many rows."""
    groups = rows.question.tensor.view(-1, group)
    if are_repeated(rows):
        NOTES.mixed |= bool((groups != groups[:, :1]).any())
        NOTES.mixes_of |= {size for size in GROUPS if bool((groups // size != groups[:, :1] // size).any())}
    else:
        NOTES.data_groups |= {group}
        NOTES.tiled |= len(rows) == group * len(rows.question.tensor.unique())
    NOTES.cut |= bool((groups // group != groups[:, :1] // group).any())


@hf.function(rows=hf.GroupedBy("group"))
def compared(rows: Rows, *, group: int) -> Rows:
    note_groups(rows, group)
    return Rows(question=rows.question, sample=rows.sample)


@hf.function(rows=hf.Whole)
def reversed_rows(rows: Rows) -> Rows:
    return Rows(question=rows.question.tensor.flip(0), sample=rows.sample.tensor.flip(0))


@hf.function
def choice(rows: Rows, *, number: int, group: int) -> Kept:
    """Some rows of each draw, whole groups of them; the first draw keeps everything."""
    if group > 1:
        note_groups(rows, group)
    places = (rows.sample.tensor // group + 977 * number + 40503 * CHOICE.draw) * 2654435761 % 2**32
    return Kept(keep=(places // 7 % 3 != 0) | (CHOICE.draw == 0))


@dataclass
class Choice:
    """The draw of a run: number 0 keeps everything."""

    draw: int = 0


CHOICE = Choice()


@hf.function
def numbered(rows: Rows) -> Rows:
    """A sample of its own for every row."""
    return Rows(question=rows.question, sample=torch.arange(len(rows)))


@dataclass(frozen=True)
class Value:
    """A value of a pipeline: its name, how many rows it has, and the first value that has the same rows."""

    name: str
    rows: int
    same: str


Line = tuple[str, int, bool]
"""The text of a line, how many rows it gives, and whether they are those of the value that it was drawn for."""


def drawn_line(values: list[Value], value: Value, keeps: dict[str, list[str]], draw: st.DrawFn) -> Line | None:
    """One more line on a value; None where it would not divide."""
    name, rows = value.name, value.rows
    match draw(st.sampled_from(["repeat", "part", "take", "fill", "filter", "judge", "beside", "compared", "whole"])):
        case "repeat" if rows <= 48:
            times = draw(st.sampled_from([2, 3, 4]))
            return f"numbered(hf.repeat({name}, {times}))", rows * times, False
        case "part":
            count = draw(st.sampled_from([2, 3, 4]))
            index = draw(st.integers(0, count - 1))
            return None if rows % count else (f"hf.minibatches({name}, {count})[{index}]", rows // count, False)
        case "take" if rows >= 4:
            taken = draw(st.sampled_from([4, rows // 2, rows]))
            return f"hf.take({name}, {taken})", taken, False
        case "fill":
            filled = draw(st.sampled_from([12, 24, 48, rows * 2]))
            return f"hf.fill({name}, {filled})", filled, False
        case "filter":
            group = draw(st.sampled_from([1, 2, 3, 4]))
            verdicts = keeps.setdefault(f"{value.same} {group}", [])
            if rows % group:
                return None
            if not verdicts or draw(st.booleans()):
                verdicts.append(f"choice(numbered({name}), number={len(values)}, group={group}).keep")
            keep = draw(st.sampled_from(verdicts))
            return f"hf.fill(hf.filter({name}, {keep}, group={group}), {rows})", rows, False
        case "judge":
            return f"judge.judge({name})", rows, True
        case "beside":
            partner = draw(st.sampled_from([candidate for candidate in values if candidate.rows == rows]))
            return f"beside({name}, {partner.name})", rows, True
        case "compared":
            group = draw(st.sampled_from(GROUPS))
            return None if rows % group else (f"compared({name}, group={group})", rows, True)
        case "whole":
            return f"reversed_rows({name})", rows, False
    return None


@st.composite
def pipelines(draw: st.DrawFn) -> str:
    """The body of a dataflow on prompts."""
    values, lines, keeps = [Value("rows", QUESTIONS, "rows")], list[str](), dict[str, list[str]]()
    for _ in range(draw(st.integers(2, 9))):
        value, name = draw(st.sampled_from(values)), f"v{len(values)}"
        line = drawn_line(values, value, keeps, draw)
        if line is not None:
            text, rows, same = line
            lines.append(f"    {name} = {text}\n")
            values.append(Value(name, rows, value.same if same else name))
    names = ", ".join(value.name for value in values[1:])
    return "".join(lines) + f"    return [{names}]\n"


def load(body: str) -> hf.Dataflow[..., Any]:
    names: dict[str, Any] = {**globals()}
    exec(f"@hf.dataflow\ndef program(rows: Rows, judge: Judge):\n{body}", names)  # noqa: S102  # a program of our own
    program: hf.Dataflow[..., Any] = names["program"]
    return program


def seen(program: hf.Dataflow[..., Any], report: hf.Report) -> Notes:
    """What the bodies see over all draws with which a run goes through; a clean program runs on the local backend."""
    rows = Rows(question=torch.arange(QUESTIONS), sample=torch.arange(QUESTIONS))
    for field in fields(NOTES):
        setattr(NOTES, field.name, field.default)
    placed = hf.Deployment(judge=hf.place(Judge, pool=hf.ResourcePool([1], use_gpu=False)))
    running = program.compile(placed, dims={B: QUESTIONS}).launch("local") if report.ok else None
    for draw in range(DRAWS):
        CHOICE.draw, before = draw, replace(NOTES)
        try:
            if running is None:
                program(rows, Judge())
            else:
                running.step(rows)
        except hf.HfError as error:
            if "HF321" not in str(error):  # a filter keeps nothing, or too little for a take
                raise
            for field in fields(NOTES):
                setattr(NOTES, field.name, getattr(before, field.name))
            if running is not None:
                running.close()
                running = program.compile(placed, dims={B: QUESTIONS}).launch("local")
    if running is not None:
        running.close()
    return replace(NOTES)


many = settings(
    max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


FILLED_TWICE = """\
    v1 = hf.fill(rows, 24)
    v2 = hf.fill(v1, 48)
    v3 = hf.fill(hf.filter(v2, choice(numbered(v2), number=7, group={group}).keep, group={group}), 48)
    return [v1, v2, v3]
"""


GROUPS_OF_DATA = """\
    v1 = compared(rows, group=3)
    v2 = hf.fill(hf.filter(rows, choice(numbered(rows), number=2, group=1).keep, group=1), 12)
    v3 = compared(numbered(hf.repeat(v2, 4)), group=3)
    return [v1, v2, v3]
"""
"""Rows 3 to 5 of v3 are of two prompts. What the filter keeps decides whether these are of one group of the data."""


CUT_AND_BESIDE = """\
    v1 = hf.fill(hf.filter(rows, choice(numbered(rows), number=2, group=1).keep, group=1), 12)
    v2 = compared(rows, group=3)
    v3 = compared(v1, group=3)
    v4 = beside(v2, v3)
    return [v1, v2, v3, v4]
"""
"""The groups of v3 are cut, so nothing is known of its rows."""


def without_groups(body: str) -> str:
    """The same rows, of which nobody compares groups."""
    return re.sub(r"compared\((\w+), group=\d+\)", r"judge.judge(\1)", body)


@many
@example(FILLED_TWICE.format(group=2))
@example(FILLED_TWICE.format(group=4))
@example(GROUPS_OF_DATA)
@example(CUT_AND_BESIDE)
@given(pipelines())
def test_a_check_finds_the_rows_that_meet_in_a_run(body: str) -> None:
    program = load(body)
    report = program.check(dims={B: QUESTIONS})
    notes, codes, shown = seen(program, report), set(report.codes), f"{body}\n{report}"
    if "reversed_rows" not in body:  # what it returns may stand beside anything
        if codes & {"HF330", "HF331"}:  # after this mistake is mended, the next one is found
            codes |= set(load(without_groups(body)).check(dims={B: QUESTIONS}).codes)
        assert "HF333" in codes or not notes.side_by_side, shown
        mixtures = {"HF330", "HF331", "HF333"} | ({"HF332"} if notes.data_groups else set())
        assert codes & mixtures or not notes.mixed or notes.data_groups - notes.mixes_of, shown
    assert notes.side_by_side or "HF333" not in codes, shown
    assert notes.mixed or notes.tiled or "HF330" not in codes, shown
    assert notes.mixed or notes.cut or "HF331" not in codes, shown
