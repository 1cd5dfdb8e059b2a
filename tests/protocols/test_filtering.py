"""Filters keep whole groups; ``take`` and ``fill`` give the first rows; runs are rows written shorter."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.errors import SizeError
from hfdsl.protocols.filtering import kept_rows, taken_rows
from hfdsl.protocols.ranges import as_ranges

groups = st.integers(1, 4)


@given(st.lists(st.booleans(), max_size=8), groups)
def test_whole_groups_are_kept_in_order(each: list[bool], group: int) -> None:
    keep = [stays for stays in each for _ in range(group)]
    assert kept_rows(keep, group, "filter") == tuple(row for row, stays in enumerate(keep) if stays)


@given(st.lists(st.booleans(), max_size=9), groups)
def test_a_cut_group_is_an_error(keep: list[bool], group: int) -> None:
    parts = [keep[first : first + group] for first in range(0, len(keep), group)]
    if all(len(part) == group and len(set(part)) == 1 for part in parts):
        assert len(kept_rows(keep, group, "filter")) == sum(keep)
    else:
        with pytest.raises(SizeError, match=r"HF313"):
            kept_rows(keep, group, "filter")


def test_a_cut_group_is_named_with_its_rows() -> None:
    message = (
        r"HF313: filter keeps or drops whole groups of 3 rows: rows 3 to 5 are one group, of which 1 would be kept$"
    )
    with pytest.raises(SizeError, match=message):
        kept_rows([True, True, True, False, True, False], 3, "filter")
    with pytest.raises(SizeError, match=r"HF313: filter: 4 rows do not make whole groups of 3$"):
        kept_rows([True] * 4, 3, "filter")


@pytest.mark.parametrize("none", [0, -1])
def test_no_rows_are_no_request(none: int) -> None:
    with pytest.raises(SizeError, match=rf"HF304: filter takes groups of at least 1 row, got {none}$"):
        kept_rows([], none, "filter")
    for fill in (True, False):
        with pytest.raises(SizeError, match=rf"HF304: take takes at least 1 row, got {none}$"):
            taken_rows(4, none, fill=fill, subject="take")


@given(st.integers(0, 6), st.integers(1, 8), st.booleans())
def test_the_first_rows_are_given_and_fill_starts_over(count: int, rows: int, fill: bool) -> None:
    if count == 0:
        with pytest.raises(SizeError, match=r"HF321: take: no rows are left$"):
            taken_rows(count, rows, fill=fill, subject="take")
    elif count < rows and not fill:
        with pytest.raises(SizeError, match=rf"HF321: take of {rows} rows: there are only {count}$"):
            taken_rows(count, rows, fill=fill, subject="take")
    else:
        rows_taken = taken_rows(count, rows, fill=fill, subject="take")
        assert list(rows_taken) == (list(range(count)) * rows)[:rows]


def test_one_row_is_enough_to_fill_any_number() -> None:
    assert taken_rows(1, 3, fill=True, subject="fill") == (0, 0, 0)
    with pytest.raises(SizeError, match=r"HF321: fill: no rows are left$"):
        taken_rows(0, 3, fill=True, subject="fill")


@given(st.lists(st.integers(0, 5), max_size=12))
def test_runs_are_the_same_rows_in_as_few_pieces_as_can_be(rows: list[int]) -> None:
    ranges = as_ranges(rows)
    assert [row for first, end in ranges for row in range(first, end)] == rows
    assert all(first < end for first, end in ranges)
    assert all(end != first for (_, end), (first, _) in pairwise(ranges))
