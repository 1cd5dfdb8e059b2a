"""Divergences of a student from its teacher as abstract values: does a number rise or fall as the two become alike?

The gradient decides it. With log-probs ``s`` of the student and ``t`` of the teacher, over all tokens::

    s - t                                       a gap of sign 1, and t - s one of sign -1
    (t.exp() * (t - s)).sum(-1)                 a divergence of sign 1: KL(teacher, student), which is least where s = t
    (s.exp() * (s - t)).sum(-1)                 likewise, KL(student, teacher)
    -(t.exp() * s).sum(-1)                      likewise, a cross entropy
    (s - t) ** 2                                likewise, for any numbers of both
    (t - s).exp() - (t - s) - 1                 likewise, of sampled tokens, too
    (s - t).detach() * s                        likewise on sampled tokens: the policy gradient of KL(student, teacher)
    (t.exp() * (s - t)).sum(-1)                 a divergence of sign -1

Whatever is not known has no value. A sum with something unknown has its divergences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from hfdsl.check.bodies.interpretation import SUBSCRIPT, Operation
from hfdsl.check.bodies.row_tensors import FORMS, METADATA, VIEWS, functions
from hfdsl.check.losses.functions import LEAST, MOST, exponent, is_hardly_negative
from hfdsl.check.losses.slopes import COUNT, Model, Number, number
from hfdsl.check.losses.terms import Dictionary, Several
from hfdsl.graph.spans import NOWHERE, Span

DistillationSide: TypeAlias = Literal["student", "teacher"]
"""The model that numbers are of."""

NumbersForm: TypeAlias = Literal["any", "log_probs", "probs"]
"""The meaning of numbers: ``any`` are those that a model gives, such as logits."""


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """Numbers of a model for all tokens, or for those that are ``picked``; ``constant`` ones have no gradient."""

    side: DistillationSide
    form: NumbersForm = "any"
    picked: bool = False
    constant: bool = False


@dataclass(frozen=True, slots=True)
class TeacherGap:
    """Numbers of the student less those of its teacher, or the reverse if ``sign`` is -1."""

    sign: int
    form: NumbersForm
    picked: bool
    constant: bool
    place: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class GapExponential:
    """The exponential of a gap of a sign."""

    sign: int


@dataclass(frozen=True, slots=True)
class RisingNumbers:
    """Numbers that rise with the student's log-probs of picked tokens, such as a ratio to old ones."""


@dataclass(frozen=True, slots=True)
class NegativeNumbers:
    """Numbers of a model, or some that rise with them, times -1."""

    numbers: ModelNumbers | RisingNumbers


@dataclass(frozen=True, slots=True)
class TeacherDivergence:
    """Numbers with terms that are least, or greatest if their sign is -1, where a student is like its teacher."""

    signs: frozenset[int]
    place: Span = field(default=NOWHERE, compare=False)

    def times(self, sign: int) -> TeacherDivergence:
        """These numbers times one of a sign."""
        return replace(self, signs=frozenset(sign * own for own in self.signs))


DistillationValue: TypeAlias = (
    ModelNumbers
    | TeacherGap
    | GapExponential
    | RisingNumbers
    | NegativeNumbers
    | TeacherDivergence
    | Model
    | Number
    | Several
    | Dictionary
    | None
)
"""The abstract value of an expression; None if unknown."""

ARITHMETIC: Final = functions("add div divide mul multiply neg negative sub subtract true_divide")
"""Operators, as functions."""

SAME: Final = (
    functions(
        "bfloat16 chunk clamp clamp_max clamp_min clip clone contiguous cpu cuda double float half index_select "
        "masked_fill masked_select mean nan_to_num nanmean nansum requires_grad_ split sum to type_as view_as"
    )
    | FORMS
    | VIEWS
    | {SUBSCRIPT}
)
"""Functions whose result has the meaning of their tensor."""

ERRORS: Final = functions("huber_loss l1_loss mse_loss smooth_l1_loss")
"""Functions of torch that give errors of one tensor to another."""

DIVERGENCES: Final = functions("kl_div kl_divergence")
"""Functions of torch that give a KL."""


def operation_result(operation: Operation[DistillationValue], place: Span) -> DistillationValue:
    """The result of an operation at a place."""
    function, source = operation.function, operation.source
    other = operation.other
    if function in ARITHMETIC:
        return _arithmetic(operation, source, other, place)
    if function == "where" and len(operation.others) == 2:
        return either(*operation.others)
    if function in METADATA:
        return COUNT
    if function in DIVERGENCES | ERRORS:
        return divergence(source, other, place)
    if function == "cosine_similarity":
        return negative(divergence(source, other, place))
    if function in LEAST | MOST and isinstance(source, TeacherDivergence):
        return either(source, other) if isinstance(other, TeacherDivergence) else None
    if function == "cross_entropy" and isinstance(source, ModelNumbers) and isinstance(other, ModelNumbers):
        is_soft = other.form == "probs" and source.side == "student"
        return divergence(source, other, place) if is_soft else None
    match source:
        case ModelNumbers():
            return _of_output(function, source)
        case TeacherGap():
            return _of_gap(operation, source, place)
        case RisingNumbers() if function == "exp":
            return source
        case Number(sign) if function == "pow":
            return COUNT if sign > 0 else Number()
    return source if function in SAME else None


def _arithmetic(
    operation: Operation[DistillationValue], left: DistillationValue, right: DistillationValue, place: Span
) -> DistillationValue:
    """The result of an operator."""
    match operation.function:
        case "add":
            return total(left, right, place)
        case "sub" | "subtract":
            return total(left, negative(right), place)
        case "mul" | "multiply":
            return product(left, right, place)
        case "neg" | "negative":
            opposite = negative(left)
            return replace(opposite, place=place) if isinstance(opposite, TeacherDivergence) else opposite
    is_positive = is_hardly_negative(operation) and not (isinstance(right, Number) and right.sign < 0)
    return product(left, COUNT, place) if is_positive else None


def divergence(left: DistillationValue, right: DistillationValue, place: Span) -> DistillationValue:
    """A function of both that is least where they are alike, if either gradient reaches the student."""
    if not isinstance(left, ModelNumbers) or not isinstance(right, ModelNumbers) or left.side == right.side:
        return None
    student = left if left.side == "student" else right
    return None if student.constant else TeacherDivergence(frozenset({1}), place)


def _of_output(function: str, output: ModelNumbers) -> DistillationValue:
    """The result of a function of what a model gives."""
    match function, output.form:
        case "gather" | "take_along_dim" | "topk", "any":
            return output  # of the likeliest tokens of either
        case "log_softmax", "any":
            return replace(output, form="log_probs")
        case "softmax", "any":
            return replace(output, form="probs")
        case "log", "probs":
            return replace(output, form="log_probs")
        case "exp", "log_probs" if not output.picked or output.side == "teacher":
            return replace(output, form="probs")
        case (("gather" | "log_prob" | "take_along_dim"), "log_probs"):
            return replace(output, picked=True)
    return output if function in SAME else None


def _of_gap(operation: Operation[DistillationValue], gap: TeacherGap, place: Span) -> DistillationValue:
    """The result of a function of a gap."""
    function = operation.function
    if function in ("abs", "square") or (function == "pow" and exponent(operation) % 2 == 0):
        return None if gap.constant else TeacherDivergence(frozenset({1}), place)
    if function in ("exp", "expm1") and gap.form == "log_probs" and not gap.constant:
        return GapExponential(gap.sign)
    return gap if function in SAME else None


def negative(value: DistillationValue) -> DistillationValue:
    """A value times -1."""
    match value:
        case TeacherGap(sign):
            return replace(value, sign=-sign)
        case TeacherDivergence():
            return value.times(-1)
        case Number(sign, known):
            return replace(value, sign=-sign, value=None if known is None else -known)
        case ModelNumbers() | RisingNumbers():
            return NegativeNumbers(value)
    return None


def total(left: Any, right: Any, place: Span) -> DistillationValue:
    """A sum: a gap of both models, a ratio's log, an estimate of a KL, or divergences."""
    for first, second in ((left, right), (right, left)):
        match first, second:
            case ModelNumbers(form="probs"), Number(1):
                return first  # held from 0
            case ModelNumbers(), NegativeNumbers(ModelNumbers() as below):
                return _difference(first, below, place)
            case GapExponential(sign), TeacherGap() if second.sign == -sign:
                return TeacherDivergence(frozenset({1}), place)
    match left, right:
        case (GapExponential() as kept, Number()) | (Number(), GapExponential() as kept):
            return kept
        case TeacherDivergence(signs), TeacherDivergence(others):
            return replace(left, signs=signs | others)
        case (TeacherDivergence() as kept, _) | (_, TeacherDivergence() as kept):
            return kept
        case Number(), Number() if left.value is not None and right.value is not None:
            return number(left.value + right.value)
        case Number(_, 1), Number(-1, None):
            return COUNT  # 1 - alpha, the share of another term
        case Number(), Number():
            return Number(left.sign if left.sign == right.sign else 0)
    return None


def _difference(above: ModelNumbers, below: ModelNumbers, place: Span) -> DistillationValue:
    """The difference of two outputs of one form."""
    if above.form != below.form or above.picked is not below.picked:
        return None
    if above.side == below.side == "student" and above.form == "log_probs" and above.picked:
        return RisingNumbers() if below.constant and not above.constant else None
    if above.side == below.side:
        return None
    student, sign = (above, 1) if above.side == "student" else (below, -1)
    return TeacherGap(sign, above.form, above.picked, student.constant, place)


def product(left: Any, right: Any, place: Span) -> DistillationValue:
    """A product: of chances with a gap or log-probs, of a weight with log-probs, or with a number."""
    for first, second in ((left, right), (right, left)):
        sign = _sign_of_product(first, second)
        if sign:
            return TeacherDivergence(frozenset({sign}), place)
        match first, second:
            case Number(factor, known), Number(other, other_known):
                if known is None or other_known is None:
                    return Number(factor * other)
                return number(known * other_known)
            case Number(factor), (TeacherDivergence() | TeacherGap()) if factor:
                return second if factor > 0 else negative(second)
            case Number(1), (ModelNumbers() | RisingNumbers() | GapExponential() | NegativeNumbers()):
                return second
            case Number(-1), (ModelNumbers() | RisingNumbers()):
                return negative(second)
    return None


def _sign_of_product(first: Any, second: Any) -> int:
    """The sign of a divergence that a product is, over all tokens or on sampled ones; 0 if it is none."""
    match first, second:
        case NegativeNumbers(inner), _:
            return -_sign_of_product(inner, second)
        case _, NegativeNumbers(inner):
            return -_sign_of_product(first, inner)
        case ModelNumbers("teacher", "probs"), TeacherGap(sign, "log_probs", _, False):
            return -sign
        case ModelNumbers("teacher", "probs"), ModelNumbers("student", "log_probs", _, False):
            return -1
        case ModelNumbers("student", "probs", False, False), TeacherGap(sign, "log_probs"):
            return sign
        case ModelNumbers("student", "probs", False, False), ModelNumbers("teacher", "log_probs"):
            return -1
        case TeacherGap(sign, "log_probs", True, True), ModelNumbers(
            "student", "log_probs", True, False
        ) | RisingNumbers():
            return sign
    return 0


def either(left: Any, right: Any) -> DistillationValue:
    """One of two values: of divergences, the terms of both."""
    match left, right:
        case TeacherDivergence(signs), TeacherDivergence(others):
            return replace(left, signs=signs | others)
        case (TeacherDivergence() as kept, _) | (_, TeacherDivergence() as kept):
            return kept
        case Number(), Number():
            return (
                left if left == right and left.value == right.value else Number(left.sign * (left.sign == right.sign))
            )
        case Several(values), Several(others) if len(values) == len(others):
            return Several(tuple(map(either, values, others)))
    return left if left == right else None


def constant(value: Any) -> DistillationValue:
    """A value without its gradient."""
    match value:
        case ModelNumbers():
            return replace(value, constant=True)
        case TeacherGap():
            return replace(value, constant=True)
        case NegativeNumbers(ModelNumbers() as output):
            return negative(replace(output, constant=True))
        case TeacherDivergence() | GapExponential() | RisingNumbers() | NegativeNumbers():
            return None
        case Several(values):
            return Several(tuple(map(constant, values)))
        case Dictionary(entries):
            return Dictionary({key: constant(entry) for key, entry in entries.items()})
    known: DistillationValue = value
    return known


def of_both(values: Sequence[DistillationValue]) -> bool:
    """Whether some values are of a student, with a gradient, and of its teacher."""
    sides = {value.side for value in values if isinstance(value, ModelNumbers) and not value.constant}
    return "student" in sides and any(isinstance(value, ModelNumbers) and value.side == "teacher" for value in values)
