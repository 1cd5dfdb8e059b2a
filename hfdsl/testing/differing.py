"""Results that should be the same: where the first of their values differs."""

from __future__ import annotations

from typing import Any

from hfdsl.testing.compare import first_difference


def difference(got: Any, meant: Any, tolerance: float = 0.0) -> str | None:
    """The first place in which two results differ by more than ``tolerance``, None where there is none.

    >>> difference([1, 2], [1, 3])
    'row 1 is 2 instead of 3'
    """
    found = first_difference(meant, got, tolerance)
    return None if found is None else f"{found} is {found.other} instead of {found.one}"
