"""Bounds of numbers: what is in them, and what a message says of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import inf, isinf, isnan, nan
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.types.bounds import Within, misfit

numbers = st.one_of(st.integers(), st.floats(), st.fractions(), st.just(10**400), st.just(-(10**400)))
bounds = st.builds(
    Within,
    at_least=st.none() | st.integers(-3, 3),
    above=st.none() | st.integers(-3, 3),
    at_most=st.none() | st.integers(-3, 3),
    below=st.none() | st.integers(-3, 3),
    infinite=st.booleans(),
)


@given(bounds, numbers)
def test_a_number_is_within_bounds_that_it_meets_and_finite_or_a_limit(
    within: Within, number: float | Fraction
) -> None:
    is_nan = isinstance(number, float) and isnan(number)
    is_infinite = isinstance(number, float) and isinf(number)
    meets = [
        within.at_least is None or not number < within.at_least,
        within.above is None or not number <= within.above,
        within.at_most is None or not number > within.at_most,
        within.below is None or not number >= within.below,
    ]
    assert within.hold(number) == (all(meets) and not is_nan and (within.infinite or not is_infinite))


@pytest.mark.parametrize(
    ("within", "number", "message"),
    [
        (Within(), nan, "must be finite, got nan"),
        (Within(), -inf, "must be finite, got -inf"),
        (Within(above=0), inf, "must be finite and above 0, got inf"),
        (Within(above=0), nan, "must be above 0, got nan"),
        (Within(at_least=0, at_most=1), inf, "must be at least 0 and at most 1, got inf"),
        (Within(above=0, infinite=True), -inf, "must be above 0, got -inf"),
        (Within(above=0, infinite=True), inf, None),
    ],
)
def test_a_message_says_finite_where_only_that_is_missing(within: Within, number: float, message: str | None) -> None:
    assert misfit(Annotated[float, within], number) == message


SIZE = Annotated[int, Within(at_least=1)]


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (list[SIZE], [1, 0], "[1] must be at least 1, got 0"),
        (Sequence[SIZE], (1, "a"), "[1] takes int, got 'a'"),
        (Sequence[SIZE], 1, "takes a list of int, got 1"),
        (Sequence[str], "ab", None),
        (list[str], "ab", "takes a list of str, got 'ab'"),
        (list[str], {}, "takes a list of str, got {}"),
        (dict[str, SIZE], {"a": 1, "b": 0}, "['b'] must be at least 1, got 0"),
        (Mapping[str, list[SIZE]], {"a": [0]}, "['a'] [0] must be at least 1, got 0"),
        (Mapping[str, SIZE], [1], "takes a table, got [1]"),
        (list[SIZE], [], None),
        (list, [1, "a"], None),
    ],
)
def test_the_items_of_lists_and_tables_fit(annotation: Any, value: object, message: str | None) -> None:
    assert misfit(annotation, value) == message
