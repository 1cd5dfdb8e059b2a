"""Messages for texts that are not TOML, which say what to write instead.

``tomllib`` reports where it stopped, but seldom why: for ``fast = True`` it reports ``Invalid value``. Most such texts
are habits from Python, JSON or YAML, which the characters at the place reveal.
"""

from __future__ import annotations

import re
import tomllib

from hfdsl.graph.spans import Span

_HABITS = (
    (r"True\b|False\b", "TOML writes true and false"),
    (r"None\b|null\b|nil\b", 'TOML has no null: leave the key out, or write "none"'),
    (r"[\u201c\u201d\u201e\u2018\u2019]", "a string has straight quotes"),
    (r":", "TOML writes KEY = VALUE"),
    (r"[A-Za-z_./~$][^\s,\]}#]*", "a string has quotes"),
)
"""The beginning of the rest of a line at an error, and what to write instead."""

_TWICE = re.compile(r"Cannot (?:declare \((.*?),?\) twice|overwrite a value|mutate immutable)")


def syntax_problem(text: str, span: Span, error: tomllib.TOMLDecodeError) -> str:
    """The message of an error, with the reason if it is a known one.

    >>> def problem(text):
    ...     try:
    ...         tomllib.loads(text)
    ...     except tomllib.TOMLDecodeError as error:
    ...         return syntax_problem(text, Span("run.toml", 1, int(str(error).rpartition(" ")[2][:-1]) - 1), error)
    >>> print(problem("fast = True"), problem("output = runs/grpo"), sep="; ")
    Invalid value: TOML writes true and false; Invalid value: a string has quotes
    """
    message = re.sub(r" \(at .*\)$", "", str(error))
    lines = text.split("\n")
    line = lines[span.line - 1] if 0 < span.line <= len(lines) else ""
    remainder = line.encode()[span.column :].decode(errors="replace")
    if _TWICE.match(message):
        name = line.partition("=")[0].strip().strip("[]").strip()
        first = _line_of(lines[: span.line - 1], name)
        return f"'{name}' is there twice" + (f", already in line {first}" if first else "")
    if message.startswith("Illegal character '\\n'"):
        return "the string has no end: its quote is missing"
    if message.startswith(("Invalid", "Expected '='")):
        for habit, reason in _HABITS:
            if re.match(habit, remainder):
                return f"{message}: {reason}"
    return f"it is not TOML: {message}"


def _line_of(lines: list[str], name: str) -> int | None:
    """The number of the last line that is a header of a name, or assigns to it."""
    defines_name = re.compile(rf"\s*(?:\[+\s*{re.escape(name)}\s*\]|{re.escape(name)}\s*=)")
    return next((number for number in range(len(lines), 0, -1) if defines_name.match(lines[number - 1])), None)
