"""Repairs of bodies: an edit within a method of a role, or a function of the dataflow, is tried like any other.

A check reads bodies from their files. So the edited text stands in the place of a file of its own while it is tried::

    loss = (ratio * gain).mean()          in policies.py: HF358
    loss = -(ratio * gain).mean()         in policies.py#edited, in which a copy of the method is

The role is placed as a class that is derived from it and has this copy. Other functions that a body calls keep their
text: an edit in one of them remains advice.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import FunctionType
from zlib import crc32

from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.role_code import ReadFunction
from hfdsl.check.bodies.syntax import definition_of
from hfdsl.check.context import Change, Context
from hfdsl.check.findings import Edit, Fix
from hfdsl.check.program import Program
from hfdsl.check.repair.alternatives import with_placements
from hfdsl.check.repair.edits import apply, operator_span
from hfdsl.check.repair.suggestions import Suggestion
from hfdsl.check.repair.trials import EDITED, rewritten
from hfdsl.check.sources import call_at, source_text, span_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.program import FunctionCall, Node
from hfdsl.graph.spans import Span, definition_span
from hfdsl.protocols.worker import Worker


def negated(place: Span) -> Iterator[Suggestion]:
    """An expression times -1."""
    text = source_text(place) or ""
    match _parsed(text):
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            changed = f"-({text})"
        case ast.UnaryOp(ast.USub()) | ast.BinOp(op=ast.Div() | ast.Mult()) if text.startswith("-"):
            changed = text[1:].lstrip()
        case ast.Attribute() | ast.Call() | ast.Name() | ast.Subscript() | ast.BinOp(op=ast.Div() | ast.Mult()):
            changed = f"-{text}"
        case _:
            return
    yield from _edited(f"write {changed}", [Edit(place, changed)])


def other_sign(place: Span) -> Iterator[Suggestion]:
    """A term of a sum with the other sign: the operator before it, or the term times -1."""
    operator = operator_span(place)
    written = source_text(operator) if operator is not None else None
    if operator is not None and written in ("+", "-"):
        sign, verb = ("-", "subtract") if written == "+" else ("+", "add")
        yield from _edited(f"{verb} it: {sign} {source_text(place)}", [Edit(operator, sign)])
    else:
        yield from negated(place)


OTHER_EXTREMES = {"max": "min", "maximum": "minimum", "min": "max", "minimum": "maximum"}
"""By function of torch the one that takes the other extreme."""


def other_extreme(place: Span) -> Iterator[Suggestion]:
    """The smaller of two for the greater, or the reverse."""
    call = call_at(place)
    function = call.func if call is not None else None
    if isinstance(function, ast.Attribute) and function.attr in OTHER_EXTREMES:
        named = span_of(place.file, function)
        name = replace(named, line=named.end_line, column=named.end_column - len(function.attr))
        other = OTHER_EXTREMES[function.attr]
        yield from _edited(f"write {ast.unparse(function.value)}.{other}", [Edit(name, other)])


def wrapped(place: Span, function: str) -> Iterator[Suggestion]:
    """An expression as the argument of a function of Python."""
    text = source_text(place)
    if text is not None:
        yield from _edited(f"write {function}({text})", [Edit(place, f"{function}({text})")])


def replaced(texts: Mapping[Span, str]) -> Iterator[Suggestion]:
    """Other expressions in some places."""
    written = " and ".join(f"{text} for {source_text(place)}" for place, text in texts.items())
    yield from _edited(f"write {written}", [Edit(place, text) for place, text in texts.items()])


def other_column(function: ReadFunction, column: str, other: str) -> Iterator[Suggestion]:
    """Another column of a record that a function reads, if it reads the first one in one place alone."""
    file = definition_span(function.body).file
    nodes = nodes_of(function.definition)
    match [node for node in nodes if isinstance(node, ast.Attribute) and node.attr == column]:
        case [node]:
            named = span_of(file, node)
            name = replace(named, line=named.end_line, column=named.end_column - len(column))
            yield from _edited(f"write {ast.unparse(node.value)}.{other}", [Edit(name, other)])


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _edited(words: str, edits: Sequence[Edit]) -> Iterator[Suggestion]:
    yield Suggestion((Change(words, partial(with_edited_bodies, tuple(edits)), Fix(words, tuple(edits))),))


# -- the program with an edit


def with_edited_bodies(edits: Sequence[Edit], context: Context) -> Context | None:
    """The program with edits in the text of its methods and functions; None if they are not in any."""
    program = context.program
    functions = {node.op.signature.body: node for node in program.graph.nodes if isinstance(node.op, FunctionCall)}
    for body in functions:
        copied = _copy(body, edits)
        if copied is not None:
            return context.with_program(_with_function(program, body, copied))
    changed = context
    for role in program.graph.roles:
        kind = program.role_class(role)
        for name, method in methods_of(kind).items():
            copied = _copy(method.body, edits) if _may_derive(kind) else None
            if copied is not None:
                namespace = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, name: copied}
                derived = type(kind.__name__, (kind,), namespace)
                changed = changed.with_program(_with_role(changed.program, role, derived))
    return None if changed is context else changed


def _may_derive(kind: type) -> bool:
    """Whether a class that is derived from another one is only that."""
    bases = (base for base in kind.__mro__ if base not in (object, Worker))
    return type(kind) is type and not any("__init_subclass__" in vars(base) for base in bases)


def _copy(body: object, edits: Sequence[Edit]) -> FunctionType | None:
    """A copy of a function with edits in its text, in a file of its own; None if they are not all in it."""
    definition = definition_of(body) if isinstance(body, FunctionType) else None
    if definition is None or not isinstance(body, FunctionType):
        return None
    if not all(ReadFunction(body, definition).has(edit.span) for edit in edits):
        return None
    file = definition_span(body).file
    text = apply("".join(linecache.getlines(file)), edits)
    edited = f"{file}{EDITED}{crc32(text.encode()):08x}"
    for name in [name for name in linecache.cache if EDITED in name]:
        del linecache.cache[name]
    linecache.cache[edited] = (len(text), None, text.splitlines(keepends=True), edited)
    return rewritten(body, edits, edited)


def _with_function(program: Program, body: object, copied: FunctionType) -> Program:
    def changed(node: Node) -> Node:
        if not isinstance(node.op, FunctionCall) or node.op.signature.body is not body:
            return node
        return replace(node, op=replace(node.op, signature=replace(node.op.signature, body=copied)))

    graph = replace(program.graph, nodes=tuple(map(changed, program.graph.nodes)))
    return replace(program, graph=graph)


def _with_role(program: Program, role: str, derived: type) -> Program:
    deployment = program.deployment
    if deployment is None or role not in deployment.placements:
        return replace(program, graph=replace(program.graph, roles={**program.graph.roles, role: derived}))
    placements = {**deployment.placements, role: replace(deployment.placements[role], role=derived)}
    return replace(program, deployment=with_placements(deployment, placements))
