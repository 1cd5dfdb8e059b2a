"""Errors that a program or a configuration raised, converted to findings."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.codes import CODES
from hfdsl.check.findings import Finding, Fix, Label
from hfdsl.errors import ConfigError, HfError
from hfdsl.graph.spans import NOWHERE, Span, column_span, traceback_span


def finding_of(error: HfError) -> Finding | None:
    """An error as a finding, if it has a code."""
    if error.code not in CODES:
        return None
    span = error.span if isinstance(error.span, Span) else traceback_span(error)
    span = column_span(span, error.column) if error.column else span
    return Finding(
        error.code,
        error.message.removeprefix(f"{span.file}: "),
        Label(span),
        help=error.help,
        fixes=tuple(fix for fix in error.fixes if isinstance(fix, Fix)),
    )


def errors_in(error: HfError) -> Iterator[HfError]:
    """An error, and the further mistakes of the configuration."""
    yield error
    yield from error.others if isinstance(error, ConfigError) else ()


def findings_of(error: HfError) -> tuple[Finding, ...]:
    """Convert a raised error to findings."""
    return tuple(finding for leaf in errors_in(error) if (finding := finding_of(leaf)))


def raised_at(error: Exception) -> tuple[Label, ...]:
    """The user's line that raised an error, if there is one."""
    span = traceback_span(error)
    return () if span == NOWHERE else (Label(span, f"raises {type(error).__name__}"),)
