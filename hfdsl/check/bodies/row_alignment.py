"""The alignment of rows in a body: do the rows of two tensors meet along one dim?

A worked example, of two questions with four responses each::

    groups = rewards.view(-1, 4)             [2, 4]
    means = groups.mean(1)                   [2]
    groups - means                           torch aligns last dims: 4 with 2, rows with responses
    groups - means[:, None]                  [2, 4] with [2, 1]

Two numbers that differ are an error in a run. Equal ones, of four questions with four responses, are none, and neither
is ``rewards[:, None] - baseline``, in which every row meets every baseline.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

from hfdsl.check.bodies.interpretation import RowGroups
from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.row_interpretation import RowInterpretation
from hfdsl.check.bodies.row_tensors import BodyValue, First, RoleOutput, RowTensor, Unfollowed, functions, operands_of
from hfdsl.check.sources import Function
from hfdsl.graph.signatures import PortType, StaticType

TESTS: Final = functions("eq ge gt le lt ne")
"""The functions that compare."""

ALIGNED: Final[Mapping[First, str]] = {
    "rows": "rows",
    "reordered": "rows",
    "repeated groups": "rows",
    "groups": "groups",
    "cut groups": "groups",
}
"""Whether the first dim of a tensor has a length for each row, or for each group."""


def misaligned(values: Sequence[BodyValue]) -> tuple[RowTensor, RowTensor] | None:
    """A tensor, and one with fewer dims whose rows meet another dim of the first; None if there is no such pair.

    >>> misaligned([RowTensor(2, "groups"), RowTensor(1, "groups")]) is None
    False
    >>> misaligned([RowTensor(2, "groups"), RowTensor(2, "groups", narrow=True)])
    """
    rows = [value for value in values if isinstance(value, RowTensor) and value.first in ALIGNED and not value.unsure]
    sure = sorted((value for value in rows if value.dims is not None), key=lambda value: -(value.dims or 0))
    if len({ALIGNED[value.first] for value in sure}) != 1 or sure[0].dims == sure[-1].dims:
        return None
    return sure[0], sure[-1]


class RowAlignment(RowInterpretation):
    """The interpretation of a body in rows that collects the expressions in which they meet another dim."""

    def __init__(
        self,
        body: Callable[..., Any],
        definition: Function,
        group: RowGroups,
        ports: Mapping[str, PortType],
        depth: int = 0,
        metrics: AbstractSet[str] = frozenset(),
    ) -> None:
        super().__init__(body, definition, group, ports, depth, metrics)
        self.misaligned = list[tuple[ast.expr, RowTensor, RowTensor]]()
        """The expressions, each with the tensor of more dims and that of fewer."""
        self.unsqueezed = dict[str, str]()
        """By name the tensor that has got a last dim of 1."""

    def run(self, statement: ast.stmt) -> None:
        """Run a statement, and keep what got a last dim of 1."""
        super().run(statement)
        match statement:
            case ast.Assign([ast.Name(name)], value):
                self.unsqueezed.pop(name, None)
                if isinstance(rows := self.names.get(name), RowTensor) and rows.narrow:
                    self.unsqueezed[name] = self.without_narrow_dim(value)

    def pass_up(self, call: ast.Call, inner: RowInterpretation) -> None:
        """Collect a call of a function in which rows meet another dim."""
        super().pass_up(call, inner)
        if isinstance(inner, RowAlignment):
            self.misaligned += [(call, wide, narrow) for _, wide, narrow in inner.misaligned[:1]]

    def combined(self, node: ast.expr, values: Sequence[BodyValue]) -> BodyValue:
        """Compute row by row, and collect the expression if rows of one tensor meet another dim of the other.

        Every row may meet every row on purpose: in a comparison, or of one tensor, ``x[:, None] - x``.
        """
        pair = misaligned(values)
        if pair is not None and not (pair[0].dims == 2 and pair[0].narrow and self.is_of_pairs(node)):
            self.misaligned.append((node, *pair))
        value = super().combined(node, values)
        is_unsure = isinstance(value, RowTensor) and value.dims == 1 and self.meets_unknown(node, values)
        return replace(value, unsure=True) if isinstance(value, RowTensor) and is_unsure else value

    def is_of_pairs(self, node: ast.expr) -> bool:
        """Whether an expression may be about pairs of rows."""
        operands = [*map(self.without_narrow_dim, operands_of(node))]
        is_comparison = isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and last_name(node.func) in TESTS)
        return is_comparison or (len(operands) == 2 and operands[0] == operands[1])

    def without_narrow_dim(self, node: ast.expr) -> str:
        """An expression, before it got a last dim of 1."""
        match node:
            case ast.Name(name) if name in self.unsqueezed:
                return self.unsqueezed[name]
            case ast.Subscript(source) | ast.Call(ast.Attribute(source, "reshape" | "unsqueeze" | "view")):
                value = self.value(node)
                return self.without_narrow_dim(source) if isinstance(value, RowTensor) and value.narrow else ""
        return ast.dump(node)

    def meets_unknown(self, node: ast.expr, values: Sequence[BodyValue]) -> bool:
        """Whether one of the operands may be a tensor with more dims."""
        unknown = [value is None or isinstance(value, (Unfollowed, RoleOutput)) for value in values]
        operands = operands_of(node)
        if len(operands) != len(values):
            return any(unknown)
        return any(not self.is_number(operand) for operand, is_open in zip(operands, unknown, strict=True) if is_open)

    def is_number(self, node: ast.expr) -> bool:
        """Whether an expression is a number rather than a tensor, as far as one can tell."""
        match node:
            case ast.Constant() | ast.Attribute(ast.Name("self")):
                return True
            case ast.Name(name):
                return isinstance(self.ports.get(name), StaticType) or self.number(node) is not None
            case ast.UnaryOp(_, operand):
                return self.is_number(operand)
            case ast.BinOp(left, _, right):
                return self.is_number(left) and self.is_number(right)
            case ast.Call(ast.Name("float" | "int" | "len") | ast.Attribute(attr="item" | "size" | "numel")):
                return True
            case ast.Subscript(ast.Attribute(attr="shape")):
                return True
        return False
