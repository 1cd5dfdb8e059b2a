"""Zero spreads: does a body divide by a standard deviation that is 0 where the scores of a group are equal?

A worked example, in which a question that every response solves makes a group of equal rewards::

    groups = scores.reward.tensor.view(-1, 8)
    gained = groups - groups.mean(1, keepdim=True)      0 0 0 0 0 0 0 0
    return gained / groups.std(1, keepdim=True)         0 / 0: NaN, in all that the policy learns from then

``gained / (groups.std(1, keepdim=True) + 1e-6)`` is 0 there. The rule reads the statements that run in every call, and
reports a division by nothing but a deviation along a dim of a view in groups. It does not report rows that a filter has
selected, nor a body that may look for such groups: one that decides anything, compares, sets elements or calls
``clamp``, ``where`` and the like.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from hfdsl.check.bodies.group_tensors import GroupInterpretation
from hfdsl.check.bodies.syntax import definition_of, is_decorated
from hfdsl.check.context import Context
from hfdsl.check.dependences import trains
from hfdsl.check.findings import Finding, Label
from hfdsl.check.sources import Function, span_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.ancestry import ancestors
from hfdsl.graph.program import Filter, Graph, Node
from hfdsl.graph.spans import definition_span
from hfdsl.types.rows import Grouped

GUARDS: Final = frozenset(
    {"add", "clamp", "clamp_max", "clamp_min", "clip", "isfinite", "isnan", "masked_fill", "maximum", "nan_to_num"}
    | {"where"}
)
"""Functions by which a body may see to equal values, also in place."""

DECISIONS: Final = (ast.If, ast.IfExp, ast.Assert, ast.Compare, ast.Try, ast.While)
"""Statements and expressions by which a body may look for them."""


def divisors_are_not_zero(context: Context) -> Iterator[Finding]:
    """HF357: a body does not divide by the deviation of groups alone."""
    seen, program, graph = set[object](), context.program, context.program.graph
    for node, signature in graph.bodies:
        if signature.body in seen or trains(program, node) or is_decorated(signature.body) or _filtered(graph, node):
            continue
        if isinstance(signature.rows, Grouped) and signature.rows.n == 1:
            continue  # HF314
        seen.add(signature.body)
        definition = definition_of(signature.body)
        if definition is None or _is_guarded(definition):
            continue
        divisor = next(_divisors(GroupInterpretation.of(signature, definition)), None)
        if divisor is not None:
            yield Finding(
                "HF357",
                f"'{node.label}' divides by '{ast.unparse(divisor)}', which is 0 where the values of a group are "
                "equal, and the rows are NaN then",
                Label(span_of(definition_span(signature.body).file, divisor), "0 in a group of equal values"),
                (Label(node.span, "called here"),),
                notes=("add a small number to it, as in (x.std(1, keepdim=True) + 1e-6)",),
            )


def _filtered(graph: Graph, node: Node) -> bool:
    """Whether a filter has selected some of the rows that a call reads."""
    return any(isinstance(graph.nodes[number].op, Filter) for number in ancestors(graph, [node.id]))


def _is_guarded(definition: Function) -> bool:
    """Whether a body may look for equal values."""
    for node in nodes_of(definition):
        match node:
            case ast.Attribute(attr=name) | ast.Name(name) if name.rstrip("_") in GUARDS:
                return True
            case ast.Subscript(ctx=ast.Store()):
                return True
            case _ if isinstance(node, DECISIONS):
                return True
    return False


def _divisors(body: GroupInterpretation) -> Iterator[ast.expr]:
    """The divisors that are a deviation of groups, and nothing else."""
    for statement in body.statements():
        for node in nodes_of(statement):
            match node:
                case (
                    ast.BinOp(_, ast.Div(), divisor)
                    | ast.AugAssign(_, ast.Div(), divisor)
                    | ast.Call(ast.Attribute(_, "div" | "true_divide"), [divisor])
                ):
                    value = body.value(divisor)
                    if value is not None and value.statistic == "deviations":
                        yield divisor
