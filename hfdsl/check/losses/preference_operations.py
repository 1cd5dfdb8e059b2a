"""Operations on the values of a preference loss: functions of torch, models, and halves of tensors.

A worked example, of the output of a model for the tokens ``ids`` of a preferred response::

    logits.log_softmax(-1).gather(-1, ids)      a score: log-probs
    F.softplus(rejected - chosen)               falls with the preferred score, as a convex function
    torch.cat([chosen_ids, rejected_ids])       halves, of which either has an operation of its own
    F.binary_cross_entropy_with_logits(margin, torch.ones_like(margin))         as -F.logsigmoid(margin)
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Final

from hfdsl.check.bodies.calls import dim_argument
from hfdsl.check.bodies.interpretation import SUBSCRIPT, Operation
from hfdsl.check.bodies.row_tensors import FORMS, METADATA, VIEWS, functions
from hfdsl.check.losses import slopes
from hfdsl.check.losses.functions import is_hardly_negative
from hfdsl.check.losses.names import LOG_PROB
from hfdsl.check.losses.sides import words_of
from hfdsl.check.losses.slopes import (
    COUNT,
    Given,
    Halves,
    Model,
    Number,
    PairScores,
    PreferenceValue,
    ResponseOutput,
    Slope,
)
from hfdsl.check.losses.terms import Several
from hfdsl.check.syntax_trees import index_parts
from hfdsl.graph.spans import Span

REDUCTIONS: Final = functions("masked_select mean nanmean nansum sum")
"""Functions that add numbers up, or take their mean."""

SAME: Final = (
    functions(
        "bfloat16 clone contiguous cpu cuda double float half index_select masked_fill nan_to_num requires_grad_ to "
        "type_as values view_as"
    )
    | FORMS
    | VIEWS
    | {SUBSCRIPT}
)
"""Functions whose result has the numbers of their tensor."""

TOKENS: Final = functions("chunk clamp int long pad split tensor_split where")
"""Functions whose result are tokens of the same response."""

DIVISIONS, PRODUCTS = functions("div divide true_divide"), functions("mul multiply")
SUMS, DIFFERENCES = functions("add"), functions("sub subtract")

CURVES: Final[Mapping[str, tuple[int, int]]] = {
    "exp": (1, 1),
    "expm1": (0, 1),
    "leaky_relu": (0, 1),
    "logsigmoid": (-1, -1),
    "sigmoid": (1, 0),
    "softplus": (1, 1),
    "tanh": (0, 0),
}
"""Functions that rise: the sign of what they give, and whether they curve up or down."""

LOGARITHMS: Final = functions("log log10 log1p log2")
"""Logarithms, which rise and curve down."""

DISTRIBUTIONS: Final = functions("gather log_softmax take_along_dim")
"""Functions that make log-probs of logits."""

COMPARISONS: Final = functions("bitwise_not eq ge gt isfinite le logical_and logical_not logical_or lt ne")
"""Functions that give 1 or 0."""

POSITIVE: Final = functions("abs exp norm relu sigmoid softmax softplus sqrt square std var") | COMPARISONS
"""Functions that give no negative numbers."""

BOUNDS: Final = functions("clamp clamp_max clamp_min clip maximum minimum")
"""Functions that hold numbers above or below others."""

BINARY: Final = functions("binary_cross_entropy binary_cross_entropy_with_logits")
"""Errors of chances, or of their log-odds, to targets from 0 to 1."""

LOSSES: Final = BINARY | functions("margin_ranking_loss mse_loss")
"""Losses of torch of two tensors."""

SCORES: Final = (LOSSES | LOGARITHMS | SUMS | DIFFERENCES | BOUNDS | functions("neg negative pow relu square")).union(
    CURVES
)
"""Functions that nothing calls of logits, but of scores."""

SCORE_WORDS: Final = frozenset({"reward", "rewards", "rm", "score", "scores"})
"""The words for what is to be greater for a better response."""

UNLIKE_SCORES: Final = frozenset(
    {"cost", "costs", "distance", "energy", "error", "errors", "harm", "loss", "losses", "nll", "penalty", "perplexity"}
    | {"ppl", "risk", "toxicity"}
)
"""The words for what is to be smaller for a better response."""

COST_WORDS: Final = frozenset({"cost", "costs", "energy", "harm", "penalty", "risk", "toxicity"})
"""Those for numbers that a model gives as it gives scores."""

NEGATED_WORDS: Final = frozenset({"inverse", "minus", "neg", "negated", "negative"})
"""The words for what has another sign than the rest of its name says."""

REFERENCE_WORDS: Final = frozenset({"frozen", "ref", "reference"})
"""The words for a model that does not learn."""

OTHER_WORDS: Final = frozenset(
    {"base", "copy", "ema", "expert", "init", "initial", "old", "prior", "sft", "target", "teacher"}
)
"""The words for a model that may be the policy, or another one."""

# -- what models give


def sides_of_values(values: Iterable[PreferenceValue]) -> int | None:
    """The response that values are of, 0 if they do not say; None if of several."""
    sides = {value.side for value in values if isinstance(value, (Given, ResponseOutput))} - {0}
    return None if len(sides) > 1 else next(iter(sides), 0)


def of_model(words: frozenset[str], function: str, given: Sequence[PreferenceValue]) -> PreferenceValue:
    """The output of a model, or of a method that cannot be read, for a response; its name says of which kind."""
    side, names = sides_of_values(given), words.union(words_of(function))
    names = names.union(*(value.words for value in given if isinstance(value, Model)))
    if not side or names & (UNLIKE_SCORES | OTHER_WORDS) or any(isinstance(value, Slope) for value in given):
        return None
    if names & REFERENCE_WORDS:
        return slopes.base_of(side)
    if NEGATED_WORDS & {*words_of(function)}:
        return None
    if LOG_PROB.fullmatch(function):
        return slopes.score_of(side, bound=-1)
    return slopes.score_of(side) if names & SCORE_WORDS else ResponseOutput(side)


def called_score(value: PreferenceValue, name: str) -> PreferenceValue:
    """The output of a model, as scores if it is called so; unknown under the name of a cost."""
    words = {*words_of(name)}
    match value:
        case ResponseOutput(side, "any"):
            value = slopes.score_of(side) if words & SCORE_WORDS else value
            return None if words & UNLIKE_SCORES else value
        case Slope(offset=0, bound=0, pairs=pairs) if not pairs and 0 in (value.preferred, value.rejected):
            return None if words & COST_WORDS else value
        case Halves(first, second):
            return Halves(called_score(first, name), called_score(second, name))
    return value


# -- halves


def joined_rows(call: ast.Call, parts: Sequence[PreferenceValue]) -> PreferenceValue:
    """Tensors after one another: the rows of two, or the tokens of several."""
    dim = dim_argument(call)
    if dim is not None and ast.unparse(dim) in ("1", "-1") and any(isinstance(part, Slope) for part in parts):
        return beside(parts)
    if dim is not None and ast.unparse(dim) != "0":
        side = sides_of_values(parts)
        return Given(side) if side is not None and all(isinstance(part, Given) for part in parts) else None
    is_flat = not any(isinstance(part, (Halves, Several)) or part is None for part in parts)
    return Halves(*parts) if len(parts) == 2 and is_flat else None


def beside(parts: Sequence[PreferenceValue]) -> PreferenceValue:
    """The scores of two responses beside each other; None of anything else."""
    match parts:
        case [Slope() as first, Slope() as second]:
            return PairScores(first, second)
    return None


def halves_of(
    operation: Operation[PreferenceValue],
    result: Callable[[Operation[PreferenceValue]], PreferenceValue],
    place: Span,
) -> PreferenceValue:
    """The result of an operation on halves: one of them, or of either."""
    function, source = operation.function, operation.source
    written = [ast.unparse(node) for node in (*operation.positional, *operation.named.values())]
    if isinstance(source, Halves):
        match function, operation.positional:
            case "getitem", [index] if isinstance(operation.others[0], Halves):
                return _chosen(source, operation.others[0])
            case "getitem", [index]:
                parts = index_parts(index) or [index]
                half = _half(source, parts[0])
                if len(parts) == 1 or half is not source or half is None:
                    return half
            case "chunk", _ if written in (["2"], ["2", "0"]):
                return Several((source.first, source.second))
            case (("split" | "tensor_split"), [size]) if len(written) == 1 and not isinstance(size, ast.Constant):
                return Several((source.first, source.second))
            case (("chunk" | "split" | "tensor_split" | "unbind" | "T" | "permute" | "transpose"), _):
                return None
    first, second = (
        result(replace(operation, source=_part(source, at), others=[_part(v, at) for v in operation.others]))
        for at in (0, 1)
    )
    is_mean = function in LOSSES and "'none'" not in written
    if is_mean or (function in REDUCTIONS and (not written or written == ["0"])):
        return slopes.total(first, second, place)
    return None if first is None and second is None else Halves(first, second)


def _chosen(halves: Halves, test: Halves) -> PreferenceValue:
    """The half that a test of rows, such as whether their responses are good, takes; None if it may take others."""
    first, second = (side.value if isinstance(side, Number) else None for side in test)
    chosen: PreferenceValue = halves[second == 1] if {first, second} == {0, 1} else None
    return chosen


def _part(value: PreferenceValue, at: int) -> PreferenceValue:
    part: PreferenceValue = value[at] if isinstance(value, Halves) else value
    return part


def _half(halves: Halves, index: ast.expr) -> PreferenceValue:
    """The half that a slice of rows takes, such as ``[:n]``, or both; None if it may take others."""
    match index:
        case ast.Slice(None, None, None) | ast.Constant(value=EllipsisType()):
            return halves
        case ast.Slice(None, ast.expr() as end, None) if _is_count(end):
            first: PreferenceValue = halves.first
            return first
        case ast.Slice(ast.expr() as start, None, None) if _is_count(start):
            second: PreferenceValue = halves.second
            return second
    return None


def _is_count(node: ast.expr) -> bool:
    """Whether a bound of a slice may be the number of rows of one half: ``n``, ``len(x)``, ``x.shape[0] // 2``."""
    match node:
        case ast.Name() | ast.Attribute() | ast.Call() | ast.Subscript() | ast.BinOp(op=ast.FloorDiv()):
            return True
    return False


# -- functions of torch


def operation_result(operation: Operation[PreferenceValue], place: Span) -> PreferenceValue:
    """The result of an operation on values that are no halves."""
    function, source = operation.function, operation.source
    other = operation.other
    values = (source, *operation.others)
    if function in METADATA:
        return COUNT
    if function in COMPARISONS and source is not None:
        return slopes.compared(function, source, other)
    if function == "where" and len(operation.others) == 2:
        truth = source.value if isinstance(source, Number) else None
        return operation.others[truth == 0] if truth in (0, 1) else slopes.either(*operation.others)
    match source:
        case Given() if not any(isinstance(value, (Slope, ResponseOutput)) for value in values):
            side = sides_of_values(values)
            return None if side is None else Given(side) if function in SAME | TOKENS else Number()
        case ResponseOutput():
            return _of_output(operation, source, other)
    if function in SUMS | DIFFERENCES and operation.others and not operation.named:
        right = slopes.opposite(other) if function in DIFFERENCES else other
        return slopes.total(source, right, place)
    if function in PRODUCTS:
        return slopes.product(_as_number(source), _as_number(other))
    if function in DIVISIONS and isinstance(other, (Number, Model)):
        divisor = other if isinstance(other, Number) else Number()
        is_count = divisor.sign == 0 and divisor.value is None and is_hardly_negative(operation)
        return slopes.quotient(_as_number(source), COUNT if is_count else divisor)
    if function in ("neg", "negative"):
        return slopes.opposite(source)
    match source:
        case Slope():
            return _of_slope(operation, source, other, place)
        case Number():
            return _of_number(function, source, values)
    return None


def _as_number(value: PreferenceValue) -> PreferenceValue:
    return Number() if isinstance(value, Model) else value


def _of_number(function: str, source: Number, values: Sequence[PreferenceValue]) -> PreferenceValue:
    """The result of a function of numbers that no score changes."""
    if function in SAME | {"bool", "int", "long"}:
        return source
    if function in REDUCTIONS or (function in DISTRIBUTIONS and source.is_base):
        return replace(source, value=None)
    if any(isinstance(value, (Slope, ResponseOutput, Halves)) or value is None for value in values):
        return None
    are_of_base = any(value.bases != (0, 0) for value in values if isinstance(value, Number))
    is_positive = function in POSITIVE or (function in ("clamp", "clamp_min", "clip", "maximum") and source.sign > 0)
    return Number(int(is_positive), bases=slopes.UNKNOWN_BASES if are_of_base else (0, 0))


def _of_output(
    operation: Operation[PreferenceValue], output: ResponseOutput, other: PreferenceValue
) -> PreferenceValue:
    """The result of a function of what a model gives."""
    function, (side, kind) = operation.function, output
    is_of_side = any(value == Given(side) for value in operation.others)
    match function, kind:
        case "log_softmax", "any":
            return ResponseOutput(side, "log_probs")
        case (("gather" | "take_along_dim"), "log_probs") if is_of_side:
            return slopes.score_of(side, bound=-1)
        case (("gather" | "take_along_dim"), "any") if is_of_side:
            return ResponseOutput(side, "picked")
        case "logsumexp", "any":
            return ResponseOutput(side, "partition")
        case (("sub" | "subtract"), "picked") if other == ResponseOutput(side, "partition"):
            return slopes.score_of(side, bound=-1)
        case "cross_entropy", "any" if is_of_side:
            return slopes.score_of(side, bound=-1).times(-1)
        case "nll_loss", "log_probs" if is_of_side:
            return slopes.score_of(side, bound=-1).times(-1)
        case "log_prob", "categorical" if is_of_side:
            return slopes.score_of(side, bound=-1)
    if function in SAME | {"T", "transpose", "permute"} or (function in REDUCTIONS and kind == "any"):
        return output
    is_scaled = function in DIVISIONS | PRODUCTS and isinstance(other, (Number, Model))
    return output if is_scaled and kind == "any" and (isinstance(other, Model) or other == COUNT) else None


def _of_slope(
    operation: Operation[PreferenceValue], slope: Slope, other: PreferenceValue, place: Span
) -> PreferenceValue:
    """The result of a function of scores."""
    function = operation.function
    if function in SAME | REDUCTIONS | {"chunk", "split"}:
        return slope
    if function == "relu":
        return slope.hinged(place)
    if function in CURVES:
        return slope.through(*CURVES[function], place)
    if function in LOGARITHMS:
        curve = slope.curve if slope.curve > 0 else -1
        changed = slope.through(0, curve, place)
        return replace(changed, curve=curve) if slope.curve >= 0 else changed
    if function == "square" or (function == "pow" and _exponent(operation) == 2):
        return slope.squared(place)
    if function in BOUNDS:
        return _held(operation, slope, place)
    return _loss(operation, slope, other, place) if function in LOSSES else None


def _exponent(operation: Operation[PreferenceValue]) -> float | None:
    exponent = operation.other
    return exponent.value if isinstance(exponent, Number) else None


def _held(operation: Operation[PreferenceValue], slope: Slope, place: Span) -> PreferenceValue:
    """Scores between bounds: a lower one makes a function that is convex."""
    function, named = operation.function, operation.named_values
    positional = [*operation.others[: len(operation.positional)]]
    if function in ("clamp_max", "minimum"):
        low, high = None, named.get("max", named.get("other", next(iter(positional), None)))
    else:
        low = named.get("min", named.get("other", next(iter(positional), None)))
        high = named.get("max", positional[1] if len(positional) > 1 else None)
    if not all(isinstance(bound, (Number, type(None))) for bound in (low, high)) or low is high is None:
        return None
    is_positive = isinstance(low, Number) and (low.value == 0 or low.sign > 0)
    is_positive |= low is None and isinstance(high, Number) and high.sign > 0 and slope.bound > 0
    if high is None:
        return replace(slope.hinged(place), bound=int(is_positive))
    return slope.through(int(is_positive), -1 if low is None else 0, place)


def _loss(operation: Operation[PreferenceValue], slope: Slope, other: PreferenceValue, place: Span) -> PreferenceValue:
    """A loss of torch of two tensors."""
    function = operation.function
    if function == "mse_loss":
        difference = slopes.total(slope, slopes.opposite(other), place)
        return difference.squared(place) if isinstance(difference, Slope) else None
    if function == "margin_ranking_loss":
        target = operation.others[1] if len(operation.others) > 1 else None
        gap = slopes.total(slope, slopes.opposite(other), place)
        ranked = slopes.product(gap, target)
        return ranked.times(-1).through(1, 1, place) if isinstance(ranked, Slope) else None
    if not isinstance(other, Number) or other.value is None or other.value == 0.5:
        return None
    towards = 1 if other.value > 0.5 else -1
    risen = slope.times(-towards).through(1, 1, place)
    return replace(risen, curve=1)
