r"""The places of all keys and values of a TOML text, which ``tomllib`` does not report.

Paths are those of messages: names joined by dots, and ``[i]`` for items of arrays. This text ::

    1  dims.B = 32
    2  [[pool]]
    3  size = [4, { cpu = 2 }]

has the keys ``dims`` and ``dims.B`` in line 1, ``pool`` and ``pool[0]`` in line 2, and in line 3 ``pool[0].size``,
``pool[0].size[0]``, ``pool[0].size[1]`` and ``pool[0].size[1].cpu``. A new member of the table ``dims`` goes below
the first line, as ``dims.NAME = ...``, and one of ``pool[0].size[1]`` after the 2.

The text must be one that ``tomllib`` accepts, so the scanner does not validate: it splits the text into headers and
``key = value``, and follows strings, arrays and inline tables only to find their ends.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.rl.training.toml.files import text_of

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"(?:\\.|[^"\\])*"|'[^']*'""")
_STRING = re.compile(
    r'''"""(?:\\.|[^\\])*?"""(?:"{0,2})|\'\'\'.*?\'\'\'(?:'{0,2})|"(?:\\.|[^"\\])*"|'[^']*\'''', re.DOTALL
)
_PLAIN = re.compile(r"[^,\]}#\n]+")
_PLACE_OF_ERROR = re.compile(r"\(at (?:line (\d+), column (\d+)|end of document)\)")


@dataclass(frozen=True, slots=True)
class Gap:
    """A place for a new member: ``before + KEY = VALUE + after``, where the key is relative to the table ``base``."""

    place: Span
    base: str
    before: str
    after: str = ""
    is_line: bool = True
    """Whether the member gets a line of its own."""


@dataclass(frozen=True, slots=True)
class TomlSpans:
    """The places of a file's keys and values, by their paths."""

    file: str
    keys: Mapping[str, Span] = field(default_factory=dict)
    values: Mapping[str, Span] = field(default_factory=dict)
    names: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    """Each place of the last name of a path: ``actor`` is in both ``[actor]`` and ``[actor.model]``."""
    gaps: Mapping[str, Gap] = field(default_factory=dict)
    """The gap of each table in the text for a new member."""

    def at(self, path: str) -> Span:
        r"""The key of a path, or of the nearest path above it; or the first line, if no key is above it.

        >>> spans = spans_of("run.toml", "[actor]\nmodel = '$other'")
        >>> print(spans.at("actor.model.path"), spans.at("reward"))
        run.toml:2 run.toml:1
        """
        for above in upwards(path):
            if above in self.keys:
                return self.keys[above]
        return Span(self.file, 1)


def read_spans(path: str | Path) -> TomlSpans:
    """The places in a file; none if it cannot be read, or is not TOML."""
    try:
        text = text_of(path)
        tomllib.loads(text)
    except (OSError, ValueError):
        return TomlSpans(str(path))
    return spans_of(str(path), text)


def spans_of(file: str, text: str) -> TomlSpans:
    """The places in a valid TOML text.

    >>> spans = spans_of("run.toml", "dims = { B = 32 }")
    >>> spans.keys["dims.B"].column, spans.values["dims.B"].column
    (9, 13)
    """
    return _Scanner(file, text).scan()


def error_span(file: str, text: str, error: tomllib.TOMLDecodeError) -> Span:
    """The place at which a text is not TOML, from the message of the error."""
    match = _PLACE_OF_ERROR.search(str(error))
    lines = text.split("\n")
    if match is None:
        return NOWHERE
    if match[1] is None:
        return Span(file, max(1, len(text.rstrip().split("\n"))))
    line, characters = int(match[1]), int(match[2]) - 1
    column = len(lines[line - 1][:characters].encode()) if line <= len(lines) else 0
    return Span(file, line, column, line, column + 1)


def upwards(path: str) -> Iterator[str]:
    """A path and those above it: ``a[0].b``, ``a[0]``, ``a``."""
    while path:
        yield path
        path = path[: max(path.rfind("."), path.rfind("["), 0)]


class _Scanner:
    """One pass over a text, at ``_position``."""

    def __init__(self, file: str, text: str) -> None:
        self._file, self._text, self._position = file, text, 0
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._keys: dict[str, Span] = {}
        self._values: dict[str, Span] = {}
        self._names: dict[str, list[Span]] = {}
        self._gaps: dict[str, Gap] = {}
        self._items: dict[str, int] = {}  # how many tables an array of tables has
        self._newline = "\r\n" if "\r\n" in text else "\n"

    def scan(self) -> TomlSpans:
        table = ""
        self._gaps[""] = Gap(self._span(0, 0), "", "", self._newline)
        while self._next():
            if self._next() == "[":
                table = self._header()
            else:
                self._pair(table)
        return TomlSpans(self._file, self._keys, self._values, self._names, self._gaps)

    def _header(self) -> str:
        """Scan ``[a.b]`` or ``[[a.b]]``, and return the path of the table that follows."""
        brackets = 2 if self._text.startswith("[[", self._position) else 1
        self._position += brackets
        start = self._position
        path = self._key("", elements=True)
        self._keys[path] = self._span(start, self._position)  # rather than a part of another key
        self._position += brackets
        if brackets == 2:
            number = self._items.get(path, 0)
            self._items[path] = number + 1
            self._keys[f"{path}[{number}]"] = self._keys[path]
            path = f"{path}[{number}]"
        self._gaps[path] = self._next_line(path)
        return path

    def _pair(self, table: str, *, inline: bool = False) -> None:
        """Scan ``key = value`` in a table."""
        start = self._position
        path = self._key(table)
        self._position += 1  # =
        self._take(_SPACE)
        self._value(path)
        end = self._span(self._position, self._position)
        gap = Gap(end, table, ", ", is_line=False) if inline else self._next_line(table, start)
        for above in upwards(path):
            if above == table:
                break
            if above != path:
                self._gaps[above] = gap  # a table that is the first part of a dotted key
        self._gaps[table] = gap

    def _next_line(self, table: str, start: int | None = None) -> Gap:
        """The gap for a new line after this one, indented like the first line of the pair."""
        end = self._text.find("\n", self._position)
        end = len(self._text) if end < 0 else end
        end -= self._text[end - 1 : end] == "\r"
        indent = "" if start is None else self._text[self._starts[bisect_right(self._starts, start) - 1] : start]
        return Gap(self._span(end, end), table, f"{self._newline}{indent}")

    def _key(self, table: str, *, elements: bool = False) -> str:
        """Scan a dotted key and its parts; in a header, an array of tables means its last table."""
        self._take(_SPACE)
        start, path = self._position, table
        while True:
            if elements and path in self._items:
                path = f"{path}[{self._items[path] - 1}]"
            begin = self._position
            path = _joined(path, self._take(_PART))
            self._names.setdefault(path, []).append(self._span(begin, self._position))
            self._keys.setdefault(path, self._span(start, self._position))
            self._take(_SPACE)
            if self._text[self._position] != ".":
                return path
            self._position += 1
            self._take(_SPACE)

    def _value(self, path: str) -> None:
        start = self._position
        match self._text[start]:
            case "[":
                for number in self._members("]"):
                    item = f"{path}[{number}]"
                    begin = self._position
                    self._value(item)
                    self._keys[item] = self._span(begin, self._position)
            case "{":
                inside = self._span(start + 1, start + 1)
                self._gaps[path] = Gap(inside, path, " ", "" if self._text[start + 1] == " " else " ", is_line=False)
                for _ in self._members("}"):
                    self._pair(path, inline=True)
            case '"' | "'":
                self._take(_STRING)
            case _:
                self._position = start + len(self._take(_PLAIN).rstrip())
        self._values[path] = self._span(start, self._position)

    def _members(self, close: str) -> Iterator[int]:
        """Move to each member of an array or inline table, and finally past its end."""
        self._position += 1
        number = 0
        while self._next() != close:
            yield number
            number += 1
            if self._next() == ",":
                self._position += 1
        self._position += 1

    # -- the text

    def _take(self, pattern: re.Pattern[str]) -> str:
        """Move past the text here that matches, and return it."""
        match = pattern.match(self._text, self._position)
        text = match[0] if match else ""
        self._position += len(text)
        return text

    def _next(self) -> str:
        """Move past blanks, lines and comments, and return the next character; empty at the end."""
        self._take(_BLANK)
        return self._text[self._position : self._position + 1]

    def _span(self, start: int, end: int) -> Span:
        (line, column), (end_line, end_column) = self._place(start), self._place(end)
        return Span(self._file, line, column, end_line, end_column)

    def _place(self, position: int) -> tuple[int, int]:
        """The line from 1, and the column from 0 in bytes."""
        line = bisect_right(self._starts, position)
        return line, len(self._text[self._starts[line - 1] : position].encode())


def _joined(path: str, part: str) -> str:
    """A path with one more part, which may be quoted."""
    name = next(iter(tomllib.loads(f"{part} = 0"))) if part[0] in "\"'" else part
    return f"{path}.{name}" if path else name
