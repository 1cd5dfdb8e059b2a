"""Sources: narrow a span to the place that a message means, such as an argument of a call or a port of a ``def``."""

from __future__ import annotations

import ast
import functools
import linecache
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TypeAlias

from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import Span

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class _Places:
    """The calls of a file by line, column and end column, its functions by line; the outermost of several.

    ``tests`` are the expressions that are compared with None, with ``is`` or ``is not``; ``tree`` is the whole file.
    """

    calls: dict[tuple[int, int, int | None], ast.Call] = field(default_factory=dict)
    functions: dict[int, Function] = field(default_factory=dict)
    tests: dict[tuple[int, int, int | None], str] = field(default_factory=dict)
    tree: ast.Module | None = None


@functools.lru_cache(maxsize=64)
def _places(file: str) -> _Places:
    """One walk through a file serves all its findings."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return _Places()
    places = _Places(tree=tree)
    for node in nodes_of(tree):
        if isinstance(node, ast.Call):
            places.calls.setdefault((node.lineno, node.col_offset, node.end_col_offset), node)
        elif isinstance(node, Function):
            places.functions.setdefault(node.lineno, node)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            operator = "is" if isinstance(node.ops[0], ast.Is) else "is not"
            for tested, operand in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
                if isinstance(operand, ast.Constant) and operand.value is None:
                    places.tests[tested.lineno, tested.col_offset, tested.end_col_offset] = operator
    return places


def span_of(file: str, node: ast.expr | ast.arg | ast.keyword) -> Span:
    """The span of an expression, a parameter or an argument."""
    return Span(file, node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0)


def argument_span(call: Span, signature: Signature | None, port: str) -> Span:
    """The argument that is wired to ``port`` in the call at ``call`` (the call itself if it cannot be found)."""
    argument = _argument(call, signature, port)
    return call if argument is None else replace(span_of(call.file, argument), calls=call.calls)


def argument_name(call: Span, signature: Signature | None, port: str) -> str | None:
    """The name of the argument that is wired to ``port``: that of a variable or an attribute."""
    match _argument(call, signature, port):
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
    return None


def argument_record(call: Span, signature: Signature | None, port: str) -> str | None:
    """The name of the record whose column is wired to ``port``: ``chosen`` in ``chosen.ids``."""
    match _argument(call, signature, port):
        case ast.Attribute(value=ast.Name(name) | ast.Attribute(attr=name)):
            return name
    return None


def _argument(call: Span, signature: Signature | None, port: str) -> ast.expr | None:
    written = call_at(call)
    if written is None or _is_of_another(written, signature):
        return None
    named = {keyword.arg: keyword.value for keyword in written.keywords}
    ports = [p.name for p in signature.ports if not p.keyword_only or p.name not in named] if signature else []
    counted = takewhile(lambda argument: not isinstance(argument, ast.Starred), written.args)
    return named.get(port) or dict(zip(ports, counted, strict=False)).get(port)


def _is_of_another(written: ast.Call, signature: Signature | None) -> bool:
    """Whether the call that is written there makes the call of a method, as ``hf.sync`` does."""
    if signature is None or signature.registration is None:
        return False
    return isinstance(written.func, ast.Attribute) and written.func.attr != signature.name


def call_at(span: Span) -> ast.Call | None:
    """The call that is written at a span; None if the file does not have one there."""
    return _places(span.file).calls.get((span.line, span.column, span.end_column))


def source_text(span: Span) -> str | None:
    """The source text at a span of one line."""
    line = linecache.getline(span.file, span.line).encode() if span.line == span.end_line else b""
    return line[span.column : span.end_column].decode(errors="replace") or None  # the file may have changed


def tested_for_none(span: Span) -> str | None:
    """``is`` or ``is not`` where the expression at ``span`` is compared with None by it."""
    around = (linecache.getline(span.file, line) for line in range(span.line - 1, span.end_line + 2))
    if not any(" is " in f" {' '.join(line.split())} " for line in around):
        return None  # most are not, and the file need not be parsed
    return _places(span.file).tests.get((span.line, span.column, span.end_column))


def is_while(span: Span) -> bool:
    """Whether a ``while`` statement decides by the expression at ``span``."""
    written = linecache.getline(span.file, span.line).encode()
    words = written[: span.column].split() or written.split()
    return words[:1] == [b"while"]


def unpacks(span: Span) -> str | None:
    """The first expression that a call or a dict literal unpacks with ``**`` at a span."""
    try:
        written = ast.parse((source_text(span) or "").strip(), mode="eval").body
    except SyntaxError:
        return None
    match written:
        case ast.Call(keywords=keywords):
            unpacked = [keyword.value for keyword in keywords if keyword.arg is None]
        case ast.Dict(keys, values):
            unpacked = [value for key, value in zip(keys, values, strict=True) if key is None]
        case _:
            unpacked = []
    return ast.unparse(unpacked[0]) if unpacked else None


def keyword_span(call: Span, name: str) -> Span:
    """The argument ``name=...`` of the call at ``call`` (the call itself if it cannot be found)."""
    written = call_at(call)
    named = [span_of(call.file, keyword) for keyword in written.keywords if keyword.arg == name] if written else []
    return replace(named[0], calls=call.calls) if named else call


def index_in_loop(span: Span) -> tuple[str, Span] | None:
    """The name to which the value at ``span`` is assigned, and the span where a loop over it reads ``name[0]``.

    None if the name is assigned twice, or if no such loop can be found.
    """
    tree = _places(span.file).tree
    assigned = [node for node in nodes_of(tree) if isinstance(node, ast.Assign)] if tree is not None else []
    pairs = [pair for node in assigned for target in node.targets for pair in assigned_pairs(target, node.value)]
    names = [target.id for target, value in pairs if isinstance(target, ast.Name) and _is_at(value, span)]
    if len(names) != 1 or tree is None:
        return None
    [name] = names
    for function in (node for node in nodes_of(tree) if isinstance(node, Function)):
        if function.lineno <= span.line <= (function.end_lineno or 0):
            stores = [n for n in nodes_of(function) if isinstance(n, ast.Name) and n.id == name and _is_stored(n)]
            entries = [entry for loop in nodes_of(function) for entry in _fixed_entries(loop, name)]
            if len(stores) == 1 and entries:
                return name, span_of(span.file, entries[0])
    return None


def assigned_pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Pairs of target and value: ``a, b = x, y`` are two assignments."""
    match target, value:
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            return list(zip(targets, values, strict=True))
    return [(target, value)]


def _is_at(expression: ast.expr, place: Span) -> bool:
    where = (place.line, place.column, place.end_column)
    return (expression.lineno, expression.col_offset, expression.end_col_offset) == where


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _fixed_entries(loop: ast.AST, name: str) -> list[ast.Subscript]:
    """The subscripts by which a loop over the entries of a name reads a fixed entry."""
    match loop:
        case ast.For(iter=iterated, body=body):
            parts: list[ast.AST] = [*body]
        case ast.ListComp(elt=element, generators=[ast.comprehension(iter=iterated)]):
            parts = [element]
        case _:
            return []
    if not any(isinstance(node, ast.Name) and node.id == name for node in nodes_of(iterated)):
        return []
    subscripts = [node for part in parts for node in nodes_of(part) if isinstance(node, ast.Subscript)]
    return [s for s in subscripts if isinstance(s.value, ast.Name) and s.value.id == name and _is_number(s.slice)]


def _is_number(index: ast.expr) -> bool:
    number = index.operand if isinstance(index, ast.UnaryOp) else index
    return isinstance(number, ast.Constant) and isinstance(number.value, int)


def return_span(function: Span) -> Span:
    """The only ``return`` of the ``def`` at ``function``; the ``def`` itself if there are several."""
    definition = _places(function.file).functions.get(function.line)
    returned = (
        [n.value for n in nodes_of(definition) if isinstance(n, ast.Return) and n.value is not None]
        if definition
        else []
    )
    match returned:
        case [value]:
            return replace(span_of(function.file, value), calls=function.calls)
    return function


def port_span(signature: Signature, port: str) -> Span:
    """The declaration of a port in its ``def``."""
    return parameter_span(signature.span, port)


def definition_at(place: Span) -> Function | None:
    """The ``def`` at a place; None if the file does not have one there."""
    return _places(place.file).functions.get(place.line)


def parameter_span(place: Span, name: str) -> Span:
    """A parameter of the ``def`` at ``place``; the ``def`` itself if it is not found there."""
    definition = _places(place.file).functions.get(place.line)
    arguments = (*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs) if definition else ()
    return next((span_of(place.file, argument) for argument in arguments if argument.arg == name), place)
