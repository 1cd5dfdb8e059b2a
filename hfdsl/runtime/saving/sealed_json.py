"""JSON files with a digest over every field, so that a changed file is detected before it is used.

A file is an object with two fields of its own beside those of its writer::

    {"format": 2, "step": 4, "rows": 64, "sha256": "9d1e..."}

``sha256`` is that of all other fields. Files from before there were digests have neither field and stay readable.
Changing one field cannot make a file look like one of those: without ``sha256`` there is still a ``format``, and
without ``format`` the digest differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hfdsl.types.foreign_text import parse_object

FORMAT = 2
"""The first format with a digest."""


def digest(fields: Mapping[str, Any]) -> str:
    """SHA-256 of fields, in any order."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def sealed(fields: Mapping[str, Any]) -> str:
    """The text of a file with these fields."""
    written = {"format": FORMAT, **fields}
    return json.dumps({**written, "sha256": digest(written)}, indent=1) + "\n"


def unsealed(text: str | bytes) -> dict[str, Any]:
    """The fields of a file; those written before digests existed have no ``"format"``.

    Raises:
        ValueError: if it is not a JSON object, its format is unknown, or it was changed.

    >>> unsealed(sealed({"step": 4}))
    {'format': 2, 'step': 4}
    >>> unsealed(sealed({"step": 4}).replace("4", "5"))
    Traceback (most recent call last):
    ValueError: it was changed after it was written: its digest does not match its fields
    """
    fields = parse_object(text)
    written = fields.pop("sha256", None)
    if "format" not in fields and written is None:
        return fields
    if written != digest(fields):
        raise ValueError("it was changed after it was written: its digest does not match its fields")
    if fields.get("format") != FORMAT:
        raise ValueError(f"it has format {fields.get('format')}, and this version of hfdsl reads format {FORMAT}")
    return fields


def parse_count(number: Any) -> int:
    """A count among the fields of a file.

    Raises:
        ValueError: if it is none.
    """
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is not a count")
    return number


def parse_file(entry: Any) -> dict[str, str]:
    """The name of a file beside the one with this field, and its digest.

    Raises:
        ValueError, KeyError, TypeError: if the field does not have both, or the name is a path.
    """
    name, sha256 = entry["file"], entry["sha256"]
    if not isinstance(name, str) or not isinstance(sha256, str) or Path(name).name != name:
        raise ValueError(f"{name!r} is not the name of a file beside it")
    return {"file": name, "sha256": sha256}
