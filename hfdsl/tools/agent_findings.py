"""Findings for coding agents: flat, with places that an editor shows, and a patch where a fix was tried."""

from __future__ import annotations

import linecache
import os
import re
from dataclasses import dataclass
from pathlib import Path

from hfdsl.check.findings import Finding, Label
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.tools.patches import patch


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file, and what to say about it."""

    file: str
    """Relative to the current folder where it is below it; empty if there is no place."""
    line: int
    """From 1; 0 if there is none."""
    column: int
    """In characters, from 1; 0 for the whole line."""
    text: str

    @classmethod
    def of(cls, label: Label) -> Place:
        """The place of a label."""
        span = label.span
        if span == NOWHERE:
            return cls("", 0, 0, label.text)
        file = relative(span.file, str(Path.cwd())) or span.file
        return cls(file, span.line, characters(span)[0] if span.end_column else 0, label.text)

    def __str__(self) -> str:
        """As compilers write it: ``file:line:column``."""
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part)


@dataclass(frozen=True, slots=True)
class AgentFinding:
    """One mistake in a program."""

    code: str
    """Such as HF310; the tool explain has the rule."""
    severity: str
    """error or warning"""
    message: str
    place: Place
    related: tuple[Place, ...]
    """Other places that are involved."""
    notes: tuple[str, ...]
    help: tuple[str, ...]
    """Changes that were tried: each removes the finding."""
    patch: str
    """A fix that was tried, for git apply in the server's folder; empty if there is none."""

    @classmethod
    def of(cls, finding: Finding) -> AgentFinding:
        """A finding with its first fix that can be applied."""
        return cls(
            code=finding.code,
            severity=finding.severity.value,
            message=finding.message,
            place=Place.of(finding.primary),
            related=tuple(Place.of(label) for label in (*finding.chain, *finding.related_places) if label.text),
            notes=finding.notes,
            help=finding.help,
            patch=next(filter(None, map(patch, finding.fixes)), ""),
        )

    def __str__(self) -> str:
        """A block: code, severity and place; the message; other places, notes and help in a line each; the patch."""
        lines = [f"{self.code} {self.severity} {self.place}".rstrip(), self.message]
        lines += [f"at {place}: {place.text}" for place in self.related]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"help: {text}" for text in self.help]
        block = "\n".join(" ".join(line.split("\n")) for line in lines)
        return f"{block}\npatch:\n{self.patch}".rstrip("\n") if self.patch else block


def unusable(failure: str) -> Finding:
    """Why a command cannot use its target or an option, as a finding.

    Of a traceback it has the last line, and the innermost place in a file that is not installed.
    """
    reason, _, trace = failure.partition("\n\n")
    if not trace:
        return Finding("HF992", reason, Label(NOWHERE))
    places = [Span(file, int(line)) for file, line in re.findall(r'^ *File "(.+)", line (\d+)', trace, re.MULTILINE)]
    raised = trace.rstrip().splitlines()[-1]
    return Finding("HF992", f"{reason}: {raised}", Label(next(filter(_is_users, reversed(places)), NOWHERE)))


def _is_users(span: Span) -> bool:
    """Whether a place is in a file that is neither Python's, nor installed, nor hfdsl's own."""
    excluded = os.path.dirname(os.__file__), str(Path(__file__).parents[1])  # noqa: PTH120
    installed = not {"site-packages", "dist-packages"}.isdisjoint(Path(span.file).parts)
    return (
        not installed and Path(span.file).is_file() and all(relative(span.file, folder) is None for folder in excluded)
    )


def characters(span: Span) -> tuple[int, int]:
    """The columns of a span in characters from 1, the end exclusive: those of the parser count bytes from 0."""

    def column(line: int, count: int) -> int:
        return len(linecache.getline(span.file, line).encode()[:count].decode(errors="ignore")) + 1

    return column(span.line, span.column), column(span.end_line, span.end_column)


def relative(file: str, root: str) -> str | None:
    """The path of a file below ``root``, with slashes; None for one elsewhere."""
    path, base = Path(os.path.realpath(file)), Path(os.path.realpath(root))
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else None
