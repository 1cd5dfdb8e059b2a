"""Functions in a policy's loss: the numbers that they make of those that rise, or fall, with its log-probs."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final

from hfdsl.check.bodies.interpretation import Operation
from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.row_tensors import functions
from hfdsl.check.losses import terms
from hfdsl.check.losses.names import ENTROPY, GAIN, LOG_PROB, LOGITS, OTHERS, PART, POLICY, REFERENCE, TEACHER
from hfdsl.check.losses.terms import Base, PolicyValue, Quantity
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.samples import is_token_column
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dtypes import Bool

SAME: Final = functions(
    "T bfloat16 bool cat chunk clamp clamp_max clamp_min clip clone contiguous cpu cuda double expand expand_as "
    "flatten float half hardtanh index_select int item long masked_fill masked_select mean movedim nan_to_num nanmean "
    "nansum permute repeat_interleave requires_grad_ reshape split squeeze stack sum to transpose type type_as "
    "unbind unsqueeze view view_as"
)
"""Functions whose result rises with their tensor."""

MASKED_FORMULAS: Final = functions("masked masked_mean masked_sum")
"""Formulas of hfdsl that take some of their numbers, their mean, or their sum."""

CLIPS: Final = functions("clamp clamp_max clamp_min clip hardtanh")
"""Functions that hold numbers between bounds."""

LEAST, MOST = functions("fmin min minimum"), functions("fmax max maximum")
"""Functions that take the smaller, or the greater, of two."""

COUNTS: Final = functions(
    "abs eq full ge gt isfinite isnan le len logical_and logical_not logical_or lt max ne norm numel ones ones_like "
    "shape size square std var"
)
"""Functions whose result is at least 0, whatever they take."""

GROWTHS: Final = functions("exp pow relu rsqrt sigmoid softmax softplus sqrt")
"""Functions whose result is at least 0, if it has no gradient."""

MADE: Final[Mapping[str, Quantity]] = {
    "Categorical": Quantity("categorical"),
    "cross_entropy": Quantity("log_prob", -1, masks=terms.SOME),
    "nll_loss": Quantity("log_prob", -1, masks=terms.SOME),
    "softmax": Quantity("chances"),
}
"""Results of functions of torch, of logits or log-probs that need not be known; labels may leave tokens out."""


def is_hardly_negative(division: Operation[Any]) -> bool:
    """Whether a divisor, such as a count, is written without a minus."""
    divisor = division.positional[0] if division.positional else getattr(division.node, "right", None)
    return divisor is not None and not any(isinstance(node, (ast.Sub, ast.USub)) for node in nodes_of(divisor))


def less_itself(node: ast.expr) -> bool:
    """Whether an expression is ``x - x.detach()``: 0, with the gradient of x, for the value of something else."""
    match node:
        case ast.BinOp(left, ast.Sub(), ast.Call(ast.Attribute(same, "detach"))):
            return ast.dump(left) == ast.dump(same)
    return False


def exponent(operation: Operation[Any]) -> int:
    """The exponent of a power; that of a square for other functions, and 1 if it is not known."""
    if operation.function != "pow":
        return 2
    match operation.positional[0] if operation.positional else getattr(operation.node, "right", None):
        case ast.Constant(int() as literal):
            return literal
    return 1


def named_column(spec: ColumnSpec, path: str) -> PolicyValue:
    """The numbers of a column, by its name."""
    name = path.rpartition(".")[2]
    if issubclass(spec.dtype, Bool) or name.endswith("mask"):
        return terms.POSITIVE.masked(path)
    if is_token_column(spec):
        return Quantity("tokens", masks=frozenset([path]))
    if LOG_PROB.fullmatch(name):
        if REFERENCE.fullmatch(path) and not TEACHER.fullmatch(name):
            return Quantity("reference", above=path)
        return None if OTHERS.fullmatch(path.replace("old", "")) else Quantity("old", above=path)
    return Quantity("advantage", of_rows=len(spec.dims) == 1) if GAIN.fullmatch(name) else None


def named_result(operation: Operation[PolicyValue]) -> PolicyValue:
    """The result of a method that cannot be read, by its name."""
    match operation.node:
        case ast.Call(ast.Attribute(owner, name)) if not OTHERS.fullmatch(f"{ast.unparse(owner)}.{name}".lower()):
            if ENTROPY.fullmatch(name):
                is_of_policy = POLICY.fullmatch(last_name(owner).lower()) is not None
                return of_tokens(Quantity("entropy", of_tokens=is_of_policy), operation.node)
            return Quantity("log_prob") if LOG_PROB.fullmatch(name) else None
    return None


def of_tokens(value: PolicyValue, made: ast.expr) -> PolicyValue:
    """A value that an expression makes, unless it is a distribution, or its entropy, of another part of a model."""
    if not terms.has_kind(value, "categorical", "chances", "distribution", "entropy", "logits"):
        return value
    names = {last_name(node).lower() for node in nodes_of(made)} - {"v"}
    return None if any(map(PART.fullmatch, names)) else value


def named_logits(call: ast.Call) -> PolicyValue:
    """The logits that a call gives whose result is not known otherwise, by its name."""
    names = {last_name(node).lower() for node in nodes_of(call)}
    is_of_part = any(map(PART.fullmatch, names)) or OTHERS.fullmatch(ast.unparse(call.func).lower())
    return Quantity("logits") if LOGITS.fullmatch(last_name(call.func)) and not is_of_part else None


def distribution_of(node: ast.expr) -> PolicyValue:
    """Log-probs of all tokens that an expression makes of logits; None of those of other models."""
    return None if OTHERS.fullmatch(ast.unparse(node).lower()) else of_tokens(Quantity("distribution"), node)


def base_of(call: ast.expr) -> Base:
    """The base of a comparison: a reference, if the call names one."""
    names = map(last_name, nodes_of(call))
    return "reference" if any(map(REFERENCE.fullmatch, names)) else ""


def root_of(node: ast.expr) -> str:
    """The name that a chain of attributes begins with; empty if it begins otherwise."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
