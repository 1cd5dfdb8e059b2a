"""Findings: the mistakes that a check reports, each with places in the user's source and suggested fixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from hfdsl.check.codes import CODES
from hfdsl.graph.spans import NOWHERE, Span

VERSION = 1
"""The version of the machine format: it grows when a field changes or goes, not when one is added."""


class Severity(Enum):
    """An error refutes the program; a warning is something undecided, or rarely intended."""

    ERROR = "error"
    WARNING = "warning"


def in_words(names: Sequence[str]) -> str:
    """Names in quotes, as a sentence lists them.

    >>> in_words(["scores"]), in_words(["scores", "returns", "mask"])
    ("'scores'", "'scores', 'returns' and 'mask'")
    """
    *first, last = (f"'{name}'" for name in names)
    return f"{', '.join(first)} and {last}" if first else last


MAX_CALLS = 6
"""The number of calls shown at the start of the way to a place, and at its end."""


@dataclass(frozen=True, slots=True)
class Label:
    """A place in the user's code and what to say about it."""

    span: Span
    text: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """The text at ``span`` becomes ``text``; a span that ends where it begins is an insertion."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A tried change of the user's text: its finding disappears and no other appears."""

    title: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake: its code, message and place, the other places involved, and its repairs.

    ``help`` is for people; ``fixes`` are alternatives that a tool can apply, best first.
    """

    code: str
    message: str
    primary: Label
    related: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()

    @property
    def chain(self) -> tuple[Label, ...]:
        """The calls through which the dataflow reaches the place, outermost first: of inner dataflows and helpers.

        Of very many, the first and the last ones.
        """
        calls = self.primary.span.calls
        labels = [Label(site.span, f"'{site.callee}' is called here") for site in calls]
        if len(calls) <= 2 * MAX_CALLS:
            return tuple(labels)
        left_out = f"{labels[MAX_CALLS - 1].text}, and {len(calls) - 2 * MAX_CALLS} calls follow that are left out"
        return (*labels[: MAX_CALLS - 1], replace(labels[MAX_CALLS - 1], text=left_out), *labels[-MAX_CALLS:])

    @property
    def related_places(self) -> tuple[Label, ...]:
        """The other places involved; for the primary place itself, the call by which it was reached the other time.

        Both are one place where a helper that is called twice contains it.
        """
        return tuple(replace(label, span=_parting(label.span, self.primary.span)) for label in self.related)

    @property
    def severity(self) -> Severity:
        """The severity from the table of codes."""
        return Severity(CODES[self.code].severity)

    def as_dict(self) -> dict[str, Any]:
        """The finding for tools: lines from 1, columns from 0 in bytes of UTF-8, ends exclusive."""

        def place(span: Span) -> dict[str, Any]:
            return {
                "file": span.file,
                "line": span.line,
                "column": span.column,
                "endLine": span.end_line,
                "endColumn": span.end_column,
            }

        def labeled(label: Label) -> dict[str, Any]:
            return {**place(label.span), "label": label.text}

        return {
            "version": VERSION,
            "code": self.code,
            "severity": self.severity.value,
            "message": self.message,
            "primary": labeled(self.primary),
            "calls": [labeled(label) for label in self.chain],
            "related": [labeled(label) for label in self.related_places],
            "notes": list(self.notes),
            "help": list(self.help),
            "fixes": [
                {"title": fix.title, "edits": [{**place(edit.span), "text": edit.text} for edit in fix.edits]}
                for fix in self.fixes
            ],
        }


def is_error(finding: Finding) -> bool:
    """Whether a finding refutes the program."""
    return finding.severity is Severity.ERROR


def _parting(span: Span, other: Span) -> Span:
    """The place, or if the other one is the same place, the first call on the way to it that is not on the other's."""
    calls = zip(span.calls, other.calls, strict=False) if span == other else ()
    return next((call.span for call, others in calls if call.span != others.span), span)


def order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Errors before warnings, then by place."""
    return tuple(sorted(findings, key=lambda f: (not is_error(f), f.primary.span == NOWHERE, f.primary.span.line)))
