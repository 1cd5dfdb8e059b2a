# mypy: disable-error-code="empty-body"
"""Values that do not fit: what is there, what is needed, and the places that say so."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import pytest

import hfdsl as hf
from hfdsl import Add, Dispatch, f32, register


class B(hf.Dim): ...


class N(hf.Dim): ...


class M(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


t = TypeVar("t")


class Rows(hf.Batch):
    x: f32[B]
    keep: hf.bool_[B]


class Lengths(hf.Batch):
    p: f32[B, P]
    r: f32[B, R]


class AndN(hf.Batch):
    x: f32[Add[B, N]]


class AndM(hf.Batch):
    x: f32[Add[B, M]]


class Guess(hf.Batch):
    keep: hf.bool_[B]
    x: f32[B] | None = None


class Both(hf.Batch):
    x: f32[B]
    y: f32[B]


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def learn(self, rows: Rows) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.provides("x", when="B > 4")
    def guess(self, rows: Rows) -> Guess: ...


class Trainer(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def learn(self, rows: Rows) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.exports("policy")
    def weights(self) -> int: ...


class Engine(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: int) -> None: ...


@hf.function
def pair(x: f32[B], y: f32[B]) -> None: ...


@hf.function
def joined(x: f32[B], y: f32[B], z: f32[B], w: f32[B]) -> None: ...


@hf.function
def widths(x: f32[B, t], y: f32[B, t]) -> None: ...


@hf.function
def four(x: f32[Literal[4]]) -> None: ...


@hf.function
def whole(x: hf.i64[B]) -> None: ...


@hf.function
def reads(x: f32[B]) -> None: ...


@hf.function
def count(number: int) -> None: ...


@hf.function
def takes(both: Both) -> None: ...


def only(body: Any, dims: Any = None) -> hf.Finding:
    [finding] = hf.dataflow(body).check(None, dims or {}).findings
    return finding


def test_a_role_is_no_value() -> None:
    def program(actor: Actor) -> None:
        count(actor)  # type: ignore[arg-type]  # the mistake

    finding = only(program)
    assert finding.message == "port 'number' of 'count' takes int but is wired to the role 'actor'"
    assert finding.primary.text == "this is the role 'actor'"


def test_a_length_that_another_port_bound_is_reported_with_that_port() -> None:
    def bound(lengths: Lengths) -> None:
        widths(lengths.p, lengths.r)  # type: ignore[misc]  # the mistake

    assert only(bound).message.endswith(": dim 1 is R where P is needed (P was bound by port 'x')")


def test_rows_beside_others() -> None:
    def beside(first: AndN, second: AndM) -> None:
        pair(first.x, second.x)  # type: ignore[arg-type]  # the mistake

    finding = only(beside)
    assert finding.code == "HF319"
    assert finding.message.endswith("it gets B+M, 'x' beside it has B+N")
    assert finding.notes == ("give the sizes: dims={M: ..., N: ...}",), "B is in both"
    assert hf.dataflow(beside).check(None, {M: 2, N: 2}).ok
    message = "port 'y' of 'pair' gets B+M rows where 'x' beside it has B+N (B+3 and B+2 with the given sizes)"
    assert only(beside, {M: 3, N: 2}).message == message


def test_rows_that_a_port_has_a_number_of() -> None:
    def numbered(rows: Rows) -> None:
        four(rows.x)  # type: ignore[arg-type]  # the mistake

    assert only(numbered).message.endswith("gets as many rows as it needs: it gets B, 4 are needed")
    assert hf.dataflow(numbered).check(None, {B: 4}).ok
    finding = only(numbered, {B: 2})
    assert (finding.code, finding.message) == (
        "HF212", "port 'x' of 'four' gets B rows where 4 are needed (2 and 4 with the given sizes)"
    )  # fmt: skip  # one pair
    assert finding.help == ("repeat what is wired to 'x': hf.repeat(..., 2)",)


def test_columns_of_one_source_with_too_few_rows_are_one_mistake() -> None:
    """They come from one value, whose rows are wrong; columns of another value are another mistake."""

    def of_one(rows: Rows) -> None:
        joined(hf.repeat(rows, 2).x, rows.x, rows.x, rows.x)  # the mistake

    def of_two(rows: Rows, others: Rows) -> None:
        joined(hf.repeat(rows, 2).x, rows.x, others.x, rows.x)  # the mistake

    finding = only(of_one)
    assert finding.message == "ports 'y', 'z' and 'w' of 'joined' get B rows where 'x' beside them has B*2"
    assert finding.help == ("repeat what is wired to 'y', 'z' and 'w': hf.repeat(..., 2)",)
    assert [edit.text for edit in finding.fixes[0].edits] == ["hf.repeat(", ", 2)"] * 3
    assert len({label.span for label in (finding.primary, *finding.related)}) == 1 + len(finding.related)
    messages = [f.message for f in hf.dataflow(of_two).check() if f.code == "HF212"]
    assert [message.partition(" of ")[0] for message in messages] == ["ports 'y' and 'w'", "port 'z'"]


def kept_first(rows: Rows) -> None:
    pair(hf.filter(rows, rows.keep).x, rows.x)


def kept_last(rows: Rows) -> None:
    pair(rows.x, hf.filter(rows, rows.keep).x)


@pytest.mark.parametrize(
    ("body", "differ"),
    [(kept_first, "B rows where 'x' beside it has kept1"), (kept_last, "kept1 rows where 'x' beside it has B")],
)
def test_no_size_makes_what_a_filter_keeps_as_many_as_others(body: Any, differ: str) -> None:
    assert (only(body).code, only(body).message) == ("HF212", f"port 'y' of 'pair' gets {differ}")


def test_a_condition_of_presence_is_named_where_it_is_the_mistake() -> None:
    def absent(rows: Rows, actor: Actor) -> None:
        reads(actor.guess(rows).x)  # type: ignore[arg-type]  # the mistake

    def another(rows: Rows, actor: Actor) -> None:
        whole(actor.guess(rows).x)  # type: ignore[arg-type]  # the mistake

    def declared(body: Any) -> tuple[str, bool]:
        finding = only(body)
        return finding.code, any(label.text.startswith("declared provides") for label in finding.related)

    assert (declared(absent), declared(another)) == (("HF231", True), ("HF220", False))


def test_missing_columns_of_a_record() -> None:
    def lacking(rows: Rows) -> None:
        takes(rows)  # type: ignore[arg-type]  # the mistake

    assert only(lacking).notes == ("it lacks y",)


def test_weights_that_every_rank_exports_are_exported_by_one() -> None:
    @hf.dataflow
    def flow(rows: Rows, trainer: Trainer, engine: Engine) -> None:
        trainer.learn(rows)
        hf.sync(trainer, engine)

    [finding] = flow.check(dims={B: 8}).findings
    assert finding.code == "HF401"
    assert finding.notes == (
        "one rank exports for all: register 'trainer.weights' with (Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)",
    )
