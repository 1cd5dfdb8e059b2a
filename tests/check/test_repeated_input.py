# mypy: disable-error-code="empty-body"
"""Groups of rows that nothing repeated: the check suggests to repeat the input, where that removes the finding."""

from __future__ import annotations

import hfdsl as hf

TIMES = 8


class B(hf.Dim): ...


class Scores(hf.Batch):
    score: hf.f32[B]


@hf.function(rows=hf.Grouped(TIMES))
def centered(scores: Scores) -> Scores: ...


@hf.function
def joined(first: Scores, second: Scores) -> Scores: ...


@hf.dataflow
def unrepeated(scores: Scores) -> Scores:
    """Begins with more than an expression."""
    return centered(scores)


@hf.dataflow
def repeated(scores: Scores) -> Scores:
    scores = hf.repeat(scores, TIMES)
    return centered(scores)


@hf.dataflow
def repeated_too_seldom(scores: Scores) -> Scores:
    return centered(hf.repeat(scores, 2))


@hf.dataflow
def of_two_inputs(first: Scores, second: Scores) -> Scores:
    return centered(joined(first, second))


def repeats(program: hf.Dataflow[..., Scores]) -> list[str]:
    report = program.check(dims={B: 7})
    assert report.codes == ("HF313",)
    return [line for line in report.findings[0].help if "repeat" in line]


def test_the_input_is_repeated_and_the_check_is_silent() -> None:
    assert repeats(unrepeated) == [
        "if 'scores' has one row for each question, begin with scores = hf.repeat(scores, 8)"
    ]
    assert repeated.check(dims={B: 7}).codes == ()


def test_rows_that_are_repeated_already_are_not_repeated_once_more() -> None:
    assert repeats(repeated_too_seldom) == []


def test_of_two_inputs_none_is_repeated_alone() -> None:
    assert repeats(of_two_inputs) == []
