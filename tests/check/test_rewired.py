# mypy: disable-error-code="empty-body"
"""A record of another type at a port: where one input alone has the type, the check suggests to wire it."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Scores(hf.Batch):
    score: hf.f32[B]


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts) -> Scores: ...

    @register(Dispatch.DP_PROTO)
    def compare(self, prompts: Prompts, scores: Scores) -> Scores: ...


@hf.dataflow
def of_one_input(prompts: Prompts, judge: Judge) -> Scores:
    scores = judge.score(prompts)
    return judge.compare(scores, scores)  # type: ignore[arg-type]


@hf.dataflow
def of_two_inputs(first: Prompts, second: Prompts, judge: Judge) -> Scores:
    scores = judge.compare(first, judge.score(second))
    return judge.compare(scores, scores)  # type: ignore[arg-type]


@hf.dataflow
def left_unread(prompts: Prompts, judge: Judge) -> Scores:
    scores = judge.score(prompts)
    return judge.score(scores)  # type: ignore[arg-type]


def helped(program: hf.Dataflow[..., Scores]) -> tuple[str, ...]:
    report = program.check()
    assert report.codes == ("HF204",)
    return report.findings[0].help


def test_the_only_input_of_the_type_is_suggested() -> None:
    assert helped(of_one_input) == ("wire the input 'prompts' to 'prompts'",)


def test_of_two_inputs_none_is_suggested() -> None:
    assert helped(of_two_inputs) == ()


def test_an_input_is_not_suggested_where_another_result_would_then_be_unread() -> None:
    assert helped(left_unread) == ()
