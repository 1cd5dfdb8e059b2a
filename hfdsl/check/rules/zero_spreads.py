"""Zero spreads: does a body divide by a standard deviation that is 0 where the scores of a group are equal?

A worked example, in which a question that every response solves makes a group of equal rewards::

    groups = scores.reward.tensor.view(-1, 8)
    gained = groups - groups.mean(1, keepdim=True)      0 0 0 0 0 0 0 0
    return gained / groups.std(1, keepdim=True)         0 / 0: NaN, in all that the policy learns from then

``gained / (groups.std(1, keepdim=True) + 1e-6)`` is 0 there. The rule reads the statements that run in every call, and
reports a division by nothing but a deviation along a dim. It says nothing of a body that looks for such groups, by
``where`` or ``nan_to_num`` say, and of rows that a filter has selected.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from hfdsl.check.bodies import certain_statements, definition_of
from hfdsl.check.context import Context
from hfdsl.check.dependences import trains
from hfdsl.check.findings import Finding, Label
from hfdsl.check.sources import Function, span_of
from hfdsl.graph.program import Filter, Graph, Node
from hfdsl.graph.spans import definition_span

DEVIATIONS: Final = frozenset({"std", "nanstd"})
"""Functions of a tensor that are 0 where its values are equal."""

FORMS: Final = frozenset(
    {"contiguous", "double", "expand", "flatten", "float", "repeat_interleave", "reshape", "squeeze", "to"}
    | {"unsqueeze", "view"}
)
"""Methods after which a deviation is still one."""

GUARDS: Final = frozenset(
    {"clamp", "clamp_min", "clip", "isfinite", "isnan", "masked_fill", "maximum", "nan_to_num", "where"}
)
"""Functions by which a body may see to equal values."""


def divisors_are_not_zero(context: Context) -> Iterator[Finding]:
    """HF357: a body does not divide rows by the deviation of their group alone."""
    seen, graph = set[object](), context.program.graph
    for node, signature in graph.bodies:
        if signature.body in seen or trains(node) or hasattr(signature.body, "__wrapped__") or _filtered(graph, node):
            continue
        seen.add(signature.body)
        definition = definition_of(signature.body)
        division = None if definition is None or _is_guarded(definition) else next(_divisions(definition), None)
        if division is not None:
            yield Finding(
                "HF357",
                f"'{node.label}' divides by '{ast.unparse(division)}', which is 0 where the values that it is of "
                "are equal, and its rows are NaN then",
                Label(span_of(definition_span(signature.body).file, division), "0 for equal values"),
                (Label(node.span, "called here"),),
                notes=("add a small number to it, as in (x.std(1, keepdim=True) + 1e-6)",),
            )


def _filtered(graph: Graph, node: Node) -> bool:
    """Whether a filter has selected some of the rows that a call reads."""
    waiting, seen = [ref.node for ref in node.refs], set[int]()
    while waiting:
        number = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        if isinstance(graph.nodes[number].op, Filter):
            return True
        waiting += [ref.node for ref in graph.nodes[number].refs]
    return False


def _is_guarded(definition: Function) -> bool:
    names = (node.attr for node in ast.walk(definition) if isinstance(node, ast.Attribute))
    return not GUARDS.isdisjoint(names)


def _divisions(definition: Function) -> Iterator[ast.expr]:
    """The divisors that are a deviation along a dim, and nothing else."""
    deviations = set[str]()
    for statement in certain_statements(definition):
        for node in ast.walk(statement):
            match node:
                case ast.BinOp(_, ast.Div(), divisor) | ast.AugAssign(_, ast.Div(), divisor):
                    pass
                case ast.Call(ast.Attribute(_, "div" | "true_divide"), [divisor]):
                    pass
                case _:
                    continue
            if _is_deviation(divisor, deviations):
                yield divisor
        match statement:
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                (deviations.add if _is_deviation(value, deviations) else deviations.discard)(name)
            case ast.AugAssign(ast.Name(name)):
                deviations.discard(name)


def _is_deviation(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Name(name):
            return name in names
        case ast.Subscript(value):
            return _is_deviation(value, names)
        case ast.Call(ast.Attribute(ast.Name("torch"), function), arguments, keywords) if function in DEVIATIONS:
            return len(arguments) > 1 or any(keyword.arg == "dim" for keyword in keywords)
        case ast.Call(ast.Attribute(_, function), arguments, keywords) if function in DEVIATIONS:
            return bool(arguments) or any(keyword.arg == "dim" for keyword in keywords)
        case ast.Call(ast.Attribute(value, form)) if form in FORMS:
            return _is_deviation(value, names)
    return False
