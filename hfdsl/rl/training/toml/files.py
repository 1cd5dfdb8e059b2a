"""The text of a TOML file, or its replacement during the trial of a change.

A trial of a change writes no file: within ``standing_in``, files read as they would after the change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

from hfdsl.types.foreign_text import read_text

_TEXTS: ContextVar[Mapping[str, str]] = ContextVar("hfdsl_toml_texts", default=MappingProxyType({}))


@contextmanager
def standing_in(texts: Mapping[str, str]) -> Iterator[None]:
    """Replace the texts of files, by their real paths, within this context."""
    token = _TEXTS.set({**_TEXTS.get(), **texts})
    try:
        yield
    finally:
        _TEXTS.reset(token)


def text_of(path: str | Path) -> str:
    """The text of a file with its line ends, without a byte order mark.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is not UTF-8 (then a ``UnicodeDecodeError``), or too large.
    """
    text = _TEXTS.get().get(real_path(path))
    return read_text(path) if text is None else text.removeprefix("\ufeff")


def real_path(path: str | Path) -> str:
    """The path by which files are compared."""
    return os.path.realpath(path)
