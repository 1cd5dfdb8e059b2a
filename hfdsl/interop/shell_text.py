"""Texts of which every part knows where it was written, or why it is not known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from hfdsl.graph.spans import Span
from hfdsl.interop.text import SourceText


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of a text that was written at one place; a computed one has the place of its expression."""

    text: str
    source: SourceText
    start: int
    end: int
    written: bool = True
    quoted: bool = False

    @property
    def span(self) -> Span:
        """Where it was written."""
        return self.source.span(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Hole:
    """A part of a text that is unknown, and why."""

    reason: str
    span: Span


WordText: TypeAlias = tuple[TextPiece | Hole, ...]
Items: TypeAlias = tuple[WordText, ...]
ShellValue: TypeAlias = WordText | list[WordText]
"""A variable's: a list is an array."""


def text_of(text: WordText) -> str | None:
    """The characters of a text; None where a part of it is unknown."""
    parts = [piece.text for piece in text if isinstance(piece, TextPiece)]
    return "".join(parts) if len(parts) == len(text) else None


def split(text: WordText) -> list[WordText]:
    """A text that is not quoted, at its blanks."""
    runs: list[list[TextPiece | Hole]] = [[]]
    for piece in text:
        if isinstance(piece, Hole) or not re.search(r"\s", piece.text):
            runs[-1].append(piece)
            continue
        for match in re.finditer(r"\s+|\S+", piece.text):
            if match[0].isspace():
                if runs[-1]:
                    runs.append([])
            else:
                start = piece.start + match.start() if piece.written else piece.start
                end = start + len(match[0]) if piece.written else piece.end
                runs[-1].append(TextPiece(match[0], piece.source, start, end, piece.written))
    if len(runs) > 1 and not runs[-1]:
        runs.pop()
    return [tuple(run) for run in runs]


def texts(value: ShellValue) -> list[WordText]:
    """A value as texts: one, or the items of an array."""
    return value if isinstance(value, list) else [value]


def same(value: ShellValue | None, other: ShellValue) -> bool:
    """Whether two values are certainly the same."""
    if value is None or isinstance(value, list) != isinstance(other, list):
        return False
    mine, others = texts(value), texts(other)
    return len(mine) == len(others) and all(
        a == b or (text_of(a) is not None and text_of(a) == text_of(b)) for a, b in zip(mine, others, strict=True)
    )


def length(value: ShellValue) -> int:
    """How many characters a value has; a part that is not known and an item count for one."""
    return sum(1 + sum(len(p.text) if isinstance(p, TextPiece) else 1 for p in text) for text in texts(value))


def holes(text: WordText) -> str:
    """Why parts of a text are not known."""
    return "; ".join(dict.fromkeys(piece.reason for piece in text if isinstance(piece, Hole)))


def short(text: str) -> str:
    """A text for a message."""
    flat = " ".join(text.split())
    return flat if len(flat) <= 50 else f"{flat[:47]}..."
