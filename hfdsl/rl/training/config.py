"""The configuration of a run: from a table, a file or Python to the dataflows and role classes that it names.

What a table may have depends on what it names. ``algorithm`` names a dataflow, whose parameters are the roles; a role's
class says what the role's table holds. So a table is read in the order of that dependency, every change once::

    algorithm = "flows.py:flow"         1. the names: algorithm, update.algorithm, roles
    roles = { reward = "flows.py:Keen" }
    options = { width = 3 }             2. options: with them the dataflow is made, and its roles are known
    dims = { B = 32 }                   3. all the rest, as a RunConfig with a field for each role
    policy = { size = 11 }

For the ready algorithms that class is written down, in ``hfdsl.rl.training.algorithms``; for others, or where a role
has a class of the user's own, it is made here, from annotations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, make_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_type_hints

import hfdsl as hf
from hfdsl.errors import ConfigError
from hfdsl.graph.dataflow import Dataflow
from hfdsl.graph.dims import program_dims
from hfdsl.graph.spans import caller_span
from hfdsl.protocols.worker import Worker
from hfdsl.rl import workers
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.training import tables
from hfdsl.rl.training.changes import RenameField, SetField
from hfdsl.rl.training.feeds import run_feed
from hfdsl.rl.training.places import CallPlace, Places
from hfdsl.rl.training.preflight.names import near_target
from hfdsl.rl.training.run_config import RunConfig, UpdateConfig
from hfdsl.rl.training.schedules import with_total_steps
from hfdsl.rl.training.typed import NONE, build, hints, is_dataclass_type, required
from hfdsl.types.batches import closest, nearest

READY_ROOM = "hfdsl.rl.dataflows."
"""How the names of ready dataflows begin: only these need ``hfdsl.rl.training.algorithms``, whose many classes take a
twentieth of a second."""

READY_ROLES = tuple(f"hfdsl.rl.workers:{name}" for name in workers.__all__ if not name.endswith("Config"))
"""The ready role classes, as a configuration names them."""

Find: TypeAlias = Callable[[str], Any]
"""From ``"module:name"`` to what it names."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration with what it names: the dataflows, and the class of every role."""

    config: RunConfig
    algorithm: Dataflow[..., Any]
    evaluation: Dataflow[..., Any] | None
    update: Dataflow[..., Any] | None
    roles: Mapping[str, type[Worker]]
    places: Places | CallPlace | None = None
    """Where the fields stand."""
    find: Find | None = None
    """What found the parts that the configuration names."""

    def table(self) -> tables.Table:
        """The configuration with every default, as plain values."""
        table: tables.Table = tables.as_table(self.config)
        return table

    def deployment(self) -> hf.Deployment:
        """The deployment of all roles.

        Raises:
            ConfigError: HF901 for the place of an optional role without a table; others as
                ``DeploymentConfig.deployment``.
        """
        with self.located():
            self._refuse_places_of_absent_roles()
            return self.config.deployment.deployment(
                {name: self._constructor(name) for name in self.roles}, self.places
            )

    def _refuse_places_of_absent_roles(self) -> None:
        for name in self.config.deployment.roles:
            if name in self.algorithm.optional_roles and name not in self.roles:
                problem = f"role '{name}' has a place, but no table [{name}], with which the run has the role"
                raise ConfigError("HF901", problem, f"deployment.roles.{name}")

    def located(self) -> AbstractContextManager[None]:
        """Within this context, errors about fields name their file, line and key."""
        return self.places.located() if isinstance(self.places, Places) else nullcontext()

    def experiment(self) -> hf.Experiment:
        """What ``hfdsl check``, ``plan``, ``draw``, ``requires`` and ``run`` take."""
        return hf.Experiment(
            self.algorithm,
            self.deployment(),
            self.sizes(),
            self._batches,
            self.config.seed,
            optimize=hf.Optimize(bucket_bytes=self.config.bucket_bytes),
        )

    def _batches(self) -> Iterator[Any]:
        feed, cursor = run_feed(self.config, self.roles, self.algorithm, self.evaluation), self.cursor()
        while True:
            batch, cursor = feed.take(cursor)
            yield batch

    def cursor(self) -> Cursor:
        """Where the data begins."""
        return Cursor(self.config.seed if self.config.data.seed is None else self.config.data.seed)

    def _constructor(self, name: str) -> tuple[type[Worker], tuple[Any, ...], Mapping[str, Any]]:
        """The class of a role with the arguments of its constructor."""
        role, config = self.roles[name], getattr(self.config, name, None)
        if config is None:
            return role, (), {}
        parameters = _parameters(role)
        if type(config) is get_type_hints(role.__init__).get(parameters[0].name):
            return role, (config,), {}
        return role, (), {parameter.name: getattr(config, parameter.name) for parameter in parameters}

    def sizes(self, changes: Mapping[str, int] | None = None) -> dict[type[hf.Dim], int]:
        """The sizes of the dims that the dataflows have.

        Raises:
            ConfigError: HF901 for a dim that none of them has.
        """
        flows = [flow for flow in (self.algorithm, self.evaluation, self.update) if flow is not None]
        known = {dim.__name__: dim for flow in flows for dim in program_dims(flow.trace())}
        sizes = {**self.config.dims, **(changes or {})}
        for name in sizes:
            if name not in known:
                problem = f"dims: there is no dim '{name}'; {closest(name, sorted(known))}"
                near = nearest(name, sorted(known))
                renamed = () if near is None else (RenameField(f"dims.{name}", near),)
                with self.located():
                    raise ConfigError("HF901", problem, f"dims.{name}", changes=renamed)
        return {known[name]: size for name, size in sizes.items()}


def load(path: str | Path, changes: Sequence[str] = (), find: Find | None = None) -> Loaded:
    """The configuration of a TOML file with changes such as ``"actor.training.optimizer.learning_rate=1e-5"``.

    Raises:
        ConfigError: HF901 naming the file or the change, the field, what it takes and what it got.
    """
    table, places = tables.read_toml(path), Places.of(path, changes)
    with places.located():
        table, changes = _with_deployment(table, changes)
    places = places.with_deployment(table)
    with places.located():
        return replace(from_table(table, changes, find), places=places, find=find)


def from_config(config: RunConfig, find: Find | None = None) -> Loaded:
    """The same of a configuration that was written in Python, such as a ``GRPO`` of ``hfdsl.rl.training.algorithms``.

    Raises:
        ConfigError: HF901 where a role's class does not take the role's configuration.
    """
    loaded = from_table({field.name: getattr(config, field.name) for field in fields(config)}, (), find)
    return replace(loaded, places=CallPlace(caller_span()))


def from_table(table: Mapping[str, Any], changes: Sequence[str] = (), find: Find | None = None) -> Loaded:
    """The same of a table.

    Raises:
        ConfigError: HF901.
    """
    find = find or by_name
    parts, changes = read_names(table, changes, find)
    table = tables.with_changes(parts.table, parts.kind, [_dotted(change, parts.algorithm) for change in changes])
    # The options have been built already, to make the dataflows.
    config: RunConfig = build(parts.kind, _with_options(tables.resolve_references(table), parts))
    tabled = [name for name in parts.roles if hasattr(config, name)]
    update_graph = None if parts.update is None else parts.update.trace()
    config = with_total_steps(config, tabled, parts.algorithm.trace(), update_graph)
    evaluation = config.evaluation and _found(find, config.evaluation.algorithm, "evaluation.algorithm")
    if evaluation is not None and not isinstance(evaluation, Dataflow):
        raise ConfigError("HF901", f"evaluation.algorithm: {evaluation!r} is no dataflow", "evaluation.algorithm")
    evaluation = evaluation and _with_roles(evaluation, parts.roles)
    return Loaded(config, parts.algorithm, evaluation, parts.update, parts.roles)


def by_name(text: str) -> Any:
    """What ``"package.module:name"`` names.

    Raises:
        ConfigError: HF901 where there is no such module or name.

    >>> by_name("math:pi") > 3
    True
    """
    module, _, name = text.partition(":")
    try:
        value: Any = import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError("HF901", f"there is no '{text}', which is read as 'module:name': {error}") from None
    return value


def _found(find: Find, text: str, field_name: str) -> Any:
    try:
        return find(text)
    except ConfigError as error:
        from hfdsl.rl.training.algorithms import READY

        near = near_target(text, (*READY, *READY_ROLES))
        changes = () if near is None else (SetField(field_name, near),)
        raise ConfigError("HF901", f"'{field_name}': {error.message}", field_name, changes=changes) from None


# -- what a table names


@dataclass(frozen=True, slots=True)
class NamedParts:
    """What a table names, and so which fields it has: those of ``kind``."""

    table: tables.Table
    kind: type[RunConfig]
    algorithm: Dataflow[..., Any]
    options: Any
    update: Dataflow[..., Any] | None
    update_options: Any
    roles: Mapping[str, type[Worker]]


def _ready(algorithm: str) -> type[RunConfig] | None:
    """The configuration that is written down for an algorithm."""
    if not algorithm.startswith(READY_ROOM):
        return None
    from hfdsl.rl.training.algorithms import READY

    return READY.get(algorithm)


def _ready_options(algorithm: str) -> type | None:
    """The options that are written down for it, or for an update."""
    if not algorithm.startswith(READY_ROOM):
        return None
    from hfdsl.rl.training.algorithms import READY_OPTIONS

    return READY_OPTIONS.get(algorithm)


def read_names(table: Mapping[str, Any], changes: Sequence[str], find: Find) -> tuple[NamedParts, list[str]]:
    """The dataflows and roles that a table names, and the changes that are still to be made.

    Raises:
        ConfigError: HF901 for names of nothing, and options that a dataflow does not take.
    """
    table, changes = _with_deployment(table, changes)
    naming, changes = _divided(changes, "algorithm", "roles", "update.algorithm")
    to_options, changes = _divided(changes, "options", "update")
    table = tables.with_changes(table, RunConfig, naming)
    if not isinstance(table.get("algorithm"), str):
        raise ConfigError("HF901", "'algorithm' (str) is missing: a dataflow, as 'module:name'", "algorithm")
    ready = _ready(table["algorithm"])
    named, update = _Named.find(find, table["algorithm"], "algorithm"), None
    if isinstance(update_name := _entry(table.get("update"), "algorithm"), str):
        update = _Named.find(find, update_name, "update.algorithm")
    ready = ready if ready and _takes_update(ready, update) else None
    table = tables.with_changes(table, ready or _configuration(named, update, {}), to_options)
    options = named.build_options(table.get("options"))
    flow = named.dataflow(options)
    written = {change.partition("=")[0].strip().partition(".")[0] for change in changes}
    flow = _with_roles(flow, [name for name in flow.optional_roles if name in written or _is_written(table, name)])
    update_flow = update_options = None
    if update is not None and table.get("update") not in (None, NONE):
        update_options = update.build_options(_entry(table["update"], "options"))
        update_flow = _with_roles(update.dataflow(update_options), flow.trace().roles)
    roles = _role_classes(flow, table.get("roles", {}), find)
    role_configs = {name: kind for name, role in roles.items() if (kind := _configured_by(name, role)) is not None}
    parts = NamedParts(
        table=table,
        kind=(ready and _narrowed(ready, role_configs)) or _configuration(named, update, role_configs),
        algorithm=flow,
        options=options,
        update=update_flow,
        update_options=update_options,
        roles=roles,
    )
    return parts, changes


def _divided(changes: Iterable[str], *names: str) -> tuple[list[str], list[str]]:
    """The changes of these fields, or of fields below them, and the others."""
    groups: tuple[list[str], list[str]] = [], []
    for change in changes:
        field_name = change.partition("=")[0].strip()
        groups[not any(f"{field_name}.".startswith(f"{name}.") for name in names)].append(change)
    return groups


def _with_deployment(table: Mapping[str, Any], changes: Sequence[str]) -> tuple[tables.Table, list[str]]:
    """The table with the file of its deployment read; ``deployment=FILE`` replaces it before all other changes."""
    fields_and_texts = [change.partition("=") for change in changes]
    files = [tables.parse_value(text, str, "deployment") for name, _, text in fields_and_texts if _is_deployment(name)]
    deployment = files[-1] if files else table.get("deployment")
    if isinstance(deployment, str):
        try:
            deployment = {**tables.read_toml(deployment), "file": deployment}
        except ConfigError as error:
            error.field = "deployment"
            raise
    others = [change for change in changes if not _is_deployment(change.partition("=")[0])]
    return {**table, **({} if deployment is None else {"deployment": deployment})}, others


def _is_deployment(name: str) -> bool:
    return name.strip() == "deployment"


def _entry(table: Any, name: str) -> Any:
    """A field of a table, or of the dataclass that stands for one."""
    return table.get(name) if isinstance(table, Mapping) else getattr(table, name, None)


def _dotted(change: str, flow: Dataflow[..., Any]) -> str:
    """``B=64`` as ``dims.B=64``."""
    name = change.partition("=")[0].strip()
    return f"dims.{change}" if name in {dim.__name__ for dim in program_dims(flow.trace())} else change


def _with_options(values: tables.Table, parts: NamedParts) -> tables.Table:
    """A table with the options that have been built."""
    if parts.options is not None:
        values = {**values, "options": parts.options}
    if parts.update_options is not None and isinstance(values["update"], Mapping):
        values = {**values, "update": {**values["update"], "options": parts.update_options}}
    return values


@dataclass(frozen=True, slots=True)
class _Named:
    """What ``algorithm`` or ``update.algorithm`` names: a dataflow, or a function that makes one, and its options."""

    field: str
    target: Any
    options: type | None

    @classmethod
    def find(cls, find: Find, text: str, field: str) -> _Named:
        target = _found(find, text, field)
        if not callable(target):
            raise ConfigError("HF901", f"'{field}': {target!r} is no dataflow, and no function that makes one", field)
        return cls(field, target, _ready_options(text) or cls._options(target))

    @staticmethod
    def _options(target: Any) -> type | None:
        if not isinstance(target, Dataflow):
            return _arguments(target, inspect.signature(target).parameters.values(), "Options")
        parameters = inspect.signature(target.body).parameters
        listed = [parameters[name] for name in target.options]
        return _arguments(target.body, listed, "Options") if listed else None

    def build_options(self, table: Any) -> Any:
        """The options of a table; None where there are none to be had."""
        if self.options is None:
            return None
        path = f"{self.field.removesuffix('algorithm')}options"
        try:
            table = tables.resolve_references({"options": table or {}})["options"]
        except ConfigError as error:
            raise ConfigError("HF901", f"{path}: {error.message}: options refer to nothing but options", path) from None
        return build(self.options, table, path)

    def dataflow(self, options: Any) -> Dataflow[..., Any]:
        """The dataflow with these options."""
        values = {} if options is None else {field.name: getattr(options, field.name) for field in fields(options)}
        flow = self.target.given(**values) if isinstance(self.target, Dataflow) else self.target(**values)
        if not isinstance(flow, Dataflow):
            raise ConfigError("HF901", f"'{self.field}': the function gives {flow!r}, which is no dataflow", self.field)
        return flow


def _is_written(table: Mapping[str, Any], role: str) -> bool:
    """Whether a table has that of an optional role, or names its class."""
    classes = table.get("roles")
    return table.get(role) not in (None, NONE) or (isinstance(classes, Mapping) and role in classes)


def _with_roles(flow: Dataflow[..., Any], names: Collection[str]) -> Dataflow[..., Any]:
    """The dataflow with those of its optional roles that are named."""
    return flow.given(**{name: role for name, role in flow.optional_roles.items() if name in names})


def _role_classes(flow: Dataflow[..., Any], others: Any, find: Find) -> dict[str, type[Worker]]:
    """The class of every role: that of the dataflow's parameter, or another that is named."""
    classes = dict(flow.trace().roles)
    for name, text in others.items() if isinstance(others, Mapping) else ():
        if name not in classes:
            near = nearest(name, list(classes))
            raise ConfigError(
                "HF901",
                f"roles: '{flow.body.__name__}' has no role '{name}'; {closest(name, list(classes))}",
                f"roles.{name}",
                changes=() if near is None else (RenameField(f"roles.{name}", near),),
            )
        role = _found(find, text, f"roles.{name}") if isinstance(text, str) else text
        if not (isinstance(role, type) and issubclass(role, Worker)):
            raise ConfigError("HF901", f"roles.{name}: {role!r} is no role class", f"roles.{name}")
        classes[name] = role
    return classes


# -- the class of a configuration


def _takes_update(ready: type[RunConfig], update: _Named | None) -> bool:
    """Whether a ready configuration is one for this update, or for none."""
    return update is None or any(hints(kind)["options"] is update.options for kind in _classes_in(ready, "update"))


def _narrowed(ready: type[RunConfig], roles: Mapping[str, type]) -> type[RunConfig] | None:
    """A ready configuration with just these classes of tables; None where it has other roles, or other tables.

    The field of a role that may be of several classes, such as a reward, takes that of the class that was named, so
    that its table need not tell its ``kind``.
    """
    ready_roles = {field.name: field for field in fields(ready) if field.name not in RunConfig.__dataclass_fields__}
    needed = {name for name, field in ready_roles.items() if required(field)}
    if not needed <= roles.keys() <= ready_roles.keys():
        return None
    if any(kind not in _classes_in(ready, name) for name, kind in roles.items()):
        return None
    narrower = {name: kind for name, kind in roles.items() if hints(ready)[name] is not kind}
    return _subclass(ready, ready.__name__, narrower) if narrower else ready


def _configuration(named: _Named, update: _Named | None, roles: Mapping[str, type]) -> type[RunConfig]:
    """The configuration of a dataflow that is not a ready one, or has other roles than those it comes with."""
    for name in roles:
        if name in RunConfig.__dataclass_fields__:
            raise ConfigError("HF901", f"a role cannot be called '{name}': the configuration has a field of that name")
    options = {} if named.options is None else {"options": named.options}
    kind = _subclass(RunConfig, "Configuration", {**options, **roles})
    if update is None or update.options is None:
        return kind
    update_kind = _subclass(UpdateConfig, "UpdateConfig", {"options": update.options})
    return make_dataclass(
        "Configuration", [("update", update_kind | None, field(default=None))], bases=(kind,), frozen=True, kw_only=True
    )


def _subclass(base: type[Any], name: str, added: Mapping[str, type]) -> type[Any]:
    """A subclass with more fields, each of a class; one may be left out where all of its own fields may."""
    listed = [
        (name, kind, field() if any(map(required, fields(kind))) else field(default_factory=kind))
        for name, kind in added.items()
    ]
    return make_dataclass(name, listed, bases=(base,), frozen=True, kw_only=True)


def _classes_in(kind: type, name: str) -> list[type]:
    """The dataclasses that a field takes."""
    annotation = hints(kind)[name]
    return [option for option in (annotation, *get_args(annotation)) if is_dataclass_type(option)]


def _configured_by(name: str, role: type[Worker]) -> type | None:
    """The class of a role's table: the dataclass that its constructor takes, or one of its several parameters."""
    if role is workers.KLPenalty:
        from hfdsl.rl.training.algorithms import KLPenaltyArguments

        return KLPenaltyArguments
    parameters = _parameters(role)
    if not parameters:
        return None
    annotation = get_type_hints(role.__init__).get(parameters[0].name)
    if len(parameters) == 1 and is_dataclass_type(annotation):
        return annotation
    return _arguments(role.__init__, parameters, f"{name.title()}Arguments")


def _parameters(role: type[Worker]) -> list[inspect.Parameter]:
    return [] if role.__init__ is object.__init__ else list(inspect.signature(role.__init__).parameters.values())[1:]


def _arguments(function: Any, parameters: Iterable[inspect.Parameter], name: str) -> type:
    """Parameters as the fields of a dataclass."""
    annotations = get_type_hints(function)
    listed: list[tuple[str, Any, Any]] = []
    for parameter in parameters:
        if parameter.name not in annotations:
            raise ConfigError("HF901", f"parameter '{parameter.name}' of {function.__qualname__} has no annotation")
        default = field() if parameter.default is parameter.empty else field(default=parameter.default)
        listed.append((parameter.name, annotations[parameter.name], default))
    return make_dataclass(name, listed, frozen=True, kw_only=True)
