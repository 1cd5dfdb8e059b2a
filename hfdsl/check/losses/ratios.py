"""Ratios in a policy's loss, and the weights that they are multiplied by: which policies are above and below?

A worked example, a decoupled loss, whose ratio to a proximal policy is weighted by that over the policy of sampling::

    proximal = self.log_probs(experience).detach()
    ratio = (now - proximal).exp()                          now over proximal
    weight = (proximal - experience.log_probs).exp()        proximal over sampling
    loss = -(weight * ratio * gain).mean()                  together now over sampling

``now.detach()`` is none of these policies: what it is above or below may be meant to cancel.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hfdsl.check.bodies.interpretation import Operation
from hfdsl.check.bodies.names import last_name
from hfdsl.check.losses.collected import OwnRatio, RatioOfOne, WeightedRatio
from hfdsl.check.losses.frames import CallFrame
from hfdsl.check.losses.functions import less_itself
from hfdsl.check.losses.terms import ALONE, NOW, PolicyValue, Quantity, has_kind, terms_of


def collect_ratios(operation: Operation[PolicyValue], result: PolicyValue, frame: CallFrame) -> None:
    """Collect what a ratio is of, where that is to be reported: log-probs and themselves, or a reference."""
    node, collected = operation.node, frame.collected
    match result:
        case Quantity("gap", base="own", origin=origin) if isinstance(node, ast.BinOp):
            frame.own_bases[origin] = frame.place(node.right)
        case Quantity("gap", base="old"):
            pass  # of log-probs less themselves, as ratios on policy are
        case _ if less_itself(node):
            collected.values_of_others.append(frame.place(node))
        case Quantity("gap", base="reference", constant=True):
            collected.constant_gaps.append(frame.place(node))
    if has_kind(result, "surrogate"):
        for factor in (operation.source, *operation.others):
            if isinstance(factor, Quantity) and (factor.kind, factor.base) == ("ratio", "own"):
                place = frame.place(node)
                collected.own_ratios.append(OwnRatio(place, frame.own_bases.get(factor.origin, place)))
    if has_kind(result, "ratio", "surrogate"):
        _collect_weight(operation, frame)
    _collect_lone_ratio(operation, result, frame)


def _collect_lone_ratio(operation: Operation[PolicyValue], result: PolicyValue, frame: CallFrame) -> None:
    """Collect a ratio of log-probs to themselves in a loop, and probabilities that are called a ratio."""
    source, epochs = operation.source, frame.epochs
    is_first_pass = epochs is not None and len(frame.origins.effects) == epochs.effects
    is_of_gap = isinstance(source, Quantity) and source.kind == "gap" and source.of_itself
    if is_of_gap and has_kind(result, "ratio") and not is_first_pass:
        times = None if epochs is None else epochs.times
        frame.collected.ratios_of_one.append(RatioOfOne(frame.place(operation.node), times))
    if has_kind(result, "surrogate") and any("ratio" in name for name in _names_of_factors(operation.node)):
        for factor in (operation.source, *operation.others):
            if isinstance(factor, Quantity) and (factor.kind, factor.above) == ("ratio", ALONE):
                frame.collected.probabilities.extend([] if factor.clipped or factor.shifted else [factor.place])


def _names_of_factors(node: ast.expr) -> Iterator[str]:
    """The names of what a product multiplies."""
    match node:
        case ast.BinOp(left, ast.Mult(), right):
            yield from (*_names_of_factors(left), *_names_of_factors(right))
        case ast.UnaryOp(ast.USub(), operand):
            yield from _names_of_factors(operand)
        case ast.Name(name) | ast.Attribute(_, name):
            yield name.lower()
        case ast.Call(ast.Attribute(owner, "mul" | "multiply"), arguments):
            yield from (last_name(factor).lower() for factor in (owner, *arguments))


def _collect_weight(operation: Operation[PolicyValue], frame: CallFrame) -> None:
    """Collect a ratio to old log-probs that is multiplied by another one, which has no gradient."""
    factors = [term for value in (operation.source, *operation.others) for term in terms_of(value)]
    ratios = [f for f in factors if f.kind in ("ratio", "surrogate") and not f.constant and f.above == NOW]
    weights = [f for f in factors if (f.constant or f.kind == "number") and f.above and f.below]
    if operation.function in ("div", "mul", "multiply", "true_divide") and len(ratios) == len(weights) == 1:
        [ratio], [weight], is_product = ratios, weights, operation.function.startswith("mul")
        policies = (weight.above, weight.below) if is_product else (weight.below, weight.above)
        if ratio.below and (is_product or weight not in terms_of(operation.source)):
            weighted = WeightedRatio(frame.place(operation.node), ratio.below, *policies)
            frame.collected.weighted_ratios.append(weighted)
