"""Lowered runs: their TOML file, their dataflow with its deployment, and what hfdsl's own rules find in them.

A finding is at a field of the lowered run, and so at the key that decides it. One that no key decides, such as one
about the process that scores, says nothing about the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

from hfdsl.check.findings import Finding, Label
from hfdsl.check.raised import findings_of
from hfdsl.errors import HfError
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.interop.lowering import Lowered, LoweredField, NotLowered, label_of
from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import Loaded, from_table
from hfdsl.rl.training.config_names import Find, by_name
from hfdsl.rl.training.experiments import Experiments
from hfdsl.rl.training.places import CallPlace
from hfdsl.rl.training.toml.values import key_text, value_text
from hfdsl.rl.training.typed import joined
from hfdsl.types.foreign_text import parse_toml

WIDTH = 100

NO_KEY = ("algorithm", "options", "data", "roles")
"""Fields where a finding stands that is about no value in particular."""


NOT_SAID = frozenset({"HF503"})
"""Codes of which a lowered run says nothing: its ranks along ``tp`` may be those of context parallelism, and no library
says which nodes are linked like one."""


@dataclass(frozen=True, slots=True)
class KeyPlaces(CallPlace):
    """The places of the fields of a lowered run: the keys that decide them."""

    lowered: Lowered

    def span(self, field: str) -> Span:
        """The key of a field; nowhere for one that no key decides."""
        return self.label(field).span

    def label(self, field: str, text: str = "") -> Label:
        """Move a label to the key, with its value for a text that is about hfdsl's field."""
        keys = () if field in NO_KEY else self.lowered.keys_of(field)
        if not keys:
            return Label(NOWHERE, text)
        configuration = self.lowered.configuration
        explicit = [key for key in keys if configuration.setting(key) is not None]
        return label_of(configuration, (*explicit, *keys)[0])


def load(lowered: Lowered, changes: Sequence[str] = (), find: Find = by_name) -> Loaded:
    """The dataflow, roles and deployment of a lowered run.

    Raises:
        ConfigError: for a value that hfdsl does not take, at its key; and as ``Loaded.experiment``.
    """
    places = KeyPlaces(lowered.configuration.place, lowered)
    try:
        loaded = replace(from_table(parse_toml(to_toml(lowered)), changes, find), places=places, find=find)
        Experiments.of(loaded)
    except HfError as error:
        if error.field and error.span is None:
            span = places.span(error.field)
            error.span = None if span == NOWHERE else span
        raise
    return loaded


def own_findings(lowered: Lowered) -> tuple[Finding, ...]:
    """Apply hfdsl's own rules to a lowered run; findings stand at the library's keys, and notes name fields of hfdsl.

    Raises:
        NotLowered: HF981 for a value that hfdsl refuses, and the library may not.
    """
    try:
        loaded = load(lowered)
    except HfError as error:
        raise _not_taken(lowered, error) from None
    try:
        reports = ConfigCheck(elsewhere=True).reports(loaded)
    except HfError as error:
        return tuple(finding for finding in findings_of(error) if finding.primary.span != NOWHERE)
    return tuple(
        replace(finding, notes=(), help=(), fixes=())
        for report in reports
        for finding in report
        if finding.code not in NOT_SAID and finding.primary.span not in (NOWHERE, lowered.configuration.place)
    )


def _not_taken(lowered: Lowered, error: HfError) -> NotLowered:
    place = error.span if isinstance(error.span, Span) else lowered.configuration.place
    message = f"hfdsl does not take it: {error.message}"
    return NotLowered("HF981", message, Finding("HF981", message, Label(place)))


# -- the file


def to_toml(lowered: Lowered, title: str = "") -> str:
    """The TOML file of a run: every field with the keys that decide it, and what is left out."""
    head = wrap(title, WIDTH, initial_indent="# ", subsequent_indent="# ")
    lines = [*head, *_lines(lowered.table(), "", lowered.fields)]
    if lowered.left_out:
        lines += ["", "# Not lowered:"]
        for why, settings in lowered.reasons().items():
            lines += [f"#   {_comment(why)}:", *(f"#     {_comment(str(setting))}" for setting in settings)]
    return "\n".join(lines) + "\n"


def _lines(table: Mapping[str, Any], path: str, fields: Mapping[str, LoweredField]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path and plain:
        yield f"\n[{path}]"
    for key, value in plain.items():
        entry = fields[f"{path}.{key}" if path else key]
        comment = "; ".join(filter(None, (", ".join(entry.keys[:2]), entry.note)))
        yield f"{key_text(key)} = {value_text(value)}" + (f"  # {_comment(comment)}" if comment else "")
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _lines(value, joined(path, key_text(key)), fields)


def _comment(text: str) -> str:
    """A text without the control characters that a comment in TOML may not have."""
    return "".join(character if character.isprintable() else " " for character in text)
