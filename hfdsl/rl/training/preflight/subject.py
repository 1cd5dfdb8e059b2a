"""The subject of preflight checks: a configuration, its dataflows, and the places of its fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.deployment import Deployment
from hfdsl.graph.dataflow import Dataflow
from hfdsl.graph.infer import infer
from hfdsl.graph.program import Graph
from hfdsl.graph.spans import NOWHERE
from hfdsl.protocols.mesh import Mesh
from hfdsl.rl.training.config import Loaded
from hfdsl.rl.training.preflight.relocation import has_field
from hfdsl.rl.training.ready import is_ready_made
from hfdsl.rl.training.run_config import RunConfig
from hfdsl.rl.training.toml.changes import FieldChange
from hfdsl.rl.training.toml.trials import ConfigTrials
from hfdsl.rl.training.typed import joined

T = TypeVar("T")


@dataclass(frozen=True)
class Subject:
    """A configured run under check."""

    loaded: Loaded
    graphs: Mapping[str, Graph]
    """The dataflows of the run, by the table that names them: ``""``, ``"update"``, ``"evaluation"``."""
    trials: ConfigTrials | None = None
    """The trials of changes of the file; None if none are to be tried."""
    cluster: Cluster | None = None
    """The cluster of the run, if it is described."""

    @classmethod
    def of(cls, loaded: Loaded, trials: ConfigTrials | None = None, cluster: Cluster | None = None) -> Subject:
        """The subject of a configuration."""
        flows: dict[str, Dataflow[..., Any] | None] = {
            "": loaded.algorithm,
            "update": loaded.update,
            "evaluation": loaded.evaluation,
        }
        return cls(loaded, {table: flow.trace() for table, flow in flows.items() if flow is not None}, trials, cluster)

    @property
    def config(self) -> RunConfig:
        """The configuration."""
        return self.loaded.config

    def label(self, field: str, text: str = "") -> Label:
        """The place of a field."""
        places = self.loaded.places
        return places.label(field, text) if places is not None else Label(NOWHERE, text)

    def finding(
        self,
        code: str,
        message: str,
        field: str,
        *,
        notes: Sequence[str] = (),
        related: Mapping[str, str] | None = None,
        changes: Sequence[FieldChange] = (),
        advice: str = "",
    ) -> Finding:
        """A finding at the key of a field; ``related`` has other fields with their texts.

        The ``changes`` that remove it are its help; if none does, ``advice`` is a note.
        """
        labels = tuple(self.label(name, text) for name, text in (related or {}).items())
        finding = Finding(
            code=code,
            message=message,
            primary=self.label(field),
            related=labels,
            notes=tuple(notes),
        )
        if self.trials is not None:
            return self.trials.helped(finding, changes, advice)
        return replace(finding, notes=(*finding.notes, advice)) if advice else finding

    def parts(self, kind: type[T]) -> Iterator[tuple[str, T]]:
        """All parts of the configuration of a class, with their fields, except in tables of users' roles.

        Only the constructor of such a role knows what it does with its configuration.
        """
        return ((path, part) for path, part in self._all_parts if isinstance(part, kind))

    @cached_property
    def _all_parts(self) -> Sequence[tuple[str, Any]]:
        """One walk through the configuration serves all rules."""
        roles = self.loaded.roles
        names = [
            field.name for field in fields(self.config) if field.name not in roles or is_ready_made(roles[field.name])
        ]
        return [part for name in names for part in _parts(getattr(self.config, name), name)]

    @cached_property
    def deployment(self) -> Deployment:
        """The deployment of all roles."""
        return self.loaded.deployment()

    @cached_property
    def programs(self) -> Mapping[str, Program]:
        """The dataflows with the deployment, by table."""
        return {table: Program(graph, infer(graph), self.deployment) for table, graph in self.graphs.items()}

    def mesh(self, role: str) -> Mesh:
        """The mesh of a role's ranks."""
        return self.deployment.placements[role].mesh

    def has(self, field: str) -> bool:
        """Whether the configuration has a field, of a role only where its class is hfdsl's own, which reads it so."""
        role = self.role_of(field)
        return has_field(self.config, field) and (role is None or is_ready_made(self.loaded.roles[role]))

    def role_of(self, field: str) -> str | None:
        """The role whose table has a field."""
        head = field.partition(".")[0]
        return head if head in self.loaded.roles else None


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, value
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _parts(getattr(value, field.name), joined(path, field.name))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _parts(inner, joined(path, str(key)))
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _parts(inner, f"{path}[{i}]")
