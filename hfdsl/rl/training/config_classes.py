"""The class of a configuration: a ready-made one, or one derived from the annotations of a dataflow and its roles."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, fields, make_dataclass
from functools import lru_cache
from typing import Any, get_args, get_type_hints

from hfdsl.errors import ConfigError
from hfdsl.protocols.worker import Worker
from hfdsl.rl import workers
from hfdsl.rl.training.run_config import RunConfig, UpdateConfig
from hfdsl.rl.training.typed import hints, is_dataclass_type, required


def takes_update(ready: type[RunConfig], update_options: type | None) -> bool:
    """Whether a ready-made configuration takes an update with these options."""
    return any(hints(kind)["options"] is update_options for kind in _classes_in(ready, "update"))


def narrowed(
    ready: type[RunConfig], roles: Mapping[str, type], evaluation_roles: Collection[str]
) -> type[RunConfig] | None:
    """Narrow a ready-made configuration to these classes of tables; None if it has other roles or tables.

    Roles of the evaluation alone get tables beside those of the ready-made configuration.

    The field of a role that may have one of several classes, such as a reward, takes only the class that was named, so
    that its table needs no ``kind``.
    """
    ready_roles = {field.name: field for field in fields(ready) if field.name not in RunConfig.__dataclass_fields__}
    needed = {name for name, field in ready_roles.items() if required(field)}
    if not needed <= roles.keys() <= {*ready_roles, *evaluation_roles}:
        return None
    if any(kind not in _classes_in(ready, name) for name, kind in roles.items() if name in ready_roles):
        return None
    narrower = {name: kind for name, kind in roles.items() if hints(ready).get(name) is not kind}
    base: Any = ready
    return _subclass(base, base.__name__, tuple(narrower.items())) if narrower else ready


def configuration_class(
    options: type | None, update_options: type | None, roles: Mapping[str, type]
) -> type[RunConfig]:
    """Derive the configuration of a dataflow that is not ready, or has other role classes than its own."""
    tables = roles if options is None else {"options": options, **roles}
    kind = _subclass(RunConfig, "Configuration", tuple(tables.items()))
    if update_options is None:
        return kind
    update_kind = _subclass(UpdateConfig, "UpdateConfig", (("options", update_options),))
    return make_dataclass(
        "Configuration", [("update", update_kind | None, field(default=None))], bases=(kind,), frozen=True, kw_only=True
    )


@lru_cache(maxsize=64)  # to make a dataclass takes longer than to read a table of it
def _subclass(base: type[Any], name: str, added: tuple[tuple[str, type], ...]) -> type[Any]:
    """A subclass with more fields, each of a class; one is optional if all of its own fields are."""
    field_specs = [
        (name, kind, field() if any(map(required, fields(kind))) else field(default_factory=kind))
        for name, kind in added
    ]
    return make_dataclass(name, field_specs, bases=(base,), frozen=True, kw_only=True)


def _classes_in(kind: type, name: str) -> list[type]:
    """The dataclasses that a field takes."""
    annotation = hints(kind)[name]
    return [option for option in (annotation, *get_args(annotation)) if is_dataclass_type(option)]


def table_class(name: str, role: type[Worker]) -> type | None:
    """The class of a role's table: the dataclass that its constructor takes, or one of its several parameters."""
    if role is workers.KLPenalty:
        from hfdsl.rl.training.algorithms import KLPenaltyArguments

        return KLPenaltyArguments
    parameters = constructor_parameters(role)
    if not parameters:
        return None
    try:
        annotation = _annotations(role.__init__).get(parameters[0].name)
        if len(parameters) == 1 and is_dataclass_type(annotation):
            return annotation
        return arguments_class(role.__init__, parameters, f"{name.title()}Arguments")
    except ConfigError as error:
        error.field = f"roles.{name}"
        raise


def constructor_parameters(role: type[Worker]) -> list[inspect.Parameter]:
    """The parameters of a role's constructor that have names, without ``self``."""
    if role.__init__ is object.__init__:
        return []
    parameters = list(inspect.signature(role.__init__).parameters.values())[1:]
    return [parameter for parameter in parameters if parameter.kind not in _OF_ANY_NAME]


_OF_ANY_NAME = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _annotations(function: Any) -> dict[str, Any]:
    """The evaluated annotations of a function."""
    try:
        return get_type_hints(function)
    except Exception as error:  # noqa: BLE001  # an annotation is an expression, which may raise anything
        text = f"the annotations of {function.__qualname__} cannot be evaluated: {error}"
        raise ConfigError("HF901", f"{text}; a table is read by them, so import what they name at run time") from None


def arguments_class(function: Any, parameters: Iterable[inspect.Parameter], name: str) -> type:
    """Make a dataclass whose fields are these parameters of a function.

    Raises:
        ConfigError: HF901 for one without an annotation, or with one that cannot be evaluated.
    """
    annotations = _annotations(function)
    field_specs: list[tuple[str, Any, Any]] = []
    for parameter in parameters:
        if parameter.name not in annotations:
            raise ConfigError("HF901", f"parameter '{parameter.name}' of {function.__qualname__} has no annotation")
        default = field() if parameter.default is parameter.empty else _field(parameter.default)
        field_specs.append((parameter.name, annotations[parameter.name], default))
    return make_dataclass(name, field_specs, frozen=True, kw_only=True)


def _field(default: Any) -> Any:
    """A field with a default; of one that can change, such as a list, every object has a copy of its own."""
    if type(default).__hash__ is None:
        return field(default_factory=lambda: copy.deepcopy(default))
    return field(default=default)
