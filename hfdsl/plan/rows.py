"""Row tables: how many rows every value has in a step, and which of them each rank is given."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from math import gcd
from typing import Any, TypeAlias

from hfdsl.errors import SizeError
from hfdsl.graph.program import Filter, Input, Ref, Take
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.sizes import number_of, rows_in
from hfdsl.protocols.filtering import runs, taken_rows
from hfdsl.protocols.partitioning import loads, partition_evenly
from hfdsl.protocols.split import Pad, pad_size
from hfdsl.types.dims import constant
from hfdsl.types.rows import Grouped

RowRange: TypeAlias = tuple[int, int]
"""Consecutive rows: the first one and the end, which is exclusive."""

RowRanges: TypeAlias = tuple[RowRange, ...]
"""Rows one after another, in any order; ``merged`` sorts them."""

NO_ROWS: RowRanges = ((0, 0),)
"""A reader of no rows still sees a dtype and a shape."""


def merged(ranges: Iterable[RowRange]) -> RowRanges:
    """The rows of all ranges, each once, in order; one empty range if all are empty.

    >>> merged([(4, 6), (0, 2), (1, 4)]), merged([(0, 1), (3, 4), (0, 0), (3, 4)]), merged([(0, 0), (0, 0)])
    (((0, 6),), ((0, 1), (3, 4)), ((0, 0),))
    """
    disjoint: list[RowRange] = []
    ordered = sorted(ranges)
    for first, last in ordered:
        if disjoint and first <= disjoint[-1][1]:
            disjoint[-1] = disjoint[-1][0], max(disjoint[-1][1], last)
        elif first < last:
            disjoint.append((first, last))
    return tuple(disjoint) or tuple(ordered[:1])


def positions(ranges: RowRanges, among: RowRanges) -> list[int] | None:
    """Where rows are among the rows of ``merged(ranges)``; None if they are exactly these.

    >>> positions(((3, 4), (0, 2), (3, 4)), ((0, 2), (3, 4))), positions(((0, 2), (2, 4)), ((0, 4),))
    ([2, 0, 1, 2], None)
    """
    if all(left[1] <= right[0] for left, right in pairwise(ranges)):
        return None
    starts, before = [first for first, _ in among], [0, *accumulate(last - first for first, last in among)]
    places: list[int] = []
    for first, last in ranges:
        i = bisect_right(starts, first) - 1
        places += range(before[i] + first - starts[i], before[i] + last - starts[i])
    return places


def padded_ranges(start: int, stop: int, rows: int, pad: Pad | None) -> RowRanges:
    """The rows that ``start`` to ``stop`` are, where those from ``rows`` on are padding; half-open, in order.

    >>> padded_ranges(2, 6, 3, "repeat_last"), padded_ranges(2, 6, 3, "cycle")
    (((2, 3), (2, 3), (2, 3), (2, 3)), ((2, 3), (0, 3)))
    """
    if stop <= rows or pad is None or not rows:
        return ((start, stop),)
    positions = [i if i < rows else rows - 1 if pad == "repeat_last" else i % rows for i in range(start, stop)]
    return runs(positions)


@dataclass(frozen=True, slots=True)
class RowPartition:
    """The rows of a balanced step in the order in which its chunks are given them.

    Rows are assigned in *units* of consecutive rows that belong together: whole groups, and as many of the rows of each
    value that takes part as belong to one of them. ``order`` lists the units chunk by chunk, in order within each
    chunk, so that padding, which follows the last real unit, comes last in its chunk. ``places[i]`` is where unit i
    lies in the output of the chunks, which has no padding; ``weights`` are those of all units.
    """

    order: tuple[int, ...]
    places: tuple[int, ...]
    weights: tuple[int, ...]

    def chunk_rows(self, chunk: int, chunks: int, rows: int) -> RowRanges:
        """The rows that a chunk is given of a value with ``rows`` rows."""
        size, per_unit = len(self.order) // chunks, rows // len(self.places)
        units = self.order[chunk * size : (chunk + 1) * size]
        return tuple((first * per_unit, last * per_unit) for first, last in runs(units))

    def output_bounds(self, rows: int, chunks: int) -> tuple[int, ...]:
        """The first row of each chunk's output, and the end, of ``rows`` rows in all."""
        size, per_unit, real = len(self.order) // chunks, rows // len(self.places), len(self.places)
        by_chunk = (self.order[first : first + size] for first in range(0, len(self.order), size))
        return 0, *accumulate(per_unit * sum(unit < real for unit in units) for units in by_chunk)

    def stored(self, ranges: RowRanges, rows: int) -> RowRanges:
        """Where rows lie in the output of the chunks, which has ``rows`` rows in all."""
        per_unit, places = rows // len(self.places), self.places
        every = chain.from_iterable(range(first, last) for first, last in ranges)
        if per_unit == 1:
            return runs([places[row] for row in every]) or NO_ROWS
        return runs([places[row // per_unit] * per_unit + row % per_unit for row in every]) or NO_ROWS

    def fits(self, units: int, chunks: int) -> bool:
        """Whether rows that could be partitioned in ``units`` can be partitioned like this, into ``chunks``."""
        real = len(self.places)
        return real == len(self.order) and units % real == 0 and real % chunks == 0

    def imbalance(self, chunks: int) -> tuple[float, float]:
        """The heaviest chunk's weight over the mean of all: with the rows in their order, and as they are balanced."""
        mean = sum(self.weights) / chunks
        before, after = (max(loads(self.weights, o, chunks)) for o in (range(len(self.order)), self.order))
        return before / mean, after / mean


@lru_cache(maxsize=32)  # of a step, whose calls are often balanced alike
def partition_rows(
    weights: tuple[int, ...], units: int, chunks: int, total: int, missing: int, pad: Pad | None
) -> RowPartition | None:
    """The partition of ``total`` rows, with these weights, in ``units``; None if they stay in their order.

    ``missing`` rows are padding: each weighs what the row that it repeats weighs.
    """
    if missing * units % total or (units + missing * units // total) % chunks:
        return None  # the units are too large for these chunks
    padding = padded_ranges(total, total + missing, total, pad)
    every = [*weights, *(weights[row] for first, last in padding for row in range(first, last))]
    per_unit = len(weights) // units
    by_unit = tuple(
        sum(max(0, weight) for weight in every[first : first + per_unit]) for first in range(0, len(every), per_unit)
    )
    order = partition_evenly(by_unit, chunks)
    if order == tuple(range(len(order))):
        return None
    places = [0] * units
    for place, unit in enumerate(unit for unit in order if unit < units):
        places[unit] = place
    return RowPartition(order, tuple(places), by_unit)


@dataclass(frozen=True, slots=True)
class RowTable:
    """The rows of one step.

    ``rows[node]``: the number of rows of a value; ``bounds[node]``: the first row of each of its chunks, and the end;
    ``input_bounds[node]``: the same for the input of a step's chunks, pad rows included; ``selected[node]``: the rows
    of its argument that a filter, ``take`` or ``fill`` gives; ``partitions[node]``: how the rows of a balanced step are
    assigned to its chunks; ``resolved``: the runtime queries whose results are in all this.
    """

    rows: Mapping[int, int]
    bounds: Mapping[int, tuple[int, ...]]
    input_bounds: Mapping[int, tuple[int, ...]]
    selected: Mapping[int, tuple[int, ...]]
    partitions: Mapping[int, RowPartition] = field(default_factory=dict)
    resolved: frozenset[int] = frozenset()

    def stored(self, node: int, ranges: RowRanges) -> RowRanges:
        """Rows of a stored value as its chunks have them, one after another."""
        partition, rows = self.partitions.get(node), self.rows.get(node, 0)
        return ranges if partition is None or not rows else partition.stored(ranges, rows)


def row_table(plan: Plan, sizes: Mapping[Any, int], results: Mapping[int, tuple[int, ...]] | None = None) -> RowTable:
    """The rows of every value for these sizes, as far as they are known.

    ``results`` are those of runtime queries: the rows that filters keep, and row weights; a step without weights is not
    balanced.

    Raises:
        SizeError: HF303, HF310, HF313, HF321 where rows do not work out.
    """
    results, sizes = results or {}, dict(sizes)
    selected: dict[int, tuple[int, ...]] = {}
    rows: dict[int, int] = {}
    for node, value in zip(plan.graph.nodes, plan.inference.values, strict=True):
        if node.id in results and isinstance(node.op, Filter):
            selected[node.id] = results[node.id]
            sizes |= {atom: len(results[node.id]) // node.op.group for atom in (rows_in(value) or constant(1)).atoms}
        if isinstance(node.op, Take) and node.batch is not None and node.batch.node in rows:
            selected[node.id] = taken_rows(
                rows[node.batch.node], node.op.rows, fill=node.op.fill, what=f"'{node.label}' in line {node.span.line}"
            )
        number = number_of(node, rows_in(value), sizes)
        if number is not None:
            rows[node.id] = number
    bounds: dict[int, tuple[int, ...]] = {
        node.id: (0, rows[node.id]) for node in plan.graph.nodes if isinstance(node.op, Input) and node.id in rows
    }
    input_bounds: dict[int, tuple[int, ...]] = {}
    partitions: dict[int, RowPartition] = {}
    for step in plan.steps:
        total = rows.get(step.rows_from) if step.rows_from is not None else None
        if total is None:
            bounds[step.node] = (0, rows.get(step.node, 0)) if step.layout.chunks == 1 else ()
            continue
        missing = _missing(step, total)
        input_bounds[step.node] = _even(total + missing, step.chunks)
        _check_alike(step, total, rows)
        if (partition := _partition(step, total, missing, rows, partitions, results)) is not None:
            partitions[step.node] = partition
        output_rows = rows.get(step.node)
        if output_rows is None or step.layout.lists:
            continue
        if partition is not None:
            bounds[step.node] = partition.output_bounds(output_rows, step.chunks)
        elif step.layout.chunks != step.chunks:  # the body lays its output out otherwise than its input
            bounds[step.node] = _even(output_rows, step.layout.chunks)
        else:  # a chunk's output rows are its real rows, scaled: pad rows are dropped in the process that made them
            bounds[step.node] = (
                tuple(min(edge, total) * output_rows // total for edge in input_bounds[step.node])
                if total
                else (0,) * (step.chunks + 1)
            )
    return RowTable(rows, bounds, input_bounds, selected, partitions, frozenset(results))


def _partition(
    step: Step,
    total: int,
    missing: int,
    rows: Mapping[int, int],
    partitions: Mapping[int, RowPartition],
    results: Mapping[int, tuple[int, ...]],
) -> RowPartition | None:
    """How the rows of a step are partitioned: by their weights, or like what it reads; None for in their order."""
    if step.chunks == 1 or step.layout.chunks != step.chunks or not total:
        return None
    group = step.signature.rows.n if isinstance(step.signature.rows, Grouped) else 1
    others = [rows.get(operand.node, 0) for _, operand in step.arguments if isinstance(operand, Ref)]
    units = gcd(total // group, rows.get(step.node, 0), *others)
    if step.balance is not None:
        weights = results.get(step.balance.number, ())
        return partition_rows(weights, units, step.chunks, total, missing, step.pad) if weights else None
    followed = (partitions[node] for node in step.follows if node in partitions and rows[node] == total)
    return next((partition for partition in followed if partition.fits(units, step.chunks)), None)


def argument_bounds(table: RowTable, step: Step, operand: Ref, chunk: int) -> tuple[int, int]:
    """The rows of an argument that a chunk of a step is given, pad rows included.

    Arguments are split alike: where one has twice the rows of another, so has its chunk.
    """
    rows, bounds = table.rows.get(operand.node, 0), table.input_bounds.get(step.node)
    if bounds is None or step.rows_from is None:
        return 0, rows
    total = table.rows[step.rows_from]
    if rows == total:
        return bounds[chunk], bounds[chunk + 1]
    return bounds[chunk] * rows // total, bounds[chunk + 1] * rows // total


def argument_rows(table: RowTable, step: Step, operand: Ref, chunk: int) -> RowRanges:
    """The rows of an argument that a chunk of a step is given; for pad rows those that they repeat."""
    rows, partition = table.rows.get(operand.node, 0), table.partitions.get(step.node)
    if partition is None or not rows:
        ranges: RowRanges = (argument_bounds(table, step, operand, chunk),)
    else:
        ranges = partition.chunk_rows(chunk, step.chunks, rows)
    return tuple(row_range for first, last in ranges for row_range in padded_ranges(first, last, rows, step.pad))


def balanced_rows(table: RowTable, step: Step, chunk: int) -> tuple[int, ...] | None:
    """The rows of the whole batch that a chunk of a balanced step is given, pad rows included; None for in order."""
    partition = table.partitions.get(step.node)
    if partition is None or step.rows_from is None:
        return None
    ranges = partition.chunk_rows(chunk, step.chunks, table.rows[step.rows_from])
    return tuple(row for first, last in ranges for row in range(first, last))


def _check_alike(step: Step, total: int, rows: Mapping[int, int]) -> None:
    """The guard behind HF420: no argument is split within what belongs to one row of another."""
    for name, operand in step.arguments:
        count = rows.get(operand.node) if isinstance(operand, Ref) else None
        if count is not None and count != total and step.chunks > 1 and (step.pad is not None or count % step.chunks):
            raise SizeError(
                "HF420",
                f"'{step.label}' splits its arguments over {step.chunks} chunks, but '{name}' has {count} rows and "
                f"'{_first(step)}' has {total}: which rows belong together is unknown",
            )


def _first(step: Step) -> str:
    return next(name for name, operand in step.arguments if isinstance(operand, Ref) and operand.node == step.rows_from)


def _missing(step: Step, total: int) -> int:
    group = step.signature.rows.n if isinstance(step.signature.rows, Grouped) else 1
    return pad_size(total, step.chunks, pad=step.pad, group=group, what=f"the call of '{step.label}'")


def _even(rows: int, chunks: int) -> tuple[int, ...]:
    return tuple(i * rows // chunks for i in range(chunks + 1))


@dataclass(frozen=True, slots=True)
class RuntimeQuery:
    """What the driver must learn within a step before the plan knows who reads which rows.

    Which rows a filter keeps or, if it ``weighs``, what the rows weigh by which a step is balanced. ``number`` is the
    filter's node, or that of the first step that is balanced by these weights; ``ref`` is the column to read.
    """

    number: int
    ref: Ref
    weighs: bool


def runtime_queries(plan: Plan) -> tuple[RuntimeQuery, ...]:
    """All queries of a plan, in program order."""
    masks = {node.id: dict(node.arguments)["keep"] for node in plan.graph.nodes if isinstance(node.op, Filter)}
    columns = {step.balance.number: step.balance.weights for step in plan.steps if step.balance}
    columns |= {number: mask for number, mask in masks.items() if isinstance(mask, Ref)}
    return tuple(RuntimeQuery(number, ref, number not in masks) for number, ref in sorted(columns.items()))


def most_rows(plan: Plan, sizes: Mapping[Any, int]) -> dict[int, tuple[int, ...]]:
    """Results under which the most rows move: filters keep all rows, and all rows weigh the same."""
    known, results = dict(sizes), {step.balance.number: tuple[int, ...]() for step in plan.steps if step.balance}
    for node, value in zip(plan.graph.nodes, plan.inference.values, strict=True):
        if isinstance(node.op, Filter) and node.batch is not None:
            rows = number_of(node, rows_in(plan.inference.values[node.batch.node]), known)
            if rows is not None:
                results[node.id] = tuple(range(rows))
                size = rows_in(value)
                known |= dict.fromkeys(size.atoms if size else (), rows // node.op.group)
    return results
