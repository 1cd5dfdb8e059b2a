"""Texts whose parts record where they were written, or why they are unknown."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
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


@dataclass(frozen=True)
class ComposedText(SourceText):
    """A text that a script makes and has a shell run; each part keeps its place in the script."""

    pieces: WordText = field(default=(), repr=False)

    @cached_property
    def _offsets(self) -> list[int]:
        """Where each piece begins in the text."""
        offsets = [0]
        for piece in self.pieces:
            offsets.append(offsets[-1] + len(_piece_text(piece)))
        return offsets

    def span(self, start: int, end: int) -> Span:
        """The place in the script of the first piece of ``text[start:end]``."""
        piece = next(self.between(start, max(end, start + 1)), self.pieces[-1])
        return piece.span

    def between(self, start: int, end: int) -> Iterator[TextPiece | Hole]:
        """The pieces of ``text[start:end]``."""
        for i in range(bisect_right(self._offsets, start) - 1, len(self.pieces)):
            piece, offset = self.pieces[i], self._offsets[i]
            if offset >= end:
                return
            if isinstance(piece, Hole):
                yield piece
            elif piece.text:
                first, last = max(start - offset, 0), min(end - offset, len(piece.text))
                at = (piece.start + first, piece.start + last) if piece.written else (piece.start, piece.end)
                yield replace(piece, text=piece.text[first:last], start=at[0], end=at[1])


def composed(words: Items) -> ComposedText | None:
    """Words as one text that a shell runs, with blanks between them; None if nothing of it is known."""
    first_piece = next((piece for word in words for piece in word if isinstance(piece, TextPiece)), None)
    if first_piece is None:
        return None
    blank = replace(first_piece, text=" ", written=False)
    pieces = tuple(piece for word in words for piece in (*word, blank))
    return ComposedText(first_piece.source.file, "".join(map(_piece_text, pieces)), pieces)


def _piece_text(piece: TextPiece | Hole) -> str:
    return piece.text if isinstance(piece, TextPiece) else "…"


def literal(source: SourceText, text: str, start: int, end: int, *, quoted: bool) -> WordText:
    """The pieces of a text that ``source`` has between two places; one with escapes is shorter than it is written."""
    written = len(text) == end - start
    if not text:
        return ()
    if written and isinstance(source, ComposedText):
        return tuple(
            replace(piece, quoted=quoted) if isinstance(piece, TextPiece) else piece
            for piece in source.between(start, end)
        )
    return (TextPiece(text=text, source=source, start=start, end=end, written=written, quoted=quoted),)


def text_of(text: WordText) -> str | None:
    """The characters of a text; None if a part of it is unknown."""
    parts = [piece.text for piece in text if isinstance(piece, TextPiece)]
    return "".join(parts) if len(parts) == len(text) else None


def without_prefix(word: WordText, prefix: str) -> WordText:
    """A word that begins with some text, without it."""
    pieces = list(word)
    while prefix and isinstance(piece := pieces.pop(0), TextPiece):
        count = min(len(prefix), len(piece.text))
        prefix = prefix[count:]
        if count < len(piece.text):
            start = piece.start + count if piece.written else piece.start
            pieces.insert(0, replace(piece, text=piece.text[count:], start=start))
    return tuple(pieces)


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
    first, second = texts(value), texts(other)
    return len(first) == len(second) and all(
        a == b or (text_of(a) is not None and text_of(a) == text_of(b)) for a, b in zip(first, second, strict=True)
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
