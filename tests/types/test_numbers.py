"""Numbers: the divisors of a number."""

from hypothesis import given
from hypothesis import strategies as st

from hfdsl.types.numbers import divisors


@given(st.integers(1, 5000))
def test_divisors_are_all_numbers_that_divide(number: int) -> None:
    assert divisors(number) == tuple(n for n in range(1, number + 1) if number % n == 0)


def test_the_divisors_of_a_very_large_number_are_the_small_ones_and_their_counterparts() -> None:
    large = 10**30
    some = divisors(large)
    assert {1, 2, 5, 10**4, large // 5, large} <= set(some)
    assert all(large % n == 0 for n in some)
    assert some == tuple(sorted(some))
