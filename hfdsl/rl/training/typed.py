"""Build trees of frozen dataclasses from tables of plain values, and check every value against its annotation.

>>> from hfdsl.rl.workers.config import TrainingConfig
>>> build(TrainingConfig, {"optimizer": {"learning_rate": 1}}).optimizer.learning_rate  # an int may stand for a float
1.0

``value_of`` walks annotation and table together with the dotted path of the field, so every message names the field as
a user writes it after ``--set``:

>>> build(TrainingConfig, {"optimizer": {"learning_rate": "fast"}})
Traceback (most recent call last):
...
hfdsl.errors.ConfigError: HF901: 'optimizer.learning_rate' takes float, got 'fast'

An unknown field is searched by spelling, then by its name in the whole tree below:

>>> build(TrainingConfig, {"learning_rate": 1})
Traceback (most recent call last):
...
hfdsl.errors.ConfigError: HF901: there is no field 'learning_rate'; did you mean 'optimizer.learning_rate'?

pydantic and msgspec were tried instead. Neither refuses an unknown field of a user's plain dataclass, neither
suggests a name, and msgspec takes no union of dataclasses; so most of this file, and all of ``tables``, would stay,
wrapped around a dependency.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from inspect import get_annotations
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from hfdsl.errors import ConfigError, HfError
from hfdsl.rl.training.toml.changes import RenameField, SetField
from hfdsl.types.bounds import (
    LISTS,
    TABLES,
    annotation_text,
    annotations_of,
    is_union,
    item_annotations,
    misfit,
    removed,
)
from hfdsl.types.similar_names import closest, nearest

T = TypeVar("T")

NONE = "none"
"""None in TOML, which has no null, for a field with another default."""

KIND = "kind"
"""The key that names the class of a table, if a field takes one of several."""


def build(kind: type[T], table: Any, path: str = "") -> T:
    """The dataclass ``kind`` with the values of a table.

    A field takes ``bool``, ``int``, ``float``, ``str``, a ``Literal``, a tuple, a list, a sequence, a dict with strings
    as keys, another dataclass, or a union of these; if it takes several dataclasses, the table names one as its
    ``kind``.

    Raises:
        ConfigError: HF901 naming the field, what it takes, and what it got.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Optimizer:
    ...     learning_rate: float = 1e-6
    >>> build(Optimizer, {"learning_rate": 1})
    Optimizer(learning_rate=1.0)
    >>> build(Optimizer, {"learnig_rate": 1})
    Traceback (most recent call last):
    ...
    hfdsl.errors.ConfigError: HF901: there is no field 'learnig_rate'; did you mean 'learning_rate'?
    """
    config: T = value_of(kind, table, path)
    return config


def hints(kind: type) -> dict[str, Any]:
    """The evaluated annotations of a dataclass.

    Raises:
        ConfigError: HF901 if one cannot be evaluated.
    """
    try:
        return _type_hints(kind)
    except Exception as error:  # noqa: BLE001  # an annotation is an expression, which may raise anything
        raise ConfigError("HF901", f"the fields of {kind.__name__} cannot be read: {error}") from None


@cache  # a configuration is built many times in one check, once for each change that is tried
def _type_hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def value_of(annotation: Any, value: Any, path: str) -> Any:
    """A plain value, converted to its annotation; errors as for ``build``."""
    if is_dataclass_type(annotation):
        return _dataclass(annotation, value, path)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if is_union(annotation):
        return _union(annotation, value, path)
    if origin is Literal:
        if not any(value == option and type(value) is type(option) for option in arguments):
            problem = misfit(annotation, value) or f"does not take {value!r}"
            raise ConfigError("HF901", f"'{path}' {problem}", path, changes=_readings(annotation, value, path))
        return value
    if annotation in (bool, int, float, str):
        if type(value) is not annotation and not (annotation is float and type(value) is int):
            raise _wrong(annotation, value, path)  # isinstance would take True as an int
        return annotation(value)
    if origin in LISTS or annotation in LISTS:
        return _list(annotation, value, path)
    if (origin in TABLES and arguments[0] in (str, Any)) or annotation in TABLES:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _wrong(annotation, value, path)
        item = arguments[1] if arguments else Any
        return {key: value_of(item, inner, joined(path, key)) for key, inner in value.items()}
    if annotation is Any:
        return value
    shown = annotation_text(annotation)
    if origin in TABLES:
        shown = f"a table whose keys are {annotation_text(arguments[0])}"
    raise ConfigError("HF901", f"{path} is declared as {shown}, which a table cannot express", path)


def _dataclass(kind: type, value: Any, path: str) -> Any:
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise _wrong(kind, value, path)
    declared, annotations = {field.name: field for field in fields(kind)}, hints(kind)
    unknown = [key for key in value if key not in declared and not (key == KIND and value[key] == kind.__name__)]
    errors = [no_field(kind, path, key) for key in unknown]
    matches = {match for key in unknown for match in difflib.get_close_matches(key, declared, n=1)}
    missing = [
        name for name, field in declared.items() if required(field) and name not in value and name not in matches
    ]
    if missing:
        named = ", ".join(f"'{joined(path, name)}' ({annotation_text(annotations[name])})" for name in missing)
        errors.append(ConfigError("HF901", f"{named} {'is' if len(missing) == 1 else 'are'} missing", path))
    arguments: dict[str, Any] = {}
    bounded = annotations_of(kind)
    for name, field in declared.items():
        if problem := removed(bounded.get(name), value.get(name)):
            errors.append(ConfigError("HF901", f"'{joined(path, name)}' {problem}", joined(path, name)))
        elif name in value and not (value[name] is None and not required(field) and field.default is None):
            try:
                completed = _completed(value[name], _default_of(field, annotations[name]))
                arguments[name] = value_of(annotations[name], completed, joined(path, name))
            except ConfigError as error:
                errors.append(error)
    for name, argument in arguments.items():
        errors += _misfits(bounded[name], argument, joined(path, name)) if name in bounded else ()
    if errors:
        raise together(errors)
    try:
        return kind(**arguments)
    except (HfError, ValueError, TypeError) as error:
        message = error.message if isinstance(error, HfError) else str(error)
        raise ConfigError("HF901", f"{path or kind.__name__}: {message}", _subject(message, path, declared)) from None


def _misfits(annotation: Any, value: Any, path: str) -> Iterator[ConfigError]:
    """An error for each number that is out of the bounds of its annotation, also in a list or a table."""
    origin = get_origin(annotation)
    if origin in LISTS and isinstance(value, (list, tuple)):
        for i, (item, inner) in enumerate(zip(item_annotations(annotation, len(value)), value, strict=True)):
            yield from _misfits(item, inner, f"{path}[{i}]")
    elif origin in TABLES and isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _misfits(get_args(annotation)[1], inner, joined(path, key))
    elif (problem := misfit(annotation, value)) is not None:
        yield ConfigError("HF901", f"'{path}' {problem}", path)


def _completed(value: Any, default: Any) -> Any:
    """A table, completed by the dataclass that is the default of its field.

    ``loss = { kl = 0.1 }`` is the loss of the algorithm with another weight, not the class's default with it.
    """
    if not isinstance(value, Mapping) or not is_dataclass(default) or isinstance(default, type):
        return value
    if value.get(KIND, type(default).__name__) != type(default).__name__:
        return value
    defaults = {field.name: getattr(default, field.name) for field in fields(default) if field.init}
    return defaults | {name: _completed(inner, defaults.get(name)) for name, inner in value.items()}


def _default_of(field: Field[Any], annotation: Any) -> Any:
    """The default of a field; ``MISSING`` if it has none, or only what its class is without arguments."""
    if field.default_factory in (MISSING, annotation):
        return field.default
    return field.default_factory()


def together(errors: Iterable[ConfigError]) -> ConfigError:
    """The first of several errors, with the others attached; those with the same field and message are one."""
    error, *others = {(error.field, error.message): error for error in separated(*errors)}.values()
    error.others = tuple(others)
    return error


def separated(*errors: ConfigError) -> Iterator[ConfigError]:
    """Errors and those that are attached to them, each without others."""
    for joint in errors:
        others, joint.others = joint.others, ()
        yield joint
        yield from separated(*others)


def _subject(message: str, path: str, names: Mapping[str, object]) -> str:
    """The field at the beginning of a message about a table, or the table itself."""
    name = re.match(r"\W*(\w*)", message)
    return joined(path, name[1]) if name and name[1] in names else path


def _union(annotation: Any, value: Any, path: str) -> Any:
    options = get_args(annotation)
    if value is None or (value == NONE and str not in options and type(None) in options):
        if type(None) in options:
            return None
        raise _wrong(annotation, value, path)
    if any(type(value) is option for option in options if isinstance(option, type)):
        return value
    classes = {option.__name__: option for option in options if is_dataclass_type(option)}
    if isinstance(value, Mapping) and classes:
        if len(classes) > 1 and value.get(KIND) not in list(classes):  # which may not be a string
            problem = (
                f"got '{value[KIND]}'; {closest(str(value[KIND]), list(classes))}" if KIND in value else "it has none"
            )
            kind = joined(path, KIND)
            candidate = nearest(str(value[KIND]), list(classes)) if KIND in value else _only_fitting(classes, value)
            changes = () if candidate is None else (SetField(kind, candidate),)
            raise ConfigError("HF901", f"{kind} names one of {', '.join(classes)}; {problem}", kind, changes=changes)
        return value_of(classes[str(value[KIND])] if len(classes) > 1 else next(iter(classes.values())), value, path)
    plain = [option for option in options if option not in classes.values() and option is not type(None)]
    for option in plain:
        try:
            return value_of(option, value, path)
        except ConfigError as error:
            if error.field != path and isinstance(value, (Mapping, list)) and len(plain) == 1:
                raise  # the mistake is in one of its items
    raise _wrong(annotation, value, path)


def _only_fitting(classes: Mapping[str, type], value: Mapping[str, Any]) -> str | None:
    """The only class that has all fields of a table without ``kind``."""
    fitting = [name for name, kind in classes.items() if value.keys() <= {field.name for field in fields(kind)}]
    return fitting[0] if len(fitting) == 1 else None


def _list(annotation: Any, value: Any, path: str) -> list[Any] | tuple[Any, ...]:
    """A list for an annotation of one, and a tuple for a tuple or a sequence."""
    if not isinstance(value, (list, tuple)):
        raise _wrong(annotation, value, path)
    items = item_annotations(annotation, len(value))
    if len(items) != len(value):
        raise _wrong(annotation, value, path)
    built = [value_of(item, inner, f"{path}[{i}]") for i, (item, inner) in enumerate(zip(items, value, strict=True))]
    return built if list in (annotation, get_origin(annotation)) else tuple(built)


def _wrong(annotation: Any, value: Any, path: str) -> ConfigError:
    message = f"'{path}' takes {annotation_text(annotation)}, got {value!r}"
    return ConfigError("HF901", message, path, changes=_readings(annotation, value, path))


def _readings(annotation: Any, value: Any, path: str) -> tuple[SetField, ...]:
    """Values that may be meant by one that does not fit: ``2`` by ``"2"``, ``"ray"`` by ``"rey"``, ``[7]`` by ``7``."""
    candidates: list[Any] = [] if isinstance(value, (Mapping, list)) else [[value]]
    match value:
        case str():
            with suppress(ValueError):  # not TOML, or a number of too many digits
                candidates.append(tomllib.loads(f"value = {value.strip().lower()}")["value"])
            options = [text for option in (annotation, *get_args(annotation)) for text in _texts(option)]
            candidates += difflib.get_close_matches(value, options, n=1)
        case float() if value.is_integer():
            candidates.append(int(value))
        case int() | float():
            candidates.append(str(value))
    fitting = [candidate for candidate in candidates if misfit(annotation, candidate) is None]
    return tuple(SetField(path, candidate) for candidate in fitting) if not is_dataclass_type(annotation) else ()


def _texts(annotation: Any) -> list[str]:
    literals = get_args(annotation) if get_origin(annotation) is Literal else ()
    return [literal for literal in literals if isinstance(literal, str)]


OTHER_NAMES = {
    "batch_size": "dims.B",
    "beta": "kl",
    "epsilon": "low",
    "epsilon_high": "high",
    "gradient_checkpointing": "checkpointing",
    "kl_coef": "kl",
    "lora_alpha": "alpha",
    "lora_r": "rank",
    "lr": "learning_rate",
    "max_completion_length": "dims.R",
    "max_new_tokens": "max_tokens",
    "max_prompt_length": "dims.P",
    "max_response_length": "dims.R",
    "max_steps": "steps",
    "micro_batch_size": "rows",
    "n": "group",
    "num_generations": "group",
    "output_dir": "output",
    "train_batch_size": "dims.B",
}
"""Names that other libraries have for fields; a dim is a key of the table ``dims``."""


def no_field(kind: type, path: str, name: str) -> ConfigError:
    """The error for an unknown field, with its new name, or the nearest one, here or deeper."""
    location, wrong = f" in '{path}'" if path else "", joined(path, name)
    renamed = next((field.name for field in fields(kind) if field.metadata.get("formerly") == name), None)
    if renamed is not None:
        message = f"there is no field '{name}'{location}; its name is now '{renamed}'"
        return ConfigError("HF901", message, wrong, changes=(RenameField(wrong, renamed),))
    if name in get_annotations(kind) and "__dataclass_fields__" not in vars(kind):
        message = (
            f"'{wrong}' is not a field: the class {kind.__name__} annotates it, but lacks the decorator @dataclass"
        )
        return ConfigError("HF901", message, wrong)
    names, meant = [field.name for field in fields(kind)], OTHER_NAMES.get(name, name)
    deeper = [inner for inner in inner_fields(kind) if "." in inner and inner.rpartition(".")[2] == meant]
    if meant.partition(".")[0] in names:
        deeper = [meant]
    near = nearest(name, names) if meant == name else None
    field_meant = near or next(iter(deeper), None)
    if field_meant is None:
        return ConfigError("HF901", f"there is no field '{name}'{location}; {closest(name, names)}", wrong)
    suggested = joined(path, field_meant) if "." in field_meant else field_meant
    message = f"there is no field '{name}'{location}; did you mean '{suggested}'?"
    return ConfigError("HF901", message, wrong, changes=(RenameField(wrong, field_meant),))


def inner_fields(kind: Any, path: str = "") -> Iterator[str]:
    """The dotted names of all fields below a class."""
    for name, hint in hints(kind).items() if is_dataclass_type(kind) else ():
        yield joined(path, name)
        for inner in (option for option in (hint, *get_args(hint)) if is_dataclass_type(option)):
            yield from inner_fields(inner, joined(path, name))


def is_dataclass_type(annotation: Any) -> bool:
    """Whether an annotation is a dataclass."""
    return isinstance(annotation, type) and is_dataclass(annotation)


def required(field: Field[Any]) -> bool:
    """Whether a field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def joined(path: str, name: str) -> str:
    """The dotted name of a field below another."""
    return f"{path}.{name}" if path else name
