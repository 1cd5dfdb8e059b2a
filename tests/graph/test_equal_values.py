# mypy: disable-error-code="empty-body"
"""Equal values: calls that certainly repeat what an earlier one gave."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, bool_, f32, i64, register
from hfdsl.graph.equal_values import equal_column, equal_values
from hfdsl.graph.program import Ref
from hfdsl.graph.trace import trace


class B(hf.Dim): ...


class R(hf.Dim): ...


class Prompts(hf.Batch):
    ids: i64[B]


class Tokens(hf.Batch):
    ids: i64[B, R]


class Scores(hf.Batch):
    score: f32[B]


class Kept(hf.Batch):
    keep: bool_[B]


class Judged(Scores):
    keep: bool_[B]


class Model(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def sample(self, prompts: Prompts) -> Tokens: ...

    @register(Dispatch.DP_PROTO)
    def score(self, tokens: Tokens) -> Scores: ...

    @register(Dispatch.DP_PROTO)
    def update(self, tokens: Tokens) -> None: ...


@hf.function
def above(scores: Scores, *, least: float) -> Kept: ...


@hf.function
def among(scores: Scores, *, allowed: list[float]) -> Kept: ...


def alike(tokens: Tokens, model: Model) -> tuple[Scores, Scores]:
    return model.score(tokens), model.score(tokens)


def of_two_samples(prompts: Prompts, model: Model) -> tuple[Tokens, Tokens]:
    return model.sample(prompts), model.sample(prompts)


def around_an_update(tokens: Tokens, model: Model) -> tuple[Scores, Scores]:
    before = model.score(tokens)
    model.update(tokens)
    return before, model.score(tokens)


def of_two_models(tokens: Tokens, model: Model, other: Model) -> tuple[Scores, Scores]:
    return model.score(tokens), other.score(tokens)


def functions_alike(scores: Scores) -> tuple[Kept, Kept]:
    return among(scores, allowed=[0.5]), among(scores, allowed=[0.5])


def functions_of_numbers(scores: Scores) -> tuple[Kept, Kept]:
    return above(scores, least=0.5), above(hf.repeat(scores, 1), least=0.5)


def of_other_options(scores: Scores) -> tuple[Kept, Kept]:
    return above(scores, least=1), above(scores, least=True)


def of_equal_rows(scores: Scores) -> tuple[Kept, Kept]:
    first, second = (hf.minibatches(hf.repeat(scores, 2), 2)[0] for _ in range(2))
    return above(first, least=0.5), above(second, least=0.5)


def of_other_rows(scores: Scores) -> tuple[Kept, Kept]:
    first, second = hf.minibatches(scores, 2)
    return above(first, least=0.5), above(second, least=0.5)


@pytest.mark.parametrize(
    ("body", "equal"),
    [
        (alike, True),
        (of_two_samples, False),
        (around_an_update, False),
        (of_two_models, False),
        (functions_alike, False),  # two lists, which may be changed
        (functions_of_numbers, False),
        (of_other_options, False),
        (of_equal_rows, True),
        (of_other_rows, False),
    ],
)
def test_calls_are_equal_where_nothing_can_differ(body: Any, equal: bool) -> None:
    graph = trace(body)
    first, second = (ref.node for ref in graph.output.refs())
    assert (equal_values(graph)[second] == first) is equal


def test_a_column_is_seen_through_a_record() -> None:
    def body(scores: Scores) -> Judged:
        return hf.merge(Judged, scores, above(scores, least=0))

    graph = trace(body)
    record = next(iter(graph.output.refs())).node
    assert equal_column(graph, equal_values(graph), Ref(record, "keep")) == Ref(1, "keep")
