"""Conditions of shell scripts over words that may be unknown: true, false, or None if unknown."""

from __future__ import annotations

from collections.abc import Sequence


def test(words: Sequence[str | None]) -> bool | None:
    """The truth of ``[ ... ]`` with these words; None if unknown."""
    if words and words[0] == "!":
        truth = test(words[1:])
        return None if truth is None else not truth
    match list(words):
        case [str(text)]:
            return text != ""
        case ["-z" | "-n" as operator]:
            return operator == "-z"
        case ["-z", str(text)]:
            return text == ""
        case ["-n", str(text)]:
            return text != ""
        case [str(left), "=" | "==", str(right)]:
            return left == right
        case [str(left), "!=", str(right)]:
            return left != right
        case [str(left), "-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge" as operator, str(right)]:
            return _compared(left, operator, right)
    return None


def _compared(left: str, operator: str, right: str) -> bool | None:
    try:
        a, b = int(left), int(right)
    except ValueError:
        return None
    return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}[operator]


def combined(operator: str, left: bool | None, right: bool | None) -> bool | None:
    """Three-valued ``&&`` and ``||``."""
    decides = operator == "||"
    if left is decides or right is decides:
        return decides
    return None if left is None or right is None else not decides
