"""Zero spreads: does a body divide by a standard deviation that is 0 where the scores of a group are equal?

A worked example, in which a question that every response solves makes a group of equal rewards::

    groups = scores.reward.tensor.view(-1, 8)
    gained = groups - groups.mean(1, keepdim=True)      0 0 0 0 0 0 0 0
    return gained / groups.std(1, keepdim=True)         0 / 0: NaN, in all that the policy learns from then

``gained / (groups.std(1, keepdim=True) + 1e-6)`` is 0 there. The rule reads the statements that run in every call, and
reports a division by nothing but a deviation along a dim of a view in groups. It says nothing of a body that may look
for such groups, since it decides anything, compares, sets elements or calls ``clamp``, ``where`` and the like, nor of
rows that a filter has selected.
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
from hfdsl.types.rows import Grouped

DEVIATIONS: Final = frozenset({"std", "nanstd"})
"""Functions of a tensor that are 0 where its values are equal."""

FORMS: Final = frozenset(
    {"contiguous", "double", "expand", "flatten", "float", "repeat_interleave", "reshape", "squeeze", "to"}
    | {"unsqueeze", "view"}
)
"""Methods after which a deviation is still one."""

GUARDS: Final = frozenset(
    {"add", "clamp", "clamp_max", "clamp_min", "clip", "isfinite", "isnan", "masked_fill", "maximum", "nan_to_num"}
    | {"where"}
)
"""Functions by which a body may see to equal values, also in place."""

DECISIONS: Final = (ast.If, ast.IfExp, ast.Assert, ast.Compare, ast.Try, ast.While)
"""Statements and expressions by which a body may look for them."""

VIEWS: Final = frozenset({"reshape", "unflatten", "view"})
"""Methods that arrange rows in groups."""


def divisors_are_not_zero(context: Context) -> Iterator[Finding]:
    """HF357: a body does not divide by the deviation of groups alone."""
    seen, graph = set[object](), context.program.graph
    for node, signature in graph.bodies:
        if signature.body in seen or trains(node) or hasattr(signature.body, "__wrapped__") or _filtered(graph, node):
            continue
        if isinstance(signature.rows, Grouped) and signature.rows.n == 1:
            continue  # HF314
        seen.add(signature.body)
        definition = definition_of(signature.body)
        division = None if definition is None or _is_guarded(definition) else next(_divisions(definition), None)
        if division is not None:
            yield Finding(
                "HF357",
                f"'{node.label}' divides by '{ast.unparse(division)}', which is 0 where the values of a group are "
                "equal, and the rows are NaN then",
                Label(span_of(definition_span(signature.body).file, division), "0 in a group of equal values"),
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
    """Whether a body may look for equal values."""
    for node in ast.walk(definition):
        match node:
            case ast.Attribute(attr=name) | ast.Name(name) if name.rstrip("_") in GUARDS:
                return True
            case ast.Subscript(ctx=ast.Store()):
                return True
            case _ if isinstance(node, DECISIONS):
                return True
    return False


def _divisions(definition: Function) -> Iterator[ast.expr]:
    """The divisors that are a deviation of groups, and nothing else."""
    names = _Names()
    for statement in certain_statements(definition):
        for node in ast.walk(statement):
            match node:
                case ast.BinOp(_, ast.Div(), divisor) | ast.AugAssign(_, ast.Div(), divisor):
                    pass
                case ast.Call(ast.Attribute(_, "div" | "true_divide"), [divisor]):
                    pass
                case _:
                    continue
            if names.is_deviation(divisor):
                yield divisor
        match statement:
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                names.assign(name, value)
            case ast.AugAssign(ast.Name(name)):
                names.deviations.discard(name)


class _Names:
    """The names of a body that stand for groups of rows, and for their deviations."""

    def __init__(self) -> None:
        self.groups, self.deviations = set[str](), set[str]()

    def assign(self, name: str, value: ast.expr) -> None:
        for names, holds in ((self.groups, self.is_groups(value)), (self.deviations, self.is_deviation(value))):
            (names.add if holds else names.discard)(name)

    def is_groups(self, node: ast.expr) -> bool:
        """Whether an expression is a view in groups, or computed from one elementwise."""
        match node:
            case ast.Name(name):
                return name in self.groups
            case ast.Call(ast.Attribute(_, function)) if function in VIEWS:
                return True
            case ast.BinOp(left):
                return self.is_groups(left)
            case ast.Call(ast.Attribute(value, function)) if function in FORMS:
                return self.is_groups(value)
        return False

    def is_deviation(self, node: ast.expr) -> bool:
        """Whether an expression is the deviation of each group, in any form."""
        match node:
            case ast.Name(name):
                return name in self.deviations
            case ast.Subscript(value):
                return self.is_deviation(value)
            case ast.Call(ast.Attribute(values, function), dims, keywords) if function in DEVIATIONS:
                if isinstance(values, ast.Name) and values.id == "torch" and dims:
                    values, *dims = dims
                return self.is_groups(values) and (bool(dims) or any(keyword.arg == "dim" for keyword in keywords))
            case ast.Call(ast.Attribute(value, form)) if form in FORMS:
                return self.is_deviation(value)
        return False
