"""Reports for people: the code, the message, the user's lines with carets, related places, and suggested fixes."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Sequence
from functools import lru_cache

from hfdsl.check.findings import Finding, Label, is_error
from hfdsl.graph.spans import NOWHERE

_RED, _YELLOW, _BLUE, _BOLD, _END = "\033[31;1m", "\033[33;1m", "\033[34;1m", "\033[1m", "\033[0m"

LONGEST_LINE = 200
"""The maximum number of bytes of a line of code that is shown; a longer line is cut around the mark."""


def render(dataflow: str, findings: Sequence[Finding], facts: str = "", *, color: bool = False) -> str:
    """The report on a dataflow as text; ``facts`` end its last line, ``color`` is for a terminal."""
    blocks = [_finding(finding, color) for finding in findings]
    return "\n\n".join([*blocks, _summary(dataflow, findings, facts)])


def _summary(dataflow: str, findings: Sequence[Finding], facts: str) -> str:
    errors = sum(map(is_error, findings))
    warnings = len(findings) - errors
    if not findings:
        counts = "no findings"
    else:
        counts = ", ".join(
            f"{n} {word}{'s' if n > 1 else ''}" for n, word in ((errors, "error"), (warnings, "warning")) if n
        )
    return f"check of '{dataflow}': {counts}{facts}"


def _finding(finding: Finding, color: bool) -> str:
    paint = (lambda code, text: f"{code}{text}{_END}") if color else (lambda code, text: text)
    tint = _RED if finding.severity.value == "error" else _YELLOW
    lines = [f"{paint(tint, f'{finding.severity.value}[{finding.code}]')}: {paint(_BOLD, finding.message)}"]
    for i, label in enumerate((finding.primary, *finding.chain, *finding.related_places)):
        place = _place(label, i == 0)
        lines += [*place[:2], *(paint(tint if i == 0 else _BLUE, mark) for mark in place[2:])]
    lines += [f"  = note: {note}" for note in finding.notes]
    lines += [f"  = help: {text}" for text in finding.help]
    return "\n".join(lines)


def _place(label: Label, primary: bool) -> list[str]:
    """The file and line of a label; if the file can be read, the line with a mark under it."""
    span = label.span
    if span == NOWHERE:
        return [f"  = note: {label.text}"] if label.text else []
    head = f"{'  -->' if primary else '  :::'} {_short(span.file)}:{span.line}:{span.column + 1}"
    text = linecache.getline(span.file, span.line).rstrip("\n")
    if not text.strip():
        return [f"{head}  {label.text}".rstrip()]
    raw = text.encode()  # the parser's columns count bytes; the mark counts characters
    first = span.column if span.end_column else len(raw) - len(raw.lstrip())
    last = span.end_column if span.end_line == span.line else len(raw)
    if len(raw) > LONGEST_LINE:
        raw, first, last = _cut(raw, first, last)
        text = raw.decode(errors="ignore")
    before, marked = (part.decode(errors="ignore") for part in (raw[:first], raw[first:last]))
    mark = ("^" if primary else "-") * max(1, len(marked))
    margin, blank = " " * 5, re.sub(r"[^\t]", " ", before)  # a tab is as wide in both lines
    return [head, f"{span.line:>5} | {text}", f"{margin} | {blank}{mark} {label.text}".rstrip()]


def _cut(raw: bytes, first: int, last: int) -> tuple[bytes, int, int]:
    """A part of a long line, around its mark, and where the mark is in it."""
    start = max(0, first - LONGEST_LINE // 4)
    end = min(len(raw), start + LONGEST_LINE)
    head, tail = b"..." * (start > 0), b"..." * (end < len(raw))
    shift = len(head) - start
    return head + raw[start:end] + tail, first + shift, min(last, end) + shift


def _short(file: str) -> str:
    if cell := _cell(file):
        return cell
    return _relative(file, os.getcwd())  # noqa: PTH109  # a report needs no pathlib, which is slow to import


def _cell(file: str) -> str | None:
    """The cell of a notebook that a file stands for, such as ``In [3]``."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    numbers: dict[str, int] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return f"In [{numbers[file]}]" if file in numbers else None


@lru_cache(maxsize=64)
def _relative(file: str, folder: str) -> str:
    relative = os.path.relpath(file, folder)
    return file if relative.startswith("..") else relative
