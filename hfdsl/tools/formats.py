"""The forms of a report: JSON, SARIF 2.1.0, workflow commands of GitHub Actions, and blocks for coding agents."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hfdsl
from hfdsl.check.codes import CODES, explain
from hfdsl.check.findings import Finding, Fix, Label, is_error
from hfdsl.check.report import Report
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.tools.agent_findings import AgentFinding, characters, relative, unusable

PACKAGE = str(Path(hfdsl.__file__).parent)
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_json(reports: Sequence[Report], failures: Sequence[str]) -> str:
    """One finding per line, and a line for omissions; failures go to stderr only."""
    return "\n".join(text for report in reports if (text := report.json()))


def as_sarif(reports: Sequence[Report], failures: Sequence[str]) -> str:
    """One SARIF log: every code among the findings is a rule with its explain page."""
    findings = [finding for report in reports for finding in report]
    codes = sorted({finding.code for finding in findings})
    messages = [*(("error", failure) for failure in failures), *omissions(reports)]
    notifications = [{"level": level, "message": {"text": text}} for level, text in messages]
    run = {
        "tool": {
            "driver": {
                "name": "hfdsl",
                "semanticVersion": hfdsl.__version__,
                "rules": [_rule(code) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": not failures, "toolExecutionNotifications": notifications}],
        "results": [_result(finding, codes.index(finding.code)) for finding in findings],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def as_github(reports: Sequence[Report], failures: Sequence[str]) -> str:
    """One annotation per finding, and one for omissions and unreadable files."""
    lines = [_annotation(finding) for report in reports for finding in report]
    lines += [f"::{ANNOTATIONS[level]} title=hfdsl::{_data(text)}" for level, text in omissions(reports)]
    return "\n".join([*lines, *(f"::error title=hfdsl::{_data(failure)}" for failure in failures)])


def as_agent(reports: Sequence[Report], failures: Sequence[str]) -> str:
    """For coding agents: a block for each finding, with a patch where a fix was tried, and a line that counts them."""
    findings = [*(finding for report in reports for finding in report), *map(unusable, failures)]
    left_out = [f"{level}: {text}" for level, text in omissions(reports)]
    errors = sum(map(is_error, findings))
    total = f"total: {errors} errors, {len(findings) - errors} warnings"
    return "\n\n".join([*(str(AgentFinding.of(finding)) for finding in findings), "\n".join([*left_out, total])])


ANNOTATIONS = {"warning": "warning", "note": "notice"}
"""The levels of SARIF as GitHub calls them."""


def omissions(reports: Sequence[Report]) -> Iterator[tuple[str, str]]:
    """The omissions of checks: unchecked sizes, which may hide a mistake, are a warning."""
    for report in reports:
        if report.coverage.omissions:
            level = "note" if report.coverage.all_sizes else "warning"
            yield level, f"check of '{report.dataflow}': {', '.join(report.coverage.omissions)}"


FORMATS: Mapping[str, Callable[[Sequence[Report], Sequence[str]], str]] = {
    "json": as_json,
    "sarif": as_sarif,
    "github": as_github,
    "agent": as_agent,
}
"""The forms for machines, each of the reports and of what could not be checked."""


# -- places


def _region(span: Span) -> dict[str, int]:
    start, end = characters(span)
    return {"startLine": span.line, "startColumn": start, "endLine": span.end_line, "endColumn": end}


def _is_known(span: Span) -> bool:
    return span != NOWHERE and not span.file.startswith("<") and not _is_installed(span.file)  # "<stdin>" is not a file


def _is_installed(file: str) -> bool:
    """Whether a file is an installed package's, and so of no repository that reads the output."""
    installed = not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)
    return installed or (file.startswith(PACKAGE) and relative(file, _root()) is None)


# -- SARIF


def _rule(code: str) -> dict[str, Any]:
    page = explain(code) or CODES[code].title
    return {
        "id": code,
        "shortDescription": {"text": CODES[code].title},
        "help": {"text": page, "markdown": page},
        "defaultConfiguration": {"level": CODES[code].severity},
    }


def _result(finding: Finding, rule: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": finding.severity.value,
        "message": {"text": _text(finding)},
        "locations": [_location(finding.primary)] if _is_known(finding.primary.span) else [],
        "relatedLocations": [
            {"id": i, **_location(label)}
            for i, label in enumerate((*finding.chain, *finding.related_places))
            if _is_known(label.span)
        ],
    }
    if finding.chain:
        frames = [finding.primary, *reversed(finding.chain)]  # innermost first
        result["stacks"] = [{"frames": [{"location": _location(label)} for label in frames if _is_known(label.span)]}]
    return {**result, "fixes": [_fix(fix) for fix in finding.fixes]} if finding.fixes else result


def _location(label: Label) -> dict[str, Any]:
    span = label.span
    region = _region(span) if span.end_column else {"startLine": span.line}
    place: dict[str, Any] = {"physicalLocation": {"artifactLocation": _artifact(span.file), "region": region}}
    return {**place, "message": {"text": label.text}} if label.text else place


def _artifact(file: str) -> dict[str, str]:
    from urllib.parse import quote

    below = relative(file, _root())
    return {"uri": Path(file).absolute().as_uri()} if below is None else {"uri": quote(below), "uriBaseId": "%SRCROOT%"}


def _fix(fix: Fix) -> dict[str, Any]:
    files = list(dict.fromkeys(edit.span.file for edit in fix.edits))
    return {
        "description": {"text": fix.title},
        "artifactChanges": [
            {
                "artifactLocation": _artifact(file),
                "replacements": [
                    {"deletedRegion": _region(edit.span), "insertedContent": {"text": edit.text}}
                    for edit in fix.edits
                    if edit.span.file == file
                ],
            }
            for file in files
        ],
    }


# -- GitHub Actions


def _root() -> str:
    """The folder that paths are relative to: the checkout in a workflow, otherwise the current folder."""
    return os.environ.get("GITHUB_WORKSPACE") or str(Path.cwd())


def _annotation(finding: Finding) -> str:
    span, properties = finding.primary.span, dict[str, object]()
    if _is_known(span):
        properties = {"file": relative(span.file, _root()) or span.file, "line": span.line}
        if span.end_column and span.end_line == span.line:  # GitHub takes columns within one line only
            properties |= dict(zip(("col", "endColumn"), characters(span), strict=True))
        elif span.end_line > span.line:
            properties["endLine"] = span.end_line
    properties["title"] = finding.code
    shown = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return f"::{finding.severity.value} {shown}::{_data(_text(finding))}"


def _text(finding: Finding) -> str:
    span = finding.primary.span
    place = [f"at {span}"] if span != NOWHERE and not _is_known(span) else []
    notes, helps = (f"note: {note}" for note in finding.notes), (f"help: {text}" for text in finding.help)
    return "\n".join([finding.message, *place, *notes, *helps])


def _data(text: str) -> str:
    r"""Escape the message of a workflow command, the part after the last ``::``.

    >>> _data("50 % 8 = 2\nsee")
    '50 %25 8 = 2%0Asee'
    """
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """The value of a property of a workflow command, where ``:`` and ``,`` mean something as well."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
