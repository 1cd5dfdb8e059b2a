"""Sums over the steps of a response as abstract values: which numbers are sums of those up to each step?

A worked example, of a column ``rewards: f32[B, R]``::

    rewards                                        a number for each step
    rewards.cumsum(1)                              the sum of those up to each step
    (rewards.cumsum(1) - baseline) * mask          still such a sum
    rewards.sum(1, keepdim=True)                   one number for all steps
    rewards.sum(1, keepdim=True) - rewards.cumsum(1)        not known: the sum of what comes after
    rewards.flip(1).cumsum(1).flip(1)              not known, either

Whatever puts steps in another order, weighs a sum by another number of each step, or subtracts it, makes it unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final, Literal, TypeAlias

from hfdsl.check.bodies.flow import FlowInterpretation
from hfdsl.check.bodies.interpretation import SUBSCRIPT, Operation
from hfdsl.check.bodies.names import value_of
from hfdsl.check.bodies.row_tensors import ELEMENTWISE, FORMS, NUMPY, REDUCTIONS, VIEWS, functions
from hfdsl.check.sources import span_of
from hfdsl.check.syntax_trees import index_parts
from hfdsl.graph.samples import is_float_column
from hfdsl.graph.signatures import StaticType
from hfdsl.graph.spans import Span, definition_span
from hfdsl.types.columns import ColumnSpec

COPIES: Final = functions(
    "bfloat16 clone contiguous copy cpu cuda detach double float from_numpy half masked_fill nan_to_num numpy to"
)
"""Functions whose result has the numbers of their tensor at the same steps."""

BUFFERS: Final = functions("full_like ones_like zeros_like")
"""Functions that make a tensor of one number, as wide as theirs."""


@dataclass(frozen=True, slots=True)
class SumUpTo:
    """For each step the sum of the numbers up to it, and where it is computed."""

    place: Span = field(compare=False)


StepValue: TypeAlias = SumUpTo | Literal["steps", "weights", "shared"] | tuple[Any, ...] | None
"""Numbers of each step in their order, or weights of steps, such as masks; or one number for all steps of a response.

None is an unknown value, and a tuple one of several values."""


class StepInterpretation(FlowInterpretation[StepValue]):
    """The interpretation of a body in sums over steps; ``columns`` are those of the records that it returns."""

    def begin(self) -> None:
        """Begin with numbers of the caller's."""
        self.columns = dict[str, StepValue]()
        self.names |= {name: "shared" for name, kind in self.ports.items() if isinstance(kind, StaticType)}

    # -- statements

    def run(self, statement: ast.stmt) -> None:
        """Run a statement; what a record is returned with is kept."""
        match statement:
            case ast.Return(ast.Call(keywords=columns)):
                self.columns |= {str(column.arg): self.value(column.value) for column in columns}
        super().run(statement)

    # -- values

    def several(self, values: Sequence[StepValue]) -> StepValue:
        """A tuple of values."""
        return tuple(values)

    def of_part(self, value: StepValue, position: int) -> StepValue:
        """The value at a position of a tuple."""
        part: StepValue = value[position] if isinstance(value, tuple) and position < len(value) else None
        return part

    def set_part(self, value: StepValue, part: StepValue) -> StepValue:
        """A tensor after some of it has been set: numbers of steps, if it has been a buffer or these before."""
        is_known = value in ("steps", "weights", "shared") and part in ("steps", "shared")
        return "steps" if is_known else None

    def of_column(self, spec: ColumnSpec, path: str) -> StepValue:
        """The numbers of a column: of floats with a width, one for each step."""
        if len(spec.dims) < 2:
            return "shared"
        return "steps" if is_float_column(spec) else "weights"

    def value(self, node: ast.expr) -> StepValue:
        """The value of an expression: also a literal number, a constant of the module, or an attribute of the role."""
        match node:
            case ast.Constant(int() | float() as literal):
                return "shared" if literal >= 0 else None
            case ast.Name(name) if name not in self.names and not self.scope.sets(name):
                constant = value_of(self.body, name)
                return "shared" if isinstance(constant, (int, float)) and constant >= 0 else None
            case ast.Attribute(ast.Name("self") | ast.Attribute(ast.Name("self"))):
                return "shared"
        return super().value(node)

    # -- operations

    def of_operation(self, operation: Operation[StepValue]) -> StepValue:
        """The result of an operation on numbers of steps and their sums."""
        function, source, others = operation.function, operation.source, operation.others
        if function in ("shape", "size", "len") or (function == "arange" and not operation.is_method):
            return "weights" if function == "arange" else "shared"
        if isinstance(source, SumUpTo):
            return self._of_sum(source, operation)
        match function:
            case "cumsum" if source == "steps" and _dim(operation) in ("1", "-1"):
                return SumUpTo(span_of(definition_span(self.body).file, operation.node))
            case "add" | "mul" | "multiply" if others and isinstance(others[0], SumUpTo):
                return self._of_sum(others[0], Operation(function, operation.node, others[0], [source]))
            case _ if function in COPIES:
                return source
            case _ if function in BUFFERS:
                return "weights" if source is not None else None
            case _ if function in REDUCTIONS and not others[1:]:
                return "shared" if source is not None else None
            case "where" if len(others) == 2 and "shared" in others:
                return others[1] if others[0] == "shared" else others[0]
            case _ if function == SUBSCRIPT:
                return source if source == "shared" or _keeps_order(operation.positional[0]) else None
            case _ if function in ELEMENTWISE:
                return _elementwise([source, *others])
            case _ if function in FORMS | VIEWS and source == "shared":
                return source
        return None

    def _of_sum(self, source: SumUpTo, operation: Operation[StepValue]) -> StepValue:
        """The result of an operation on sums up to each step: such sums, if nothing later gets into them."""
        function, other = operation.function, operation.other
        is_sum = isinstance(other, SumUpTo)
        match function:
            case _ if function in COPIES:
                return source
            case "add" if is_sum or other in ("steps", "weights", "shared"):
                return source
            case "sub" if other in ("steps", "weights", "shared"):
                return source
            case "mul" | "multiply" if other in ("weights", "shared"):
                return source
            case "div" if other == "shared":
                return source
            case _ if function in REDUCTIONS:
                return "shared"
        return None

    # -- calls

    def call(self, call: ast.Call) -> StepValue:
        """The result of a call: functions of NumPy are those of torch."""
        match call.func:
            case ast.Attribute(ast.Name(module), function) if module in NUMPY:
                same = ast.Call(ast.Attribute(ast.Name("torch"), function), call.args, call.keywords)
                return super().call(ast.copy_location(same, call))
        return super().call(call)

    def of_formula(
        self, call: ast.Call, formula: FunctionType, positional: Sequence[StepValue], named: Mapping[str, StepValue]
    ) -> StepValue:
        """The result of a formula that leaves each step where it is."""
        return next(iter(positional), None) if formula.__name__ in ("masked", "whitened") else None


def _dim(operation: Operation[StepValue]) -> str:
    """The dim along which a function sums, as it is written."""
    named = operation.named.get("dim", operation.named.get("axis"))
    written = named if named is not None else next(iter(operation.positional), None)
    return "" if written is None else ast.unparse(written)


def _elementwise(values: Sequence[StepValue]) -> StepValue:
    """The result of computing step by step; None if the order of some steps is not known."""
    if any(value not in ("steps", "weights", "shared") for value in values):
        return None
    if "steps" in values:
        return "steps"
    return "weights" if "weights" in values else "shared"


def _keeps_order(index: ast.expr) -> bool:
    """Whether an index leaves steps in their order: slices without a step."""
    parts = index_parts(index)
    return all(isinstance(part, ast.Slice) and part.step is None for part in parts)
