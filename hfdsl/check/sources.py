"""From a span to the finer place that a message means: an argument of a call, a port of a ``def``."""

from __future__ import annotations

import ast
import functools
import linecache

from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import NOWHERE, Span


@functools.lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


def _span(file: str, node: ast.expr | ast.arg | ast.keyword) -> Span:
    return Span(file, node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0)


def argument_span(call: Span, signature: Signature | None, port: str) -> Span:
    """The argument that is wired to ``port`` in the call at ``call`` (the call itself where it cannot be told)."""
    found = _call_at(call)
    if found is None:
        return call
    for keyword in found.keywords:
        if keyword.arg == port:
            return _span(call.file, keyword.value)
    names = [p.name for p in signature.ports if not p.keyword_only] if signature else []
    if port in names and names.index(port) < len(found.args):
        return _span(call.file, found.args[names.index(port)])
    return call


def _call_at(span: Span) -> ast.Call | None:
    tree = _tree(span.file)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Call) and (node.lineno, node.col_offset, node.end_col_offset) == (
            span.line,
            span.column,
            span.end_column,
        ):
            return node
    return None


def keyword_span(call: Span, name: str) -> Span:
    """The argument ``name=...`` of the call at ``call`` (the call itself where it cannot be told)."""
    found = _call_at(call)
    return next((_span(call.file, k) for k in found.keywords if k.arg == name), call) if found else call


def return_span(function: Span) -> Span:
    """The only ``return`` of the ``def`` at ``function``; the ``def`` itself where there are several."""
    tree = _tree(function.file) if function != NOWHERE else None
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno == function.line:
            returned = [n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None]
            return _span(function.file, returned[0]) if len(returned) == 1 else function
    return function


def port_span(signature: Signature, port: str) -> Span:
    """The declaration of a port in its ``def``."""
    place = signature.span
    tree = _tree(place.file) if place != NOWHERE else None
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno == place.line:
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                if argument.arg == port:
                    return _span(place.file, argument)
    return place
