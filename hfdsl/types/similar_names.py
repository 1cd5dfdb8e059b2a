"""Names that were meant where an unknown one was written."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def closest(name: str, names: Sequence[str]) -> str:
    """Suggest a name: ``did you mean 'x'?``, or list the names that exist.

    >>> closest("colum", ["row", "column"]), closest("x", ["row", "column"])
    ("did you mean 'column'?", 'there are: row, column')
    """
    near = nearest(name, names)
    return f"did you mean '{near}'?" if near is not None else f"there are: {', '.join(names) or 'none'}"


def nearest(name: str, names: Sequence[str]) -> str | None:
    """Find the most similar name, ignoring case; None if no name is similar enough.

    >>> nearest("colum", ["row", "column"]), nearest("b", ["B", "P"]), nearest("x", ["B", "P"])
    ('column', 'B', None)

    Of names that are close, one with the same letters comes first: two swapped letters are the most common mistake.

    >>> nearest("gpro", ["gspo", "grpo"])
    'grpo'
    """
    same = [candidate for candidate in names if candidate.lower() == name.lower()]
    close = same or difflib.get_close_matches(name, names)
    return min(close, key=lambda candidate: sorted(candidate) != sorted(name), default=None)
