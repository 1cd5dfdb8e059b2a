"""Untrusted text, JSON and TOML: every defect of one is an ``OSError`` or a ``ValueError``."""

from __future__ import annotations

from os import PathLike
from typing import Any

MAX_BYTES = 16 * 2**20
"""The most bytes of a file that is read whole; a device without an end is larger."""

MAX_DEPTH = 200
"""The most levels of a value; beyond them, walking or pickling it could exceed Python's recursion limit."""

TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


def read_text(path: str | PathLike[str]) -> str:
    """The text of a file in UTF-8, with its line ends, without the byte order mark that some editors begin it with.

    Raises:
        OSError: where it cannot be read.
        ValueError: where it is not UTF-8 (then a ``UnicodeDecodeError``), too large, or no path has such a name.
    """
    with open(path, "rb") as file:  # noqa: PTH123  # not pathlib: `import hfdsl` is kept fast
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        problem = f"it has more than {MAX_BYTES // 2**20} MiB"
        raise ValueError(problem)
    return content.decode("utf-8-sig")


def is_unicode(text: str) -> bool:
    r"""Whether every character can be encoded; halves of surrogate pairs, which JSON may have, cannot.

    >>> is_unicode("é"), is_unicode("\ud800")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; as bytes it may be UTF-8, with or without a byte order mark, UTF-16 or UTF-32.

    Raises:
        ValueError: for a text that is not JSON or not Unicode, or that is nested too deeply.

    >>> parse_json(b'{"step": 1}')
    {'step': 1}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: it is nested more than 200 levels deep
    """
    import json  # not at the top: `import hfdsl` is kept fast

    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    opening = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    if sum(map(text.count, opening)) > MAX_DEPTH:  # type: ignore[arg-type]  # of the text's own kind
        _check_depth(value)
    return value


def json_problem(error: ValueError) -> str:
    """The reason why a line is not JSON, and the number of the character, counted from 1.

    >>> try:
    ...     parse_json('{"a": 1')
    ... except ValueError as error:
    ...     json_problem(error)
    "Expecting ',' delimiter at character 8"
    """
    at = getattr(error, "pos", None)
    return str(error) if at is None else f"{getattr(error, 'msg', error)} at character {at + 1}"


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The members of a JSON object.

    Raises:
        ValueError: as ``parse_json``, and for another value than an object.

    >>> parse_object("[1]")
    Traceback (most recent call last):
    ValueError: it is not a JSON object, but of type list
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        problem = f"it is not a JSON object, but of type {type(value).__name__}"
        raise ValueError(problem)  # noqa: TRY004  # a mistake of the text's author, not of the caller
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text.

    Raises:
        ValueError: for a text that is not TOML (then a ``TOMLDecodeError``), or that is nested too deeply.

    >>> parse_toml("a = " + "[" * 100_000)
    Traceback (most recent call last):
    ValueError: it is nested more than 200 levels deep
    """
    import tomllib  # not at the top: `import hfdsl` is kept fast

    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    _check_depth(table)
    return table


def _check_depth(value: Any) -> None:
    """Refuse a deep value, level by level rather than by recursion."""
    level, depth = [value], 0
    while containers := [inner for inner in level if isinstance(inner, (dict, list))]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(TOO_DEEP)
        level = [entry for inner in containers for entry in (inner.values() if isinstance(inner, dict) else inner)]
