"""Masks in a policy's loss: which tokens are left out of its terms, and by which count sums are divided.

A worked example, of a record with the masks of prompts with responses, and of responses alone::

    now = log_probs[:, 1:] * attention_mask[:, 1:]      masked by 'attention_mask'
    labels = ids[:, 1:].masked_fill(prompt, -100)       masked by something that is unknown
    loss = (now * mask).sum() / mask.sum()              divided by the tokens
    loss = (now * mask).mean()                          divided by tokens and padding
    rest = now * (1 - mask)                             masked by the complement of 'mask'
    now.masked_fill(mask, 0.0)                          likewise

Whatever takes some tokens, by an index, a test or labels, may leave out any.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from hfdsl.check.bodies.interpretation import Operation
from hfdsl.check.bodies.row_tensors import TESTS, functions
from hfdsl.check.losses.functions import COUNTS
from hfdsl.check.losses.terms import (
    BEGINNING,
    PARTS,
    POSITIVE,
    SELECTION,
    SOME,
    Divisor,
    PolicyValue,
    Quantity,
    Sum,
    has_terms,
)
from hfdsl.check.syntax_trees import index_parts

ELEMENTWISE_COUNTS: Final = functions("abs square")
"""Functions that give a number for each token, and so may be of a mask."""

CHOICES: Final = functions("cat index_select masked_fill masked_select where")
"""Functions that take some numbers of a tensor, or put others among them."""

TRUE: Final = frozenset({("eq", "1"), ("eq", "True"), ("ge", "1"), ("gt", "0"), ("gt", "0.5"), ("ne", "0")})
"""Comparisons that are true where a mask is."""


def tested(operation: Operation[PolicyValue]) -> PolicyValue:
    """The result of a test or a count: numbers that are at least 0, and may be a mask; None for other functions."""
    if operation.function in TESTS:
        return POSITIVE.masked(*masks_of_test(operation))
    if operation.function not in COUNTS or has_terms(operation.source):
        return None
    is_unknown = operation.source is None and operation.function in ELEMENTWISE_COUNTS
    return POSITIVE.masked(*(SOME if is_unknown else getattr(operation.source, "masks", ())))


COMPLEMENT: Final = "~"
"""The end of the name of a mask that leaves out what the column of this name marks."""

FALSE: Final = frozenset({("bitwise_not",), ("eq", "0"), ("eq", "False"), ("logical_not",), ("lt", "1")})
"""Functions that are true where a mask is not."""


def complement(masks: frozenset[str]) -> frozenset[str]:
    """The mask that leaves out what another one marks; unknown of several masks, or of one that is no column.

    >>> complement(frozenset({"rollout.mask"}))
    frozenset({'rollout.mask~'})
    """
    if len(masks) != 1 or masks & {*PARTS, SELECTION}:
        return SOME
    [mask] = masks
    return frozenset([mask.removesuffix(COMPLEMENT) if mask.endswith(COMPLEMENT) else f"{mask}{COMPLEMENT}"])


def complemented(operation: Operation[PolicyValue]) -> PolicyValue:
    """The result of ``1 - mask``; None for other differences."""
    other = operation.other
    match operation.node:
        case ast.BinOp(ast.Constant(value=1), ast.Sub(), _):
            is_mask = isinstance(other, Quantity) and other.kind == "number" and other.masks and not other.statistic
            return POSITIVE.masked(*complement(other.masks)) if isinstance(other, Quantity) and is_mask else None
    return None


MASKABLE: Final = frozenset({"advantage", "entropy", "gap", "kl", "log_prob", "ratio", "surrogate"})
"""The kinds of numbers that are of tokens, and left out where they are 0."""


def masks_of_zeros(operation: Operation[PolicyValue]) -> frozenset[str]:
    """The mask that leaves out what ``x.masked_fill(mask, 0)`` sets to 0; empty of other functions and numbers.

    It is the complement of the one that fills.
    """
    arguments = [*operation.positional, *operation.named.values()]
    if operation.function != "masked_fill" or len(arguments) != 2:
        return frozenset()
    terms = operation.source.terms if isinstance(operation.source, Sum) else [operation.source]
    if not all(isinstance(term, Quantity) and term.kind in MASKABLE for term in terms):
        return frozenset()
    mask, filled = operation.others[0], arguments[1]
    is_zero = isinstance(filled, ast.Constant) and filled.value == 0 and "value" not in [*operation.named][:1]
    is_mask = isinstance(mask, Quantity) and mask.kind == "number" and not mask.statistic
    masks = complement(mask.masks) if isinstance(mask, Quantity) and is_mask and is_zero else SOME
    return frozenset() if masks == SOME else masks


def takes_some(operation: Operation[PolicyValue]) -> bool:
    """Whether a function takes some numbers of a tensor, or puts others among them."""
    if masks_of_zeros(operation):
        return False
    arguments = [*operation.positional, *operation.named.values()]
    has_sizes = any(isinstance(argument, (ast.List, ast.Tuple)) for argument in arguments)
    is_cut = operation.function in ("chunk", "split", "unbind") and (has_sizes or len(arguments) > 1)
    alternatives = {*operation.others} if all(isinstance(value, Quantity) for value in operation.others) else set()
    is_of_alike = operation.function == "where" and len(operation.others) == 2 and len(alternatives) == 1
    return is_cut or (operation.function in CHOICES and not is_of_alike)


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
    if source.kind == "number" and source.masks and (function, *values) in FALSE:
        return complement(source.masks)
    is_true = source.kind == "number" and (function, *values) in TRUE
    return source.masks if is_true or (source.kind, function) == ("tokens", "ne") else SOME


def element(source: Quantity, index: ast.expr) -> Quantity:
    """Some of the elements; of log-probs of all tokens those of chosen ones, if tensors pick them."""
    parts = index_parts(index)
    is_of_rows = source.kind == "advantage" and source.of_rows and not source.masks
    if is_of_rows and any(isinstance(part, ast.Slice) for part in parts):
        return source  # it is the same for all tokens of a row
    picks = parts != [index] and any(not isinstance(part, (ast.Constant, ast.Slice, ast.UnaryOp)) for part in parts)
    if picks and source.kind == "distribution":
        return replace(source, kind="log_prob").masked(SELECTION)
    return source.masked(*masks_of_index(index, of_rows=(source.dims or 0) > 1))


def masks_of_index(index: ast.expr, *, of_rows: bool = False) -> frozenset[str]:
    """The tokens that an index leaves out, as masks; a slice of the first dim takes all tokens of rows ``of_rows``."""
    parts = index_parts(index)
    if of_rows and parts and isinstance(parts[0], ast.Slice):
        parts = [ast.Slice(), *parts[1:]]
        index = ast.Tuple(parts, ast.Load()) if len(parts) > 1 else parts[0]
    if _takes_all_tokens(index):
        return frozenset()
    if all(isinstance(part, (ast.Constant, ast.Slice, ast.UnaryOp)) for part in parts) and parts != [index]:
        return frozenset([BEGINNING]) if _leaves_out_beginning(parts) else SOME
    return SOME if isinstance(index, ast.Slice) else frozenset([SELECTION])


def masks_of_choice(operation: Operation[PolicyValue]) -> frozenset[str]:
    """The masks of log-probs that are chosen by tokens: those of these, and any if they are unknown."""
    source = operation.source.masks if isinstance(operation.source, Quantity) else frozenset[str]()
    tokens = [value for value in operation.others if isinstance(value, Quantity) and value.kind == "tokens"]
    return source | (tokens[0].masks & {*PARTS, SELECTION} if tokens else SOME)


def masks_of_both(operation: Operation[PolicyValue]) -> frozenset[str]:
    """The masks of a comparison of two tensors: those of both, and any if one is unknown."""
    both = operation.source, *operation.others[:1]
    return frozenset[str]().union(*(value.masks if isinstance(value, Quantity) else SOME for value in both))


def _leaves_out_beginning(parts: Sequence[ast.expr]) -> bool:
    """Whether an index takes all rows, and of each the tokens from one on, but perhaps the last."""
    first, *others = parts
    written = [ast.unparse(part) for part in others]
    cuts = [part for part in others if isinstance(part, ast.Slice) and part.lower is not None and part.step is None]
    ends = {ast.unparse(cut.upper) if cut.upper is not None else "" for cut in cuts}
    is_whole = {*written} - {ast.unparse(cut) for cut in cuts} <= {":", "None", "..."}
    return ast.unparse(first) in (":", "...") and len(cuts) == 1 and ends <= {"", "-1"} and is_whole


def _takes_all_tokens(index: ast.expr) -> bool:
    """Whether an index takes all tokens of all rows, but the first or the last; it may add or drop a dim of 1."""
    parts = [ast.unparse(part) for part in index_parts(index)]
    return parts in (["...", "0"], [":", ":", "0"]) or {*parts} <= {":", "None", "...", "1:", ":-1"}
