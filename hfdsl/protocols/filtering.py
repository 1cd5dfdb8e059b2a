"""The rows that a filter keeps, and those that ``take`` and ``fill`` return: one rule for eager runs and backends."""

from __future__ import annotations

from collections.abc import Sequence

from hfdsl.errors import SizeError


def kept_rows(keep: Sequence[bool], group: int, subject: str) -> tuple[int, ...]:
    """Select the rows for which ``keep`` is true.

    Raises:
        SizeError: HF304 if ``group`` is below 1, HF313 if a group is kept only in part.

    >>> kept_rows([True, True, False, False], 2, "filter")
    (0, 1)
    """
    if group < 1:
        raise SizeError("HF304", f"{subject} takes groups of at least 1 row, got {group}")
    if len(keep) % group:
        raise SizeError("HF313", f"{subject}: {len(keep)} rows do not make whole groups of {group}")
    for first in range(0, len(keep), group) if group > 1 else ():
        kept_count = sum(keep[first : first + group])
        if 0 < kept_count < group:
            cut = f"rows {first} to {first + group - 1} are one group, of which {kept_count} would be kept"
            raise SizeError("HF313", f"{subject} keeps or drops whole groups of {group} rows: {cut}")
    return tuple(row for row, keeps in enumerate(keep) if keeps)


def taken_rows(available: int, rows: int, *, fill: bool, subject: str) -> tuple[int, ...]:
    """Select the first ``rows`` of ``available`` rows; with ``fill`` they start over if there are fewer.

    Raises:
        SizeError: HF304 if ``rows`` is below 1, HF321 if there are too few.

    >>> taken_rows(3, 2, fill=False, subject="take"), taken_rows(3, 5, fill=True, subject="fill")
    ((0, 1), (0, 1, 2, 0, 1))
    """
    if rows < 1:
        raise SizeError("HF304", f"{subject} takes at least 1 row, got {rows}")
    if available < (1 if fill else rows):
        raise SizeError(
            "HF321",
            f"{subject} of {rows} rows: there are only {available}" if available else f"{subject}: no rows are left",
        )
    return tuple(row % available for row in range(rows))
