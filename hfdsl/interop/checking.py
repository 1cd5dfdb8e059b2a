"""The check of a configuration of another library: what its reader found, and what the rules say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hfdsl.check.findings import Finding, order
from hfdsl.check.report import Coverage, Report
from hfdsl.interop.lowering import NotLowered
from hfdsl.interop.pages import Page, page
from hfdsl.interop.readers import Library, unknown_version
from hfdsl.interop.reading import Inputs, RunReading
from hfdsl.interop.reporting import judge
from hfdsl.interop.settings import Configuration
from hfdsl.interop.text import Unread


def check(library: Library, inputs: Inputs) -> Iterator[Report]:
    """A report for each run that the configuration describes.

    Raises:
        ReadError: HF970 if it cannot be read.
    """
    for name, reading in named_readings(library, inputs):
        yield report_on(library, reading, name, inputs.version)


def named_readings(library: Library, inputs: Inputs) -> Iterator[tuple[str, RunReading]]:
    """The runs that a configuration describes, by what reports call them.

    Raises:
        ReadError: HF970 if it cannot be read.
    """
    readings = library.read(inputs)
    for number, reading in enumerate(readings):
        yield inputs.path if len(readings) == 1 else f"{inputs.path}, command {number + 1}", reading


def report_on(library: Library, reading: RunReading, name: str, version: str = "") -> Report:
    """The report on one run."""
    configuration = reading.configuration
    judged = judge(configuration, library.rules)
    version_finding = unknown_version(library, version, configuration.place)
    findings = order(_once((*reading.findings, *judged.findings, *((version_finding,) if version_finding else ()))))
    not_judged = judged.not_judged
    if not any(finding is not version_finding for finding in findings):
        lowered, also_left = _as_lowered(library, configuration)
        findings, not_judged = order([*findings, *lowered]), (*not_judged, *also_left)
    left_out = list(dict.fromkeys(_text(reason, str(span)) for reason, span in _left_out(reading, not_judged)))
    facts = f" with {library.name} {library.version}"
    if reading.assumed_unset:
        verb = "is" if len(reading.assumed_unset) == 1 else "are"
        facts += f"\nassumed: {_names_in_words(reading.assumed_unset)} {verb} not set"
        facts += " in the environment (--env NAME=VALUE)"
    facts += "".join(f"\nnot judged: {text}" for text in left_out)
    return Report(name, findings, facts, Coverage(not_judged=tuple(left_out)))


def _as_lowered(library: Library, configuration: Configuration) -> tuple[tuple[Finding, ...], tuple[Unread, ...]]:
    """Apply hfdsl's own rules to the run if it has a counterpart in hfdsl; otherwise return why it has none."""
    from hfdsl.interop.lowered_runs import own_findings  # late: its dataflows take a fifth of a second

    try:
        return own_findings(library.lower(configuration)), ()
    except NotLowered as error:
        return (), (Unread(f"the rules of hfdsl's dataflows: {error.message}", error.finding.primary.span),)


def explain(library: Library, inputs: Inputs) -> Iterator[Page]:
    """A page for each run that the configuration describes: what it is going to do, in plain words.

    Raises:
        ReadError: HF970 if it cannot be read.
    """
    for name, reading in named_readings(library, inputs):
        unread = [_text(entry.reason, str(entry.span)) for entry in reading.unread]
        if reading.assumed_unset:
            unread.append(f"variables of the environment, taken as not set: {_names_in_words(reading.assumed_unset)}")
        yield page(f"{name}, with {library.name} {library.version}", library.outline, reading.configuration, unread)


def _left_out(reading: RunReading, not_judged: object) -> Iterator[tuple[str, object]]:
    for unread in (*reading.unread, *not_judged):  # type: ignore[misc]  # tuples of Unread
        yield unread.reason, unread.span


def _text(reason: str, place: str) -> str:
    return reason if place.startswith("<") else f"{place}: {reason}"


def _names_in_words(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:6])} and {len(names) - 6} more"


def _once(findings: tuple[Finding, ...]) -> list[Finding]:
    """Findings without those that say the same of the same place."""
    seen: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        seen.setdefault((finding.code, finding.message, finding.primary.span), replace(finding))
    return list(seen.values())
