"""Row tables: how many rows every value has in a step, and which of them each rank gets.

Only calls make values, and every rank keeps the chunk that it made. So a table says of each value how many rows it has,
of each call which rows its chunks get, and of each stored value at which row its chunks begin. Two ranks, two rows of
input that ``repeat`` makes four, a mini-batch of their result, and three of its rows, which take a pad row:

>>> import hfdsl as hf
>>> class B(hf.Dim): ...
>>> class Rows(hf.Batch):
...     text: hf.Obj[str, B]
>>> class Role(hf.Worker):
...     @hf.register(hf.Dispatch.DP_PROTO, pad="repeat_last")
...     def work(self, rows: Rows) -> Rows: ...
>>> @hf.dataflow
... def flow(x: Rows, role: Role) -> Rows:
...     y = role.work(hf.repeat(x, 2))
...     first, second = hf.minibatches(y, 2)
...     role.work(second)
...     return role.work(hf.take(y, 3))
>>> plan = flow.compile(hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([2]))), dims={B: 2})
>>> table = row_table(plan, {B: 2})
>>> for step in plan.steps:
...     argument = dict(step.arguments)["rows"]
...     print(table.rows[argument.node], [argument_rows(table, step, argument, chunk) for chunk in range(2)])
4 [((0, 2),), ((2, 4),)]
2 [((0, 1),), ((1, 2),)]
3 [((0, 2),), ((2, 3), (2, 3))]
>>> [table.bounds[step.node] for step in plan.steps]
[(0, 2, 4), (0, 1, 2), (0, 2, 3)]

In a picture, with rows numbered as those of the argument; * is the pad row, which repeats row 2:

    call            rank 0 gets    rank 1 gets    rank 0 keeps    rank 1 keeps
    work(repeat)    0 1            2 3            0 1             2 3
    work(second)    0              1              0               1
    work(take)      0 1            2 2*           0 1             2

Which rows of y the last two read is not written here: ``reading`` follows a mini-batch or ``take`` back to y.

Why it is right. Chunks get equal numbers of rows, since padding is added until the rows divide, and each row goes to
one chunk, in order, since a chunk begins where the one before it ends (``RowSplit.chunk_rows``). Padding follows all
real rows, so it comes last in its chunk, and a rank drops it from what the body returned before it keeps anything.
Hence the chunks, one after another, are the value: a chunk begins after the real rows of those before it, times the
number of rows that the body returns per row (``RowSplit.output_bounds``). A balanced call gets its rows in another
order and keeps its output in that order; readers number rows as the caller does and look up where they are
(``RowTable.stored``), so no reader ever sees it. The table is a pure function of plan, sizes and query results, so all
processes agree on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from hfdsl.errors import SizeError
from hfdsl.graph.program import Derived, Filter, Input, Ref
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.sizes import row_count, rows_in
from hfdsl.protocols.partitioning import RowSplit, even_bounds
from hfdsl.protocols.ranges import RowRanges
from hfdsl.types.dims import constant


@dataclass(frozen=True, slots=True)
class RowTable:
    """The rows of one step.

    ``rows[node]``: the number of rows of a value; ``bounds[node]``: the first row of each of its chunks, and the end;
    ``splits[node]``: how the rows of a step are split over its chunks; ``selected[node]``: the rows of its argument
    that a filter, ``take`` or ``fill`` gives; ``resolved``: the runtime queries whose results are in all this.
    """

    rows: Mapping[int, int]
    bounds: Mapping[int, tuple[int, ...]]
    splits: Mapping[int, RowSplit]
    selected: Mapping[int, tuple[int, ...]]
    resolved: frozenset[int] = frozenset()

    def stored(self, node: int, ranges: RowRanges) -> RowRanges:
        """Rows of a stored value as its chunks have them, one after another."""
        row_split = self.splits.get(node)
        return ranges if row_split is None else row_split.stored(ranges, self.rows.get(node, 0))


def row_table(plan: Plan, sizes: Mapping[Any, int], results: Mapping[int, tuple[int, ...]] | None = None) -> RowTable:
    """Compute the rows of every value for these sizes, as far as known.

    ``results`` are those of runtime queries: the rows that filters keep, and row weights; a step without weights is not
    balanced.

    Raises:
        SizeError: HF303, HF310, HF313, HF321 if rows do not work out.
    """
    results, sizes = results or {}, dict(sizes)
    selected: dict[int, tuple[int, ...]] = {}
    rows: dict[int, int] = {}
    for node, value in zip(plan.graph.nodes, plan.inference.values, strict=True):
        if node.id in results and isinstance(node.op, Filter):
            sizes |= {atom: len(results[node.id]) // node.op.group for atom in (rows_in(value) or constant(1)).atoms}
        if isinstance(node.op, Derived) and node.batch is not None:
            subject = f"'{node.label}' in line {node.span.line}"
            picks = node.op.select(rows.get(node.batch.node), results.get(node.id), subject)
            if picks is not None:
                selected[node.id] = picks
        count = row_count(node, rows_in(value), sizes)
        if count is not None:
            rows[node.id] = count
    bounds: dict[int, tuple[int, ...]] = {
        node.id: (0, rows[node.id]) for node in plan.graph.nodes if isinstance(node.op, Input) and node.id in rows
    }
    splits: dict[int, RowSplit] = {}
    for step in plan.steps:
        total = rows.get(step.rows_from) if step.rows_from is not None else None
        if total is None:
            bounds[step.node] = (0, rows.get(step.node, 0)) if step.layout.chunks == 1 else ()
            continue
        subject = f"the call of '{step.label}'"
        even = RowSplit.even(total, step.chunks, pad=step.pad, group=step.signature.group_size, subject=subject)
        _check_alike(step, total, rows)
        row_split = splits[step.node] = _balanced(step, even, rows, splits, results)
        output_rows = rows.get(step.node)
        if output_rows is None or step.layout.lists:
            continue
        # A chunk's output is what its real rows make: pad rows are dropped in the process that ran the body. A body
        # that declares how it leaves its output (``leaves=``) may lay it out in other chunks than its input.
        alike = step.layout.chunks == step.chunks
        bounds[step.node] = (
            row_split.output_bounds(output_rows) if alike else even_bounds(output_rows, step.layout.chunks)
        )
    return RowTable(rows, bounds, splits, selected, frozenset(results))


def _balanced(
    step: Step,
    even: RowSplit,
    rows: Mapping[int, int],
    splits: Mapping[int, RowSplit],
    results: Mapping[int, tuple[int, ...]],
) -> RowSplit:
    """The split of a step's rows balanced by their weights, or partitioned like what it reads; else in their order."""
    if step.chunks == 1 or step.layout.chunks != step.chunks or not even.rows:
        return even
    others = [rows.get(operand.node, 0) for _, operand in step.arguments if isinstance(operand, Ref)]
    # A unit holds whole groups, and a whole number of rows of every argument and of the output.
    units = gcd(even.rows // step.signature.group_size, rows.get(step.node, 0), *others)
    if step.balance is not None:
        weights = results.get(step.balance.query, ())
        return even.balanced(weights, units) if weights else even
    followed = (splits[node].partition for node in step.follows if node in splits and rows[node] == even.rows)
    fitting = (partition for partition in followed if partition is not None and partition.fits(units, step.chunks))
    return replace(even, partition=next(fitting, None))


def argument_rows(table: RowTable, step: Step, operand: Ref, chunk: int) -> RowRanges:
    """The rows of an argument that a chunk of a step gets; for pad rows those that they repeat.

    Arguments are split in the same way: if one has twice the rows of another, so has its chunk.
    """
    rows, row_split = table.rows.get(operand.node, 0), table.splits.get(step.node)
    return ((0, rows),) if row_split is None else row_split.chunk_rows(chunk, rows)


def _check_alike(step: Step, total: int, rows: Mapping[int, int]) -> None:
    """The run-time check of HF420: no argument is split within what belongs to one row of another."""
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


@dataclass(frozen=True, slots=True)
class RuntimeQuery:
    """The values that the driver must learn within a step before it can route rows to their readers.

    Which rows a filter keeps or, if it ``weighs``, what the rows weigh by which a step is balanced. ``node`` is the
    filter's, or that of the first step that is balanced by these weights; ``ref`` is the column to read.
    """

    node: int
    ref: Ref
    weighs: bool


def runtime_queries(plan: Plan) -> tuple[RuntimeQuery, ...]:
    """All queries of a plan, in program order."""
    masks = {node.id: dict(node.arguments)["keep"] for node in plan.graph.nodes if isinstance(node.op, Filter)}
    columns = {step.balance.query: step.balance.weights for step in plan.steps if step.balance}
    columns |= {node: mask for node, mask in masks.items() if isinstance(mask, Ref)}
    return tuple(RuntimeQuery(node, ref, node not in masks) for node, ref in sorted(columns.items()))


def most_rows(plan: Plan, sizes: Mapping[Any, int]) -> dict[int, tuple[int, ...]]:
    """Results under which the most rows move: filters keep all rows, and all rows weigh the same."""
    bound_sizes, results = dict(sizes), {step.balance.query: tuple[int, ...]() for step in plan.steps if step.balance}
    for node, value in zip(plan.graph.nodes, plan.inference.values, strict=True):
        if isinstance(node.op, Filter) and node.batch is not None:
            rows = row_count(node, rows_in(plan.inference.values[node.batch.node]), bound_sizes)
            if rows is not None:
                results[node.id] = tuple(range(rows))
                size = rows_in(value)
                bound_sizes |= dict.fromkeys(size.atoms if size else (), rows // node.op.group)
    return results
