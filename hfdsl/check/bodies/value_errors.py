"""Errors of values as abstract values: what does a critic's loss compare with which column?

A worked example, of a record with ``values`` from before, and ``returns``::

    now = self.model(ids).squeeze(-1)                               new values
    held = old + (now - old).clamp(-0.2, 0.2)                       new ones, held around ``values``
    now + (old - now).clamp(-0.2, 0.2)                              new ones, held around themselves
    plain, clipped = (now - returns) ** 2, (held - returns) ** 2    errors to ``returns``, of either
    loss = 0.5 * torch.max(plain, clipped).mean()                   the greater one
    loss.backward()                                                 a loss: an error to ``returns``

New values are what the role computes of anything but columns alone, and nothing is known of other numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

from hfdsl.check.bodies.flow import FlowInterpretation
from hfdsl.check.bodies.interpretation import SUBSCRIPT, Operation
from hfdsl.check.bodies.names import value_of
from hfdsl.check.bodies.row_tensors import FORMS, VIEWS, functions
from hfdsl.check.sources import Function, span_of
from hfdsl.graph.samples import is_float_column
from hfdsl.graph.signatures import PortType, StaticType
from hfdsl.graph.spans import NOWHERE, Span, definition_span
from hfdsl.types.columns import ColumnSpec

SAME: Final = (
    functions(
        "bfloat16 bool chunk clone contiguous cpu cuda detach double float half index_select masked_fill nan_to_num "
        "split to unbind"
    )
    | FORMS
    | VIEWS
)
"""Functions whose result has the numbers of their tensor."""

CLIPS: Final = functions("clamp clamp_max clamp_min clip")
"""Functions that hold numbers between bounds."""

LEAST, MOST = functions("fmin min minimum"), functions("fmax max maximum")
"""Functions that take the smaller, or the greater, of two."""

ERRORS: Final = functions("huber_loss l1_loss mse_loss smooth_l1_loss")
"""Functions of torch that give errors of their first argument to the second."""

MEANS: Final = functions("masked_select mean nanmean nansum sum")
"""Functions of errors whose result is some of them, or their mean."""


FORMULAS: Final = functions("aggregated masked masked_mean masked_sum")
"""Formulas of hfdsl that take some of their numbers, or their mean."""

STATISTICS: Final = MEANS | functions("amax amin device dtype max min ndim numel shape size std var")
"""Functions that give one number of many, or say what a tensor is."""

DIVISIONS: Final = functions("div true_divide")
"""Functions that divide."""

SCALES: Final = DIVISIONS | functions("mul multiply")
"""Functions that multiply or divide."""


ITSELF: Final = "itself"
"""The center of new values that are held around themselves."""


@dataclass(frozen=True, slots=True)
class OfColumns:
    """Numbers that are computed of columns alone, by their paths."""

    paths: frozenset[str]


@dataclass(frozen=True, slots=True)
class NewValues:
    """Numbers that the model of a role gives, held around the column ``center`` if that is one.

    ``place`` is where they are held around themselves: the numbers of a column stay, but within bounds of new ones.
    """

    center: str = ""
    place: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class ValueGap:
    """New values less numbers of columns, or the reverse; ``is_held`` between bounds."""

    values: NewValues
    paths: frozenset[str]
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class TargetError:
    """An error of new values to numbers of columns, which rises with the gap if ``sign`` is 1.

    ``smaller`` are the places where it is the smaller of an error with a clip and one without.
    """

    values: NewValues
    paths: frozenset[str]
    sign: int = 1
    smaller: frozenset[Span] = field(default=frozenset(), compare=False)

    def or_other(self, other: TargetError) -> TargetError:
        """This error, which may as well be another one."""
        return replace(self, smaller=self.smaller | other.smaller)


CriticValue: TypeAlias = (
    OfColumns | NewValues | ValueGap | TargetError | Literal["number"] | tuple[Any, ...] | dict[str, Any] | None
)
"""The abstract value of an expression; None if unknown, a tuple for several, and a dictionary for one."""


class CriticErrors(NamedTuple):
    """Errors that gradients are taken of, columns around which values are held, and places of those around new ones."""

    losses: list[TargetError]
    centers: list[str]
    around_new: list[Span]


class ErrorInterpretation(FlowInterpretation[CriticValue]):
    """The interpretation of a body in errors of new values, which it collects, also in the functions that it calls."""

    def begin(self) -> None:
        """Begin without errors, and with numbers of the caller."""
        self.errors = CriticErrors([], [], [])
        self.names |= {name: "number" for name, kind in self.ports.items() if isinstance(kind, StaticType)}

    def inner(self, body: Callable[..., Any], definition: Function, ports: Mapping[str, PortType]) -> Self:
        """The interpretation of a function that the body calls, which collects into the same lists."""
        inner = super().inner(body, definition, ports)
        inner.errors = self.errors
        return inner

    # -- values

    def joined(self, left: CriticValue, right: CriticValue) -> CriticValue:
        """One of two values: of errors to the same columns, either."""
        match left, right:
            case TargetError(), TargetError() if (left.paths, left.sign) == (right.paths, right.sign):
                return left.or_other(right)
        return super().joined(left, right)

    def detached(self, value: CriticValue) -> CriticValue:
        """A value without its gradient: new values are not learned by it."""
        if isinstance(value, dict):
            return {key: self.detached(entry) for key, entry in value.items()}
        return value if isinstance(value, OfColumns) or value == "number" else None

    def table(self, entries: Mapping[str, CriticValue]) -> CriticValue:
        """A dictionary of values."""
        return dict(entries)

    def entries(self, value: CriticValue) -> Mapping[str, CriticValue] | None:
        """The values of a dictionary by key."""
        return value if isinstance(value, dict) else None

    def several(self, values: Sequence[CriticValue]) -> CriticValue:
        """A tuple of values."""
        return tuple(values)

    def of_part(self, value: CriticValue, position: int) -> CriticValue:
        """The value at a position of a tuple; what a model returns together are numbers of its."""
        if isinstance(value, tuple):
            part: CriticValue = value[position] if position < len(value) else None
            return part
        return value if isinstance(value, (NewValues, OfColumns)) else None

    def of_column(self, spec: ColumnSpec, path: str) -> CriticValue:
        """The numbers of a column; masks and tokens are no targets."""
        return OfColumns(frozenset([path])) if is_float_column(spec) else "number"

    def value(self, node: ast.expr) -> CriticValue:
        """The value of an expression: also a literal number, or one that a module or an object of the role has."""
        match node:
            case ast.Constant(int() | float()):
                return "number"
            case ast.Name(name) if name not in self.names and not self.scope.sets(name):
                return "number" if isinstance(value_of(self.body, name), (int, float)) else None
            case ast.Attribute(ast.Name("self") | ast.Attribute(ast.Name("self"))):
                return "number"
        return super().value(node)

    # -- operations

    def of_operation(self, operation: Operation[CriticValue]) -> CriticValue:
        """The result of an operation."""
        function, source = operation.function, operation.source
        other = operation.other
        match function, source:
            case "backward", _:
                loss = source if isinstance(source, TargetError) else other
                self.errors.losses.extend([loss] if isinstance(loss, TargetError) else [])
                return None
            case "detach", _:
                return self.detached(source)
            case _, ValueGap() if function in ("abs", "square") or (
                function in ("mul", "pow") and _is_square(operation)
            ):
                return self._error(source)
            case _, NewValues() | OfColumns() if function in ("logits", "value", "values", SUBSCRIPT):
                return source
            case _, TargetError() if function in MEANS or function == SUBSCRIPT:
                return source
            case "neg", TargetError():
                return replace(source, sign=-source.sign)
            case _, OfColumns() | "number" if function in STATISTICS:
                return "number"
            case _, "number" if function == SUBSCRIPT:
                return "number"
        if function in CLIPS and source is not None:
            return _held(source, operation.others)
        if function in LEAST | MOST and other is not None:
            return self._extreme(operation, source, other)
        if function in ERRORS:
            return self._error(_difference(source, other))
        return source if function in SAME else self._computed(operation, other)

    def _computed(self, operation: Operation[CriticValue], other: CriticValue) -> CriticValue:
        """The result of arithmetic with another value, which may hold new values around themselves."""
        if operation.function in ("add", "sub", "subtract") and _is_around_itself(operation.source, other):
            return NewValues(ITSELF, span_of(definition_span(self.body).file, operation.node))
        return _arithmetic(operation.function, operation.source, other)

    def _error(self, gap: CriticValue) -> CriticValue:
        """The error that a gap makes."""
        if not isinstance(gap, ValueGap) or gap.is_held:
            return None
        if gap.values.center == ITSELF:
            self.errors.around_new.append(gap.values.place)
        elif gap.values.center:
            self.errors.centers.append(gap.values.center)
        return TargetError(gap.values, gap.paths)

    def _extreme(self, operation: Operation[CriticValue], left: CriticValue, right: CriticValue) -> CriticValue:
        """The smaller or the greater of two: of errors, or of new values and a bound around a column."""
        match left, right:
            case TargetError(), TargetError() if (left.paths, left.sign) == (right.paths, right.sign):
                is_smaller = (operation.function in LEAST) is (left.sign > 0)
                is_of_clip = bool(left.values.center) is not bool(right.values.center)
                place = span_of(definition_span(self.body).file, operation.node)
                either = left.or_other(right)
                return replace(either, smaller=either.smaller | {place}) if is_smaller and is_of_clip else either
            case (NewValues(), OfColumns()) | (OfColumns(), NewValues()):
                values, bound = (left, right) if isinstance(left, NewValues) else (right, left)
                return _held(values, [bound])
        return None

    # -- calls

    def call(self, call: ast.Call) -> CriticValue:
        """The result of a call: what a model of the role gives, which cannot be read, are new values."""
        result = super().call(call)
        return NewValues() if result is None and self._is_model(call) else result

    def of_formula(
        self,
        call: ast.Call,
        formula: FunctionType,
        positional: Sequence[CriticValue],
        named: Mapping[str, CriticValue],
    ) -> CriticValue:
        """The result of a formula that masks numbers, or takes their mean."""
        return next(iter(positional), None) if formula.__name__ in FORMULAS else None

    def _is_model(self, call: ast.Call) -> bool:
        """Whether a call is one of an object that the role keeps, which no code here explains, on what it learns."""
        match call.func:
            case ast.Attribute(ast.Name("self"), name):
                return name not in self.scope.methods
        return False


def _held(values: CriticValue, bounds: Sequence[CriticValue]) -> CriticValue:
    """New values, or a gap, held between bounds: those of numbers of one column are around it."""
    paths = frozenset[str]().union(*(bound.paths for bound in bounds if isinstance(bound, OfColumns)))
    match values:
        case ValueGap() if not paths:
            return replace(values, is_held=True)
        case NewValues(center) if len(paths) == 1 and {center, *paths} <= {"", *paths}:
            return NewValues(next(iter(paths)))
        case NewValues() | OfColumns() | "number" if not paths:
            return values
    return None


def _is_around_itself(left: CriticValue, right: CriticValue) -> bool:
    """Whether a sum is of new values and their gap to a column, held between bounds."""
    match left, right:
        case (NewValues("") as values, ValueGap(of_gap, is_held=True)) | (
            ValueGap(of_gap, is_held=True),
            NewValues("") as values,
        ):
            return values == of_gap
    return False


def _difference(left: CriticValue, right: CriticValue) -> CriticValue:
    """A difference of new values and numbers of columns."""
    match left, right:
        case (NewValues(), OfColumns()):
            return ValueGap(left, right.paths)
        case (OfColumns(), NewValues()):
            return ValueGap(right, left.paths)
    return None


def _arithmetic(function: str, left: CriticValue, right: CriticValue) -> CriticValue:
    """The result of arithmetic: an error in a sum is one there, whatever else it is the sum of."""
    sign = {"add": 1, "sub": -1, "subtract": -1}.get(function, 0)
    if sign == 0 and function not in SCALES:
        return None
    gap = _difference(left, right) if sign < 0 else None
    if gap is not None:
        return gap
    match left, right:
        case OfColumns(paths), OfColumns(others):
            return OfColumns(paths | others)
        case (OfColumns(paths), ValueGap(_, others, True)) | (ValueGap(_, others, True), OfColumns(paths)) if sign > 0:
            return NewValues(next(iter(paths))) if paths == others and len(paths) == 1 else None
        case (OfColumns() | NewValues() as kept, "number") | ("number", OfColumns() | NewValues() as kept):
            return kept
        case (ValueGap() as scaled, "number") | ("number", ValueGap() as scaled):
            return scaled if sign == 0 else None
        case TargetError() as error, TargetError() as other if sign > 0 and error.paths == other.paths:
            return error.or_other(other)
        case TargetError() as error, _ if sign or right == "number" or function in DIVISIONS:
            return error
        case _, TargetError() as error if sign or (left == "number" and function not in DIVISIONS):
            return replace(error, sign=error.sign * (sign or 1))
        case "number", "number":
            return "number"
    return None


def _is_square(operation: Operation[CriticValue]) -> bool:
    """Whether a power is a square, or a product one of a gap with itself."""
    exponent = operation.positional[0] if operation.positional else getattr(operation.node, "right", None)
    if operation.function == "pow":
        return isinstance(exponent, ast.Constant) and exponent.value == 2
    return [*operation.others] == [operation.source]
