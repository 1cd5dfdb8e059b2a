"""Texts of other libraries' configurations: where something stands in them, and what could not be read there."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from hfdsl.errors import ConfigError
from hfdsl.graph.spans import Span
from hfdsl.rl.training.toml.files import text_of

MAX_BYTES = 1 << 16
"""The largest file that is read: a configuration has a few kilobytes, and a larger file is a log or a data set."""

COMMAND_LINE = "<command line>"


@dataclass(frozen=True)
class SourceText:
    """A text with its name; ``COMMAND_LINE`` for what follows ``--``."""

    file: str
    text: str = field(repr=False)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(i + 1 for i, character in enumerate(self.text) if character == "\n")]

    def span(self, start: int, end: int) -> Span:
        r"""The place of ``text[start:end]``: lines from 1, columns from 0 in bytes.

        >>> SourceText("run.sh", "a=1\nb=2").span(4, 7)
        Span(file='run.sh', line=2, column=0, end_line=2, end_column=3)
        """
        (line, column), (end_line, end_column) = self._place(start), self._place(end)
        return Span(self.file, line, column, end_line, end_column)

    def _place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        return line, len(self.text[self._starts[line - 1] : offset].encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that a reader leaves out rather than guess: why, and where it stands."""

    reason: str
    span: Span


class ReadError(ConfigError):
    """HF970: a configuration that cannot be read at all."""

    def __init__(self, message: str, span: Span) -> None:
        super().__init__("HF970", message)
        self.span = span


def read_source(path: str | Path) -> SourceText:
    """The text of a file.

    Raises:
        ReadError: HF970 if there is no such file, where it is too large, and where it is no UTF-8.
    """
    place, top = Path(path), Span(str(path), 1)
    try:
        status = place.stat()
        if not (S_ISREG(status.st_mode) or S_ISDIR(status.st_mode)):  # a pipe without a writer never ends
            raise ReadError(f"'{path}' is not a regular file", top)
        if status.st_size > MAX_BYTES:
            raise ReadError(f"'{path}' has {status.st_size:,} bytes, and a configuration at most {MAX_BYTES:,}", top)
        return SourceText(str(path), text_of(place).replace("\r\n", "\n"))
    except ReadError:
        raise
    except UnicodeDecodeError as error:
        raise ReadError(
            f"'{path}' is not a text in UTF-8: byte {error.start} is {error.object[error.start]:#x}", top
        ) from None
    except (OSError, ValueError) as error:
        raise ReadError(f"cannot read '{path}': {getattr(error, 'strerror', None) or error}", top) from None


def is_file(path: Path, *, folder: bool = False) -> bool:
    """Whether there is a file, or a folder; a name that no file can have is none."""
    try:
        return path.is_dir() if folder else path.is_file()
    except (OSError, ValueError):
        return False
