"""Findings and reports: what a check says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from hfdsl.check.codes import CODES
from hfdsl.errors import HfError
from hfdsl.graph.spans import NOWHERE, Span

VERSION = 1
"""Of a finding for machines; it grows when a field changes its meaning or goes, not when one is added."""


class Severity(Enum):
    """An error refutes the program; a warning is a thing that could not be decided, or that is rarely meant."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Label:
    """A place in the user's code and what is to be said of it."""

    span: Span
    text: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """What stands at ``span`` is replaced by ``text``; nothing stands at a span that ends where it begins."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of the user's text that was tried: its finding disappears and no other appears."""

    title: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake: its code, what is wrong, where, the other places that take part in it, and what mends it.

    ``help`` is for people; ``fixes`` are alternatives that a machine can apply, the best one first.
    """

    code: str
    message: str
    primary: Label
    related: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()

    @property
    def severity(self) -> Severity:
        """As the table of codes has it."""
        return Severity(CODES[self.code].severity)

    def as_dict(self) -> dict[str, Any]:
        """For machines: lines from 1, columns from 0 in bytes of UTF-8, ends exclusive."""

        def place(span: Span) -> dict[str, Any]:
            return {
                "file": span.file,
                "line": span.line,
                "column": span.column,
                "endLine": span.end_line,
                "endColumn": span.end_column,
            }

        def labelled(label: Label) -> dict[str, Any]:
            return {**place(label.span), "label": label.text}

        return {
            "version": VERSION,
            "code": self.code,
            "severity": self.severity.value,
            "message": self.message,
            "primary": labelled(self.primary),
            "related": [labelled(label) for label in self.related],
            "notes": list(self.notes),
            "help": list(self.help),
            "fixes": [
                {"title": fix.title, "edits": [{**place(edit.span), "text": edit.text} for edit in fix.edits]}
                for fix in self.fixes
            ],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of one check, errors first, each kind in the order of the program.

    ``str(report)`` is for people, ``report.json()`` for machines; a report is true where there is no error in it.
    """

    dataflow: str
    findings: tuple[Finding, ...] = ()
    facts: str = field(default="", compare=False)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that refute the program."""
        return tuple(f for f in self.findings if f.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that do not."""
        return tuple(f for f in self.findings if f.severity is Severity.WARNING)

    @property
    def ok(self) -> bool:
        """Whether the program may be launched."""
        return not self.errors

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes found, in order."""
        return tuple(finding.code for finding in self.findings)

    def without(self, code: str) -> Report:
        """The same without the findings of a code."""
        return replace(self, findings=tuple(finding for finding in self.findings if finding.code != code))

    def __bool__(self) -> bool:
        return self.ok

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __str__(self) -> str:
        from hfdsl.check.render import render

        return render(self)

    def json(self) -> str:
        """One object a line."""
        import json  # not at the top: `import hfdsl` is kept fast

        return "\n".join(json.dumps(finding.as_dict()) for finding in self.findings)


class CheckError(HfError):
    """A program that its check refutes: ``report`` has all findings (the message shows them)."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.errors[0].code, f"'{report.dataflow}' has {len(report.errors)} error(s)\n\n{report}")
        self.report = report


def order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Errors before warnings, then by place."""
    return tuple(
        sorted(
            findings, key=lambda f: (f.severity is not Severity.ERROR, f.primary.span == NOWHERE, f.primary.span.line)
        )
    )
