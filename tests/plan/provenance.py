"""Which rows the values of a random program have, by the rules of the language alone: what meets, what is a group.

A row is known by its question: a row of the batch, or of the step that made rows of its own. Four rows, three steps::

    repeat 0, 2       a a b b c c d d
    part 1, 2, 1      c c d d            pairs of one question: ``swap`` may read them
    first 0, 4        a b c d            as many rows, and other ones: ``both`` may not read them beside ``c c d d``

Which rows a filter keeps is not known before a run. So kept rows are those of one filter, and may meet no others of
their source; and they are no groups, unless whole groups were kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

OWN_ROWS = ("centre", "cross", "custom", "everywhere", "given", "stages")
"""Steps whose results have rows of their own: ``Whole`` functions, protocols of the user's, a value of each rank."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The question of every row: the step that numbered it, and its number there; ``cut`` once a filter cut groups."""

    source: int
    questions: tuple[tuple[int, int], ...]
    cut: bool = False

    def meets(self, other: Provenance) -> bool:
        """Whether row i of both may stand side by side."""
        return self.source != other.source or self.questions == other.questions

    def has_pairs(self) -> bool:
        """Whether rows 0 and 1, 2 and 3, ... are groups: copies of one question, or as the data has them."""
        copies = [left == right for left, right in pairwise(self.questions)]
        return all(copies[::2]) or not (self.cut or any(copies))


@dataclass(frozen=True, slots=True)
class ValueRows:
    """The rows of a value: those of ``x``, ``y`` and ``echo``, and those of ``name``."""

    x: Provenance
    name: Provenance

    def __len__(self) -> int:
        return len(self.x.questions)

    def meets(self, other: ValueRows) -> bool:
        """Whether a call may read both."""
        return all(left.meets(right) for left in (self.x, self.name) for right in (other.x, other.name))

    def has_pairs(self) -> bool:
        """Whether a function on pairs may read it."""
        return self.x.has_pairs() and self.name.has_pairs()


def rows_of_batch(rows: int) -> ValueRows:
    """The rows of a program's input."""
    return rows_of_step(0, rows)


def rows_of_step(step: int, rows: int) -> ValueRows:
    """Rows that a step makes, each a question of its own."""
    provenance = Provenance(step, tuple((step, row) for row in range(rows)))
    return ValueRows(provenance, provenance)


def rows_after(step: tuple[Any, ...], number: int, values: list[ValueRows]) -> ValueRows:
    """The rows of the ``number``-th step's result, from those of the values before it."""
    match step:
        case "pack", v, w:
            return ValueRows(values[v].x, values[w].name)
        case "loose", int(v):
            return values[v]
        case (("repeat" | "part" | "first"), v, *_):
            return ValueRows(_selected(step, values[v].x), _selected(step, values[v].name))
        case "sieve", v, group, count, _:
            before = values[v].x
            copies = group == 2 and before.questions[0] == before.questions[1]
            origins = tuple((number, row // 2 if copies else row) for row in range(count))
            provenance = Provenance(before.source, origins, before.cut or group != 2)
            return ValueRows(provenance, provenance)
        case kind, *_ if kind in OWN_ROWS:
            return rows_of_step(number, len(values[_read(step)]))
    value_rows = values[_read(step)].x  # a call's result has the rows of its first argument's first column
    return ValueRows(value_rows, value_rows)


def _read(step: tuple[Any, ...]) -> int:
    """The first value that a step reads: after the role, where it calls one."""
    return int(step[1] if step[0] in ("plus", "swap", "centre", "cross") else step[2])


def _selected(step: tuple[Any, ...], before: Provenance) -> Provenance:
    questions = before.questions
    match step:
        case "repeat", _, times:
            questions = tuple(question for question in questions for _ in range(times))
        case "part", _, count, index:
            size = len(questions) // count
            questions = questions[index * size : (index + 1) * size]
        case "first", _, count:
            questions = questions[:count]
    return replace(before, questions=questions)
