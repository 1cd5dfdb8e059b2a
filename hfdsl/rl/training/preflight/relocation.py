"""Findings of a configured run, moved from lines of the installed package to the configuration that causes them.

A ready-made dataflow is checked like any other, and its findings point at its Python. Users of a TOML file do not own
that code; they can change a key. So a finding that names ``B = 50`` moves to the key ``dims.B``, with its line in the
dataflow as a related place. Findings at the user's own lines, in Python or TOML, stay there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import hfdsl as hf
from hfdsl.check.findings import Finding, Label, order
from hfdsl.check.report import Report
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.rl.training.config import Loaded
from hfdsl.rl.training.typed import joined

PACKAGE = str(Path(hf.__file__).parent)
INSTALLED = {"site-packages", "dist-packages"}

DECIDING: Mapping[str, tuple[str, ...]] = {
    "HF352": ("options.epochs",),
    "HF360": ("options.rows",),
    "HF744": ("options.lag",),
    "HF745": ("options.lag",),
    "HF749": ("options.lag",),
    "HF754": ("options.lag",),
    "HF756": ("options.lag",),
    "HF759": ("options.lag",),
    "HF943": ("options.loss.correction", "options.loss"),
    "HF946": ("options.loss",),
    "HF947": ("options.loss",),
    "HF948": ("options.gamma",),
}
"""The options of ready-made dataflows that decide a finding, by its code: the first one that the dataflow has.

An option whose value the message states goes before them.
"""

OF_CLASSES = frozenset({"HF515", "HF516"})
"""Findings on the class of a role, which ``[roles]`` names, rather than on its placement."""

ENGINE = re.compile(r"'(\w+)' samples with")
"""The name of the role in HF943 whose engine it is about."""


ROLE = re.compile(r"role '(\w+)'")
"""The role that a finding on its class is about."""


def relocated(report: Report, loaded: Loaded, sizes: Mapping[str, str], table: str = "") -> Report:
    """The report with every finding at a place that the user can edit; ``sizes`` has the field of each dim's size.

    ``table`` names the dataflow that was checked: ``""``, ``"update"``, ``"evaluation"``.
    """
    if loaded.places is None:
        return report
    return replace(report, findings=order([_relocated(finding, loaded, sizes, table) for finding in report.findings]))


def is_installed(span: Span) -> bool:
    """Whether a place is in hfdsl itself, or in another installed package."""
    return span.file.startswith(PACKAGE) or not INSTALLED.isdisjoint(Path(span.file).parts)


def _relocated(finding: Finding, loaded: Loaded, sizes: Mapping[str, str], table: str) -> Finding:
    primary = finding.primary
    role = ROLE.match(finding.message) if finding.code in OF_CLASSES else None
    if loaded.places is not None and role is not None and role[1] in loaded.config.roles:
        return replace(finding, primary=loaded.places.label(f"roles.{role[1]}"))
    if loaded.places is None or not (primary.span == NOWHERE or is_installed(primary.span)):
        return finding
    field_name = next(_fields(finding, loaded, sizes, table))
    if primary.span == NOWHERE:
        return replace(finding, primary=loaded.places.label(field_name, primary.text))
    return replace(
        finding,
        primary=loaded.places.label(field_name),
        related=(*_engines(finding, loaded), primary, *finding.related),
        fixes=tuple(fix for fix in finding.fixes if not any(is_installed(edit.span) for edit in fix.edits)),
    )


def _engines(finding: Finding, loaded: Loaded) -> Iterator[Label]:
    """The key of the engine that a finding is about."""
    named = ENGINE.match(finding.message) if finding.code == "HF943" else None
    engine = None if named is None else f"{named[1]}.generation.engine"
    if engine is not None and loaded.places is not None and has_field(loaded.config, engine):
        is_auto = named is not None and named[1] in loaded.auto_engines
        yield loaded.places.label(engine, 'engine = "auto" takes vLLM here' if is_auto else "this engine samples")


def option_fields(finding: Finding, loaded: Loaded) -> Iterator[str]:
    """The options of dataflows whose values a finding states."""
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


def deciding_fields(finding: Finding, loaded: Loaded, table: str) -> Iterator[str]:
    """The options in ``DECIDING`` that decide a finding on the dataflow that ``table`` names."""
    named = (joined(table, option) for option in DECIDING.get(finding.code, ()))
    yield from (field for field in named if has_field(loaded.config, field))


def _fields(finding: Finding, loaded: Loaded, sizes: Mapping[str, str], table: str) -> Iterator[str]:
    """The fields that a finding may be about, the likeliest first."""
    config = loaded.config
    text = "\n".join((finding.message, finding.primary.text, *finding.notes))
    yield from option_fields(finding, loaded)
    yield from deciding_fields(finding, loaded, table)
    for dim, field in sizes.items():
        if re.search(rf"\b{re.escape(dim)} = {_value(config, field)}\b", text):
            yield field
    for role in loaded.roles:
        if re.search(rf"'{role}[.']|\b{role}\.\w", finding.message):
            placed = f"roles.{role}" if role in config.deployment.roles else "default"
            yield f"roles.{role}" if role in config.roles else f"deployment.{placed}"
    yield "deployment" if finding.code.startswith("HF5") else "algorithm"


def has_field(config: Any, field: str) -> bool:
    """Whether a configuration has a field, in dataclasses and dicts."""
    try:
        _value(config, field)
    except (AttributeError, KeyError):
        return False
    return True


def _value(config: Any, field: str) -> Any:
    """The value of a field, in dataclasses and dicts."""
    for name in field.split("."):
        config = config[name] if isinstance(config, Mapping) else getattr(config, name)
    return config
