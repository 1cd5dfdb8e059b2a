"""Suggestions for declarations: constructor arguments, placed classes and loaders."""

from __future__ import annotations

import ast
import inspect
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any, get_args

from hfdsl.check.constructor_types import parameters
from hfdsl.check.context import Change, Context
from hfdsl.check.findings import Edit, Fix
from hfdsl.check.repair.alternatives import placing
from hfdsl.check.repair.edits import top_level_name
from hfdsl.check.repair.suggestions import Suggestion
from hfdsl.check.sources import source_text, span_of
from hfdsl.deploy.deployment import Placement
from hfdsl.graph.fits import field_misfit
from hfdsl.graph.signatures import RecordType, Signature, StaticType
from hfdsl.graph.spans import Span
from hfdsl.protocols.register import REGISTRATION, Registration
from hfdsl.types.bounds import is_union

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Argument:
    """A constructor argument of a role: its path, its expression if known, and its annotation."""

    role: str
    placement: Placement[Any]
    path: str
    value: object
    annotation: Any
    written: ast.expr | None

    @property
    def span(self) -> Span | None:
        """The span of the declaration; None if it is not written."""
        return None if self.written is None else span_of(self.placement.span.file, self.written)


def built_as_declared(argument: Argument) -> Iterator[Suggestion]:
    """The dataclass in the place of a table or of its class, a number in the place of its text."""
    role: type = argument.placement.role
    if parameters(role).parameters[argument.path.partition(".")[0]].kind in VARIADIC:
        return
    for kind in get_args(argument.annotation) if is_union(argument.annotation) else (argument.annotation,):
        if kind in (int, float) and isinstance(argument.value, str):
            yield from _number(argument, kind)
        elif is_dataclass(kind) and isinstance(kind, type):
            yield from _dataclass(argument, kind)


def _number(argument: Argument, kind: type[int | float]) -> Iterator[Suggestion]:
    text = str(argument.value).strip()
    try:
        number = kind(text)
    except ValueError:
        return
    literal = isinstance(argument.written, ast.Constant) and argument.written.value == argument.value
    edit = Edit(argument.span, text) if literal and argument.span is not None and text.isascii() else None
    yield _replaced(argument, number, f"write {text}", edit)


def _dataclass(argument: Argument, kind: Any) -> Iterator[Suggestion]:
    value, name, field_names = argument.value, kind.__name__, [field.name for field in fields(kind) if field.init]
    entries = value if isinstance(value, dict) else {} if value is kind else None
    if entries is None or not all(key in field_names for key in entries):
        return
    try:
        config = kind(**entries)
    except Exception:  # noqa: BLE001  # of the user's own class: it needs more fields, or others
        return
    if field_misfit(config) is None:
        texts = ", ".join(f"{key}={reprlib.repr(entry)}" for key, entry in entries.items())
        yield _replaced(argument, config, f"write {name}({texts})", _as_call(argument, name))


def _as_call(argument: Argument, name: str) -> Edit | None:
    """A table or a class as a call of the class, if all of that is written there."""
    span = argument.span
    spelling = top_level_name(span.file, name) if span is not None else None
    if span is None or spelling is None:
        return None
    match argument.written:
        case ast.Dict(keys, values):
            names = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            texts = [source_text(span_of(span.file, value)) for value in values]
            if len(names) == len(keys) and None not in texts:
                arguments = ", ".join(f"{name}={text}" for name, text in zip(names, texts, strict=True))
                return Edit(span, f"{spelling}({arguments})")
        case ast.Call(ast.Name("dict") as called, []):
            return Edit(span_of(span.file, called), spelling)
        case ast.Name():
            return (
                Edit(replace(span, line=span.end_line, column=span.end_column), "()")
                if not isinstance(argument.value, dict)
                else None
            )
    return None


def _replaced(argument: Argument, value: object, words: str, edit: Edit | None) -> Suggestion:
    placement, (parameter, *path) = argument.placement, argument.path.split(".")
    role: type = placement.role
    bound = parameters(role).bind(*placement.args, **placement.kwargs)
    bound.arguments[parameter] = _with_field(bound.arguments[parameter], path, value)
    replacement = replace(placement, args=bound.args, kwargs=bound.kwargs)
    fix = Fix(words, (edit,)) if edit is not None else None
    return placing(words, {argument.role: replacement}, fix)


def _with_field(config: Any, path: list[str], value: object) -> Any:
    """A config with another value at a path of fields."""
    if not path:
        return value
    first, *path_within = path
    return replace(config, **{first: _with_field(getattr(config, first), path_within, value)})


# -- placed classes


def registered_as_called(
    role: str, placement: Placement[Any], called: Signature, override: Signature
) -> Iterator[Suggestion]:
    """The override under the protocol of the method that the dataflow calls.

    Its author has to adapt the body, so no tool makes this change, nor that of a port.
    """
    if called.registration is not None:
        words = f"register it with {called.registration.name}"
        yield _overridden(role, placement, override, words, {}, called.registration)


def taking_as_called(
    role: str, placement: Placement[Any], called: Signature, override: Signature, port: str
) -> Iterator[Suggestion]:
    """The override with the port of the method that the dataflow calls."""
    kind = next(p.type for p in called.ports if p.name == port)
    if override.port(port) is not None and isinstance(kind, (RecordType, StaticType)):
        hint = kind.record if isinstance(kind, RecordType) else kind.annotation
        yield _overridden(role, placement, override, f"take {kind} as '{port}'", {port: hint}, override.registration)


def _overridden(
    role: str, placement: Placement[Any], override: Signature, words: str, hints: Mapping[str, Any],
    registration: Registration | None,
) -> Suggestion:  # fmt: skip  # the parts of one change
    body: Any = override.body
    method = FunctionType(body.__code__, body.__globals__, body.__name__, body.__defaults__, body.__closure__)
    method.__kwdefaults__, method.__qualname__ = body.__kwdefaults__, body.__qualname__
    method.__annotations__ = {**body.__annotations__, **hints}
    setattr(method, REGISTRATION, registration)
    base: type = placement.role
    changed = type(
        base.__name__, (base,), {override.name: method, "__module__": base.__module__, "__doc__": base.__doc__}
    )
    return placing(words, {role: replace(placement, role=changed)})


# -- loaders


def other_loaders(loader: Any, fits: Callable[[Any], bool]) -> Iterator[Suggestion]:
    """The functions of the loader's module whose batches fit: one of them may be meant."""
    names = getattr(loader, "__globals__", {})
    functions = [f for f in names.values() if isinstance(f, FunctionType) and f.__module__ == names.get("__name__")]
    for function in functions:
        if (
            function is not loader
            and "return" in function.__annotations__
            and not inspect.signature(function).parameters
            and fits(function)
        ):
            yield Suggestion((Change(f"pass '{function.__name__}'", partial(_loading, function)),))


def _loading(function: Callable[[], Any], context: Context) -> Context:
    return replace(context, loader=function)
