"""Columns in bodies: does a body read and build records with the columns that they have, and compute with tensors?

A worked example: ``batch`` is a record with the columns ``ids`` and ``mask``, and a check has the text of the body::

    def lengths(batch: Rollout) -> Lengths:
        total = batch.mask.tensor.sum(-1)     right
        total = batch.maks.tensor.sum(-1)     HF201: Rollout has no column 'maks'
        total = batch.mask.sum(-1)            HF206: a column has no 'sum', its value is in .tensor
        total = batch.mask * 2                HF206: so has '*'
        half = batch[:4].maks                 a slice has the columns of the record, also under a name of its own
        return Lengths(lenght=total)          HF201: Lengths has no column 'lenght'

Why it is right: a body gets exactly the record that its parameter declares, so such a line fails in every call that
reaches it. The rule does not report a name that the body may bind to something else, one whose type it tests, or
anything within ``try``.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

from hfdsl.check.bodies.names import local_names, parameter_names, value_of
from hfdsl.check.bodies.syntax import assigned_names, definition_of, is_decorated
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.sources import Function, parameter_span, span_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.program import Node
from hfdsl.graph.signatures import PortType, RecordType
from hfdsl.graph.spans import Span, definition_span
from hfdsl.types.batches import Batch, is_record, schema
from hfdsl.types.columns import Column, ColumnSpec, Metric, MetricSpec, Obj, ObjSpec
from hfdsl.types.similar_names import closest
from hfdsl.types.wrappers import Wrapper

WRAPPERS: dict[type, type[Wrapper]] = {ColumnSpec: Column, ObjSpec: Obj, MetricSpec: Metric}
TYPE_TESTS = ("isinstance", "hasattr", "getattr", "type", "cast")


class _Wrong(NamedTuple):
    """An expression that raises, with its code, the mistake, and advice."""

    node: ast.expr
    code: str
    why: str
    note: str = ""
    place: ast.expr | ast.keyword | None = None
    """The part of the expression that is wrong, if it is not all of it."""


def bodies_read_their_columns(context: Context) -> Iterator[Finding]:
    """A body reads columns that its records have, builds records with theirs, and computes with their contents."""
    seen = set[object]()
    for node, signature in context.program.graph.bodies:
        wrapped = is_decorated(signature.body)
        definition = None if signature.body in seen or wrapped else definition_of(signature.body)
        seen.add(signature.body)
        if definition is None:
            continue
        place = definition_span(signature.body)
        for port in signature.ports:
            if port.name not in _other_values(definition):
                names = (port.name, *_slices(definition, port.name))
                mistakes = [wrong for name in names for wrong in _wrong(definition, name, port.type)]
                yield from _findings(node, place, mistakes, Label(parameter_span(place, port.name), "the parameter"))
        for record, wrong in _built(signature.body, definition):
            yield from _findings(node, place, [wrong], Label(definition_span(record), "the record"))


def _findings(node: Node, body: Span, mistakes: Sequence[_Wrong], related: Label) -> Iterator[Finding]:
    reported = set[str]()
    for wrong in mistakes:
        text = ast.unparse(wrong.node)
        if text not in reported:
            reported.add(text)
            yield Finding(
                wrong.code,
                f"'{text}' in the body of '{node.label}': {wrong.why}",
                Label(span_of(body.file, wrong.place or wrong.node)),
                (related,),
                notes=(wrong.note,) if wrong.note else (),
            )


@lru_cache(maxsize=256)
def _slices(definition: Function, parameter: str) -> tuple[str, ...]:
    """The names that a body sets once, to a slice of a parameter: ``part`` of ``part = batch[start : start + 8]``."""
    stores = Counter(node.id for node in nodes_of(definition) if isinstance(node, ast.Name) and _is_stored(node))
    names = list[str]()
    for node in nodes_of(definition):
        match node:
            case ast.Assign([ast.Name(name)], ast.Subscript(ast.Name(source), ast.Slice())) if source == parameter:
                names.append(name)
    others = _other_types(definition).union(parameter_names(definition))
    return tuple(name for name in names if stores[name] == 1 and name not in others)


def _is_stored(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Load)


def _built(body: Callable[..., Any], definition: Function) -> Iterator[tuple[type[Batch], _Wrong]]:
    """The records that a body builds with columns that they do not have, or without one of theirs."""
    for node in _outside_of_try(definition):
        match node:
            case ast.Call(function, [], keywords) if all(keyword.arg is not None for keyword in keywords):
                record = _record(body, definition, function)
            case _:
                continue
        if record is None:
            continue
        fields, named = schema(record).fields, [str(keyword.arg) for keyword in keywords]
        unknown = next((keyword for keyword in keywords if keyword.arg not in fields), None)
        missing = [name for name in fields if name not in named and name not in schema(record).spare]
        if unknown is not None:
            why, near = f"{record.__name__} has no column '{unknown.arg}'", closest(str(unknown.arg), tuple(fields))
            yield record, _Wrong(function, "HF201", why, near, unknown)
        elif missing:
            why = f"{record.__name__} is built without its column '{missing[0]}'"
            yield record, _Wrong(function, "HF203", why, place=node)


def _record(body: Callable[..., Any], definition: Function, function: ast.expr) -> type[Batch] | None:
    """The class of records that a body calls by a name of its module, or of a module there."""
    value: object = None
    match function:
        case ast.Name(name) if name not in local_names(definition):
            value = value_of(body, name)
        case ast.Attribute(ast.Name(name), attribute) if name not in local_names(definition):
            module = value_of(body, name)
            value = getattr(module, attribute, None) if isinstance(module, ModuleType) else None
    return value if is_record(value) and value.__init__ is Batch.__init__ else None


def _other_values(definition: Function) -> frozenset[str]:
    """The names that may have, somewhere in a body, another value or type than the caller's argument."""
    return assigned_names(definition) | _other_types(definition)


@lru_cache(maxsize=256)
def _other_types(definition: Function) -> frozenset[str]:
    """The names whose type a body tests, or that something other than an assignment binds in it."""
    names = set[str]()
    for node in nodes_of(definition):
        match node:
            case ast.Call(ast.Name(tester) | ast.Attribute(attr=tester), [first, *others]) if tester in TYPE_TESTS:
                tested = [first, *others] if len(others) == 1 else [first]
                names |= {argument.id for argument in tested if isinstance(argument, ast.Name)}
            case ast.Match(ast.Name(name)):
                names.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() if node is not definition:
                names |= {inner.arg for inner in nodes_of(node.args) if isinstance(inner, ast.arg)}
            case _:
                pass
        if node is not definition:  # a class, an import, a caught exception or a pattern
            bound = (getattr(node, field, None) for field in ("name", "asname", "rest"))
            names |= {name for name in bound if isinstance(name, str)}
    return frozenset(names)


@lru_cache(maxsize=256)
def _uses(definition: Function) -> Mapping[str, Sequence[ast.expr]]:
    """By name the expressions that read from it, or compute with it or an attribute of it, outside of ``try``."""
    uses: dict[str, list[ast.expr]] = {}
    for node in _outside_of_try(definition):
        if isinstance(node, ast.expr):
            match node.value if isinstance(node, ast.Attribute) else _operand(node):
                case ast.Name(name) | ast.Attribute(ast.Name(name)):
                    uses.setdefault(name, []).append(node)
    return uses


def _wrong(definition: Function, parameter: str, kind: PortType) -> Iterator[_Wrong]:
    """The expressions on a parameter that raise."""
    record = kind.record if isinstance(kind, RecordType) else None
    for node in _uses(definition).get(parameter, ()):
        match node:
            case ast.Attribute(ast.Name(name), column, ast.Load()) if name == parameter and record is not None:
                if not hasattr(record, column) and not hasattr(record, "__getattr__"):
                    advice = closest(column, tuple(schema(record).fields))
                    yield _Wrong(node, "HF201", f"{record.__name__} has no column '{column}'", advice)
            case ast.Attribute(value, member, ast.Load()):
                wrapper = _wrapper(value, parameter, kind)
                if wrapper is not None and not hasattr(wrapper, member) and not member.startswith("_"):
                    yield _of_values(node, f"a column has no '{member}'", value, wrapper)
            case ast.expr():
                operand = _operand(node)
                wrapper = None if operand is None else _wrapper(operand, parameter, kind)
                if operand is not None and wrapper is not None:
                    yield _of_values(node, "a column has no operators", operand, wrapper)


def _operand(node: ast.expr) -> ast.expr | None:
    """The operand whose class decides first whether there is such an operator."""
    match node:
        case ast.BinOp(left) | ast.Compare(left, [ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE(), *_]):
            return left
        case ast.UnaryOp(ast.USub() | ast.Invert(), value) | ast.Subscript(value, ctx=ast.Load()):
            return value
    return None


def _of_values(node: ast.expr, why: str, column: ast.expr, wrapper: type[Wrapper]) -> _Wrong:
    return _Wrong(node, "HF206", why, f"its value is {ast.unparse(column)}.{wrapper.holds}")


def _wrapper(node: ast.expr, parameter: str, kind: PortType) -> type[Wrapper] | None:
    """The class that wraps the values of a column, if an expression is a column of the parameter, or the parameter."""
    match node:
        case ast.Name(name) if name == parameter:
            return WRAPPERS.get(type(kind))
        case ast.Attribute(ast.Name(name), column) if name == parameter and isinstance(kind, RecordType):
            return WRAPPERS.get(type(schema(kind.record).fields.get(column)))
    return None


@lru_cache(maxsize=256)
def _outside_of_try(definition: Function) -> tuple[ast.AST, ...]:
    """The nodes of a body, but for those where an error is caught."""
    return tuple(_nodes_outside_of_try(definition))


def _nodes_outside_of_try(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Try) and not (isinstance(child, ast.With) and "suppress" in ast.unparse(child)):
            yield child
            yield from _nodes_outside_of_try(child)
