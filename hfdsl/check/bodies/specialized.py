"""Functions for one call: what a helper computes where the call decides its branches.

A worked example, a mean of all tokens or of each row::

    def masked_mean(x, mask, axis=None):
        if axis is not None:
            return (x * mask).sum(axis) / mask.sum(axis)
        return (x * mask).sum() / mask.sum()

    masked_mean(x, mask)           return (x * mask).sum() / mask.sum()
    masked_mean(x, mask, -1)       return (x * mask).sum(-1) / mask.sum(-1)

A parameter that the function sets is not known, and only tests of parameters alone are decided.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import deepcopy
from functools import lru_cache
from typing import TypeAlias

from hfdsl.check.bodies.calls import defaults
from hfdsl.check.bodies.syntax import assigned_names
from hfdsl.check.sources import Function
from hfdsl.check.syntax_trees import COMPARISON_OPERATORS, nodes_of

Option: TypeAlias = bool | int | float | str | None
"""A value that decides branches."""


def bound_constants(definition: Function, call: ast.Call) -> Mapping[str, ast.expr]:
    """The parameters that have a literal in a call, by default or as an argument, unless the function sets them."""
    arguments = definition.args
    parameters = [*arguments.posonlyargs, *arguments.args]
    defaults = zip(reversed(parameters), reversed(arguments.defaults), strict=False)
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    bound = {parameter.arg: default for parameter, default in (*defaults, *named) if default is not None}
    bound |= {parameter.arg: value for parameter, value in zip(parameters, call.args, strict=False)}
    bound |= {str(keyword.arg): keyword.value for keyword in call.keywords}
    is_open = any(keyword.arg is None for keyword in call.keywords)
    changed = assigned_names(definition)
    literal = {name: value for name, value in bound.items() if _is_literal(value) and name not in changed}
    return {} if is_open else literal


def specialized(
    definition: Function,
    constants: Mapping[str, ast.expr],
    given: AbstractSet[str] = frozenset(),
    values: Mapping[str, object] | None = None,
) -> Function:
    """A function for a call with these constants, in which other parameters are ``given`` and not ``None``.

    ``values`` of parameters decide branches, and do not take their places.

    >>> [definition] = ast.parse("def total(x, dim=0): return x.sum(dim) if dim else x.sum()").body
    >>> ast.unparse(specialized(definition, {"dim": ast.Constant(1)}, {"x"}).body)
    'return x.sum(1)'
    >>> ast.unparse(specialized(definition, {}, values={"dim": 1}).body)
    'return x.sum(dim)'
    """
    tested = _tested_names(definition)
    decisive = {name: value for name, value in (values or {}).items() if name in tested}
    if not constants and not decisive and tested.isdisjoint(given):
        return definition
    try:
        return _specialized(definition, frozenset(constants.items()), frozenset(decisive.items()), tested & given)
    except TypeError:  # a value has no hash
        return _edited(definition, constants, decisive, tested & given)


@lru_cache(maxsize=1024)
def _tested_names(definition: Function) -> frozenset[str]:
    """The names in the tests of a function's branches."""
    tests = (node.test for node in nodes_of(definition) if isinstance(node, (ast.If, ast.IfExp)))
    return frozenset(node.id for test in tests for node in nodes_of(test) if isinstance(node, ast.Name))


@lru_cache(maxsize=1024)  # so that a function for alike calls is one tree, whose nodes are found once
def _specialized(
    definition: Function,
    constants: frozenset[tuple[str, ast.expr]],
    decisive: frozenset[tuple[str, object]],
    given: frozenset[str],
) -> Function:
    return _edited(definition, dict(constants), dict(decisive), given)


def _edited(
    definition: Function,
    constants: Mapping[str, ast.expr],
    decisive: Mapping[str, object],
    given: AbstractSet[str],
) -> Function:
    function, changed = deepcopy(definition), assigned_names(definition)
    known = {name: ast.literal_eval(value) for name, value in constants.items()} | dict(decisive)
    known = {name: value for name, value in known.items() if name not in changed}
    function.body = _Known(constants, known, given - changed).statements(function.body) or [ast.Pass()]
    return function


def literal_arguments(
    definition: Function, call: ast.Call, arguments: Mapping[str, ast.expr], outer: Mapping[str, Option]
) -> Mapping[str, Option]:
    """The parameters whose value a call says, by default or as an argument: also one that its caller has ``outer``."""
    is_open = any(keyword.arg is None for keyword in call.keywords)
    bound = {**({} if is_open else dict(defaults(definition))), **arguments}
    literals = dict[str, Option]()
    for name, node in bound.items():
        match node:
            case ast.Constant(None | bool() | int() | float() | str() as value):
                literals[name] = value
            case ast.Name(passed) if passed in outer and name in arguments:
                literals[name] = outer[passed]
    return literals


class _UndecidedError(Exception):
    """A test that parameters do not decide."""


class _Known(ast.NodeTransformer):
    """The parameters of a call: a constant takes the place of its parameter, and known ones decide branches."""

    def __init__(self, constants: Mapping[str, ast.expr], known: Mapping[str, object], given: AbstractSet[str]) -> None:
        self.constants, self.known, self.given = constants, known, given

    def statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements that are left of a body."""
        left = list[ast.stmt]()
        for statement in body:
            result = self.visit(statement)
            left += result if isinstance(result, list) else [result]
        return left

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        """The side of a branch that runs."""
        is_true = self.decided(node.test)
        if is_true is None:
            self.generic_visit(node)
            return node
        return self.statements(node.body if is_true else node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """The value that is chosen."""
        is_true = self.decided(node.test)
        if is_true is None:
            self.generic_visit(node)
            return node
        chosen: ast.expr = self.visit(node.body if is_true else node.orelse)
        return chosen

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The constant that a parameter is."""
        return self.constants.get(node.id, node) if isinstance(node.ctx, ast.Load) else node

    def decided(self, test: ast.expr) -> bool | None:
        """Whether a test is true; None if that is unknown."""
        try:
            return bool(self.result(test))
        except (_UndecidedError, TypeError, ValueError):  # also of numbers that cannot be compared, which a run refuses
            return None

    def result(self, node: ast.expr) -> object:
        """The value of a test."""
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name) if name in self.known:
                return self.known[name]
            case ast.UnaryOp(ast.Not(), operand):
                return not self.result(operand)
            case ast.BoolOp(ast.And(), operands):
                return all(self.result(operand) for operand in operands)
            case ast.BoolOp(_, operands):
                return any(self.result(operand) for operand in operands)
            case ast.Compare(ast.Name(name), [ast.Is() | ast.IsNot() as test], [ast.Constant(None)]):
                if name in self.given:
                    return isinstance(test, ast.IsNot)
                return (self.result(node.left) is None) == isinstance(test, ast.Is)
            case ast.Compare(left, [comparison], [right]) if type(comparison) in COMPARISON_OPERATORS:
                return COMPARISON_OPERATORS[type(comparison)](self.result(left), self.result(right))
        raise _UndecidedError


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True
