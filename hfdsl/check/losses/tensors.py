"""Functions of one tensor in a policy's loss: exponentials, choices by tokens, clips, means and views; or of several.

A worked example, of log-probs of all tokens, and a gap of log-probs::

    distribution.gather(-1, ids)          log-probs of chosen tokens
    gap.exp()                             a ratio
    gap ** 2                              an estimate of a KL
    gap.exp().clamp(0.8, 1.2)             a ratio that is clipped
    (gap.exp() * mask).mean()             a ratio, divided by tokens and padding
    self.losses(gap)[0]                   the first of a tuple
"""

from __future__ import annotations

import ast
from dataclasses import replace

from hfdsl.check.bodies.interpretation import OPERATORS, SUBSCRIPT, Operation
from hfdsl.check.losses import terms
from hfdsl.check.losses.extremes import clipped
from hfdsl.check.losses.frames import CallFrame
from hfdsl.check.losses.functions import CLIPS, GROWTHS, SAME, exponent
from hfdsl.check.losses.masks import counted_by_mean, element, masks_of_choice, masks_of_test, masks_of_zeros
from hfdsl.check.losses.rows import index_of_rows
from hfdsl.check.losses.terms import POSITIVE, Dictionary, PolicyValue, Quantity, Several, Sum, has_kind


def container_result(operation: Operation[PolicyValue], _: CallFrame) -> PolicyValue:
    """An entry of a tuple, the extreme itself of what ``min`` returns, or all entries of a dictionary."""
    match operation.source, operation.function, operation.positional:
        case Dictionary(entries), "values", _:
            return Several(tuple(entries.values()))
        case Several() as several, function, [ast.Constant(int(position))] if function == SUBSCRIPT:
            return terms.part_of(several, position)
        case Several() as several, "values", _:
            return terms.part_of(several, 0)
        case Several() as several, "indices", _:
            return terms.part_of(several, 1)
    return None


def tensor_result(operation: Operation[PolicyValue], frame: CallFrame) -> PolicyValue:
    """The result of a function of one tensor: of a sum, that of each of its terms."""
    source = operation.source
    if isinstance(source, Sum):
        result = terms.total(*(_of_quantity(operation, term, frame) for term in source.terms))
    else:
        result = _of_quantity(operation, source, frame) if isinstance(source, Quantity) else None
    masks = masks_of_zeros(operation)
    return terms.of_each(result, lambda term: term.masked(*masks)) if masks else result


def _of_quantity(operation: Operation[PolicyValue], source: Quantity, frame: CallFrame) -> Quantity | None:
    function, kind = operation.function, source.kind
    match function, kind:
        case "exp" | "expm1", _:
            result = terms.exponential(source, centered=function == "exp")
            is_padded = source.kind == "gap" and source.divisor == "width"
            return replace(result, padded=frame.place(operation.node)) if result is not None and is_padded else result
        case "log", "chances":
            return replace(source, kind="distribution")
        case "gather" | "take_along_dim", "distribution" | "logits":
            return Quantity("log_prob").masked(*masks_of_choice(operation))
        case "gather" | "take_along_dim", "chances":
            return Quantity("ratio", above=terms.ALONE).masked(*masks_of_choice(operation))
        case "log", "ratio" if source.above == terms.ALONE and not source.shifted:
            return replace(source, kind="log_prob", above="")
        case ("abs" | "square", "gap") | ("pow", "gap") if exponent(operation) % 2 == 0:
            return Quantity("kl", base=source.base, constant=source.constant, masks=source.masks)
    if function == SUBSCRIPT:
        return element(source, index_of_rows(operation))
    if function in GROWTHS and kind in ("number", "advantage", "old", "reference"):
        return POSITIVE.masked(*source.masks)
    if function in CLIPS:
        source = clipped(operation, source, frame)
    return _rearranged(operation, source) if function in SAME else _compared(operation, source)


def _rearranged(operation: Operation[PolicyValue], source: Quantity) -> Quantity:
    """Numbers in another arrangement, or a statistic of them."""
    function, kind = operation.function, source.kind
    has_mask = source.masks - terms.PARTS and terms.SELECTION not in source.masks
    is_counted = source.statistic or source.divisor == "tokens"
    counts_padding = function == "mean" and not is_counted and (has_mask or _is_mean_of_gaps(operation, source))
    is_of_tokens = kind == "entropy" and not source.masks - terms.PARTS  # a sum over the vocabulary
    return replace(
        source,
        clipped=source.clipped or (function in CLIPS and kind == "ratio"),
        statistic=source.statistic or (function in ("mean", "sum") and not is_of_tokens),
        divisor=(counted_by_mean(operation) if counts_padding else "") or source.divisor,
        centered=source.centered and not (kind == "ratio" and function in ("nansum", "sum")),
    )


def _is_mean_of_gaps(operation: Operation[PolicyValue], source: Quantity) -> bool:
    """Whether a mean is that of a gap over all tokens of each row, for the ratio of a sequence."""
    is_whole = (source.kind, source.base) == ("gap", "old") and source.masks <= {terms.BEGINNING}
    return is_whole and counted_by_mean(operation) == "width"


def _compared(operation: Operation[PolicyValue], source: Quantity) -> Quantity | None:
    """The result of an operator on numbers, such as masks; None of other values."""
    function, values = operation.function, (source, *operation.others)
    if not all(has_kind(value, "number") for value in values) or function not in OPERATORS.values():
        return None
    masks = frozenset[str]().union(*(value.masks for value in values if isinstance(value, Quantity)))
    is_kept = function == "bitwise_and" or not masks
    return replace(source, masks=masks if is_kept else masks_of_test(operation))
