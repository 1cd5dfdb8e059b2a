# mypy: disable-error-code="empty-body"
"""``Div`` is exact wherever it stands: each quotient of an expression, whatever the whole of it comes to."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Add, Div, Mul, f32


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    x: f32[B, R]


Tree = Any
"""A dim, a number, or (operation, tree, tree)."""

leaves = st.sampled_from([B, R]) | st.integers(1, 6)
trees = st.recursive(
    leaves, lambda inner: st.tuples(st.sampled_from([Add, Mul]), inner, inner) | st.tuples(st.just(Div), inner, leaves)
)


def annotation(tree: Tree) -> Any:
    if isinstance(tree, tuple):
        operation, left, right = tree
        return operation[annotation(left), annotation(right)]
    return Literal[tree] if isinstance(tree, int) else tree


def value(tree: Tree, sizes: dict[Any, int], exact: list[bool]) -> Fraction:
    """The value of an expression; ``exact`` gets an entry per quotient."""
    if not isinstance(tree, tuple):
        return Fraction(tree if isinstance(tree, int) else sizes[tree])
    operation, *operands = tree
    left, right = (value(operand, sizes, exact) for operand in operands)
    if operation is Div:
        exact.append((left / right).denominator == 1)
        return left / right
    return left + right if operation is Add else left * right


def report(dim: Any, sizes: dict[Any, int], of_rows: bool) -> hf.Report:
    result = type("Made", (hf.Batch,), {"__annotations__": {"y": f32[dim] if of_rows else f32[B, dim]}})

    def make(rows: Any) -> Any: ...

    def program(rows: Any) -> Any:
        return called(rows)

    make.__annotations__ = program.__annotations__ = {"rows": Rows, "return": result}
    called: Any = hf.function(make)
    return hf.dataflow(program).check(None, sizes)


@given(trees, st.integers(1, 12), st.integers(1, 12), st.booleans())
def test_every_quotient_is_exact_or_reported(tree: Tree, b: int, r: int, of_rows: bool) -> None:
    sizes, exact = {B: b, R: r}, list[bool]()
    value(tree, sizes, exact)
    findings = report(annotation(tree), sizes, of_rows).findings
    assert bool(findings) is not all(exact), findings
    assert {finding.code for finding in findings} <= {"HF303", "HF318"}


@pytest.mark.parametrize(
    ("dim", "sizes"),
    [
        (Add[Div[B, Literal[3]], Div[R, Literal[3]]], {B: 8, R: 1}),  # 9 thirds
        (Add[Div[B, Literal[3]], Div[B, Literal[6]]], {B: 4, R: 1}),
        (Mul[Div[B, Literal[3]], Literal[3]], {B: 8, R: 1}),
    ],
)
def test_a_whole_sum_of_quotients_that_are_not_is_reported(dim: Any, sizes: dict[Any, int]) -> None:
    assert set(report(dim, sizes, of_rows=True).codes) == {"HF303"}
    assert set(report(dim, sizes, of_rows=False).codes) == {"HF303"}


def test_a_quotient_of_a_sum_is_one_quotient() -> None:
    assert report(Div[Add[B, R], Literal[3]], {B: 8, R: 1}, of_rows=True).ok


def test_without_sizes_a_width_is_not_decided() -> None:
    assert report(Div[R, Literal[3]], {B: 8}, of_rows=False).codes == ()
