"""The configuration of a run: from a table, a file or Python to the dataflows and role classes that it names.

The fields of a table depend on the names in it. ``algorithm`` names a dataflow, whose parameters are the roles; the
class of a role determines the fields of its table. So a table is read in the order of that dependency, and every change
is applied once::

    algorithm = "flows.py:flow"         1. the names: algorithm, update.algorithm, evaluation.algorithm, roles
    roles = { reward = "flows.py:Keen" }
    options = { width = 3 }             2. the options, which determine the dataflow and so its roles
    dims = { B = 32 }                   3. the rest, as a RunConfig with a field for each role
    policy = { size = 11 }

For the ready-made algorithms, ``hfdsl.rl.training.algorithms`` declares that class. For others, or if a role has a
class of the user's own, ``config_classes`` derives it from annotations. ``config_names`` does steps 1 and 2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import hfdsl as hf
from hfdsl.errors import ConfigError
from hfdsl.graph.dataflow import Dataflow, traced_once
from hfdsl.graph.dims import program_dims
from hfdsl.graph.spans import caller_span
from hfdsl.protocols.worker import Worker
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.training.config_classes import constructor_parameters
from hfdsl.rl.training.config_names import (
    Find,
    NamedParts,
    by_name,
    read_names,
    with_deployment,
)
from hfdsl.rl.training.engine_choice import engines_of_auto
from hfdsl.rl.training.feeds import run_feed
from hfdsl.rl.training.places import CallPlace, Places
from hfdsl.rl.training.run_config import RunConfig
from hfdsl.rl.training.schedules import with_total_steps
from hfdsl.rl.training.toml import tables
from hfdsl.rl.training.toml.changes import RenameField
from hfdsl.rl.training.typed import NONE, build, hints, required, separated, together
from hfdsl.types.similar_names import closest, nearest


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration with the dataflows and role classes that it names."""

    config: RunConfig
    algorithm: Dataflow[..., Any]
    evaluation: Dataflow[..., Any] | None
    update: Dataflow[..., Any] | None
    roles: Mapping[str, type[Worker]]
    places: Places | CallPlace | None = None
    """The places of the fields in files or code."""
    find: Find | None = None
    """The function that resolved the names in the configuration."""
    auto_engines: tuple[str, ...] = ()
    """The roles with ``engine = "auto"``, in whose place the configuration has another."""

    def table(self) -> tables.Table:
        """The configuration with every default, as plain values."""
        table: tables.Table = tables.as_table(self.config)
        return table

    def with_engines(self, engines: Mapping[str, Any]) -> Loaded:
        """This configuration with other engines, by role; each role has a table ``generation``."""
        changed = {}
        for role, engine in engines.items():
            policy = getattr(self.config, role)
            changed[role] = replace(policy, generation=replace(policy.generation, engine=engine))
        return replace(self, config=replace(self.config, **changed))

    def deployment(self) -> hf.Deployment:
        """The deployment of all roles.

        Raises:
            ConfigError: HF901 for the placement of an optional role without a table; others as for
                ``DeploymentConfig.deployment``.
        """
        with self.located():
            self._refuse_places_of_absent_roles()
            return self.config.deployment.deployment(
                {name: self._constructor(name) for name in self.roles}, self.places
            )

    def _refuse_places_of_absent_roles(self) -> None:
        flows = [flow for flow in (self.algorithm, self.evaluation) if flow is not None]
        optional = {name for flow in flows for name in flow.optional_roles}
        for name in self.config.deployment.roles:
            if name in optional and name not in self.roles:
                problem = f"role '{name}' has a placement, but no table [{name}], which would add the role to the run"
                raise ConfigError("HF901", problem, f"deployment.roles.{name}")

    def located(self) -> AbstractContextManager[None]:
        """A context in which errors about fields name their file, line and key."""
        return self.places.located() if isinstance(self.places, Places) else nullcontext()

    def experiment(self) -> hf.Experiment:
        """The experiment that ``hfdsl check``, ``plan``, ``draw``, ``requires`` and ``run`` take."""
        return hf.Experiment(
            self.algorithm,
            self.deployment(),
            self.sizes(),
            self._batches,
            self.config.seed,
            optimize=hf.Optimize(bucket_bytes=self.config.bucket_bytes, deltas=self.config.deltas),
        )

    def _batches(self) -> Iterator[Any]:
        feed, cursor = run_feed(self.config, self.roles, self.algorithm, self.evaluation), self.cursor()
        while True:
            batch, cursor = feed.take(cursor)
            yield batch

    def cursor(self) -> Cursor:
        """The beginning of the data."""
        return Cursor(self.config.seed if self.config.data.seed is None else self.config.data.seed)

    def _constructor(self, name: str) -> tuple[type[Worker], tuple[Any, ...], Mapping[str, Any]]:
        """The class of a role with the arguments of its constructor."""
        role, config = self.roles[name], getattr(self.config, name, None)
        if config is None:
            return role, (), {}
        parameters = constructor_parameters(role)
        if type(config) is get_type_hints(role.__init__).get(parameters[0].name):
            return role, (config,), {}
        return role, (), {parameter.name: getattr(config, parameter.name) for parameter in parameters}

    def sizes(self, changes: Mapping[str, int] | None = None) -> dict[type[hf.Dim], int]:
        """The sizes of the dims of the dataflows.

        Raises:
            ConfigError: HF901 for a dim that no dataflow has.
        """
        flows = [flow for flow in (self.algorithm, self.evaluation, self.update) if flow is not None]
        dims = {dim.__name__: dim for flow in flows for dim in program_dims(flow.trace())}
        sizes = {**self.config.dims, **(changes or {})}
        if errors := list(_unknown_dims(sizes, dims)):
            with self.located():
                raise together(errors)
        return {dims[name]: size for name, size in sizes.items()}


def load(path: str | Path, changes: Sequence[str] = (), find: Find | None = None) -> Loaded:
    """Load the configuration of a TOML file, with changes such as ``"actor.training.optimizer.learning_rate=1e-5"``.

    Raises:
        ConfigError: HF901 naming the file or the change, the field, what it takes and what it got.

    >>> loaded = load("examples/spelling_supervised.toml", ["B=32", "actor.training.optimizer.learning_rate=1e-3"])
    >>> loaded.config.dims["B"], loaded.config.steps, list(loaded.roles)
    (32, 100, ['actor'])
    >>> load("examples/spelling_supervised.toml", ["stps=10"])
    Traceback (most recent call last):
    hfdsl.errors.ConfigError: HF901: ...
    """
    table, places = tables.read_toml(path), Places.of(path, changes)
    with places.located():
        table, changes = with_deployment(table, changes)
    places = places.with_deployment(table)
    with places.located():
        return replace(from_table(table, changes, find), places=places, find=find)


def from_config(config: RunConfig, find: Find | None = None) -> Loaded:
    """Load a configuration written in Python, such as a ``GRPO`` of ``hfdsl.rl.training.algorithms``.

    Raises:
        ConfigError: HF901 if a role's class does not take the role's configuration.

    >>> from hfdsl.rl.data.sources import ReasoningGym
    >>> from hfdsl.rl.data.tokenizers import Characters
    >>> from hfdsl.rl.training.algorithms import Supervised
    >>> from hfdsl.rl.training.placement import DeploymentConfig, PlacementConfig, PoolConfig
    >>> from hfdsl.rl.training.run_config import DataConfig
    >>> from hfdsl.rl.workers import ActorConfig, GenerationConfig, ModelConfig
    >>> pools = {"all": PoolConfig((1,), gpu=False)}
    >>> config = Supervised(
    ...     data=DataConfig(ReasoningGym("spell_backward", 1000), Characters("abcdefghijklmnopqrstuvwxyz>")),
    ...     deployment=DeploymentConfig(pools, default=PlacementConfig("all")),
    ...     dims={"B": 32, "P": 16, "R": 8},
    ...     actor=ActorConfig(ModelConfig("models/policy"), GenerationConfig(max_tokens=8)),
    ...     steps=10,
    ...     output="runs/spelling",
    ... )
    >>> loaded = from_config(config)
    >>> loaded.config.steps, list(loaded.roles)  # hfdsl.rl.training.loop.train(loaded) runs it
    (10, ['actor'])
    """
    loaded = from_table({field.name: getattr(config, field.name) for field in fields(config)}, (), find)
    return replace(loaded, places=CallPlace(caller_span()))


@traced_once()
def from_table(table: Mapping[str, Any], changes: Sequence[str] = (), find: Find | None = None) -> Loaded:
    """Load the configuration of a table.

    Raises:
        ConfigError: HF901.
    """
    find = find or by_name
    try:
        parts, changes = read_names(table, changes, find)
    except ConfigError as error:
        errors = list(separated(error))
        reported = {named.field for named in errors}
        raise together([*errors, *_errors_without_names(table, changes, reported)]) from None
    for name in (change.partition("=")[0].strip().partition(".")[0] for change in changes):
        if name in parts.roles and name not in parts.kind.__dataclass_fields__:
            raise _takes_no_table(name, parts)
    table = tables.with_changes(
        table=parts.table, kind=parts.kind, changes=[_dotted(c, parts.algorithm) for c in changes]
    )
    config = _built(table, parts)
    tabled = [name for name in parts.roles if hasattr(config, name)]
    update_graph = None if parts.update is None else parts.update.trace()
    config = with_total_steps(config, tabled, parts.algorithm.trace(), update_graph)
    loaded = Loaded(config, parts.algorithm, parts.evaluation, parts.update, parts.roles)
    engines = engines_of_auto(loaded)
    return replace(loaded.with_engines(engines), auto_engines=tuple(engines))


def _built(table: tables.Table, parts: NamedParts) -> RunConfig:
    """The configuration of a table; the options are built already, for the dataflows.

    Raises:
        ConfigError: HF901 with all mistakes.
    """
    if errors := list(_missing_tables(table, parts)):
        raise together(errors)
    of_no_role = list(_tables_of_no_role(table, parts))
    values, broken = tables.resolved_references(table)
    errors = [*of_no_role, *broken.values()]
    if isinstance(sizes := values.get("dims"), Mapping):
        flows = [flow for flow in (parts.algorithm, parts.evaluation, parts.update) if flow is not None]
        errors += _unknown_dims(sizes, {dim.__name__ for flow in flows for dim in program_dims(flow.trace())})
    reported = {*broken, *(error.field for error in errors)}
    values = {name: value for name, value in values.items() if name not in {error.field for error in of_no_role}}
    try:
        config: RunConfig = build(parts.kind, _with_options(values, parts))
        if not errors:
            return config
    except ConfigError as error:
        others = [mistake for mistake in separated(error) if mistake.field not in reported]
        # A reference copies a table with its mistakes, which are reported where they are written.
        written = {mistake.field for mistake in others if mistake.field}
        errors += [mistake for mistake in others if tables.copied_field(table, mistake.field or "") not in written]
    raise together(errors)


def _errors_without_names(
    table: Mapping[str, Any], changes: Sequence[str], reported: Collection[str]
) -> Iterator[ConfigError]:
    """The mistakes in fields that every run has, where wrong names leave unknown which others there are.

    Those in fields for which an error is ``reported`` are left out.
    """
    names = {field.name for field in fields(RunConfig)} - {"options", "roles"}
    of_run = [change for change in changes if change.partition("=")[0].strip().partition(".")[0] in names]
    try:
        table, remaining = with_deployment(table, of_run)
        values, broken = tables.resolved_references(tables.with_changes(table, RunConfig, remaining))
    except ConfigError:
        return  # a change that cannot be made, or no file with the deployment
    values = {name: value for name, value in values.items() if name in names or not isinstance(value, (Mapping, str))}
    try:
        build(RunConfig, {"algorithm": "", **values})
    except ConfigError as error:
        yield from (further for further in separated(error) if further.field not in {*broken, *reported})


def _unknown_dims(sizes: Iterable[str], dims: Collection[str]) -> Iterator[ConfigError]:
    """An error for each size of a dim that no dataflow has."""
    for name in sizes:
        if name not in dims:
            problem = f"dims: there is no dim '{name}'; {closest(name, sorted(dims))}"
            candidate = nearest(name, sorted(dims))
            renamed = () if candidate is None else (RenameField(f"dims.{name}", candidate),)
            yield ConfigError("HF901", problem, f"dims.{name}", changes=renamed)


def _tables_of_no_role(table: Mapping[str, Any], parts: NamedParts) -> Iterator[ConfigError]:
    """An error for each table that is neither a field nor near one: it is meant for a role.

    It names the roles that have tables, or the class that a role takes instead of its own.
    """
    field_names = [field.name for field in fields(parts.kind)]
    for name, value in table.items():
        if (
            not isinstance(value, Mapping)
            or name in field_names
            or (name not in parts.roles and nearest(name, field_names))
        ):
            continue
        if name in parts.roles:
            yield _takes_no_table(name, parts)
        else:
            tabled = [role for role in parts.roles if role in field_names]
            text = f"there is no role '{name}'; the roles with a table are {', '.join(tabled)}"
            yield ConfigError("HF901", text, name)


def _takes_no_table(name: str, parts: NamedParts) -> ConfigError:
    """The error for the table of a role whose class takes no arguments."""
    problem = f"'{name}' is a role of class {parts.roles[name].__name__}, which takes no table"
    text = f'{problem}; remove [{name}], or name a class that takes one: [roles] {name} = "module:Class"'
    return ConfigError("HF901", text, name)


def _missing_tables(table: Mapping[str, Any], parts: NamedParts) -> Iterator[ConfigError]:
    """An error for each role of the evaluation alone that nothing configures.

    It names the roles of the run, one of which may be meant.
    """
    run = parts.algorithm.trace().roles
    for name in parts.roles:
        kind = hints(parts.kind).get(name)
        if name not in run and table.get(name) in (None, NONE) and kind and any(map(required, fields(kind))):
            problem = f"the evaluation has a role '{name}', and there is no table [{name}] ({kind.__name__})"
            text = f"{problem}; the roles of the run are {', '.join(run)}"
            yield ConfigError("HF901", text, "evaluation.algorithm")


def _dotted(change: str, flow: Dataflow[..., Any]) -> str:
    """``B=64`` as ``dims.B=64``."""
    name = change.partition("=")[0].strip()
    return f"dims.{change}" if name in {dim.__name__ for dim in program_dims(flow.trace())} else change


def _with_options(values: tables.Table, parts: NamedParts) -> tables.Table:
    """A table with the built options."""
    if parts.options is not None:
        values = {**values, "options": parts.options}
    if parts.update_options is not None and isinstance(values["update"], Mapping):
        values = {**values, "update": {**values["update"], "options": parts.update_options}}
    return values
