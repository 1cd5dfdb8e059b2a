"""The steps from a row of a value back to the row of the source that it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hfdsl.graph.program import Ref
from hfdsl.types.dims import KeptGroups, Size, evaluate

RowInterval: TypeAlias = "tuple[int, int]"
"""Half-open: the rows that a row may come from."""


@dataclass(frozen=True, slots=True)
class FilterKey:
    """The rows that a filter by ``column`` keeps, in groups of ``group``; filters with one ``number`` keep the same."""

    number: int
    column: Ref = field(compare=False)
    group: int = field(compare=False)


@dataclass(frozen=True)
class SizeCase:
    """A case to look at: the sizes of the dims, and a filter that drops its first group of rows (all others keep all).

    ``size_of`` gives a size to a dim that was given none.
    """

    sizes: Mapping[Any, int]
    filters: Mapping[KeptGroups, FilterKey]
    dropping: FilterKey | None = None
    size_of: Callable[[Any], int] = field(default=lambda _: 1)
    numbers: dict[Size, int | None] = field(default_factory=dict, compare=False)

    def number(self, size: Size) -> int | None:
        """A size as a number; None if it is not whole."""
        if size not in self.numbers:
            value = evaluate(size, {atom: self._atom(atom) for atom in size.atoms})
            self.numbers[size] = int(value) if value.denominator == 1 else None
        return self.numbers[size]

    def _atom(self, atom: Any) -> int:
        if not isinstance(atom, KeptGroups):
            return self.sizes[atom] if atom in self.sizes else self.size_of(atom)
        most = self.number(atom.most) or 0
        return most - (self.filters.get(atom) == self.dropping and self.dropping is not None)

    def with_dropped(self, filter_key: FilterKey) -> SizeCase:
        """These sizes, where this filter drops its first group."""
        return SizeCase(self.sizes, self.filters, filter_key, self.size_of)


@dataclass(frozen=True, slots=True)
class RepeatStep:
    """Every row ``times`` times in a row."""

    times: int

    def back(self, rows: RowInterval, case: SizeCase) -> RowInterval | None:
        """The rows that these are copies of."""
        return rows[0] // self.times, (rows[1] - 1) // self.times + 1

    def words(self, rows: str) -> str:
        """For people."""
        return f"{rows}, each {self.times} times"


@dataclass(frozen=True, slots=True)
class PartStep:
    """The ``index``-th of ``count`` runs of ``rows`` rows."""

    index: int
    count: int
    rows: Size

    def back(self, rows: RowInterval, case: SizeCase) -> RowInterval | None:
        """The rows after those of the parts before."""
        number = case.number(self.rows)
        return None if number is None else (rows[0] + self.index * number, rows[1] + self.index * number)

    def words(self, rows: str) -> str:
        """For people."""
        return f"mini-batch {self.index + 1} of {self.count} of {rows}"


@dataclass(frozen=True, slots=True)
class TakeStep:
    """The first ``rows`` of ``before`` rows."""

    rows: int
    before: Size

    def back(self, rows: RowInterval, case: SizeCase) -> RowInterval | None:
        """The first rows; None if there are fewer, and a run would stop."""
        number = case.number(self.before)
        return None if number is None or number < self.rows else rows

    def words(self, rows: str) -> str:
        """For people."""
        return f"the first {self.rows} of {rows}"


@dataclass(frozen=True, slots=True)
class FillStep:
    """The first ``rows`` of ``before`` rows, which start over if there are fewer."""

    rows: int
    before: Size

    def back(self, rows: RowInterval, case: SizeCase) -> RowInterval | None:
        """The rows modulo how many there are."""
        return _wrapped(rows, case.number(self.before))

    def words(self, rows: str) -> str:
        """For people."""
        return f"{rows}, filled up to {self.rows} rows"


@dataclass(frozen=True, slots=True)
class QueueStep:
    """Rows that a queue gives, which may have been put in by any step, ``before`` rows in each; groups stay whole."""

    node: int
    before: Size

    def back(self, rows: RowInterval, case: SizeCase) -> RowInterval | None:
        """The rows of the step that put them in: further ones are of the next step."""
        return _wrapped(rows, case.number(self.before))

    def words(self, rows: str) -> str:
        """For people."""
        return f"{rows}, queued"


def _wrapped(rows: RowInterval, number: int | None) -> RowInterval | None:
    """Rows modulo ``number``; all of them where they cross the end, and None if there are none."""
    if number is None or number < 1:
        return None
    length, start = rows[1] - rows[0], rows[0] % number
    return (start, start + length) if start + length <= number else (0, number)


@dataclass(frozen=True, slots=True)
class FilterStep:
    """The rows that a filter keeps; ``node`` is the filter, which may have equal ones."""

    by: FilterKey
    node: int = field(compare=False)

    def back(self, rows: RowInterval, case: SizeCase) -> RowInterval | None:
        """All rows, or those after the first group if it is dropped."""
        dropped = self.by.group if case.dropping == self.by else 0
        return rows[0] + dropped, rows[1] + dropped

    def words(self, rows: str) -> str:
        """For people."""
        together = f" in groups of {self.by.group}" if self.by.group > 1 else ""
        column = f" by '{self.by.column.column}'" if self.by.column.column else ""
        return f"{rows}, filtered{column}{together}"


@dataclass(frozen=True, slots=True)
class GroupStep:
    """``results`` rows for each group of ``group`` rows, each of any row of its group."""

    group: int
    results: int

    def back(self, rows: RowInterval, case: SizeCase) -> RowInterval | None:
        """The rows of the groups."""
        return self.group * (rows[0] // self.results), self.group * ((rows[1] - 1) // self.results + 1)

    def words(self, rows: str) -> str:
        """For people."""
        return rows


@dataclass(frozen=True, slots=True)
class SampleStep:
    """A sample for every row, by the call ``node``."""

    node: int

    def back(self, rows: RowInterval, case: SizeCase) -> RowInterval | None:
        """The rows, unchanged."""
        return rows

    def words(self, rows: str) -> str:
        """For people."""
        return rows


RowStep: TypeAlias = "RepeatStep | PartStep | TakeStep | FillStep | QueueStep | FilterStep | GroupStep | SampleStep"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of rows: the steps from a row back to its source, the nearest first, and the source's node.

    ``repeated`` once is not a step: the rows are the same ones, in groups of one.
    """

    steps: tuple[RowStep, ...]
    source: int
    repeated: bool = field(default=False, compare=False)

    def after(self, step: RowStep) -> Origin:
        """The origin of these rows after one further operation."""
        if not isinstance(step, RepeatStep):
            return Origin((step, *self.steps), self.source, self.repeated)
        return Origin(self.steps if step.times == 1 else (step, *self.steps), self.source, repeated=True)

    def path(self, sample: int | None = None) -> tuple[RowStep, ...] | None:
        """The steps that change rows, back to the source, or to the call that generated a ``sample``.

        None if the rows do not come from that call.
        """
        steps: list[RowStep] = []
        for step in self.steps:
            if not isinstance(step, SampleStep):
                steps.append(step)
            elif step.node == sample:
                return tuple(steps)
        return tuple(steps) if sample is None or sample == self.source else None

    def row(self, row: int, case: SizeCase) -> RowInterval | None:
        """The rows of the source that a row may come from; None if the case cannot happen."""
        return row_back(row, self.steps, case)

    def filters(self) -> tuple[FilterKey, ...]:
        """The filters on the way."""
        return tuple(dict.fromkeys(step.by for step in self.steps if isinstance(step, FilterStep)))

    def words(self, source: str) -> str:
        """For people: ``mini-batch 1 of 2 of 'prompts', each 8 times``."""
        text = source
        for step in reversed(self.steps):
            text = step.words(text)
        return text


def row_back(row: int, steps: tuple[RowStep, ...], case: SizeCase) -> RowInterval | None:
    """The rows before ``steps`` that a row may come from; None if the case cannot happen."""
    rows: RowInterval = (row, row + 1)
    for step in steps:
        before = step.back(rows, case)
        if before is None:
            return None
        rows = before
    return rows
