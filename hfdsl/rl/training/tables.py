"""Tables of TOML: read, changed from the command line, written again, and compared."""

from __future__ import annotations

import copy
import json
import re
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias, Union, get_args, get_origin

from hfdsl.errors import ConfigError
from hfdsl.rl.training.typed import KIND, NONE, check_value, hints, joined, no_field

Table: TypeAlias = dict[str, Any]

REFERENCE = re.compile(r"\$([A-Za-z_]\w*(?:\.\w+)*)")


def read(path: str | Path) -> Table:
    """The table of a TOML file.

    Raises:
        ConfigError: HF901 where it cannot be read.
    """
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError("HF901", f"{path}: {getattr(error, 'strerror', None) or error}") from None


# -- changes


def changed(table: Mapping[str, Any], kind: type, changes: Sequence[str]) -> Table:
    """The table with ``a.b=VALUE`` put in, one after the other; a value is read as the field's annotation says.

    Raises:
        ConfigError: HF901 for a text of another form, a field that is not there, or a value that it does not take.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Run:
    ...     name: str
    ...     steps: int = 1
    >>> changed({"name": "a"}, Run, ["steps=20", "name=7"])
    {'name': '7', 'steps': 20}
    """
    result = copy.deepcopy(dict(table))
    for change in changes:
        name, sign, text = change.partition("=")
        if not sign or not name:
            raise ConfigError("HF901", f"a change is FIELD=VALUE, such as seed=1, got '{change}'")
        parts = name.strip().split(".")
        value = parsed(text, _annotation(kind, result, parts), name)
        inner = result
        for part in parts[:-1]:
            inner = inner.setdefault(part, {})
        inner[parts[-1]] = value
    return result


def _annotation(kind: Any, table: Any, parts: Sequence[str], path: str = "") -> Any:
    """What the field at a path takes, in a table that says which classes its parts are of."""
    for part in parts:
        if isinstance(table, str) and REFERENCE.fullmatch(table):
            raise ConfigError(
                "HF901", f"'{path}' is '{table}', the same as another table: change that one, or write both"
            )
        options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
        classes = [one for one in options if isinstance(one, type) and is_dataclass(one)]
        if len(classes) > 1:
            told = table.get(KIND) if isinstance(table, Mapping) else None
            classes = [one for one in classes if one.__name__ == told] or classes
        if classes:
            holding = [one for one in classes if part in {field.name for field in fields(one)} or part == KIND]
            if not holding:
                raise no_field(classes[0], path, part)
            kind = str if part == KIND and part not in hints(holding[0]) else hints(holding[0])[part]
        elif any(get_origin(one) is dict or one in (dict, Any) for one in options):
            inner = next((get_args(one) for one in options if get_origin(one) is dict), ())
            kind = inner[1] if inner else Any
        else:
            raise ConfigError("HF901", f"'{path}' has no fields, and '{joined(path, part)}' names one")
        path = joined(path, part)
        table = table.get(part) if isinstance(table, Mapping) else None
    return kind


def parsed(text: str, kind: Any, name: str) -> Any:
    """A value as TOML has it, or the text itself where the field takes one."""
    text = text.strip()
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = None if text == NONE else text
    if isinstance(value, str) and REFERENCE.fullmatch(value):
        return value
    try:
        check_value(kind, value, name)
    except ConfigError:
        if isinstance(value, str):
            raise
        try:
            check_value(kind, text, name)
        except ConfigError:
            pass
        else:
            return text
        raise
    return value


def resolved(table: Mapping[str, Any]) -> Table:
    """The table with every ``"$a.b"`` replaced by what stands at ``a.b``; ``"$$"`` begins a text with a dollar.

    Raises:
        ConfigError: HF901 where there is nothing there, or it refers to itself.

    >>> resolved({"actor": {"model": {"seed": 1}}, "reference": {"model": "$actor.model"}})["reference"]
    {'model': {'seed': 1}}
    """

    def value(one: Any, seen: tuple[str, ...]) -> Any:
        if isinstance(one, Mapping):
            return {key: value(inner, seen) for key, inner in one.items()}
        if isinstance(one, list):
            return [value(inner, seen) for inner in one]
        if isinstance(one, str) and one.startswith("$$"):
            return one[1:]
        if isinstance(one, str) and (match := REFERENCE.fullmatch(one)):
            if one in seen:
                raise ConfigError("HF901", f"'{one}' refers to itself")
            found: Any = table
            for part in match[1].split("."):
                found = value(found, (*seen, one)) if isinstance(found, str) else found
                if not isinstance(found, Mapping) or part not in found:
                    raise ConfigError("HF901", f"'{one}' refers to '{match[1]}', and there is no '{part}'")
                found = found[part]
            return value(found, (*seen, one))
        return one

    made: Table = value(table, ())
    return made


# -- back to text


def as_table(config: Any) -> Any:
    """A tree of dataclasses as plain values: what ``build`` makes the same tree of."""
    if is_dataclass(config) and not isinstance(config, type):
        annotations = hints(type(config))
        values = {field: getattr(config, field.name) for field in fields(config)}
        return {
            field.name: NONE if value is None else _tagged(as_table(value), value, annotations[field.name])
            for field, value in values.items()
            if not (value is None and field.default is None)
        }
    if isinstance(config, Mapping):
        return {key: as_table(value) for key, value in config.items() if value is not None}
    if isinstance(config, (list, tuple)):
        return [as_table(value) for value in config]
    return config


def _tagged(table: Any, value: Any, kind: Any) -> Any:
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else ()
    several = sum(isinstance(one, type) and is_dataclass(one) for one in options) > 1
    return {KIND: type(value).__name__, **table} if several and is_dataclass(value) else table


def written(table: Mapping[str, Any], path: str = "") -> str:
    """A table as TOML: its own values first, then the tables in it.

    >>> print(written({"name": "a", "actor": {"rate": 1e-06, "betas": [0.9, 0.95]}}), end="")
    name = "a"
    <BLANKLINE>
    [actor]
    rate = 1e-06
    betas = [0.9, 0.95]
    """
    own = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    below = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    head = f"\n[{path}]\n" if path and (own or not below) else ""
    lines = "".join(f"{_key(key)} = {_written(value)}\n" for key, value in own.items())
    return head + lines + "".join(written(value, joined(path, _key(key))) for key, value in below.items())


def _written(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            text = "$" + value if value.startswith("$$") or REFERENCE.fullmatch(value) else value
            return _quoted(text)
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(_written, value))}]"
        case Mapping():
            return "{" + ", ".join(f"{_key(key)} = {_written(one)}" for key, one in value.items()) + "}"
        case _:
            raise ConfigError("HF901", f"TOML has no form for {value!r}")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    """A text as TOML has it, which is as JSON has it but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# -- comparison


def flat(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted name."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, joined(path, key))
        else:
            yield joined(path, key), value


ABSENT = "(absent)"


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The fields in which two tables differ, with both values.

    >>> differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"d": 3}})
    {'b.c': (2, '(absent)'), 'b.d': ('(absent)', 3)}
    """
    left, right = dict(flat(one)), dict(flat(other))
    names = [*left, *(name for name in right if name not in left)]
    pairs = {name: (left.get(name, ABSENT), right.get(name, ABSENT)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
