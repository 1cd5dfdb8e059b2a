"""Extremes in a policy's loss: clips, and the smaller or the greater of two surrogates, as bodies write them.

A worked example, four times the smaller of two, and twice a clip::

    torch.min(ratio * gains, held * gains)
    (ratio * gains).minimum(held * gains)
    torch.stack([ratio * gains, held * gains]).min(dim=0).values
    torch.stack((ratio * gains, held * gains), -1).amin(-1)
    ratio.clamp(1 - self.eps, 1 + self.eps)
    torch.minimum(torch.maximum(ratio, 1 - self.eps), 1 + self.eps)
"""

from __future__ import annotations

import ast
from dataclasses import replace

from hfdsl.check.bodies.calls import dim_argument
from hfdsl.check.bodies.interpretation import Operation
from hfdsl.check.bodies.linear_numbers import Linear
from hfdsl.check.losses import joins
from hfdsl.check.losses.collected import RatioClip, Reversal
from hfdsl.check.losses.frames import CallFrame
from hfdsl.check.losses.functions import LEAST, MOST
from hfdsl.check.losses.terms import ALONE, POSITIVE, ClipBound, PolicyValue, Quantity, Several, Stacked

# -- clips


def clipped(operation: Operation[PolicyValue], source: Quantity, frame: CallFrame) -> Quantity:
    """The numbers that a function of torch clips, with its bounds; a clip of a ratio is collected."""
    function, named = operation.function, operation.named
    positional = dict(zip(("low", "high"), operation.positional, strict=False))
    low = named.get("min", named.get("min_val", positional.get("low")))
    high = named.get("max", named.get("max_val", positional.get("high")))
    if function == "clamp_max":
        low, high = None, named.get("max", positional.get("low"))
    return _bounded(operation, source, _bound(low, frame), _bound(high, frame), frame)


def _bound(node: ast.expr | None, frame: CallFrame) -> ClipBound | None:
    """A bound of a clip, if its number is known in terms of others."""
    is_none = node is None or (isinstance(node, ast.Constant) and node.value is None)
    number = None if is_none else frame.linear.of(node)
    return None if node is None or number is None else ClipBound(number, frame.place(node))


def _bounded(
    operation: Operation[PolicyValue], source: Quantity, low: ClipBound | None, high: ClipBound | None, frame: CallFrame
) -> Quantity:
    """Numbers with one more bound; with both, they are clipped, and a clip of ratios is collected."""
    low, high = low or source.bounds[0], high or source.bounds[1]
    if low is None or high is None:
        return replace(source, bounds=(low, high))
    is_ratio = source.kind == "ratio" and source.sign > 0
    if source.centered and (is_ratio or source.kind == "gap"):
        frame.collected.clips.append(RatioClip(is_ratio, low, high, frame.place(operation.node)))
    is_probability = is_ratio and source.above == ALONE and not source.shifted and not source.constant
    if is_probability and high.number.offset >= 1 and _is_above_one(high.number):
        frame.collected.probabilities.append(source.place)
    return replace(source, bounds=(None, None))


def _is_above_one(number: Linear) -> bool:
    """Whether a bound, such as ``1 + eps``, is certainly above 1."""
    return number.offset > 1 if not number.factors else all(factor > 0 for _, factor in number.factors)


# -- the smaller, or the greater, of two


def extreme_result(operation: Operation[PolicyValue], frame: CallFrame) -> PolicyValue:
    """The smaller or the greater of two values; None for other functions."""
    call = operation.node
    is_axis = any(isinstance(argument, ast.Constant) for argument in operation.positional)
    if operation.function not in LEAST | MOST or len(operation.others) != 1 or is_axis:
        return None
    left, right = operation.source, operation.others[0]
    [second] = [*operation.positional, *operation.named.values()]
    first = call.func.value if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else call
    if isinstance(call, ast.Call) and not operation.is_method and call.args:
        first = call.args[0]
    return _extreme(operation, left, right, second, frame) or _extreme(operation, right, left, first, frame)


def _extreme(
    operation: Operation[PolicyValue], value: PolicyValue, other: PolicyValue, written: ast.expr, frame: CallFrame
) -> PolicyValue:
    """The smaller or the greater of two, of which the first says what it is, and the other is ``written``."""
    if other is None and is_number(written, frame):
        other = POSITIVE
    if not isinstance(value, Quantity) or not isinstance(other, Quantity):
        return None
    is_least = operation.function in LEAST
    if value.kind == "surrogate" and (other.kind, other.sign) == ("surrogate", value.sign):
        if not value.constant and value.clipped != other.clipped and is_least is (value.sign < 0):
            frame.collected.reversals.append(Reversal(value.sign, frame.place(operation.node)))
        below = value.below if value.below == other.below else ""
        return replace(value, clipped=False, below=below).masked(*other.masks)
    if value.kind == other.kind == "reference_surrogate" and value.sign == other.sign:
        frame.collected.reference_clips.extend([frame.place(operation.node)] if value.clipped != other.clipped else [])
        return replace(value, clipped=False)
    if value.kind == "surrogate" and other.kind == "advantage":
        return value  # the bound of a dual clip
    if other.kind != "number" or value.kind not in ("advantage", "gap", "number", "ratio"):
        return None
    bound = _bound(written, frame)
    held = _bounded(operation, value, None if is_least else bound, bound if is_least else None, frame)
    return replace(held, clipped=held.kind == "ratio")


def is_number(node: ast.expr, frame: CallFrame) -> bool:
    """Whether an expression is certainly a number, such as ``1 - self.eps``, and not a tensor of a name."""
    number, attribute = frame.linear.of(node), f"{frame.scope.receiver}."
    is_made = isinstance(node, ast.Call) or (number is not None and not number.factors)
    return number is not None and (is_made or all(name.startswith(attribute) for name, _ in number.factors))


# -- two that are stacked


def stacked(call: ast.Call, left: PolicyValue, right: PolicyValue) -> PolicyValue:
    """Two values in a new dim; None if their extremes say nothing."""
    dim = dim_argument(call)
    if not isinstance(left, Quantity) or not isinstance(right, Quantity):
        return None
    kinds = {left.kind, right.kind}
    is_compared = len(kinds) == 1 and kinds <= {"reference_surrogate", "surrogate"}
    return Stacked(left, right, "0" if dim is None else ast.unparse(dim)) if is_compared else None


def extreme_of_stack(operation: Operation[PolicyValue], frame: CallFrame) -> PolicyValue:
    """The extreme along the dim of a stack; None for other functions, and for other values."""
    function, stack = operation.function, operation.source
    written = operation.named.get("dim", operation.positional[0] if operation.positional else None)
    if not isinstance(stack, Stacked) or function not in ("amax", "amin", "max", "min"):
        return None
    if written is None or ast.unparse(written) != stack.dim:
        return None
    compared = replace(operation, function=function.removeprefix("a"))
    extreme = _extreme(compared, stack.left, stack.right, operation.node, frame)
    extreme = replace(extreme, place=frame.place(operation.node)) if isinstance(extreme, Quantity) else None
    return extreme if function.startswith("a") else Several((extreme, None))


def unstacked(operation: Operation[PolicyValue]) -> Operation[PolicyValue]:
    """An operation on values that are stacked, as one on either of them."""
    source, *others = (
        joins.either(value.left, value.right) if isinstance(value, Stacked) else value
        for value in (operation.source, *operation.others)
    )
    return replace(operation, source=source, others=others)
