# mypy: disable-error-code="empty-body"
"""Two shapes that differ: a trailing 1 is explained, and lengths are reported with their difference."""

from __future__ import annotations

from typing import Any, Literal

import pytest

import hfdsl as hf
from hfdsl import Add, Dispatch, Div, Mul, f32, register
from hfdsl.check.findings import Finding
from hfdsl.check.sources import source_text
from hfdsl.types.dims import X as Named
from hfdsl.types.dims import Y as Other


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


class X(hf.Dim):
    """A dim with the name of a type variable."""


One = Literal[1]


class Shapes(hf.Batch):
    flat: f32[B, R]
    last: f32[B, R, One]
    middle: f32[B, One, R]
    both: f32[B, Add[P, R]]
    twice: f32[B, Mul[R, Literal[2]]]
    prompt: f32[B, P]
    image: f32[B, X]
    half: f32[B, Div[R, Literal[2]]]
    number: hf.i64[B, R]
    name: hf.Obj[str, B]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def flat(self, x: f32[B, R]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def pair(self, x: f32[B, R], y: f32[B, R]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def prompt(self, x: f32[B, P]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def masked(self, mask: hf.bool_[B, R]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def indexed(self, index: hf.i64[B, R]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def product(self, x: f32[B, Mul[Named, Other]]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def last(self, x: f32[B, R, One]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def both(self, x: f32[B, R], y: f32[B, Add[P, R]]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def less(self, x: f32[B, Add[P, R]], y: f32[B, R]) -> None: ...


def finding_of(body: Any) -> Finding:
    def program(shapes: Shapes, role: Role) -> None:
        body(shapes, role)

    [finding] = hf.dataflow(program).check().errors
    return finding


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (lambda shapes, role: role.flat(shapes.last), "HF215"),
        (lambda shapes, role: role.last(shapes.flat), "HF215"),
        (lambda shapes, role: role.flat(shapes.middle), "HF210"),
        (lambda shapes, role: role.last(shapes.middle), "HF210"),
        (lambda shapes, role: role.flat(shapes.name), "HF206"),
    ],
)
def test_only_a_trailing_1_is_explained(body: Any, code: str) -> None:
    assert finding_of(body).code == code


def test_none_is_wired_as_none() -> None:
    message = finding_of(lambda shapes, role: role.flat(None)).message
    assert message == "port 'x' of 'role.flat' takes f32[B, R] but is wired to None"


@pytest.mark.parametrize(
    ("body", "notes"),
    [
        (lambda shapes, role: role.both(shapes.both, shapes.both), ("P+R is longer than R by P",)),
        (lambda shapes, role: role.less(shapes.flat, shapes.flat), ("R is shorter than P+R by P",)),
        (lambda shapes, role: role.both(shapes.flat, shapes.twice), ()),  # longer or shorter, as P and R are
        (lambda shapes, role: role.flat(shapes.half), ("R//2 is shorter than R by R//2",)),
        (lambda shapes, role: role.prompt(shapes.half), ()),  # as P and R are
    ],
)
def test_lengths_are_reported_with_their_difference(body: Any, notes: tuple[str, ...]) -> None:
    assert finding_of(body).notes == notes


@pytest.mark.parametrize(
    ("body", "code", "advice"),
    [
        (lambda shapes, role: role.masked(shapes.flat), "HF220", None),  # truth values are no fractions
        (lambda shapes, role: role.indexed(shapes.flat), "HF220", None),
        (lambda shapes, role: role.masked(shapes.number), "HF221", "bool"),
        (lambda shapes, role: role.flat(shapes.number), "HF220", "float32"),
    ],
)
def test_a_conversion_is_advised_where_one_may_be_meant(body: Any, code: str, advice: str | None) -> None:
    finding = finding_of(body)
    assert finding.code == code
    advised = f"convert it where it is produced, .to(torch.{advice}), and declare that dtype there"
    assert finding.notes == (() if advice is None else (advised,))


def test_a_type_variable_named_like_a_dim_is_explained() -> None:
    finding = finding_of(lambda shapes, role: role.product(shapes.image))
    assert finding.code == "HF213"
    assert f"these are two dims named X, the TypeVar hfdsl.types.dims.X and {__name__}.X" in finding.notes[0]


def test_rows_that_lack_are_repeated_in_one_way() -> None:
    def program(shapes: Shapes, role: Role) -> None:
        role.pair(hf.repeat(shapes, 2).flat, shapes.flat)

    [finding] = hf.dataflow(program).check().errors
    assert finding.help == ("repeat what is wired to 'y': hf.repeat(..., 2)",)


def test_rows_in_another_proportion_are_not_repeated() -> None:
    def program(shapes: Shapes, role: Role) -> None:
        role.pair(hf.repeat(shapes, 2).flat, hf.repeat(shapes, 3).flat)

    [finding] = hf.dataflow(program).check().errors
    assert (finding.code, finding.help) == ("HF212", ())


class N(hf.Dim): ...


class Lines(hf.Batch):
    x: f32[B]


class Others(hf.Batch):
    x: f32[N]


@hf.function
def joined(one: f32[B], other: f32[N], both: f32[Add[B, N]]) -> Lines: ...


def test_a_sum_of_rows_is_repeated_by_nothing() -> None:
    def program(lines: Lines, others: Others) -> Lines:
        return joined(lines.x, others.x, lines.x)  # type: ignore[arg-type]  # the mistake

    [finding] = hf.dataflow(program).check(dims={B: 4}).errors
    assert (finding.code, finding.help) == ("HF212", ())


class Flat(hf.Batch):
    x: f32[B, R]


def given(**columns: Any) -> dict[str, Any]:
    return columns


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda shapes, role: role.pair(shapes.flat, shapes.last), "shapes.last"),
        (lambda s, role: role.pair(*(s.last, s.flat)), "role.pair(*(s.last, s.flat))"),
        (lambda s, role: role.pair(*(s.flat, s.last), *()), "role.pair(*(s.flat, s.last), *())"),
        (lambda s, role: role.pair(**given(x=s.flat, y=s.last)), "role.pair(**given(x=s.flat, y=s.last))"),
        (lambda s, role: role.flat(Flat(**given(x=s.last)).x), "Flat(**given(x=s.last))"),
    ],
)
def test_unpacked_arguments_are_marked_as_far_as_they_can_be_told(body: Any, text: str) -> None:
    assert source_text(finding_of(body).primary.span) == text
