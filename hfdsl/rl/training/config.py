"""The configuration of a run: one tree of frozen dataclasses, from a file, changed from the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_type_hints

import hfdsl as hf
from hfdsl.errors import ConfigError
from hfdsl.graph.dataflow import Dataflow
from hfdsl.graph.dims import program_dims
from hfdsl.protocols.worker import Worker
from hfdsl.rl.data.feed import OnBad
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.data.prompts import Prompt
from hfdsl.rl.data.sources import Source
from hfdsl.rl.data.tokenizers import Tokenizer
from hfdsl.rl.training import tables
from hfdsl.rl.training.placement import Places
from hfdsl.rl.training.typed import build, required
from hfdsl.types.batches import closest

Find: TypeAlias = Callable[[str], Any]
"""From ``"module:name"`` to what it names."""


@dataclass(frozen=True, slots=True)
class Data:
    """What is trained on. A bad row ends the run, or with ``on_bad = "skip"`` it is passed over and counted.

    ``seed`` is that of the order; left out, it is the run's. With ``ahead`` the next batch is made while a step runs.
    """

    source: Source
    tokenizer: Tokenizer
    prompt: Prompt = field(default_factory=Prompt)
    on_bad: OnBad = "raise"
    seed: int | None = None
    ahead: bool = True


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A dataflow that looks at the policy every ``every`` steps, before the first and after the last.

    It takes the first rows of ``source``, as many as ``dims`` says, and training passes over rows of the same text
    unless ``held_out`` is false. What it returns of ``Sequences`` and ``Scores`` can be read in ``samples.jsonl``:
    the first ``samples`` of them.
    """

    source: Source
    every: int = 10
    algorithm: str = "hfdsl.rl.training.evaluation:evaluate"
    dims: dict[str, int] = field(default_factory=dict)
    held_out: bool = True
    samples: int = 4


@dataclass(frozen=True, kw_only=True)
class Update:
    """A dataflow that trains on ``rows`` rows, which as many rounds of the run's own dataflow keep as it takes.

    Where ``rounds`` of them keep fewer, the run ends, or with ``short = "repeat"`` the rows start over from the first.
    What the last round keeps above ``rows`` is dropped.
    """

    algorithm: str
    options: Any = None
    rows: int
    rounds: int = 10
    short: Literal["raise", "repeat"] = "raise"

    def __post_init__(self) -> None:
        if self.rows < 1 or self.rounds < 1:
            raise ValueError(f"rows and rounds are at least 1, got {self.rows} and {self.rounds}")


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A checkpoint after every ``every`` steps and after the last, of which the last ``keep`` are kept.

    It is written ``behind`` the steps that follow, from a copy of the state in the memory of the host; or they wait.
    """

    every: int = 100
    keep: int = 2
    behind: bool = True

    def __post_init__(self) -> None:
        if self.every < 1 or self.keep < 1:
            raise ValueError(f"every and keep are at least 1, got {self.every} and {self.keep}")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What every run is configured by; a field for each role, of its own class, comes to it.

    ``algorithm`` names a dataflow, or a function that makes one; ``options`` are those of either. ``roles`` names
    classes that are not those of the dataflow's parameters. ``dims`` are sizes by the names of dims. Paths are those of
    the folder in which the command runs. Steps of the numbers ``record`` are recorded, for ``hfdsl replay``.
    With an ``update`` the dataflow is a round of sampling for it.
    """

    algorithm: str
    options: Any = None
    roles: dict[str, str] = field(default_factory=dict)
    deployment: Places
    dims: dict[str, int]
    data: Data
    steps: int
    seed: int = 0
    output: str
    backend: Literal["local", "ray"] = "local"
    deadline: float = 1800.0
    tensorboard: bool = False
    record: tuple[int, ...] = ()
    evaluation: Evaluation | None = None
    update: Update | None = None
    checkpoints: Checkpoints = field(default_factory=Checkpoints)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps is at least 1, got {self.steps}")
        if self.evaluation is not None and self.evaluation.every < 1:
            raise ValueError(f"evaluation.every is at least 1, got {self.evaluation.every}")


MAY_CHANGE = (
    "steps",
    "output",
    "backend",
    "deadline",
    "tensorboard",
    "record",
    "checkpoints",
    "deployment",
    "evaluation.every",
    "evaluation.samples",
    "update.rounds",  # this and the next matter only to a step whose rounds keep too little
    "update.short",
)
"""The fields that do not change what the next step does: a run may go on with others. Meshes are looked at apart."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration with what it names: the dataflows, and the class of every role."""

    config: Run
    algorithm: Dataflow[..., Any]
    evaluation: Dataflow[..., Any] | None
    update: Dataflow[..., Any] | None
    roles: Mapping[str, type[Worker]]

    def table(self) -> tables.Table:
        """The configuration with every default, as plain values."""
        made: tables.Table = tables.as_table(self.config)
        return made

    def deployment(self) -> hf.Deployment:
        """Where everything runs; errors as for ``Places.deployment``."""
        return self.config.deployment.deployment({name: self._made(name) for name in self.roles})

    def experiment(self) -> hf.Experiment:
        """The same as what ``hfdsl check``, ``plan``, ``draw``, ``requires`` and ``run`` take."""
        return hf.Experiment(self.algorithm, self.deployment(), self.sizes(), self._batches, self.config.seed)

    def _batches(self) -> Iterator[Any]:
        from hfdsl.rl.training.loop import prepare

        feed, cursor = prepare(self).feed, self.cursor()
        while True:
            prompts, cursor = feed.take(cursor)
            yield prompts

    def cursor(self) -> Cursor:
        """Where the data begins."""
        return Cursor(self.config.seed if self.config.data.seed is None else self.config.data.seed)

    def _made(self, name: str) -> tuple[type[Worker], tuple[Any, ...], Mapping[str, Any]]:
        role = self.roles[name]
        given = getattr(self.config, name, None)
        if given is None:
            return role, (), {}
        parameters = _parameters(role)
        if type(given) is get_type_hints(role.__init__).get(parameters[0].name):
            return role, (given,), {}
        return role, (), {one.name: getattr(given, one.name) for one in parameters}

    def sizes(self, changes: Mapping[str, int] | None = None) -> dict[type[hf.Dim], int]:
        """The sizes of the dims that the dataflows have.

        Raises:
            ConfigError: HF901 for a dim that none of them has.
        """
        flows = [flow for flow in (self.algorithm, self.evaluation, self.update) if flow is not None]
        known = {dim.__name__: dim for flow in flows for dim in program_dims(flow.trace())}
        given = {**self.config.dims, **(changes or {})}
        for name in given:
            if name not in known:
                raise ConfigError("HF901", f"dims: there is no dim '{name}'; {closest(name, sorted(known))}")
        return {known[name]: size for name, size in given.items()}


def load(path: str | Path, changes: Sequence[str] = (), find: Find | None = None) -> Loaded:
    """The configuration of a TOML file with these changes, ``"actor.training.optimizer.learning_rate=1e-5"``.

    Raises:
        ConfigError: HF901 naming the file or the change, the field, what it takes and what it was given.
    """
    table = tables.read(path)
    try:
        return from_table(table, changes, find or by_name)
    except ConfigError as error:
        raise ConfigError("HF901", f"{path}: {error.message}") from None


def from_table(table: Mapping[str, Any], changes: Sequence[str] = (), find: Find | None = None) -> Loaded:
    """The same of a table.

    Raises:
        ConfigError: HF901.
    """
    find = find or by_name
    table, changes = _with_deployment(table, changes)
    table = tables.changed(table, Run, [one for one in changes if _naming(one)])
    if not isinstance(table.get("algorithm"), str):
        raise ConfigError("HF901", "'algorithm' (str) is missing: a dataflow, as 'module:name'")
    named = _named(find, table["algorithm"], "algorithm")
    options = _options(named)
    updating, taken = _updating(table.get("update"), find)
    flow = _with_options(named, options, table.get("options"))
    classes = _classes(flow, table.get("roles", {}), find)
    kind = _schema(options, classes, taken)
    config: Run = build(kind, tables.resolved(tables.changed(table, kind, [_dotted(one, flow) for one in changes])))
    flow = _with_options(named, options, config.options)  # those that were changed too
    evaluation = config.evaluation and _named(find, config.evaluation.algorithm, "evaluation.algorithm")
    if evaluation is not None and not isinstance(evaluation, Dataflow):
        raise ConfigError("HF901", f"evaluation.algorithm: {evaluation!r} is no dataflow")
    update = _with_options(updating, taken, config.update.options, "update.") if config.update else None
    return Loaded(config, flow, evaluation, update, classes)


NAMING = ("algorithm", "roles", "update.algorithm")
"""The fields that say which other fields there are."""


def _naming(change: str) -> bool:
    name = change.partition("=")[0].strip()
    return any(name == one or name.startswith(f"{one}.") for one in NAMING)


def by_name(text: str) -> Any:
    """What ``"package.module:name"`` names.

    Raises:
        ConfigError: HF901 where there is no such module or name.

    >>> by_name("math:pi") > 3
    True
    """
    module, _, name = text.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError("HF901", f"there is no '{text}', which is read as 'module:name': {error}") from None
    return found


def _named(find: Find, text: str, field_name: str) -> Any:
    try:
        return find(text)
    except ConfigError as error:
        raise ConfigError("HF901", f"'{field_name}': {error.message}") from None


def _with_deployment(table: Mapping[str, Any], changes: Sequence[str]) -> tuple[tables.Table, list[str]]:
    """The table with the file of its deployment read; ``deployment=FILE`` goes over it before all other changes."""
    told = [one.partition("=") for one in changes]
    files = [tables.parsed(text, str, "deployment") for name, _, text in told if name.strip() == "deployment"]
    place = files[-1] if files else table.get("deployment")
    rest = [one for one in changes if one.partition("=")[0].strip() != "deployment"]
    if isinstance(place, str):
        place = {**tables.read(place), "file": place}
    return {**table, **({} if place is None else {"deployment": place})}, rest


def _updating(table: Any, find: Find) -> tuple[Any, type | None]:
    """What the table of an update names, and the class of its options; None where there is no such table."""
    name = table.get("algorithm") if isinstance(table, Mapping) else None
    named = _named(find, name, "update.algorithm") if isinstance(name, str) else None
    return named, None if named is None else _options(named, "update.algorithm")


def _dotted(change: str, flow: Dataflow[..., Any]) -> str:
    """``B=64`` as ``dims.B=64``."""
    name = change.partition("=")[0].strip()
    return f"dims.{change}" if name in {dim.__name__ for dim in program_dims(flow.trace())} else change


def _schema(options: type | None, classes: Mapping[str, type[Worker]], updates: type | None) -> type[Run]:
    """The class of a configuration for these roles, these options, and those of an update."""
    added: list[tuple[str, Any, Any]] = []
    if options is not None:
        added.append(("options", options, _default(options)))
    if updates is not None:
        own = ("options", updates, _default(updates))
        update = make_dataclass("Update", [own], bases=(Update,), frozen=True, kw_only=True)
        added.append(("update", update | None, field(default=None)))
    for name, role in classes.items():
        if name in Run.__dataclass_fields__:
            raise ConfigError("HF901", f"a role cannot be called '{name}': the configuration has a field of that name")
        kind = _configured_by(name, role)
        if kind is not None:
            added.append((name, kind, _default(kind)))
    return make_dataclass("Configuration", added, bases=(Run,), frozen=True, kw_only=True)


def _default(kind: type) -> Any:
    """A field of this class, which may be left out where all of its own fields may."""
    return field() if any(required(one) for one in fields(kind)) else field(default_factory=kind)


def _options(named: Any, where: str = "algorithm") -> type | None:
    """The options of a dataflow, or of a function that makes one; None where it has none."""
    if isinstance(named, Dataflow):
        own = [inspect.signature(named.body).parameters[name] for name in named.options]
        return _arguments(named.body, own, "Options") if own else None
    if not callable(named):
        raise ConfigError("HF901", f"'{where}': {named!r} is no dataflow, and no function that makes one")
    return _arguments(named, inspect.signature(named).parameters.values(), "Options")


def _with_options(named: Any, kind: type | None, options: Any, where: str = "") -> Dataflow[..., Any]:
    given = build(kind, options or {}, f"{where}options") if kind is not None else None
    values: dict[str, Any] = {one.name: getattr(given, one.name) for one in fields(given)} if given is not None else {}
    flow = named.given(**values) if isinstance(named, Dataflow) else named(**values)
    if not isinstance(flow, Dataflow):
        raise ConfigError("HF901", f"'{where}algorithm': the function gives {flow!r}, which is no dataflow")
    return flow


def _classes(flow: Dataflow[..., Any], others: Any, find: Find) -> dict[str, type[Worker]]:
    """The class of every role: that of the dataflow's parameter, or another that is named."""
    classes = dict(flow.trace().roles)
    for name, text in others.items() if isinstance(others, Mapping) else ():
        if name not in classes:
            raise ConfigError(
                "HF901", f"roles: '{flow.body.__name__}' has no role '{name}'; {closest(name, list(classes))}"
            )
        found = _named(find, text, f"roles.{name}") if isinstance(text, str) else text
        if not (isinstance(found, type) and issubclass(found, Worker)):
            raise ConfigError("HF901", f"roles.{name}: {found!r} is no role class")
        classes[name] = found
    return classes


def _configured_by(name: str, role: type[Worker]) -> type | None:
    """What a role's table is: the dataclass that its constructor takes, or one of its several parameters."""
    parameters = _parameters(role)
    if not parameters:
        return None
    annotations = get_type_hints(role.__init__)
    only = annotations.get(parameters[0].name)
    if len(parameters) == 1 and isinstance(only, type) and is_dataclass(only):
        return only
    return _arguments(role.__init__, parameters, f"{name.title()}Arguments")


def _parameters(role: type[Worker]) -> list[inspect.Parameter]:
    return [] if role.__init__ is object.__init__ else list(inspect.signature(role.__init__).parameters.values())[1:]


def _arguments(function: Any, parameters: Iterable[inspect.Parameter], name: str) -> type:
    """Parameters as the fields of a dataclass."""
    annotations = get_type_hints(function)
    listed: list[tuple[str, Any, Any]] = []
    for one in parameters:
        if one.name not in annotations:
            raise ConfigError("HF901", f"parameter '{one.name}' of {function.__qualname__} has no annotation")
        default = field() if one.default is one.empty else field(default=one.default)
        listed.append((one.name, annotations[one.name], default))
    return make_dataclass(name, listed, frozen=True, kw_only=True)
