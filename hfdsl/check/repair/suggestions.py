"""Suggestions: changes to a program, in words. Each help line is a change that was tried and checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hfdsl.check.context import Change, Context, Tester
from hfdsl.check.findings import Finding, Fix


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Changes of one kind, each of which suffices: ``set B to``, ``8`` or ``12``, ``: every split holds``."""

    changes: tuple[Change, ...]
    before: str = ""
    after: str = ""


def with_help(
    removes_it: Tester, finding: Finding, suggestions: Iterable[Suggestion], most: int | None = None
) -> Finding:
    """The finding with up to ``most`` suggestions that remove it. Only this module writes help lines."""
    lines, fixes = list[str](), list[Fix]()
    for suggestion in suggestions:
        working = [change for change in suggestion.changes if removes_it(change)]
        if working:
            lines.append(f"{suggestion.before}{' or '.join(change.words for change in working)}{suggestion.after}")
            fixes += [change.fix for change in working if change.fix is not None]
        if most is not None and len(lines) >= most:
            break
    return replace(finding, help=(*finding.help, *lines), fixes=(*finding.fixes, *fixes))


def with_suggestions(
    context: Context, finding: Finding, suggestions: Iterable[Suggestion], note: str = "", most: int | None = None
) -> Finding:
    """The finding with the suggestions that remove it, or with a note if none does or none was tried."""
    removes_it = context.tester(finding)
    helped = finding if removes_it is None else with_help(removes_it, finding, suggestions, most)
    return helped if helped.help else with_note(finding, note)


def with_note(finding: Finding, note: str) -> Finding:
    """The finding with one more note, unless that is empty."""
    return replace(finding, notes=(*finding.notes, note)) if note else finding
