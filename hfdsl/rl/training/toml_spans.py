r"""Where every key and value of a TOML text stands, which ``tomllib`` does not say.

Paths are those of messages: names joined by dots, and ``[i]`` for the items of arrays. This text ::

    1  dims.B = 32
    2  [[pool]]
    3  size = [4, { cpu = 2 }]

has the keys ``dims`` and ``dims.B`` in line 1, ``pool`` and ``pool[0]`` in line 2, and in line 3 ``pool[0].size``,
``pool[0].size[0]``, ``pool[0].size[1]`` and ``pool[0].size[1].cpu``.

The text must be one that ``tomllib`` accepts. So the scanner decides nothing about what is valid: it splits the text
into headers and ``key = value``, and follows strings, arrays and inline tables only to find where they end.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hfdsl.graph.spans import NOWHERE, Span

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"(?:\\.|[^"\\])*"|'[^']*'""")
_STRING = re.compile(
    r'''"""(?:\\.|[^\\])*?"""(?:"{0,2})|\'\'\'.*?\'\'\'(?:'{0,2})|"(?:\\.|[^"\\])*"|'[^']*\'''', re.DOTALL
)
_PLAIN = re.compile(r"[^,\]}#\n]+")
_PLACE_OF_ERROR = re.compile(r"\(at (?:line (\d+), column (\d+)|end of document)\)")


@dataclass(frozen=True, slots=True)
class TomlSpans:
    """The places of a file's keys and values, by their paths."""

    file: str
    keys: Mapping[str, Span] = field(default_factory=dict)
    values: Mapping[str, Span] = field(default_factory=dict)

    def at(self, path: str) -> Span:
        r"""The key of a path, or of the nearest path above it; for a path that nothing leads to, the first line.

        >>> spans = spans_of("run.toml", "[actor]\nmodel = '$other'")
        >>> print(spans.at("actor.model.path"), spans.at("reward"))
        run.toml:2 run.toml:1
        """
        for above in _upwards(path):
            if above in self.keys:
                return self.keys[above]
        return Span(self.file, 1)


def read_spans(path: str | Path) -> TomlSpans:
    """The places in a file; none where it cannot be read, or is no TOML."""
    try:
        text = Path(path).read_text("utf-8")
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
    """Where a text is no TOML, from the message of the error."""
    match = _PLACE_OF_ERROR.search(str(error))
    lines = text.split("\n")
    if match is None:
        return NOWHERE
    if match[1] is None:
        return Span(file, max(1, len(text.rstrip().split("\n"))))
    line, characters = int(match[1]), int(match[2]) - 1
    column = len(lines[line - 1][:characters].encode()) if line <= len(lines) else 0
    return Span(file, line, column, line, column + 1)


def _upwards(path: str) -> Iterator[str]:
    """A path and those above it: ``a[0].b``, ``a[0]``, ``a``."""
    while path:
        yield path
        path = path[: max(path.rfind("."), path.rfind("["), 0)]


class _Scanner:
    """One pass over a text; ``_position`` is where it stands."""

    def __init__(self, file: str, text: str) -> None:
        self._file, self._text, self._position = file, text, 0
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._keys: dict[str, Span] = {}
        self._values: dict[str, Span] = {}
        self._items: dict[str, int] = {}  # how many tables an array of tables has

    def scan(self) -> TomlSpans:
        table = ""
        while self._next():
            if self._next() == "[":
                table = self._header()
            else:
                self._pair(table)
        return TomlSpans(self._file, self._keys, self._values)

    def _header(self) -> str:
        """``[a.b]`` or ``[[a.b]]``; the path of the table that follows."""
        brackets = 2 if self._text.startswith("[[", self._position) else 1
        self._position += brackets
        start = self._position
        path = self._key("", elements=True)
        self._keys[path] = self._span(start, self._position)  # better than where it is a part of another key
        self._position += brackets
        if brackets == 2:
            number = self._items.get(path, 0)
            self._items[path] = number + 1
            self._keys[f"{path}[{number}]"] = self._keys[path]
            return f"{path}[{number}]"
        return path

    def _pair(self, table: str) -> None:
        """``key = value`` in a table."""
        path = self._key(table)
        self._position += 1  # =
        self._take(_SPACE)
        self._value(path)

    def _key(self, table: str, *, elements: bool = False) -> str:
        """A dotted key, and its parts. In a header, an array of tables on the way stands for its last table."""
        self._take(_SPACE)
        start, path = self._position, table
        while True:
            if elements and path in self._items:
                path = f"{path}[{self._items[path] - 1}]"
            path = _joined(path, self._take(_PART))
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
                for _ in self._members("}"):
                    self._pair(path)
            case '"' | "'":
                self._take(_STRING)
            case _:
                self._position = start + len(self._take(_PLAIN).rstrip())
        self._values[path] = self._span(start, self._position)

    def _members(self, close: str) -> Iterator[int]:
        """Stand at each member of an array or inline table, and at last behind it."""
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
        """The text here that matches; the position is behind it then."""
        match = pattern.match(self._text, self._position)
        text = match[0] if match else ""
        self._position += len(text)
        return text

    def _next(self) -> str:
        """The first character behind blanks, lines and comments, where the position is then; empty at the end."""
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
