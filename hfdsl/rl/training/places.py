"""Where the fields of a configuration stand: in its file, or in the file of its deployment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hfdsl.check.findings import Label
from hfdsl.errors import ConfigError, HfError
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.rl.training.toml_spans import TomlSpans, read_spans

DEPLOYMENT = "deployment"


@dataclass(frozen=True, slots=True)
class Places:
    """The files of a configuration, and what the command line changes of them (``--set``)."""

    main: TomlSpans
    deployment: TomlSpans | None = None
    changes: tuple[str, ...] = ()

    def with_deployment(self, table: Mapping[str, Any]) -> Places:
        """The same with the file of the deployment, if the table's was read from one."""
        deployment = table.get(DEPLOYMENT)
        file = deployment.get("file") if isinstance(deployment, Mapping) else None
        return replace(self, deployment=read_spans(file)) if isinstance(file, str) else self

    def span(self, field: str) -> Span:
        """The key of a field, or of the nearest one above it."""
        head, _, below = field.partition(".")
        if head == DEPLOYMENT and below and self.deployment is not None:
            return self.deployment.at(below)
        return self.main.at(field)

    def label(self, field: str, text: str = "") -> Label:
        """The same with what is to be said about it; what the command line says is at no line of the file."""
        change = self.change(field)
        return Label(self.span(field), text) if change is None else Label(NOWHERE, f"--set {change}")

    def change(self, field: str) -> str | None:
        """The last change of the command line that is of a field, or of one above it."""
        return next((change for change in reversed(self.changes) if _is_of(field, change)), None)

    @contextmanager
    def located(self) -> Iterator[None]:
        """Errors about fields name their file, line and key."""
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
        message = f"{span.file}: {error.message.removeprefix(f'{span.file}: ')}"
        located = ConfigError(error.code, message, error.field, tuple(map(self._located, error.others)))
        located.span = None if self.change(error.field) and error.span is None else span
        return located


def _is_of(field: str, change: str) -> bool:
    """Whether a change is of this field, or of one above it."""
    name = change.partition("=")[0].strip()
    return f"{field}.".startswith(f"{name}.") or field == f"dims.{name}"
