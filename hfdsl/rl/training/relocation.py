"""Findings of a configured run, moved from lines of the installed package to the configuration that asks for them.

A ready dataflow is checked like any other, and its findings point at its Python. Users of a TOML file own neither that
file nor its repository: what they can change is a key. A finding that names ``B = 50`` moves to the key ``dims.B``, and
its line in the dataflow stays as a related place. Findings at lines of the user's own, in Python or TOML, stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import hfdsl as hf
from hfdsl.check.findings import Finding, order
from hfdsl.check.report import Report
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.rl.training.config import Loaded
from hfdsl.rl.training.typed import joined

PACKAGE = str(Path(hf.__file__).parent)
INSTALLED = {"site-packages", "dist-packages"}


def relocated(report: Report, loaded: Loaded, sizes: Mapping[str, str]) -> Report:
    """The report with every finding at a place that the user can edit; ``sizes`` are the fields of the dims' sizes."""
    if loaded.places is None:
        return report
    return replace(report, findings=order([_relocated(finding, loaded, sizes) for finding in report.findings]))


def is_installed(span: Span) -> bool:
    """Whether a place is in hfdsl itself, or in another installed package."""
    return span.file.startswith(PACKAGE) or not INSTALLED.isdisjoint(Path(span.file).parts)


def _relocated(finding: Finding, loaded: Loaded, sizes: Mapping[str, str]) -> Finding:
    primary = finding.primary
    if loaded.places is None or not (primary.span == NOWHERE or is_installed(primary.span)):
        return finding
    field_name = next(_fields(finding, loaded, sizes))
    if primary.span == NOWHERE:
        return replace(finding, primary=loaded.places.label(field_name, primary.text))
    if loaded.places.change(field_name):
        return finding
    return replace(
        finding,
        primary=loaded.places.label(field_name),
        related=(primary, *finding.related),
        fixes=tuple(fix for fix in finding.fixes if not any(is_installed(edit.span) for edit in fix.edits)),
    )


def option_fields(finding: Finding, loaded: Loaded) -> Iterator[str]:
    """The options of dataflows that a finding is about."""
    config = loaded.config
    for table, part in {"": config, "update": config.update, "evaluation": config.evaluation}.items():
        for name, value in _options(part):
            if finding.message.startswith(f"'{name}' of ") and finding.message.endswith(f" is {value!r}"):
                yield joined(table, f"options.{name}")


def _options(config: object) -> Iterator[tuple[str, Any]]:
    """The options of the dataflow that a configuration names."""
    options = getattr(config, "options", None)
    names = getattr(options, "__dataclass_fields__", {})
    yield from options.items() if isinstance(options, Mapping) else ((name, getattr(options, name)) for name in names)


def _fields(finding: Finding, loaded: Loaded, sizes: Mapping[str, str]) -> Iterator[str]:
    """The fields that a finding may be about, the likeliest first."""
    config = loaded.config
    text = "\n".join((finding.message, finding.primary.text, *finding.notes))
    yield from option_fields(finding, loaded)
    for dim, field in sizes.items():
        if re.search(rf"\b{re.escape(dim)} = {_value(config, field)}\b", text):
            yield field
    for role in loaded.roles:
        if re.search(rf"'{role}[.']|\b{role}\.\w", finding.message):
            placed = f"roles.{role}" if role in config.deployment.roles else "default"
            yield f"roles.{role}" if role in config.roles else f"deployment.{placed}"
    yield "deployment" if finding.code.startswith("HF5") else "algorithm"


def _value(config: Any, field: str) -> Any:
    """The value of a field, in dataclasses and dicts."""
    for name in field.split("."):
        config = config[name] if isinstance(config, Mapping) else getattr(config, name)
    return config
