"""Masks in a policy's loss: which tokens are left out of its terms, and by which count sums are divided.

A worked example, of a record with the masks of prompts with responses, and of responses alone::

    now = log_probs[:, 1:] * attention_mask[:, 1:]      masked by 'attention_mask'
    labels = ids[:, 1:].masked_fill(prompt, -100)       masked by something that is unknown
    loss = (now * mask).sum() / mask.sum()              divided by the tokens
    loss = (now * mask).mean()                          divided by tokens and padding

Whatever takes some tokens, by an index, a test or labels, may leave out any.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Final

from hfdsl.check.bodies.interpretation import Operation
from hfdsl.check.bodies.row_tensors import functions
from hfdsl.check.losses.terms import SELECTION, SOME, UNKNOWN_PART, Divisor, PolicyValue, Quantity

TESTS: Final = functions("eq full ge gt isfinite isnan le logical_and logical_not logical_or lt ne ones ones_like")
"""Functions whose result may be a mask of tokens."""

TRUE: Final = frozenset({("eq", "1"), ("eq", "True"), ("ge", "1"), ("gt", "0"), ("gt", "0.5"), ("ne", "0")})
"""Comparisons that are true where a mask is."""


def takes_some(operation: Operation[PolicyValue]) -> bool:
    """Whether a function takes some numbers of a tensor, or puts others among them."""
    arguments = [*operation.positional, *operation.named.values()]
    has_sizes = any(isinstance(argument, (ast.List, ast.Tuple)) for argument in arguments)
    is_cut = operation.function in ("chunk", "split", "unbind") and (has_sizes or len(arguments) > 1)
    return is_cut or operation.function in ("cat", "index_select", "masked_fill", "masked_select", "where")


def counted_by_mean(operation: Operation[PolicyValue]) -> Divisor:
    """The count that a mean of numbers of tokens divides by; that of rows is none."""
    dim = operation.named.get("dim", operation.positional[0] if operation.positional else None)
    if dim is None or ast.unparse(dim) in ("(0, 1)", "[0, 1]"):
        return "padding"
    return "width" if ast.unparse(dim) in ("1", "-1") else ""


def masks_of_test(operation: Operation[PolicyValue]) -> frozenset[str]:
    """The masks that a comparison makes: of tokens with that of padding, or of a mask with a number."""
    source, function = operation.source, operation.function
    if not isinstance(source, Quantity) or source.statistic:
        return SOME
    others = [*operation.positional, *getattr(operation.node, "comparators", ())]
    values = [ast.unparse(other) for other in others]
    is_true = source.kind == "number" and (function, *values) in TRUE
    return source.masks if is_true or (source.kind, function) == ("tokens", "ne") else SOME


def element(source: Quantity, index: ast.expr) -> Quantity:
    """Some of the elements; of log-probs of all tokens those of chosen ones, if tensors pick them."""
    parts = index.elts if isinstance(index, ast.Tuple) else []
    picks = any(not isinstance(part, (ast.Constant, ast.Slice, ast.UnaryOp)) for part in parts)
    if picks and source.kind == "distribution":
        return replace(source, kind="log_prob").masked(SELECTION)
    is_slice = isinstance(index, ast.Slice) or (parts and not picks)
    return source if _takes_all_tokens(index) else source.masked(UNKNOWN_PART if is_slice else SELECTION)


def _takes_all_tokens(index: ast.expr) -> bool:
    """Whether an index takes all tokens of all rows, but the first or the last; it may add or drop a dim of 1."""
    parts = [ast.unparse(part) for part in (index.elts if isinstance(index, ast.Tuple) else [index])]
    return parts in (["...", "0"], [":", ":", "0"]) or {*parts} <= {":", "None", "...", "1:", ":-1"}
