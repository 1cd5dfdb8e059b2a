"""Values of configurations as their text has them: the scalars of YAML, and the values of Hydra's overrides."""

from __future__ import annotations

import re
from typing import Any

_INT = re.compile(r"[+-]?(0|[1-9][0-9]*(_[0-9]+)*)")
_FLOAT = re.compile(
    r"[+-]?(([0-9]+(_[0-9]+)*)?\.[0-9]+([eE][+-]?[0-9]+)?|[0-9]+\.?([eE][+-]?[0-9]+)|[0-9]+\.|inf|nan)", re.IGNORECASE
)
_QUOTED = re.compile(r"""'((?:\\'|[^'])*)'|"((?:\\"|[^"])*)\"""")

MAX_DIGITS = 30
MAX_DEPTH = 30


class NoValueError(ValueError):
    """A text that this reader does not take for a value, though Hydra may."""


class SweepError(NoValueError):
    """A list without brackets, which Hydra takes for values of several runs, and refuses for one."""


def scalar(text: str) -> Any:
    """The value of a text without quotes.

    >>> [scalar(text) for text in ("1_000", "1e-6", "True", "null", "vllm")]
    [1000, 1e-06, True, None, 'vllm']
    """
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("null", "~"):
        return None
    if len(text) <= MAX_DIGITS:
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text


def override_value(text: str) -> Any:
    """The value of ``key=value`` on Hydra's command line.

    Raises:
        NoValueError: for brackets or quotes that do not match, and as ``SweepError`` for ``1,2``.

    >>> override_value("[a, 'b c', {k: 1}]")
    ['a', 'b c', {'k': 1}]
    """
    reader = _Reader(text.strip())
    if not reader.text:
        return ""
    value = reader.value(0)
    reader.blanks()
    if reader.position < len(reader.text):
        if reader.text[reader.position] == ",":
            raise SweepError("a comma outside of brackets and quotes lists the values of several runs")
        raise NoValueError(f"'{reader.text[reader.position]}' is not expected here")
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

    def blanks(self) -> None:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1

    def value(self, depth: int) -> Any:
        self.blanks()
        if depth > MAX_DEPTH:
            raise NoValueError(f"nested more than {MAX_DEPTH} deep")
        character = self.text[self.position : self.position + 1]
        if character == "[":
            return [self.value(depth + 1) for _ in self._members("]")]
        if character == "{":
            return dict(self._pair(depth) for _ in self._members("}"))
        if character in ("'", '"'):
            match = _QUOTED.match(self.text, self.position)
            if match is None:
                raise NoValueError("a quote that is not closed")
            self.position = match.end()
            return match[1] if match[1] is not None else match[2]
        return scalar(self._bare("" if depth == 0 else ","))

    def _pair(self, depth: int) -> tuple[str, Any]:
        self.blanks()
        match = _QUOTED.match(self.text, self.position) or re.compile(r"(?:\\.|[^:,{}\[\]\\])+").match(
            self.text, self.position
        )
        if match is None:
            raise NoValueError("a key is missing")
        self.position = match.end()
        self.blanks()
        if self.text[self.position : self.position + 1] != ":":
            raise NoValueError("':' is missing behind a key")
        self.position += 1
        return match[0].strip().strip("'\""), self.value(depth + 1)

    def _members(self, close: str) -> Any:
        self.position += 1
        self.blanks()
        while self.text[self.position : self.position + 1] != close:
            if self.position >= len(self.text):
                raise NoValueError(f"'{close}' is missing")
            yield None
            self.blanks()
            if self.text[self.position : self.position + 1] == ",":
                self.position += 1
                self.blanks()
            elif self.text[self.position : self.position + 1] != close:
                raise NoValueError(f"',' or '{close}' is missing")
        self.position += 1

    def _bare(self, _stops: str) -> str:
        start = self.position
        while self.position < len(self.text):
            if self.text.startswith("${", self.position):
                self._interpolation()
            elif self.text[self.position] == "\\":
                self.position += 2
            elif self.text[self.position] in ",[]{}":
                break
            else:
                self.position += 1
        if self.position == start:
            raise NoValueError("a value is missing")
        return self.text[start : self.position].strip()

    def _interpolation(self) -> None:
        depth = 0
        while self.position < len(self.text):
            depth += {"{": 1, "}": -1}.get(self.text[self.position], 0)
            self.position += 1
            if depth == 0 and self.text[self.position - 1] == "}":
                return
        raise NoValueError("'${' is not closed")
