"""The dataflows, options and role classes that a configuration names, and so the fields that it has.

The names are read first: ``algorithm`` with its options yields the dataflow, whose parameters are the roles.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, TypeAlias

from hfdsl.errors import ConfigError
from hfdsl.graph.dataflow import Dataflow
from hfdsl.protocols.worker import Worker
from hfdsl.rl import workers
from hfdsl.rl.training.config_classes import arguments_class, configuration_class, narrowed, table_class, takes_update
from hfdsl.rl.training.preflight.names import near_target
from hfdsl.rl.training.run_config import EVALUATE, RunConfig
from hfdsl.rl.training.toml import tables
from hfdsl.rl.training.toml.changes import RenameField, SetField
from hfdsl.rl.training.typed import NONE, build, together
from hfdsl.types.similar_names import closest, nearest

READY_ROOM = "hfdsl.rl.dataflows."
"""The prefix of the names of ready-made dataflows: only these need ``hfdsl.rl.training.algorithms``, whose many classes
take a twentieth of a second."""


READY_ROLES = tuple(f"hfdsl.rl.workers:{name}" for name in workers.__all__ if not name.endswith("Config"))
"""The ready-made role classes, as a configuration names them."""


Find: TypeAlias = Callable[[str], Any]
"""A function from ``"module:name"`` to the object of that name."""


def by_name(text: str) -> Any:
    """Import the object that ``"package.module:name"`` names.

    Raises:
        ConfigError: HF901 if there is no such module or name.

    >>> by_name("math:pi") > 3
    True
    """
    module, _, name = text.partition(":")
    try:
        value: Any = import_module(module)
        for attribute in name.split("."):
            value = getattr(value, attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError("HF901", f"there is no '{text}', which is read as 'module:name': {error}") from None
    return value


def find_named(find: Find, text: str, field_name: str) -> Any:
    """Find the object that a field names.

    Raises:
        ConfigError: HF901, with a fix if the name is close to that of a ready-made dataflow or role.
    """
    try:
        return find(text)
    except ConfigError as error:
        from hfdsl.rl.training.algorithms import READY

        candidate = near_target(text, (*READY, *READY_ROLES))
        changes = () if candidate is None else (SetField(field_name, candidate),)
        asked = "" if candidate is None or "did you mean" in error.message else f"; did you mean '{candidate}'?"
        raise ConfigError("HF901", f"'{field_name}': {error.message}{asked}", field_name, changes=changes) from None


@dataclass(frozen=True, slots=True)
class NamedParts:
    """The dataflows and role classes that a table names; ``kind`` declares its other fields."""

    table: tables.Table
    kind: type[RunConfig]
    algorithm: Dataflow[..., Any]
    options: Any
    update: Dataflow[..., Any] | None
    update_options: Any
    evaluation: Dataflow[..., Any] | None
    roles: Mapping[str, type[Worker]]


def _ready(algorithm: str) -> type[RunConfig] | None:
    """The declared configuration of an algorithm."""
    if not algorithm.startswith(READY_ROOM):
        return None
    from hfdsl.rl.training.algorithms import READY

    return READY.get(algorithm)


def _ready_options(algorithm: str) -> type | None:
    """The declared options of an algorithm or an update."""
    if not algorithm.startswith(READY_ROOM):
        return None
    from hfdsl.rl.training.algorithms import READY_OPTIONS

    return READY_OPTIONS.get(algorithm)


def read_names(table: Mapping[str, Any], changes: Sequence[str], find: Find) -> tuple[NamedParts, list[str]]:
    """Read the dataflows and roles that a table names, and return the changes that remain to be made.

    Raises:
        ConfigError: HF901 for names of nothing, and for options that a dataflow does not take.
    """
    table, changes = _with_update(*with_deployment(table, changes))
    naming, changes = _divided(changes, "algorithm", "roles", "update.algorithm", "evaluation")
    to_options, changes = _divided(changes, "options", "update")
    table = tables.with_changes(table, RunConfig, naming)
    if not isinstance(table.get("algorithm"), str):
        raise ConfigError("HF901", "'algorithm' (str) is missing: a dataflow, as 'module:name'", "algorithm")
    ready = _ready(table["algorithm"])
    named, update = _Named.find(find, table["algorithm"], "algorithm"), None
    if isinstance(update_name := _entry(table.get("update"), "algorithm"), str):
        update = _Named.find(find, update_name, "update.algorithm")
    ready = ready if ready and (update is None or takes_update(ready, update.options)) else None
    update_class = None if update is None else update.options
    config_class = ready or configuration_class(named.options, update_class, {})
    table = tables.with_changes(table, config_class, to_options)
    options = named.build_options(table.get("options"))
    flow = named.dataflow(options)
    written = {change.partition("=")[0].strip().partition(".")[0] for change in changes}
    flow = with_roles(flow, [name for name in flow.optional_roles if name in written or _is_written(table, name)])
    update_flow = update_options = None
    if update is not None and table.get("update") not in (None, NONE):
        update_options = update.build_options(_entry(table["update"], "options"))
        update_flow = with_roles(update.dataflow(update_options), flow.trace().roles)
    evaluation = _evaluation(table, find)
    if evaluation is not None:
        configured = [name for name in evaluation.optional_roles if name in written or _is_written(table, name)]
        evaluation = with_roles(evaluation, {*flow.trace().roles, *configured})
    roles = _role_classes(flow, evaluation, table.get("roles", {}), find)
    role_configs = {name: kind for name, role in roles.items() if (kind := table_class(name, role)) is not None}
    for name in role_configs:
        if name in RunConfig.__dataclass_fields__:
            raise ConfigError("HF901", f"a role cannot be called '{name}': the configuration has a field of that name")
    evaluation_roles = role_configs.keys() - flow.trace().roles.keys()
    config_class = (ready and narrowed(ready, role_configs, evaluation_roles)) or configuration_class(
        named.options, update_class, role_configs
    )
    parts = NamedParts(
        table=table,
        kind=config_class,
        algorithm=flow,
        options=options,
        update=update_flow,
        update_options=update_options,
        evaluation=evaluation,
        roles=roles,
    )
    return parts, changes


def _evaluation(table: Mapping[str, Any], find: Find) -> Dataflow[..., Any] | None:
    """The dataflow that evaluates, if a table asks for one."""
    evaluation = table.get("evaluation")
    if evaluation in (None, NONE):
        return None
    name = _entry(evaluation, "algorithm")
    flow = find_named(find, name if isinstance(name, str) else EVALUATE, "evaluation.algorithm")
    if not isinstance(flow, Dataflow):
        raise ConfigError("HF901", f"evaluation.algorithm: {flow!r} is not a dataflow", "evaluation.algorithm")
    return flow


def _divided(changes: Iterable[str], *names: str) -> tuple[list[str], list[str]]:
    """The changes of these fields or of fields below them, and the other changes."""
    groups: tuple[list[str], list[str]] = [], []
    for change in changes:
        field_name = change.partition("=")[0].strip()
        groups[not any(f"{field_name}.".startswith(f"{name}.") for name in names)].append(change)
    return groups


def with_deployment(table: Mapping[str, Any], changes: Sequence[str]) -> tuple[tables.Table, list[str]]:
    """The table with its deployment, which may be in a file; a change replaces it before all changes of its fields."""
    replacements, remaining = _whole_tables(changes, "deployment", str | dict[str, Any])
    deployment = replacements[-1] if replacements else table.get("deployment")
    if isinstance(deployment, str):
        try:
            deployment = {**tables.read_toml(deployment), "file": deployment}
        except ConfigError as error:
            error.field = "deployment"
            raise
    return {**table, **({} if deployment is None else {"deployment": deployment})}, remaining


def _with_update(table: Mapping[str, Any], changes: Sequence[str]) -> tuple[tables.Table, list[str]]:
    """The table with its update, whose dataflow decides which options there are; as for the deployment."""
    replacements, remaining = _whole_tables(changes, "update", dict[str, Any] | None)
    return {**table, **({"update": replacements[-1]} if replacements else {})}, remaining


def _whole_tables(changes: Sequence[str], name: str, kind: Any) -> tuple[list[Any], list[str]]:
    """The values of the changes that replace a whole table, and the other changes."""
    whole = [change for change in changes if change.partition("=")[0].strip() == name]
    values = [tables.parse_value(change.partition("=")[2], kind, name) for change in whole]
    return values, [change for change in changes if change not in whole]


def _entry(table: Any, name: str) -> Any:
    """A field of a table, or of the dataclass that stands for one."""
    return table.get(name) if isinstance(table, Mapping) else getattr(table, name, None)


@dataclass(frozen=True, slots=True)
class _Named:
    """A dataflow, or a function that returns one, that a field names, with its options."""

    field: str
    target: Any
    options: type | None

    @classmethod
    def find(cls, find: Find, text: str, field: str) -> _Named:
        target = find_named(find, text, field)
        if not callable(target):
            raise ConfigError(
                "HF901", f"'{field}': {target!r} is neither a dataflow nor a function that makes one", field
            )
        return cls(field, target, _ready_options(text) or cls._options(target))

    @staticmethod
    def _options(target: Any) -> type | None:
        if not isinstance(target, Dataflow):
            return arguments_class(target, inspect.signature(target).parameters.values(), "Options")
        parameters = inspect.signature(target.body).parameters
        options = [parameters[name] for name in target.options]
        return arguments_class(target.body, options, "Options") if options else None

    def build_options(self, table: Any) -> Any:
        """The options of a table; None if the dataflow has none."""
        if self.options is None:
            return None
        path = f"{self.field.removesuffix('algorithm')}options"
        try:
            table = tables.resolve_references({"options": table or {}})["options"]
        except ConfigError as error:
            raise ConfigError("HF901", f"{path}: {error.message}: options can refer only to options", path) from None
        return build(self.options, table, path)

    def dataflow(self, options: Any) -> Dataflow[..., Any]:
        """The dataflow with these options."""
        values = {} if options is None else {field.name: getattr(options, field.name) for field in fields(options)}
        flow = self.target.given(**values) if isinstance(self.target, Dataflow) else self.target(**values)
        if not isinstance(flow, Dataflow):
            raise ConfigError(
                "HF901", f"'{self.field}': the function gives {flow!r}, which is not a dataflow", self.field
            )
        return flow


def _is_written(table: Mapping[str, Any], role: str) -> bool:
    """Whether a table configures an optional role, or names its class."""
    classes = table.get("roles")
    return table.get(role) not in (None, NONE) or (isinstance(classes, Mapping) and role in classes)


def with_roles(flow: Dataflow[..., Any], names: Collection[str]) -> Dataflow[..., Any]:
    """The dataflow with its optional roles of these names."""
    return flow.given(**{name: role for name, role in flow.optional_roles.items() if name in names})


def _role_classes(
    flow: Dataflow[..., Any], evaluation: Dataflow[..., Any] | None, named: Any, find: Find
) -> dict[str, type[Worker]]:
    """The class of every role: the one that ``named`` has, or else that of the dataflow's parameter.

    A role that both the evaluation and the run have is the run's.
    """
    classes = {**(evaluation.trace().roles if evaluation is not None else {}), **flow.trace().roles}
    errors = list[ConfigError]()
    for name, text in named.items() if isinstance(named, Mapping) else ():
        try:
            classes[name] = _role_class(flow, list(classes), name, text, find)
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise together(errors)
    return classes


def _role_class(flow: Dataflow[..., Any], roles: Sequence[str], name: str, text: Any, find: Find) -> type[Worker]:
    """The class that a field names for a role."""
    if name not in roles:
        candidate = nearest(name, roles)
        raise ConfigError(
            "HF901",
            f"roles: '{flow.body.__name__}' has no role '{name}'; {closest(name, roles)}",
            f"roles.{name}",
            changes=() if candidate is None else (RenameField(f"roles.{name}", candidate),),
        )
    role = find_named(find, text, f"roles.{name}") if isinstance(text, str) else text
    if not (isinstance(role, type) and issubclass(role, Worker)):
        shown = repr(text if isinstance(text, str) else role)
        raise ConfigError(
            "HF901", f"roles.{name}: {shown} is not a role class, derived from hf.Worker", f"roles.{name}"
        )
    return role
