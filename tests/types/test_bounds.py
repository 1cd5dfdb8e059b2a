"""Bounds of numbers: what is in them, and what a message says of the others."""

from __future__ import annotations

from fractions import Fraction
from math import inf, isinf, isnan, nan
from typing import Annotated

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
