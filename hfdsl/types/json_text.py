"""JSON that somebody else wrote: whatever is wrong with it is a ``ValueError``."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; as bytes it may be UTF-8, with or without a byte order mark, UTF-16 or UTF-32.

    Raises:
        ValueError: for a text that is not JSON or not Unicode, or that nests deeper than Python's parser goes.

    >>> parse_json(b'{"step": 1}')
    {'step': 1}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The members of a JSON object.

    Raises:
        ValueError: as ``parse_json``, and for another value than an object.

    >>> parse_object("[1]")
    Traceback (most recent call last):
    ValueError: it is not a JSON object but a list
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        problem = f"it is not a JSON object but a {type(value).__name__}"
        raise ValueError(problem)  # noqa: TRY004  # a mistake of the text's author, not of the caller
    return value
