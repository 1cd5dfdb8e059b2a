"""Scores of both responses of a pair beside each other, as a loss of two classes takes them.

A worked example::

    scores = torch.stack([chosen, rejected], dim=1)                         scores beside each other
    F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))     as -F.logsigmoid(chosen - rejected)
    scores.log_softmax(-1)[:, 1]                                            as F.logsigmoid(rejected - chosen)
    torch.stack([chosen, rejected])[0]                                      chosen: one above the other
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from hfdsl.check.bodies.calls import dim_argument
from hfdsl.check.bodies.interpretation import SUBSCRIPT, Operation
from hfdsl.check.losses import slopes
from hfdsl.check.losses.preference_operations import DIVISIONS, PRODUCTS, beside, operation_result
from hfdsl.check.losses.slopes import Number, PairScores, PreferenceValue, Slope
from hfdsl.check.losses.terms import Several
from hfdsl.graph.spans import Span

COLUMNS: Final = {":, 0": 0, "(:, 0)": 0, "(..., 0)": 0, ":, 1": 1, "(:, 1)": 1, "(..., 1)": 1}
"""By index the response that it takes of all pairs."""

CLASSES: Final = frozenset({"cross_entropy", "nll_loss"})
"""Losses that take classes along the second dim, which is the last one of pairs."""

ROWS: Final = {"0": 0, "1": 1, "-1": 1, "(0, ...)": 0, "(1, ...)": 1, "(0, :)": 0, "(1, :)": 1}
"""By index the response that it takes of pairs that are stacked along the first dim."""


def stacked_scores(call: ast.Call, parts: Sequence[PreferenceValue]) -> PreferenceValue:
    """Tensors in a new dim: the scores of both responses of each pair, along the last or the first one."""
    dim, pair = dim_argument(call), beside(parts)
    match "0" if dim is None else ast.unparse(dim):
        case "1" | "-1":
            return pair
        case "0" if isinstance(pair, PairScores):
            return pair._replace(along="first")
    return None


def pair_result(operation: Operation[PreferenceValue], pair: PairScores, place: Span) -> PreferenceValue:
    """The result of an operation on the scores of both responses, or on the chances that either is the better one."""
    function, form = operation.function, pair.form
    other = operation.other
    if pair.along == "first" and not _is_of_first(operation):
        return None
    match function, form:
        case ("cross_entropy", "scores") | ("nll_loss", "logs"):
            return slopes.opposite(_better(pair, other, place))
        case (("log_softmax" | "softmax"), "scores"):
            return pair._replace(form="logs" if function == "log_softmax" else "chances")
        case "log", "chances":
            return pair._replace(form="logs")
        case "unbind", "scores" if pair.along == "first":
            return Several((pair.first, pair.second))
    if function == SUBSCRIPT:
        index = ast.unparse(operation.positional[0])
        label = (COLUMNS if pair.along == "last" else ROWS).get(index)
        if label is None or form == "chances":
            return None
        scores: PreferenceValue = (pair.first, pair.second)[label]
        return scores if form == "scores" else _better(pair, slopes.number(label), place)
    if function in PRODUCTS | DIVISIONS and form == "scores":
        scaled = beside(
            [operation_result(replace(operation, source=part), place) for part in (pair.first, pair.second)]
        )
        return scaled._replace(along=pair.along) if isinstance(scaled, PairScores) else None
    return pair if function in ("contiguous", "double", "float", "to") else None


def _is_of_first(operation: Operation[PreferenceValue]) -> bool:
    """Whether an operation on pairs along the first dim is along it, or on each number."""
    written = [ast.unparse(node) for node in (*operation.positional, *operation.named.values())]
    if operation.function in ("log_softmax", "softmax"):
        return written == ["0"]
    if operation.function == "unbind":
        return written in ([], ["0"])
    return operation.function not in CLASSES


def _better(pair: PairScores, label: PreferenceValue, place: Span) -> PreferenceValue:
    """The log of the chance that the response with a label is the better one."""
    if not isinstance(label, Number) or label.value not in (0, 1):
        return None
    above, below = (pair.second, pair.first) if label.value else (pair.first, pair.second)
    gap = slopes.total(above, slopes.opposite(below), place)
    return gap.through(-1, -1, place) if isinstance(gap, Slope) else None
