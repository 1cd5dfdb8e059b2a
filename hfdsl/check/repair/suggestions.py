"""Suggestions: changes of a program in words. Each help line is a change that was made and checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hfdsl.check.context import Context, Option, Repairer
from hfdsl.check.findings import Finding, Fix


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Changes of one kind, any of which works: ``set B to``, ``8`` or ``12``, ``: every split works out``."""

    options: tuple[Option, ...]
    before: str = ""
    after: str = ""


def with_help(
    trials: Repairer, finding: Finding, suggestions: Iterable[Suggestion], most: int | None = None
) -> Finding:
    """The finding with the suggestions that repair it, at most so many. Help lines are made here alone."""
    lines, fixes = list[str](), list[Fix]()
    for suggestion in suggestions:
        working = [option for option in suggestion.options if trials.mends(finding, option)]
        if working:
            lines.append(f"{suggestion.before}{' or '.join(option.words for option in working)}{suggestion.after}")
            fixes += [option.fix for option in working if option.fix is not None]
        if most is not None and len(lines) >= most:
            break
    return replace(finding, help=(*finding.help, *lines), fixes=(*finding.fixes, *fixes))


def with_suggestions(
    context: Context, finding: Finding, suggestions: Iterable[Suggestion], advice: str = "", most: int | None = None
) -> Finding:
    """The finding with the suggestions that repair it, or with ``advice`` as a note if none does or none was tried."""
    trials = context.repairs(finding)
    helped = finding if trials is None else with_help(trials, finding, suggestions, most)
    return helped if helped.help else with_note(finding, advice)


def with_note(finding: Finding, advice: str) -> Finding:
    """The finding with one more note."""
    return replace(finding, notes=(*finding.notes, advice)) if advice else finding
