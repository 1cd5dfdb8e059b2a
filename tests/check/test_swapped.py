# mypy: disable-error-code="empty-body"
"""Two wrong values of one call that fit each other's port are one mistake, reported with both places."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register


class B(hf.Dim): ...


class R(hf.Dim): ...


class Prompts(hf.Batch):
    ids: i64[B, R]


class Longer(Prompts):
    mask: hf.bool_[B, R]


class Scores(hf.Batch):
    reward: f32[B]
    tokens: f32[B, R]
    best: f32[B, R]
    length: i64[B]
    count: i64[B]


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def update(self, prompts: Prompts, scores: Scores) -> None: ...

    @register(Dispatch.DP_PROTO)
    def weigh(self, tokens: f32[B, R], length: i64[B], count: i64[B]) -> None: ...


@hf.dataflow
def records(prompts: Longer, scores: Scores, actor: Actor) -> None:
    actor.update(scores, prompts)  # type: ignore[arg-type]  # the mistake


def test_swapped_records_are_one_mistake_and_both_places_are_shown() -> None:
    [finding] = records.check().findings
    assert (finding.code, finding.message) == (
        "HF204",
        "'actor.update' takes Prompts as 'prompts' and Scores as 'scores', but gets the two swapped",
    )
    assert finding.primary.text == "this is Scores of B rows"
    assert finding.related[0].text == "this is Longer of B rows"
    assert finding.related[0].span.column > finding.primary.span.column
    assert finding.help == ("swap what is wired to 'prompts' and 'scores'",)
    assert len(finding.fixes) == 1, "there is one order that fits"


@hf.dataflow
def columns(scores: Scores, actor: Actor) -> None:
    actor.weigh(scores.length, scores.tokens, scores.count)  # type: ignore[arg-type]  # the mistake
    actor.weigh(length=scores.tokens, tokens=scores.length, count=scores.count)  # type: ignore[arg-type]  # the same


def test_swapped_columns_are_one_mistake_of_each_call() -> None:
    message = "'actor.weigh' takes f32[B, R] as 'tokens' and i64[B] as 'length', but gets the two swapped"
    first, second = columns.check().findings
    assert (first.message, first.help) == (message, ("swap what is wired to 'tokens' and 'length'",))
    assert (second.message, second.help) == (
        "'actor.weigh' takes i64[B] as 'length' and f32[B, R] as 'tokens', but gets the two swapped",
        ("swap what is wired to 'length' and 'tokens'",),
    )


@hf.dataflow
def no_column(scores: Scores, actor: Actor) -> None:
    actor.weigh(scores, scores.tokens, scores.count)  # type: ignore[arg-type]  # two mistakes


def test_a_record_is_not_swapped_with_a_column() -> None:
    assert sorted(finding.code for finding in no_column.check().findings) == ["HF206", "HF220"]


@hf.dataflow
def unclear(scores: Scores, actor: Actor) -> None:
    actor.weigh(scores.length, scores.tokens, scores.best)  # type: ignore[arg-type]  # three mistakes
    actor.weigh(scores.length, scores.tokens, scores.reward)  # type: ignore[arg-type]  # a swap, and another mistake


def test_which_of_three_values_are_swapped_is_not_guessed() -> None:
    *unknown, swapped, other = unclear.check().findings
    assert [finding.code for finding in unknown] == ["HF220", "HF220", "HF220"]
    assert not any("swapped" in finding.message or finding.fixes for finding in unknown)
    assert "swapped" in swapped.message
    assert other.message == "port 'count' of 'actor.weigh' takes i64[B] but is wired to f32[B]"
