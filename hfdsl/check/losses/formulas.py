"""The formulas of hfdsl in a user's policy loss.

A worked example::

    kl = kl_estimate(now, experience.ref_log_probs.tensor, "k3")      a KL to a reference
    loss = masked_mean(kl, experience.mask.tensor)                    divided by the tokens
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hfdsl.check.losses import terms
from hfdsl.check.losses.frames import CallFrame
from hfdsl.check.losses.functions import of_tokens
from hfdsl.check.losses.terms import POSITIVE, PolicyValue, Quantity, has_kind


def formula_result(
    call: ast.Call, name: str, positional: Sequence[PolicyValue], named: Mapping[str, PolicyValue], frame: CallFrame
) -> PolicyValue:
    """The result of a formula; None of one that says nothing."""
    first = positional[0] if positional else named.get("x")
    match name:
        case "whitened":
            return first
        case "aggregated" | "masked" | "masked_mean" | "masked_sum":
            mask = positional[1] if len(positional) > 1 else named.get("mask")
            mask = mask if isinstance(mask, Quantity) else POSITIVE.masked(terms.UNKNOWN_PART)
            product = terms.product(first, replace(mask, kind="number", sign=1))
            return terms.quotient(product, replace(mask, statistic=True)) if name == "masked_mean" else product
        case "kl_estimate":
            is_of_both = any(has_kind(value, "reference") for value in positional) and None not in positional[:2]
            base: terms.Base = "reference" if is_of_both else ""
            constant = bool(base) and not any(has_kind(value, "log_prob") for value in positional)
            both = (value.masks if isinstance(value, Quantity) else terms.SOME for value in positional[:2])
            masks = frozenset[str]().union(*both)
            return Quantity("kl", base=base, constant=constant, masks=masks, place=frame.place(call))
        case "entropy":
            logits = next(iter([*call.args, *(keyword.value for keyword in call.keywords)]), call)
            masks = frame.makers.of(logits).masks | (first.masks if isinstance(first, Quantity) else frozenset())
            return of_tokens(Quantity("entropy", of_tokens=True, masks=masks, place=frame.place(call)), call)
        case "imitation":
            return terms.negative(first)
    return None
