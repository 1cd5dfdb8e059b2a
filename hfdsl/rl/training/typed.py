"""Tables of plain values as trees of frozen dataclasses: every value is held against its field's annotation."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hfdsl.errors import ConfigError, HfError
from hfdsl.types.batches import closest

T = TypeVar("T")

NONE = "none"
"""What a table has for None where a field takes it, and its default is something else."""

KIND = "kind"
"""The key that tells which class a table is of, where a field takes one of several."""


def build(kind: type[T], table: Any, path: str = "") -> T:
    """The dataclass ``kind`` with the values of a table.

    A field takes ``bool``, ``int``, ``float``, ``str``, a ``Literal``, a tuple, a dict, another dataclass, or one of
    several of these; of several dataclasses the table names one as its ``kind``.

    Raises:
        ConfigError: HF901 naming the field, what it takes, and what it was given.

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
    made: T = _value(kind, table, path)
    return made


def hints(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass, evaluated.

    Raises:
        ConfigError: HF901 where one cannot be.
    """
    try:
        return get_type_hints(kind)
    except Exception as error:  # noqa: BLE001  # an annotation is an expression, which may raise anything
        raise ConfigError("HF901", f"the fields of {kind.__name__} cannot be read: {error}") from None


def check_value(kind: Any, value: Any, path: str) -> Any:
    """A value as an annotation has it; errors as for ``build``."""
    return _value(kind, value, path)


def _value(kind: Any, value: Any, path: str) -> Any:
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind, value, path)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(kind, value, path)
    if origin is Literal:
        if not any(value == one and type(value) is type(one) for one in inner):
            raise _wrong(kind, value, path)
        return value
    if kind in _SCALARS:
        return _SCALARS[kind](value, path)
    if origin is tuple or kind is tuple:
        return _tuple(kind, value, path)
    if origin is dict or origin is Mapping or kind is dict:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _wrong(kind, value, path)
        item = inner[1] if inner else Any
        return {key: _value(item, one, joined(path, key)) for key, one in value.items()}
    if kind is Any:
        return value
    raise ConfigError("HF901", f"{path} is declared as {shown(kind)}, which no table can give")


def _dataclass(kind: type, value: Any, path: str) -> Any:
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise _wrong(kind, value, path)
    known, annotations = {field.name: field for field in fields(kind)}, hints(kind)
    for key in value:
        if key not in known and not (key == KIND and value[key] == kind.__name__):
            raise no_field(kind, path, key)
    missing = [name for name, field in known.items() if name not in value and required(field)]
    if missing:
        named = ", ".join(f"'{joined(path, name)}' ({shown(annotations[name])})" for name in missing)
        raise ConfigError("HF901", f"{named} {'is' if len(missing) == 1 else 'are'} missing")
    given = {
        name: _value(annotations[name], value[name], joined(path, name))
        for name in known
        if name in value and not (value[name] is None and not required(known[name]) and known[name].default is None)
    }
    try:
        return kind(**given)
    except HfError as error:
        raise ConfigError("HF901", f"{path or kind.__name__}: {error.message}") from None
    except (ValueError, TypeError) as error:
        raise ConfigError("HF901", f"{path or kind.__name__}: {error}") from None


def _union(kind: Any, value: Any, path: str) -> Any:
    options = get_args(kind)
    if value is None or (value == NONE and str not in options and type(None) in options):
        if type(None) in options:
            return None
        raise _wrong(kind, value, path)
    if any(type(value) is option for option in options if isinstance(option, type)):
        return value
    classes = {option.__name__: option for option in options if isinstance(option, type) and is_dataclass(option)}
    if isinstance(value, Mapping) and classes:
        if len(classes) > 1 and value.get(KIND) not in classes:
            named = (
                f"got '{value[KIND]}'; {closest(str(value[KIND]), list(classes))}" if KIND in value else "it has none"
            )
            raise ConfigError("HF901", f"{joined(path, KIND)} names one of {', '.join(classes)}; {named}")
        return _value(classes[str(value[KIND])] if len(classes) > 1 else next(iter(classes.values())), value, path)
    for option in options:
        if option not in classes.values() and option is not type(None):
            try:
                return _value(option, value, path)
            except ConfigError:
                continue
    raise _wrong(kind, value, path)


def _tuple(kind: Any, value: Any, path: str) -> Any:
    inner = get_args(kind)
    if not isinstance(value, (list, tuple)):
        raise _wrong(kind, value, path)
    if len(inner) == 2 and inner[1] is Ellipsis:
        inner = (inner[0],) * len(value)
    if inner and len(inner) != len(value):
        raise _wrong(kind, value, path)
    return tuple(
        _value(item, one, f"{path}[{i}]")
        for i, (item, one) in enumerate(zip(inner or (Any,) * len(value), value, strict=True))
    )


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(float, value, path)
    return float(value)


def _exactly(kind: type) -> Any:
    def take(value: Any, path: str) -> Any:
        if type(value) is not kind:
            raise _wrong(kind, value, path)
        return value

    return take


_SCALARS: dict[Any, Any] = {float: _number, **{kind: _exactly(kind) for kind in (bool, int, str)}}


def _wrong(kind: Any, value: Any, path: str) -> ConfigError:
    return ConfigError("HF901", f"'{path}' takes {shown(kind)}, got {value!r}")


def no_field(kind: type, path: str, name: str) -> ConfigError:
    """There is no such field; the one that took its place, or the nearest one, here or deeper."""
    where = f" in '{path}'" if path else ""
    renamed = next((field.name for field in fields(kind) if field.metadata.get("formerly") == name), None)
    if renamed is not None:
        return ConfigError("HF901", f"there is no field '{name}'{where}; its name is now '{renamed}'")
    deeper = [one for one in leaves(kind) if one.rpartition(".")[2] == name]
    names = [field.name for field in fields(kind)]
    if deeper and not difflib.get_close_matches(name, names, n=1):
        return ConfigError("HF901", f"there is no field '{name}'{where}; did you mean '{joined(path, deeper[0])}'?")
    return ConfigError("HF901", f"there is no field '{name}'{where}; {closest(name, names)}")


def leaves(kind: Any, path: str = "") -> Iterator[str]:
    """The dotted names of all fields below a class that are no dataclasses themselves."""
    for name, hint in hints(kind).items() if is_dataclass(kind) and isinstance(kind, type) else ():
        classes = [one for one in (hint, *get_args(hint)) if isinstance(one, type) and is_dataclass(one)]
        if not classes:
            yield joined(path, name)
        for one in classes:
            yield from leaves(one, joined(path, name))


def required(field: Field[Any]) -> bool:
    """Whether a field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def joined(path: str, name: str) -> str:
    """A field below a field."""
    return f"{path}.{name}" if path else name


def shown(kind: Any) -> str:
    """An annotation as its author wrote it, more or less.

    >>> shown(int | None), shown(Literal["a", "b"]), shown(tuple[float, ...])
    ('int or None', "'a' or 'b'", 'a list of float')
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(map(shown, inner))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is tuple:
        listed = inner[:1] if inner[1:] == (...,) else inner
        return f"a list of {', '.join(map(shown, listed))}"
    if origin in (dict, Mapping) or kind is dict:
        return "a table"
    if isinstance(kind, type) and is_dataclass(kind):
        return f"a table of {kind.__name__}"
    return "None" if kind is type(None) else getattr(kind, "__name__", str(kind))
