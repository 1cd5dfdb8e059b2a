"""Offers: changes of a program in words. A help line is one that was made and checked again; nothing else is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from hfdsl.check.findings import Finding, Fix
from hfdsl.check.subject import Subject

if TYPE_CHECKING:
    from hfdsl.check.repair.trials import Trials


Change: TypeAlias = Callable[[Subject], Subject | None]
"""From a program to a changed one; None where it cannot be made."""


@dataclass(frozen=True, slots=True)
class Option:
    """One change: what it is called, what it makes of a program, and the edits of the user's text that do it.

    ``beside`` makes what the changed program is compared with, where that is not the program itself.
    """

    words: str
    change: Change
    fix: Fix | None = None
    beside: Change | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """Changes of one kind, any of which will do: ``set B to``, ``8`` or ``12``, ``: every split works out``."""

    options: tuple[Option, ...]
    before: str = ""
    after: str = ""


def offered(trials: Trials, finding: Finding, offers: Iterable[Offer], most: int | None = None) -> Finding:
    """The finding with those of the offers that mend it, at most so many: here alone a help line is made."""
    lines, fixes = list[str](), list[Fix]()
    for offer in offers:
        working = [option for option in offer.options if trials.mends(finding, option)]
        if working:
            lines.append(f"{offer.before}{' or '.join(option.words for option in working)}{offer.after}")
            fixes += [option.fix for option in working if option.fix is not None]
        if most is not None and len(lines) >= most:
            break
    return replace(finding, help=(*finding.help, *lines), fixes=(*finding.fixes, *fixes))


def mended(
    subject: Subject, finding: Finding, offers: Iterable[Offer], advice: str = "", most: int | None = None
) -> Finding:
    """The finding with what mends it; with ``advice`` as a note where nothing was tried, or nothing that was works."""
    trials = subject.repairs(finding)
    helped = finding if trials is None else offered(trials, finding, offers, most)
    return helped if helped.help else advised(finding, advice)


def advised(finding: Finding, advice: str) -> Finding:
    """The finding with one more note."""
    return replace(finding, notes=(*finding.notes, advice)) if advice else finding
