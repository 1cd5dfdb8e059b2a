"""Dealing: equal counts, about equal weights, and nothing lost."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hfdsl.protocols.partitioning import loads, partition_evenly
from tests.nightly import examples

weights = st.integers(0, 40) | st.sampled_from([0, 1, 1000])


@st.composite
def cases(draw: st.DrawFn, most: int = 60) -> tuple[list[int], int]:
    chunks = draw(st.integers(1, 6))
    size = draw(st.integers(1, most // chunks))
    return draw(st.lists(weights, min_size=chunks * size, max_size=chunks * size)), chunks


def lightest(row_weights: list[int], chunks: int) -> int:
    """The weight of the heaviest chunk where it is least: all partitions, one by one."""

    def best(left: tuple[int, ...], bound: int) -> int:
        if not left:
            return 0
        first, *others = left
        lightest_yet = bound
        for some in combinations(others, len(row_weights) // chunks - 1):
            weight = sum(row_weights[i] for i in (first, *some))
            if weight < lightest_yet:
                rest = tuple(i for i in others if i not in some)
                lightest_yet = min(lightest_yet, max(weight, best(rest, lightest_yet)))
        return lightest_yet

    return best(tuple(range(len(row_weights))), sum(row_weights) + 1)


@given(cases())
def test_every_chunk_has_as_many_and_nothing_is_lost(case: tuple[list[int], int]) -> None:
    row_weights, chunks = case
    order = partition_evenly(row_weights, chunks)
    assert sorted(order) == list(range(len(row_weights)))
    size = len(row_weights) // chunks
    for first in range(0, len(row_weights), size):
        assert all(before < after for before, after in pairwise(order[first : first + size])), "in order within a chunk"
    assert order == partition_evenly(list(row_weights), chunks)


@given(cases())
@example(([16, 17, 39, 27, 4, 29, 1, 28, 1], 3))  # three chunks, whose order by weight changes as they are joined
def test_chunks_differ_by_no_more_than_as_many_weights_in_a_row(case: tuple[list[int], int]) -> None:
    row_weights, chunks = case
    order = partition_evenly(row_weights, chunks)
    sums = loads(row_weights, order, chunks)
    contiguous = loads(row_weights, range(len(row_weights)), chunks)
    assert sum(sums) == sum(row_weights)
    ranked = sorted(row_weights)
    rows = max(ranked[i + chunks - 1] - ranked[i] for i in range(0, len(row_weights), chunks))
    assert max(sums) <= max(contiguous)
    if order != tuple(range(len(row_weights))):
        assert max(sums) - min(sums) <= rows
    assert chunks * max(sums) <= sum(row_weights) + (chunks - 1) * rows or max(sums) == max(contiguous)


@settings(max_examples=examples(60), deadline=None)
@given(cases(most=9))
def test_no_chunk_is_much_heavier_than_in_the_best_partition(case: tuple[list[int], int]) -> None:
    row_weights, chunks = case
    heaviest = max(loads(row_weights, partition_evenly(row_weights, chunks), chunks))
    best = lightest(row_weights, chunks)
    assert best <= heaviest
    assert heaviest * chunks <= (2 * chunks - 1) * best


@given(st.integers(0, 5), st.integers(1, 5), st.integers(1, 5))
def test_equal_weights_stay_as_they_are(weight: int, size: int, chunks: int) -> None:
    assert partition_evenly([weight] * (size * chunks), chunks) == tuple(range(size * chunks))


def test_loads_are_one_a_chunk() -> None:
    assert loads([5, 1, 2, 3], (3, 0, 1, 2), 2) == (8, 3)
    assert loads([], (), 3) == (0, 0, 0)
    assert partition_evenly([], 3) == ()


def differencing(row_weights: list[int]) -> int:
    """Karmarkar and Karp's for two chunks: by how much they differ, of the differences of pairs alone."""
    ranked = sorted(row_weights)
    differences = [heavy - light for light, heavy in zip(ranked[::2], ranked[1::2], strict=True)]
    while len(differences) > 1:
        differences.sort()
        differences[-2:] = [differences[-1] - differences[-2]]
    return differences[0]


@given(st.lists(weights, min_size=2, max_size=16).filter(lambda row_weights: len(row_weights) % 2 == 0))
@example([12, 18, 0, 14, 20, 31, 3, 3])  # the pairs that differ most come last
def test_two_chunks_differ_as_differencing_has_it(row_weights: list[int]) -> None:
    order = partition_evenly(row_weights, 2)
    first, second = loads(row_weights, order, 2)
    if order == tuple(range(len(row_weights))):
        assert abs(first - second) <= differencing(row_weights)
    else:
        assert abs(first - second) == differencing(row_weights)


def test_a_long_tail_of_lengths_is_balanced() -> None:
    # Half of the rows are short and one in 16 is long, in order of their lengths, as a sorted data set has them.
    row_weights = [64 + i for i in range(128)] + [512 + 3 * i for i in range(112)] + [4096 - i for i in range(16)]
    sums = loads(row_weights, partition_evenly(row_weights, 8), 8)
    assert max(loads(row_weights, range(256), 8)) / (sum(row_weights) / 8) > 3.9
    assert max(sums) - min(sums) <= 4, "of some 20,000"
