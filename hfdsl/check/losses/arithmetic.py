"""Arithmetic with two values of a policy's loss, as an operator, a function or a method.

A worked example, of log-probs ``now`` and ``old``, advantages ``gains`` and a ``mask``::

    now - old                                       a gap
    gains - gains.mean()                            advantages
    torch.sub(loss, kl, alpha=0.1)                  the loss less a tenth of the KL
    (loss * mask).sum() / mask.sum()                the loss, divided by the tokens
    1 - mask                                        a mask of the others
    loss / (ours - theirs)                          nothing: the divisor may be negative
"""

from __future__ import annotations

from hfdsl.check.bodies.interpretation import Operation
from hfdsl.check.losses import terms
from hfdsl.check.losses.frames import CallFrame
from hfdsl.check.losses.functions import is_hardly_negative
from hfdsl.check.losses.masks import complemented
from hfdsl.check.losses.terms import PolicyValue, Quantity


def arithmetic_result(operation: Operation[PolicyValue], _: CallFrame) -> PolicyValue:
    """The result of arithmetic with two values; None for other functions."""
    function, source = operation.function, operation.source
    other = operation.other
    if "alpha" in operation.named:
        other = terms.product(other, operation.named_values["alpha"])
    divisor = terms.as_weight(other) if isinstance(other, Quantity) else None
    divisor = None if divisor is None or divisor.constant else divisor
    match function:
        case "add":
            return terms.added(source, other)
        case "sub" | "subtract":
            return complemented(operation) or terms.added(source, terms.negative(other))
        case "mul" | "multiply":
            return terms.product(source, other)
        case "div" | "true_divide" if isinstance(divisor, Quantity) and divisor.kind == "number":
            return terms.quotient(source, divisor)
        case "div" | "true_divide" if divisor is None and is_hardly_negative(operation):
            return terms.quotient(source, None)
        case "neg" | "negative":
            return terms.negative(source)
    return None
