"""The places of a configuration's fields: in its file, or in the file of its deployment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hfdsl.check.findings import Edit, Label
from hfdsl.errors import ConfigError, HfError
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.rl.training.toml.changes import FieldChange, edits_of
from hfdsl.rl.training.toml.spans import TomlSpans, read_spans
from hfdsl.rl.training.toml.tables import read_toml

DEPLOYMENT, OPTIONS = "deployment", "options"


@dataclass(frozen=True, slots=True)
class Places:
    """The files of a configuration, and the changes to them on the command line (``--set``)."""

    main: TomlSpans
    deployment: TomlSpans | None = None
    changes: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: str | Path, changes: Sequence[str] = ()) -> Places:
        """The places of a file, and of the file of its deployment if it names one."""
        places = cls(read_spans(path), changes=tuple(changes))
        try:
            deployment = read_toml(path).get(DEPLOYMENT)
        except ConfigError:
            return places
        return replace(places, deployment=read_spans(deployment)) if isinstance(deployment, str) else places

    def with_deployment(self, table: Mapping[str, Any]) -> Places:
        """The places with those in the deployment's file, if the table has one; a change may have replaced it."""
        deployment = table.get(DEPLOYMENT)
        file = deployment.get("file") if isinstance(deployment, Mapping) else None
        return replace(self, deployment=read_spans(file) if isinstance(file, str) else None)

    def span(self, field: str) -> Span:
        """The key of a field, or of the nearest one above it."""
        head, _, below = field.partition(".")
        if head == DEPLOYMENT and below and self.deployment is not None:
            return self.deployment.at(below)
        if head == OPTIONS and head not in self.main.keys:
            return self.main.at("algorithm")  # its options have their defaults
        return self.main.at(field)

    def label(self, field: str, text: str = "") -> Label:
        """The key of a field with a text; a value from the command line has no place in the file.

        Without a text, the changes of fields below it are named.
        """
        if (change := self.change(field)) is not None:
            return Label(NOWHERE, f"--set {change}")
        changes = (f"--set {change}" for change in self.changes if change.startswith(f"{field}."))
        return Label(self.span(field), text or ", ".join(changes))

    def edits(self, change: FieldChange) -> tuple[Edit, ...]:
        """The edits that make a change of a field; none if its value is from the command line."""
        field = change.field
        if self.change(field):
            return ()
        head, _, below = field.partition(".")
        if head == DEPLOYMENT and below and self.deployment is not None:
            return edits_of(replace(change, field=below), self.deployment)
        return edits_of(change, self.main)

    def change(self, field: str) -> str | None:
        """The last change on the command line of a field, or of one above it."""
        return next((change for change in reversed(self.changes) if _is_of(field, change)), None)

    def _change_below(self, field: str) -> str | None:
        """The last change of a field below one that only the command line has."""
        if not field or field in self.main.keys:
            return None
        return next((change for change in reversed(self.changes) if change.startswith(f"{field}.")), None)

    @contextmanager
    def located(self) -> Iterator[None]:
        """A context in which errors about fields name their file, line and key."""
        try:
            yield
        except ConfigError as error:
            raise self._located(error) from None
        except HfError as error:
            if error.field and error.span is None and not self.change(error.field):
                error.span = self.span(error.field)
            raise

    def _located(self, error: ConfigError) -> ConfigError:
        span = error.span if isinstance(error.span, Span) else self.span(error.field)
        change = self.change(error.field) or self._change_below(error.field) if error.span is None else None
        place = f"--set {change}" if change else span.file
        message = f"{place}: {error.message.removeprefix(f'{span.file}: ')}"
        located = ConfigError(error.code, message, error.field, tuple(map(self._located, error.others)), error.changes)
        located.span = None if change else span
        return located


@dataclass(frozen=True, slots=True)
class CallPlace:
    """The place of a configuration written in Python: the user's line that passes it."""

    call: Span

    def span(self, field: str) -> Span:
        """The line, for any field."""
        return self.call

    def label(self, field: str, text: str = "") -> Label:
        """The line with the path of the field."""
        return Label(self.call, f"{field}: {text}" if text else field)

    def change(self, field: str) -> str | None:
        """None: no command line changes it."""
        return None


def _is_of(field: str, change: str) -> bool:
    """Whether a change is of the field, or of one above it."""
    name = change.partition("=")[0].strip()
    return f"{field}.".startswith((f"{name}.", f"{name}[")) or field == f"dims.{name}"
