"""Tables of TOML: reading, changes by ``--set``, references, writing, and comparison."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_origin

from hfdsl.errors import ConfigError
from hfdsl.graph.spans import Span
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.training.toml.files import text_of
from hfdsl.rl.training.toml.spans import error_span, spans_of
from hfdsl.rl.training.toml.syntax import syntax_problem
from hfdsl.rl.training.toml.values import REFERENCE, FieldReference, key_text, value_text
from hfdsl.rl.training.typed import KIND, NONE, hints, is_dataclass_type, joined, no_field, together, value_of
from hfdsl.types.bounds import TABLES, is_union
from hfdsl.types.foreign_text import is_unicode, parse_toml
from hfdsl.types.numbers import MAX_COUNT, brief
from hfdsl.types.similar_names import closest, nearest

Table: TypeAlias = dict[str, Any]


def read_toml(path: str | Path) -> Table:
    """The table of a TOML file.

    Raises:
        ConfigError: HF901 if it cannot be read.
    """
    try:
        text = text_of(path)
    except OSError as error:
        raise ConfigError("HF901", f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        unreadable = ConfigError("HF901", f"{path}: it is not UTF-8, as TOML must be: save it again as UTF-8")
        line = error.object[: error.start].count(b"\n") + 1
        unreadable.span = Span(str(path), line)
        raise unreadable from None
    except ValueError as error:
        raise ConfigError("HF901", f"{path}: {error}") from None
    try:
        table = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        span = error_span(str(path), text, error)
        located = ConfigError("HF901", f"{path}: {syntax_problem(text, span, error)}")
        located.span = span
        raise located from None
    except ValueError as error:
        lines = [line for line, text_of_line in enumerate(text.split("\n"), 1) if MANY_DIGITS.search(text_of_line)]
        if not lines:
            raise ConfigError("HF901", f"{path}: {error}") from None
        # Python does not parse numbers of this many digits.
        raise _too_large(f"{path}: line {lines[0]}", Span(str(path), lines[0])) from None
    for name, value in flattened(table):
        if not _fits_toml(value):
            raise _too_large(f"{path}: {name} = {brief(value)}", spans_of(str(path), text).at(name))
    return table


MANY_DIGITS = re.compile(r"(?:\d_?){4301,}")


def _fits_toml(value: object) -> bool:
    """Whether the integers in a value have at most the 64 bits of TOML's."""
    if isinstance(value, list):
        return all(map(_fits_toml, value))
    return not isinstance(value, int) or -MAX_COUNT - 1 <= value <= MAX_COUNT


def _too_large(label: str, span: Span | None = None) -> ConfigError:
    error = ConfigError("HF901", f"{label}: a whole number in TOML is at most 2**63 - 1")
    error.span = span
    return error


# -- changes


def with_changes(table: Mapping[str, Any], kind: type, changes: Sequence[str]) -> Table:
    """The table after changes ``a.b=VALUE``, one by one; the field's annotation determines how a value is read.

    A change below a reference such as ``critic.model = "$actor.model"`` changes a copy of the table that it refers to,
    after all other changes; that table itself does not change.

    Raises:
        ConfigError: HF901 for another form, a field that does not exist, or a value that it does not take.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Run:
    ...     name: str
    ...     steps: int = 1
    >>> with_changes({"name": "a"}, Run, ["steps=20", "name=7"])
    {'name': '7', 'steps': 20}
    """
    result = copy.deepcopy(dict(table))
    below_references: list[tuple[str, str]] = []
    for change in changes:
        name, sign, text = change.partition("=")
        if not sign or not name:
            raise ConfigError("HF901", f"a change is FIELD=VALUE, such as seed=1, got '{change}'", name)
        if not text.isascii() and not is_unicode(text):
            raise ConfigError("HF901", f"{name}: a value is Unicode, got {text!r}")
        if _reference_above(result, name.strip().split(".")):
            below_references.append((name, text))
        else:
            _change(result, kind, name, text)
    for name, text in below_references:
        while reference := _reference_above(result, name.strip().split(".")):
            above, key, field = reference
            above[key] = copy.deepcopy(_referred(result, above[key], field, ()))
        _change(result, kind, name, text)
    return result


def _change(table: Table, kind: type, name: str, text: str) -> None:
    """Change a field of a table without references above it; tables above it that are unset become new ones."""
    parts = name.strip().split(".")
    value = parse_value(text, _annotation(kind, table, parts), name)
    for depth, part in enumerate(parts[:-1], 1):
        if table.get(part) is None:
            table[part] = {}
        table = table[part]
        if not isinstance(table, dict):
            above = ".".join(parts[:depth])
            raise ConfigError("HF901", f"{name}: '{above}' is {brief(table)}, which is no table of fields", above)
    table[parts[-1]] = value


def _reference_above(table: Any, parts: Sequence[str]) -> tuple[Table, str, str] | None:
    """The first reference above a field: the table that has it, its key there, and its dotted name."""
    for depth, part in enumerate(parts[:-1], 1):
        if not isinstance(table, dict):
            return None
        inner = table.get(part)
        if isinstance(inner, str) and REFERENCE.fullmatch(inner):
            return table, part, ".".join(parts[:depth])
        table = inner
    return None


def _referred(table: Any, reference: str, field: str, above: tuple[str, ...]) -> Any:
    """The value that a reference refers to, in which references stay."""
    if reference in above:
        raise ConfigError("HF901", f"'{reference}' refers to itself", field)
    inner = table
    for part in reference[1:].split("."):
        if not isinstance(inner, Mapping) or part not in inner:
            raise _refers_to_nothing(field, reference[1:], part, inner)
        inner = inner[part]
        if isinstance(inner, str) and REFERENCE.fullmatch(inner):
            inner = _referred(table, inner, field, (*above, reference))
    return inner


def _annotation(kind: Any, table: Any, parts: Sequence[str], path: str = "") -> Any:
    """The annotation of the field at a path, in a table that names the classes of its parts."""
    for part in parts:
        options = get_args(kind) if is_union(kind) else (kind,)
        classes = [option for option in options if is_dataclass_type(option)]
        if len(classes) > 1:
            named = table.get(KIND) if isinstance(table, Mapping) else None
            classes = [option for option in classes if option.__name__ == named] or classes
        if classes:
            holding = [option for option in classes if part == KIND or part in {field.name for field in fields(option)}]
            if not holding:
                raise no_field(classes[0], path, part)
            kind = str if part == KIND and part not in hints(holding[0]) else hints(holding[0])[part]
        elif any(get_origin(option) in TABLES or option in (*TABLES, Any) for option in options):
            inner = next((get_args(option) for option in options if get_origin(option) in TABLES), ())
            kind = inner[1] if inner else Any
        else:
            raise ConfigError("HF901", f"'{path}' has no fields, but '{joined(path, part)}' names one", path)
        path = joined(path, part)
        table = table.get(part) if isinstance(table, Mapping) else None
    return kind


def parse_value(text: str, annotation: Any, name: str) -> Any:
    """The value of a text in TOML, or the text itself if the field takes one."""
    text = text.strip()
    try:
        value = parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = None if text == NONE else text
    except ValueError as error:
        if not MANY_DIGITS.search(text):
            raise ConfigError("HF901", f"{name}: {error}") from None
        raise _too_large(name) from None  # Python does not parse numbers of this many digits
    if not _fits_toml(value):
        raise _too_large(f"{name} = {brief(value)}")
    if _has_reference(value):
        return value  # checked once it is resolved
    try:
        value_of(annotation, value, name)
    except ConfigError:
        if isinstance(value, str):
            raise
        try:
            if isinstance(value, Mapping | list):
                raise
            value_of(annotation, text, name)
        except ConfigError:
            pass
        else:
            return text
        raise
    return value


# -- references


def _has_reference(value: Any) -> bool:
    """Whether a value is a reference, or has one somewhere.

    >>> _has_reference({"model": "$actor.model"}), _has_reference([{"model": "$$actor"}])
    (True, False)
    """
    if isinstance(value, Mapping):
        return any(map(_has_reference, value.values()))
    if isinstance(value, list):
        return any(map(_has_reference, value))
    return isinstance(value, str) and REFERENCE.fullmatch(value) is not None


def resolve_references(table: Mapping[str, Any]) -> Table:
    """The table with the value of ``a.b`` in place of ``"$a.b"``; ``$$`` escapes a text that begins with ``$``.

    Raises:
        ConfigError: HF901 for references to nothing, or to themselves.

    >>> resolve_references({"actor": {"model": {"seed": 1}}, "reference": {"model": "$actor.model"}})["reference"]
    {'model': {'seed': 1}}
    """
    resolved, errors = resolved_references(table)
    if errors:
        raise together(errors.values())
    return resolved


def resolved_references(table: Mapping[str, Any]) -> tuple[Table, dict[str, ConfigError]]:
    """The table with references resolved, except those that lead to nothing or to themselves.

    These have an error by field, which several fields share if one refers to another.
    """
    errors, of_references = dict[str, ConfigError](), dict[str, ConfigError]()

    def value(item: Any, field: str) -> Any:
        if isinstance(item, Mapping):
            return {key: value(inner, joined(field, key)) for key, inner in item.items()}
        if isinstance(item, list):
            return [value(inner, f"{field}[{i}]") for i, inner in enumerate(item)]
        try:
            return _resolved(table, item, field, ())
        except ConfigError as error:
            errors[field] = error
            if error.message.startswith(f"'{item}' "):  # and not about a reference that this one leads to
                of_references.setdefault(error.message, error)
            return item

    resolved: Table = value(table, "")
    return resolved, {field: of_references.get(error.message, error) for field, error in errors.items()}


def _resolved(table: Mapping[str, Any], item: Any, field: str, above: tuple[str, ...]) -> Any:
    """A value with references resolved; those ``above`` led to it."""
    if isinstance(item, Mapping):
        return {key: _resolved(table, inner, joined(field, key), above) for key, inner in item.items()}
    if isinstance(item, list):
        return [_resolved(table, inner, f"{field}[{i}]", above) for i, inner in enumerate(item)]
    if isinstance(item, str) and item.startswith("$$"):
        return item[1:]
    if isinstance(item, str) and (match := REFERENCE.fullmatch(item)):
        return _resolved(table, _target(table, item, match[1], field, above), field, (*above, item))
    return item


def _target(table: Mapping[str, Any], reference: str, path: str, field: str, above: tuple[str, ...]) -> Any:
    """The value that a reference names; a table on the way to it may itself be a reference."""
    if reference in above:
        raise ConfigError("HF901", f"'{reference}' refers to itself", field)
    inner: Any = table
    for part in path.split("."):
        inner = _resolved(table, inner, field, (*above, reference)) if isinstance(inner, str) else inner
        if not isinstance(inner, Mapping) or part not in inner:
            raise _refers_to_nothing(field, path, part, inner)
        inner = inner[part]
    return inner


def copied_field(table: Mapping[str, Any], field: str) -> str | None:
    """The field from which a reference copies ``field`` with the table that it is in; None if none does.

    >>> table = {"actor": {"model": {"seed": 1}}, "reference": {"model": "$actor.model"}}
    >>> copied_field(table, "reference.model.seed"), copied_field(table, "actor.model.seed")
    ('actor.model.seed', None)
    """
    inner: Any = table
    names = field.split(".")
    for depth, name in enumerate(names, 1):
        if not isinstance(inner, Mapping) or name not in inner:
            return None
        inner = inner[name]
        if isinstance(inner, str) and (match := REFERENCE.fullmatch(inner)):
            return ".".join((match[1], *names[depth:]))
    return None


def _refers_to_nothing(field: str, path: str, part: str, inner: Any) -> ConfigError:
    """The error for a reference whose ``part`` is not in ``inner``."""
    problem = f"'${path}' refers to '{path}', and "
    if not isinstance(inner, Mapping):
        kind = "an array of tables" if isinstance(inner, list) else "a plain value"
        return ConfigError("HF901", f"{problem}the owner of '{part}' is {kind}, not a table", field)
    candidate = nearest(part, list(inner))
    names = [candidate if name == part else name for name in path.split(".")]
    changes = () if candidate is None else (SetField(field, FieldReference(f"${'.'.join(map(str, names))}")),)
    options = f"; {closest(part, list(inner))}" if inner else ""
    return ConfigError("HF901", f"{problem}there is no '{part}'{options}", field, changes=changes)


# -- back to text


def as_table(config: Any) -> Any:
    """A tree of dataclasses as plain values, from which ``build`` builds the same tree."""
    if is_dataclass(config) and not isinstance(config, type):
        annotations = hints(type(config))
        values = {field: getattr(config, field.name) for field in fields(config)}
        return {
            field.name: NONE if value is None else _with_kind(as_table(value), value, annotations[field.name])
            for field, value in values.items()
            if not (value is None and field.default is None)
        }
    if isinstance(config, Mapping):
        return {key: as_table(value) for key, value in config.items() if value is not None}
    if isinstance(config, (list, tuple)):
        return [as_table(value) for value in config]
    return config


def _with_kind(table: Any, value: Any, annotation: Any) -> Any:
    options = get_args(annotation) if is_union(annotation) else ()
    several = sum(map(is_dataclass_type, options)) > 1
    return {KIND: type(value).__name__, **table} if several and is_dataclass(value) else table


def to_toml(table: Mapping[str, Any], path: str = "") -> str:
    """A table as TOML: plain values first, then the tables in it.

    >>> print(to_toml({"name": "a", "actor": {"rate": 1e-06, "betas": [0.9, 0.95]}}), end="")
    name = "a"
    <BLANKLINE>
    [actor]
    rate = 1e-06
    betas = [0.9, 0.95]
    """
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    head = f"\n[{path}]\n" if path and (plain or not tables) else ""
    lines = "".join(f"{key_text(key)} = {value_text(value)}\n" for key, value in plain.items())
    return head + lines + "".join(to_toml(value, joined(path, key_text(key))) for key, value in tables.items())


# -- comparison


def flattened(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted name."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, joined(path, key))
        else:
            yield joined(path, key), value


ABSENT = "(absent)"


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The fields in which two tables differ, with both values.

    >>> differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"d": 3}})
    {'b.c': (2, '(absent)'), 'b.d': ('(absent)', 3)}
    """
    old, new = dict(flattened(before)), dict(flattened(after))
    names = [*old, *(name for name in new if name not in old)]
    pairs = {name: (old.get(name, ABSENT), new.get(name, ABSENT)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
