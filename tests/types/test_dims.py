"""Dims: expressions have one normal form, and every answer about them agrees with numbers."""

from __future__ import annotations

import operator
import pickle
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any, ForwardRef, Literal, TypeVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import DefinitionError
from hfdsl.types.dims import Answer, Size, atom_size, constant, evaluate, size, solve
from tests.check import prelude


class B(hf.Dim):
    """Rows."""


class P(hf.Dim):
    """Prompt tokens."""


class R(hf.Dim):
    """Response tokens."""


b = TypeVar("b")
ATOMS: tuple[Any, ...] = (B, P, R, b)

atoms = st.sampled_from(ATOMS).map(atom_size)
numbers = st.integers(1, 12).map(constant)
# Exact division is by products of dims and numbers alone.
divisors = st.one_of(numbers, atoms, st.builds(Size.__mul__, atoms, atoms))
expressions = st.recursive(
    st.one_of(numbers, atoms),
    lambda inner: st.one_of(
        st.builds(Size.__add__, inner, inner),
        st.builds(Size.__mul__, inner, inner),
        st.builds(Size.__sub__, inner, inner),
        st.builds(Size.__truediv__, inner, divisors),
    ),
    max_leaves=6,
)
points = st.fixed_dictionaries({atom: st.integers(1, 60) for atom in ATOMS})


# -- the algebra


@given(expressions, expressions, expressions)
def test_sums_and_products_are_a_commutative_ring(x: Size, y: Size, z: Size) -> None:
    assert x + y == y + x
    assert x * y == y * x
    assert (x + y) + z == x + (y + z)
    assert (x * y) * z == x * (y * z)
    assert x * (y + z) == x * y + x * z
    assert x + constant(0) == x
    assert x * constant(1) == x
    assert x - x == constant(0)


@given(expressions, divisors)
def test_division_is_exact(x: Size, y: Size) -> None:
    assert x / y * y == x
    assert x * y / y == x


@given(expressions, expressions, points)
def test_evaluate_is_a_homomorphism(x: Size, y: Size, at: dict[Any, int]) -> None:
    a, c = evaluate(x, at), evaluate(y, at)
    assert evaluate(x + y, at) == a + c
    assert evaluate(x - y, at) == a - c
    assert evaluate(x * y, at) == a * c
    if len(y.terms) == 1:
        assert evaluate(x / y, at) == a / c


@given(expressions, points)
def test_substituting_numbers_is_evaluating(x: Size, at: dict[Any, int]) -> None:
    assert x.substitute({atom: constant(number) for atom, number in at.items()}).value == evaluate(x, at)


@given(expressions, divisors, points)
def test_substituting_an_expression_is_evaluating_it_first(x: Size, inner: Size, at: dict[Any, int]) -> None:
    through = x.substitute({B: inner})
    number = evaluate(inner, at)
    # Evaluate takes whole numbers; a fraction can stand in the polynomial all the same.
    direct = x.substitute({**{atom: constant(n) for atom, n in at.items()}, B: constant(number)})
    assert constant(evaluate(through, at)) == direct


@given(expressions)
def test_the_normal_form_is_sorted_and_without_zeros(x: Size) -> None:
    assert all(coefficient for _, coefficient in x.terms)
    assert len({monomial for monomial, _ in x.terms}) == len(x.terms)
    assert Size(tuple(reversed(x.terms))) + constant(0) == x
    assert hash(x) == hash(x + constant(0))


def test_dims_of_the_same_name_have_a_normal_form_too() -> None:
    def another() -> Any:
        class B(hf.Dim): ...

        return B

    first, second = atom_size(another()), atom_size(another())
    assert first != second
    assert first * second == second * first
    assert first + second == second + first


# -- questions


@given(expressions, expressions, points)
def test_equals_never_contradicts_evaluation(x: Size, y: Size, at: dict[Any, int]) -> None:
    same = evaluate(x, at) == evaluate(y, at)
    answer = x.equals(y)
    assert answer is not Answer.PROVED or same
    assert answer is not Answer.REFUTED or not same
    assert y.equals(x) is answer


@given(expressions, st.integers(1, 24), points)
def test_divisible_by_never_contradicts_evaluation(x: Size, divisor: int, at: dict[Any, int]) -> None:
    number = evaluate(x, at)
    assume(number.denominator == 1)  # where an exact quotient is none, there is nothing to divide
    divides = (number / divisor).denominator == 1
    answer = x.divisible_by(divisor)
    assert answer is not Answer.PROVED or divides
    assert answer is not Answer.REFUTED or not divides


@pytest.mark.parametrize(
    ("expression", "other", "answer"),
    [
        (hf.Add[P, R], hf.Add[R, P], Answer.PROVED),
        (hf.Mul[hf.Div[B, R], R], B, Answer.PROVED),
        (hf.Add[P, R], P, Answer.REFUTED),  # R is at least 1
        (hf.Mul[B, Literal[8]], B, Answer.REFUTED),
        (P, R, Answer.UNKNOWN),
        (hf.Mul[B, B], B, Answer.UNKNOWN),
    ],
)
def test_equals(expression: object, other: object, answer: Answer) -> None:
    assert size(expression).equals(size(other)) is answer


@pytest.mark.parametrize(
    ("expression", "divisor", "answer"),
    [
        (hf.Mul[B, Literal[8]], 4, Answer.PROVED),
        (hf.Add[hf.Mul[B, Literal[8]], Literal[4]], 4, Answer.PROVED),
        (hf.Add[B, Literal[4]], 4, Answer.UNKNOWN),
        (hf.Div[B, Literal[4]], 1, Answer.UNKNOWN),
        (Literal[10], 4, Answer.REFUTED),
        (Literal[12], 4, Answer.PROVED),
    ],
)
def test_divisible_by(expression: object, divisor: int, answer: Answer) -> None:
    assert size(expression).divisible_by(divisor) is answer


# -- solving


@given(expressions, st.one_of(numbers, expressions), st.dictionaries(st.sampled_from(ATOMS), numbers, max_size=3))
def test_solve_returns_a_solution(formal: Size, actual: Size, bound: dict[Any, Size]) -> None:
    solution = solve(formal, actual, bound)
    if solution is None:
        assert any(atom not in bound for atom in formal.atoms)
        return
    assert set(solution) == set(formal.atoms) - set(bound)
    if solution:
        assert formal.substitute({**bound, **solution}) == actual


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.integers(1, 50))
def test_solve_finds_the_dim_of_every_linear_expression(times: int, over: int, plus: int, rows: int) -> None:
    formal = atom_size(B) * constant(times) / constant(over) + constant(plus)
    actual = Fraction(rows * times, over) + plus
    assert solve(formal, constant(actual), {}) == {B: constant(rows)}


def test_solve_needs_one_linear_unknown() -> None:
    assert solve(size(hf.Add[P, R]), constant(7), {}) is None
    assert solve(size(hf.Add[P, R]), constant(7), {P: constant(3)}) == {R: constant(4)}
    assert solve(size(hf.Mul[B, B]), constant(9), {}) is None
    assert solve(size(hf.Div[Literal[8], B]), constant(4), {}) is None
    assert solve(size(hf.Add[hf.Mul[B, P], B]), constant(9), {P: constant(2)}) is None
    assert solve(size(hf.Mul[B, P]), constant(8), {P: constant(2)}) == {B: constant(4)}
    assert solve(size(P), constant(8), {P: constant(8)}) == {}


# -- reading and printing


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (B, "B"),
        (b, "b"),
        (Literal[4], "4"),
        (hf.Add[R, P], "P+R"),
        (hf.Add[Literal[1], P], "P+1"),
        (hf.Mul[B, Literal[8]], "B*8"),
        (hf.Mul[B, B], "B*B"),
        (hf.Div[B, Literal[8]], "B//8"),
        (hf.Div[hf.Mul[B, Literal[3]], hf.Mul[P, Literal[2]]], "B*3//P//2"),
        (hf.Add[hf.Mul[B, Literal[2]], hf.Add[P, Literal[3]]], "B*2+P+3"),
    ],
)
def test_sizes_print_as_people_write_them(expression: object, text: str) -> None:
    assert str(size(expression)) == text


def test_differences_print_with_a_minus() -> None:
    assert str(atom_size(P) - atom_size(R) - constant(2)) == "P-R-2"
    assert str(constant(0)) == "0"
    assert str(constant(0) - atom_size(B)) == "-B"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (hf.Dim, "HF101: Dim is not a dim; use a class derived from hf.Dim, or Add, Mul or Div of dims, or Literal[4]"),
        (4, "HF101: 4 is not a dim; write Literal[4] for a fixed size"),
        (int, "HF101: <class 'int'> is not a dim"),
        ("B", "HF101: 'B' is not a dim"),
        (Literal[0], "HF101: typing.Literal[0] is not a dim"),
        (Literal[2, 3], "HF101: typing.Literal[2, 3] is not a dim"),
        (Literal[True], "HF101: typing.Literal[True] is not a dim"),
        (hf.Add[B, int], "HF101: <class 'int'> is not a dim"),
        (hf.Div[B, hf.Add[P, R]], "HF101: cannot divide by 'P+R': a divisor is a number or a product of dims"),
    ],
)
def test_what_is_no_dim(expression: object, text: str) -> None:
    with pytest.raises(DefinitionError) as error:
        size(expression)
    assert str(error.value).startswith(text)
    assert error.value.code == "HF101"


def test_a_dim_in_quotes_is_named() -> None:
    with pytest.raises(DefinitionError, match="HF101: 'B' in quotes is not a dim; write B, defined at module level"):
        size(ForwardRef("B"))


@pytest.mark.parametrize("combine", [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv])
def test_operators_do_not_combine_dims(combine: Callable[[Any, Any], Any]) -> None:
    for left, right in ((B, R), (B, 1), (2, B)):
        with pytest.raises(DefinitionError, match="HF101: Python's operators do not combine dims, here") as error:
            combine(left, right)
        assert error.value.message.endswith(": write Add[...], Mul[...] or Div[...], with Literal[4] for the number 4")


def test_a_dim_has_no_instances() -> None:
    with pytest.raises(DefinitionError, match="HF101: dim 'B' is used as a class and has no instances"):
        B()
    assert repr(B) == "B"


READER = """
import pickle, sys
from typing import Literal
from hfdsl.types.dims import Add, Mul, size
from tests.check.prelude import P, R

for expression in (R, Add[P, R], Mul[P, Literal[8]]):
    read = pickle.load(sys.stdin.buffer)
    assert read == size(expression) and {size(expression): True}[read] and read.atoms == size(expression).atoms
"""


def test_a_size_from_another_process_is_the_same_key() -> None:
    sizes = [size(prelude.R), size(hf.Add[prelude.P, prelude.R]), size(hf.Mul[prelude.P, Literal[8]])]
    sent = b"".join(map(pickle.dumps, sizes))
    process = subprocess.run([sys.executable, "-c", READER], input=sent, capture_output=True, check=False)
    assert process.returncode == 0, process.stderr.decode()
