"""Formulas: is the formula of a body defined for the numbers that a dataflow passes to it?"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

from hfdsl.check.bodies.calls import bound_arguments, call_name
from hfdsl.check.bodies.group_tensors import GroupInterpretation, GroupTensor
from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.syntax import assigned_names, callee, certain_expressions, certain_statements, definition_of
from hfdsl.check.constructor_types import annotations_one_by_one
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.sources import Function, argument_span, span_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.program import Constant, Node
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import definition_span
from hfdsl.types.bounds import Within, bounds_of
from hfdsl.types.numbers import brief
from hfdsl.types.rows import Grouped


class PassedOn(NamedTuple):
    """A parameter that a body passes unchanged to a formula, which declares its bounds."""

    formula: str
    bounds: Within
    call: ast.Call


def numbers_fit_formulas(context: Context) -> Iterator[Finding]:
    """A number that a body passes on to a formula is within the bounds that the formula declares."""
    for node, signature in context.program.graph.bodies:
        numbers = dict(_numbers(node, signature))
        for name, passed in passed_on(signature.body).items() if numbers else ():
            if name in numbers and passed.bounds.refuses(numbers[name]):
                group = name == signature.group_parameter
                yield Finding(
                    "HF314" if group else "HF940",
                    f"'{name}' of '{node.label}' must be {passed.bounds}, and is {brief(numbers[name])}",
                    Label(argument_span(node.span, signature, name)),
                    (
                        Label(
                            span_of(definition_span(signature.body).file, passed.call), f"passed to '{passed.formula}'"
                        ),
                    ),
                    notes=(passed.bounds.help,) if passed.bounds.help else (),
                )


def _numbers(node: Node, signature: Signature) -> Iterator[tuple[str, Any]]:
    """The numbers that a call gets for ports without bounds; the trace has checked those with bounds."""
    for name, operand in node.arguments:
        port = signature.port(name)
        if isinstance(operand, Constant) and port is not None and port.bounds is None:
            yield name, operand.value


@lru_cache(maxsize=256)
def passed_on(body: Callable[..., Any]) -> Mapping[str, PassedOn]:
    """The parameters that a body forwards unchanged to a formula, each with the bounds there."""
    definition = definition_of(body)
    if definition is None:
        return {}
    changed, parameters = assigned_names(definition), inspect.signature(body).parameters
    passed: dict[str, PassedOn] = {}
    for call in _calls(definition):
        formula = callee(body, definition, call)
        if formula is None:
            continue
        for name, argument in bound_arguments(formula, call).items():
            bounds = _bounds(formula).get(name)
            if bounds is not None and isinstance(argument, ast.Name) and argument.id in parameters.keys() - changed:
                passed.setdefault(argument.id, PassedOn(call_name(call), bounds, call))
    return passed


def _calls(definition: Function) -> Iterator[ast.Call]:
    for statement in certain_statements(definition):
        yield from (node for node in certain_expressions(statement) if isinstance(node, ast.Call))


@lru_cache(maxsize=256)
def _bounds(formula: FunctionType) -> Mapping[str, Within]:
    """The bounds that a formula declares, by parameter."""
    types = annotations_one_by_one(inspect.signature(formula), formula.__globals__, {}, extras=True)
    bounds = {name: bounds_of(annotation) for name, annotation in types.items()}
    return {name: within for name, within in bounds.items() if within is not None}


# -- a group of one


def groups_have_a_spread(context: Context) -> Iterator[Finding]:
    """A body does not compare the rows of a group with each other where every group has one row."""
    for node, signature in context.program.graph.bodies:
        definition = definition_of(signature.body) if signature.rows == Grouped(1) else None
        if definition is None or _expects_nan(definition) or _lacks_its_size(node, signature):
            continue
        for expression, effect in _comparisons(GroupInterpretation.of(signature, definition)):
            yield Finding(
                "HF314",
                f"'{node.label}' has groups of 1, {effect}",
                Label(argument_span(node.span, signature, signature.group_parameter or "")),
                (Label(span_of(definition_span(signature.body).file, expression), "computed here"),),
                notes=(
                    "a response is compared with the other responses to its prompt: sample 2 or more, usually 4 to 16",
                ),
            )
            break  # what follows from it is the same mistake


def _lacks_its_size(node: Node, signature: Signature) -> bool:
    """Whether a call leaves out the size of its groups, which HF203 reports."""
    port = signature.port(signature.group_parameter or "")
    return port is not None and port.required and port.name not in dict(node.arguments)


def _expects_nan(definition: Function) -> bool:
    """Whether a body names NaN: it may replace what a group of one gives."""
    return any("nan" in last_name(node) for node in nodes_of(definition))


def _comparisons(body: GroupInterpretation) -> Iterator[tuple[ast.expr, str]]:
    """The statistics that are undefined for groups of one row, and the columns of differences, each with its effect."""
    for statement in body.statements():
        for expression in certain_expressions(statement):
            match expression:
                case ast.Call(ast.Attribute(_, "std" | "var")) if _is_of_one_row(body.value(expression)):
                    yield expression, f"and '{ast.unparse(expression)}' of one row is NaN"
                case ast.BinOp(_, ast.Div(), ast.BinOp(rows, ast.Sub(), ast.Constant(1))) if body.number(rows) == 1:
                    yield expression, f"and '{ast.unparse(expression)}' divides by the 0 other rows of a group"
        match statement:
            case ast.Return(ast.Call(keywords=columns)):
                for column in columns:
                    if column.arg is not None and body.value(column.value) == GroupTensor("differences", size=1):
                        effect = f"and '{column.arg}' is 0 in all rows: none is above the mean of its group"
                        yield column.value, effect


def _is_of_one_row(value: GroupTensor | None) -> bool:
    return value is not None and value.size == 1 and value.statistic in ("deviations", "variances")
