"""Learning rates of groups of parameters: may one be negative, so that an optimizer of torch ascends?

Torch refuses a negative rate of an optimizer, but neither one of a group nor one that is set later::

    torch.optim.SGD([{"params": parameters, "lr": -0.01}], lr=0.01)
    for group in self.optimizer.param_groups:
        group["lr"] = -group["lr"]
    torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: -1.0)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from hfdsl.check.bodies.names import last_name, value_of
from hfdsl.check.bodies.role_code import ReadFunction, RoleCode
from hfdsl.check.syntax_trees import nodes_of

RATE = "lr"
"""The name of the rate in a group of parameters."""


def rates(function: ReadFunction) -> Iterator[ast.expr]:
    """The numbers that code sets rates of groups of parameters to, or multiplies them by."""
    for node in nodes_of(function.definition):
        match node:
            case ast.Assign([ast.Subscript(_, ast.Constant(key))], value) if key == RATE:
                yield value
            case ast.AugAssign(ast.Subscript(_, ast.Constant(key)), _, value) if key == RATE:
                yield value
            case ast.Dict(keys, values):
                named = zip(keys, values, strict=True)
                yield from (value for key, value in named if isinstance(key, ast.Constant) and key.value == RATE)
            case ast.Call(ast.Name("dict") | ast.Attribute(_, "update"), _, keywords):
                yield from (keyword.value for keyword in keywords if keyword.arg == RATE)
            case ast.Call(called, arguments, keywords) if last_name(called) in ("LambdaLR", "MultiplicativeLR"):
                passed = (*arguments, *(keyword.value for keyword in keywords))
                yield from (argument for argument in passed if isinstance(argument, ast.Lambda))


def has_negative_rate(code: RoleCode) -> bool:
    """Whether code may set a rate that is negative: with a minus, or by a number of the module that is."""
    functions = code.all_functions
    minus = {
        last_name(target)
        for function in functions
        for node in nodes_of(function.definition)
        if isinstance(node, ast.Assign) and has_minus(node.value)
        for target in node.targets
    }
    return any(_is_from(function, rate, minus) for function in functions for rate in rates(function)) or any(
        _has_negative_rate(value_of(function.body, name)) for function in functions for name in function.names
    )


def _is_from(function: ReadFunction, rate: ast.expr, minus: AbstractSet[str]) -> bool:
    """Whether a rate is written with a minus, or with a name of what is, or of a negative number."""
    names = {last_name(node) for node in nodes_of(rate)} - {""}
    return (
        has_minus(rate) or not minus.isdisjoint(names) or any(_is_negative(value_of(function.body, n)) for n in names)
    )


def has_minus(value: ast.expr) -> bool:
    """Whether an expression has a minus before a number, or before anything else."""
    return any(isinstance(node, ast.USub) for node in nodes_of(value))


def _is_negative(value: object) -> bool:
    return isinstance(value, (int, float)) and value < 0


def _has_negative_rate(value: object) -> bool:
    """Whether a table of the module, or one in a list, has a rate that is negative."""
    if isinstance(value, (list, tuple)):
        return any(map(_has_negative_rate, value))
    return isinstance(value, dict) and _is_negative(value.get(RATE))
