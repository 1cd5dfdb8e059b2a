"""Row dependence: how the output rows of a role method or function depend on its input rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from hfdsl.errors import DefinitionError
from hfdsl.types.numbers import brief, count_range, is_count


@dataclass(frozen=True, slots=True)
class IndependentRows:
    """Output row i depends on input row i alone (the default): any split is legal."""

    def __str__(self) -> str:
        return "Independent"


@dataclass(frozen=True, slots=True)
class WholeRows:
    """Every output row may depend on every input row: no split is legal."""

    def __str__(self) -> str:
        return "Whole"


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows come in groups of ``n`` consecutive rows; a group must stay on one rank.

    >>> Grouped(8).n
    8
    """

    n: int

    def __post_init__(self) -> None:
        if not is_count(self.n):
            raise DefinitionError("HF113", f"Grouped(n) takes {count_range(self.n)}, got {brief(self.n)}")

    def __str__(self) -> str:
        return f"Grouped({self.n})"


@dataclass(frozen=True, slots=True)
class GroupedBy:
    """Rows of a function come in groups whose size is its parameter of this name: ``Grouped(n)``, with n per call.

    >>> GroupedBy("group").parameter
    'group'
    """

    parameter: str

    def __post_init__(self) -> None:
        if not isinstance(self.parameter, str):
            raise DefinitionError("HF113", f"GroupedBy takes the name of a parameter, got {self.parameter!r}")

    def __str__(self) -> str:
        return f"GroupedBy({self.parameter!r})"


def group_size(rows: IndependentRows | WholeRows | Grouped | GroupedBy) -> int:
    """The number of consecutive rows that must stay together when rows are split.

    >>> group_size(Grouped(8)), group_size(Independent)
    (8, 1)
    """
    return rows.n if isinstance(rows, Grouped) else 1


Independent = IndependentRows()
Whole = WholeRows()

RowDependence: TypeAlias = IndependentRows | WholeRows | Grouped
