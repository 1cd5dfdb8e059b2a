"""Views in groups as abstract values: what a body computes of the rows of each group.

Of four rows in groups of two::

    groups = x.view(-1, 2)                   values         1 3    5 5
    means = groups.mean(1, keepdim=True)     means            2      5
    gains = groups - means                   differences   -1 1    0 0
    spread = groups.std(1, keepdim=True)     deviations     1.4      0

In groups of one row every difference is 0, and every deviation NaN.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hfdsl.check.bodies.interpretation import OPERATORS, SUBSCRIPT, Interpretation, Operation, sizes_of_view

Statistic: TypeAlias = Literal["values", "means", "differences", "deviations", "variances"]
"""What the numbers of a tensor are: those of rows, or computed from all rows of each group."""


@dataclass(frozen=True, slots=True)
class GroupTensor:
    """A tensor with numbers of each group; ``size`` is the number of rows in a group, None if unknown."""

    statistic: Statistic
    size: int | None = None


VIEWS = frozenset({"reshape", "unflatten", "view"})
"""Functions that arrange rows in groups."""

FORMS = VIEWS | {
    "contiguous",
    "double",
    "expand",
    "flatten",
    "float",
    "repeat_interleave",
    "squeeze",
    "to",
    "unsqueeze",
}
"""Functions whose result has the numbers of a tensor, in another shape or dtype."""

REDUCTIONS: Mapping[str, Statistic] = {
    "mean": "means",
    "nanstd": "deviations",
    "std": "deviations",
    "var": "variances",
}
"""What functions compute along the dim of the rows of groups."""

SCALINGS = frozenset({"div", "mul", "true_divide"})
"""Operations after which a difference of 0 is still 0."""


class GroupInterpretation(Interpretation[GroupTensor]):
    """The interpretation of a body in numbers of groups."""

    def of_operation(self, operation: Operation[GroupTensor]) -> GroupTensor | None:
        """The result of an operation on numbers of groups; a view of anything has rows in groups."""
        function, source = operation.function, operation.source
        if function in SCALINGS and (scaled := self.scaled_differences(operation)) is not None:
            return scaled
        if source is None or source.statistic == "values":
            if function in VIEWS:
                return GroupTensor("values", self.size(operation))
            if source is None:
                return None
        if function in FORMS:
            return GroupTensor("values") if source.statistic == "values" else source
        if function == SUBSCRIPT:
            return source if source.statistic in ("deviations", "differences") else None
        if source.statistic not in ("values", "differences"):
            return None
        if function == "sub" and source.size is not None and GroupTensor("means", source.size) in operation.others:
            return GroupTensor("differences", source.size)
        if function in OPERATORS.values():
            return GroupTensor("values")
        return self.reduced(source, operation) if function in REDUCTIONS else None

    def scaled_differences(self, operation: Operation[GroupTensor]) -> GroupTensor | None:
        """The differences in a product, or in the numerator of a quotient."""
        factors = [operation.source, *(operation.others if operation.function == "mul" else ())]
        return next((factor for factor in factors if factor is not None and factor.statistic == "differences"), None)

    def reduced(self, groups: GroupTensor, operation: Operation[GroupTensor]) -> GroupTensor | None:
        """A statistic of each group, with the size of groups if it has torch's default for all but the dim."""
        statistic, named = REDUCTIONS[operation.function], operation.named
        dim = named.get("dim", operation.positional[0] if operation.positional else None)
        if dim is None:
            return None
        along_rows = ast.unparse(dim) in ("1", "-1")
        by_default = named.keys() <= {"dim", "keepdim"} and len(operation.positional) <= 1
        size = groups.size if groups.statistic == "values" and along_rows and by_default else None
        return None if statistic == "means" and size is None else GroupTensor(statistic, size)

    def size(self, view: Operation[GroupTensor]) -> int | None:
        """The number of rows in each group of ``x.view(-1, size)``."""
        match sizes_of_view(view.function, view.positional):
            case [ast.UnaryOp(ast.USub(), ast.Constant(1)), size] if not view.named:
                return self.number(size)
        return None
