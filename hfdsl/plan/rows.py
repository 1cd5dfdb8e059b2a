"""Row tables: how many rows every value has in a step, and where its chunks begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from hfdsl.errors import SizeError
from hfdsl.graph.infer import RecordValue, Value
from hfdsl.graph.program import Filter, Input, Node, Ref, Take
from hfdsl.plan.deals import Deal, dealt
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.spans import Spans, padded_spans
from hfdsl.protocols.filtering import taken_rows
from hfdsl.protocols.split import pad_size
from hfdsl.types.batches import Batch, schema
from hfdsl.types.columns import ColumnSpec, MetricSpec, ObjSpec
from hfdsl.types.dims import Kept, Size, constant, evaluate, solve
from hfdsl.types.rows import Grouped


@dataclass(frozen=True, slots=True)
class RowTable:
    """The rows of one step.

    ``rows[node]``: the rows of a value; ``bounds[node]``: the first row of each of its chunks, and the end;
    ``given[node]``: the same for what the ranks of a step are given, pad rows included; ``picks[node]``: the rows that
    a filter, ``take`` or ``fill`` gives, as rows of what it is given; ``deals[node]``: the rows of a balanced step, as
    they are dealt; ``answered``: the questions whose answers are in all this.
    """

    rows: Mapping[int, int]
    bounds: Mapping[int, tuple[int, ...]]
    given: Mapping[int, tuple[int, ...]]
    picks: Mapping[int, tuple[int, ...]]
    deals: Mapping[int, Deal] = field(default_factory=dict)
    answered: frozenset[int] = frozenset()

    def stored(self, node: int, spans: Spans) -> Spans:
        """Rows of a stored value as its chunks have them, one after another."""
        deal, rows = self.deals.get(node), self.rows.get(node, 0)
        return spans if deal is None or not rows else deal.stored(spans, rows)


def bind_sizes(plan: Plan, inputs: Mapping[int, Batch]) -> dict[Any, int]:
    """The size of every dim that the inputs tell, held against the sizes that the plan was compiled for.

    Raises:
        SizeError: HF302 where an input has another size than the plan or than another input.
    """
    known: dict[Any, int] = dict(plan.dims)
    origin: dict[Any, str] = dict.fromkeys(plan.dims, "the plan was compiled for")
    for name, column, dim, length, at_most in _lengths(plan, inputs):
        if at_most:
            _within(name, column, dim, length, known)
            continue
        bound = {atom: constant(n) for atom, n in known.items()}
        for atom, size in (solve(dim, constant(length), bound) or {}).items():
            known[atom] = int(size.value or 0)
            origin[atom] = f"input '{name}' has"
        if all(atom in known for atom in dim.atoms) and evaluate(dim, known) != length:
            why = ", ".join(f"{origin[a]} {a.__name__} = {known[a]}" for a in dim.atoms)
            raise SizeError(
                "HF302", f"input '{name}': column '{column}' has {length} where {dim} = {evaluate(dim, known)} ({why})"
            )
    return known


def _lengths(plan: Plan, inputs: Mapping[int, Batch]) -> list[tuple[str, str, Size, int, bool]]:
    """What the inputs' columns tell: input, column, dim, length, and whether that is the longest row of a ragged one.

    Dims alone come first, then sums and products of them, then what they bound.
    """
    found: list[tuple[str, str, Size, int, bool]] = []
    for number, batch in inputs.items():
        name = plan.node(number).label
        for column, spec in schema(type(batch)).fields.items():
            if isinstance(spec, MetricSpec):
                continue
            value = batch.__hf_columns__[column]
            if value is None:
                continue
            if not len(value):
                raise SizeError("HF302", f"input '{name}' has no rows: every size is at least 1")
            lengths = value.shape if isinstance(spec, ColumnSpec) else (len(value),)[: len(spec.dims)]
            ragged = isinstance(spec, ColumnSpec) and spec.ragged
            pairs = enumerate(zip(spec.dims, lengths, strict=True))
            found += [(name, column, dim, int(length), ragged and i == 1) for i, (dim, length) in pairs]
    return sorted(found, key=lambda length: (length[4], len(length[2].atoms)))


def _within(name: str, column: str, bound: Size, longest: int, known: Mapping[Any, int]) -> None:
    """The longest row of a ragged column against its bound, where that is known."""
    if all(atom in known for atom in bound.atoms) and longest > evaluate(bound, known):
        most = f"{bound} = {evaluate(bound, known)}"
        raise SizeError("HF302", f"input '{name}': column '{column}' has a row of {longest}, more than {most}")


def row_table(plan: Plan, sizes: Mapping[Any, int], answers: Mapping[int, tuple[int, ...]] | None = None) -> RowTable:
    """The rows of every value for these sizes, as far as they are known.

    ``answers`` are the rows that filters keep, and what rows weigh; where nothing is said of weights all are the same.

    Raises:
        SizeError: HF303, HF310, HF313, HF321 where rows do not work out.
    """
    kept, sizes = answers or {}, dict(sizes)
    picks: dict[int, tuple[int, ...]] = {}
    rows: dict[int, int] = {}
    for node, value in zip(plan.graph.nodes, plan.inference.values, strict=True):
        if node.id in kept and isinstance(node.op, Filter):
            picks[node.id] = kept[node.id]
            sizes |= {atom: len(kept[node.id]) // node.op.group for atom in (rows_in(value) or constant(1)).atoms}
        if isinstance(node.op, Take) and node.batch is not None and node.batch.node in rows:
            picks[node.id] = taken_rows(
                rows[node.batch.node], node.op.rows, fill=node.op.fill, what=f"'{node.label}' in line {node.span.line}"
            )
        number = number_of(node, rows_in(value), sizes)
        if number is not None:
            rows[node.id] = number
    bounds: dict[int, tuple[int, ...]] = {
        n.id: (0, rows[n.id]) for n in plan.graph.nodes if isinstance(n.op, Input) and n.id in rows
    }
    given: dict[int, tuple[int, ...]] = {}
    deals: dict[int, Deal] = {}
    for step in plan.steps:
        total = rows.get(step.rows_from) if step.rows_from is not None else None
        if total is None:
            bounds[step.node] = (0, rows.get(step.node, 0)) if step.layout.chunks == 1 else ()
            continue
        missing = _missing(step, total)
        given[step.node] = _even(total + missing, step.chunks)
        _check_alike(step, total, rows)
        if (deal := _deal(step, total, missing, rows, deals, kept)) is not None:
            deals[step.node] = deal
        made = rows.get(step.node)
        if made is None or step.layout.lists:
            continue
        if deal is not None:
            bounds[step.node] = deal.bounds(made, step.chunks)
            continue
        if step.layout.chunks != step.chunks:  # a body that leaves its output otherwise than it was given its input
            bounds[step.node] = _even(made, step.layout.chunks)
        else:  # a chunk's result rows are its real rows, scaled: pad rows are cut off where they were made
            bounds[step.node] = (
                tuple(min(edge, total) * made // total for edge in given[step.node])
                if total
                else (0,) * (step.chunks + 1)
            )
    return RowTable(rows, bounds, given, picks, deals, frozenset(kept))


def _deal(
    step: Step,
    total: int,
    missing: int,
    rows: Mapping[int, int],
    deals: Mapping[int, Deal],
    answers: Mapping[int, tuple[int, ...]],
) -> Deal | None:
    """How the rows of a step are dealt: by their weights, or as what it reads was dealt; None for in their order."""
    if step.chunks == 1 or step.layout.chunks != step.chunks or not total:
        return None
    group = step.signature.rows.n if isinstance(step.signature.rows, Grouped) else 1
    others = [rows.get(operand.node, 0) for _, operand in step.arguments if isinstance(operand, Ref)]
    units = gcd(total // group, rows.get(step.node, 0), *others)
    if step.balance is not None:
        weights = answers.get(step.balance.number, ())
        return dealt(weights, units, step.chunks, total, missing, step.pad) if weights else None
    there = (deals[node] for node in step.follows if node in deals and rows[node] == total)
    return next((deal for deal in there if deal.goes_with(units, step.chunks)), None)


def share(table: RowTable, step: Step, operand: Ref, chunk: int) -> tuple[int, int]:
    """The rows of an argument that a chunk of a step is given, pad rows included.

    Arguments are cut alike: where one has twice the rows of another, so has its chunk.
    """
    rows, given = table.rows.get(operand.node, 0), table.given.get(step.node)
    if given is None or step.rows_from is None:
        return 0, rows
    total = table.rows[step.rows_from]
    if rows == total:
        return given[chunk], given[chunk + 1]
    return given[chunk] * rows // total, given[chunk + 1] * rows // total


def taken(table: RowTable, step: Step, operand: Ref, chunk: int) -> Spans:
    """The rows of an argument that a chunk of a step is given; for pad rows those that they repeat."""
    rows, deal = table.rows.get(operand.node, 0), table.deals.get(step.node)
    spans = (share(table, step, operand, chunk),) if deal is None or not rows else deal.given(chunk, step.chunks, rows)
    return tuple(span for first, last in spans for span in padded_spans(first, last, rows, step.pad))


def dealt_rows(table: RowTable, step: Step, chunk: int) -> tuple[int, ...] | None:
    """The rows of the whole batch that a chunk of a step is dealt, pad rows included; None for rows in their order."""
    deal = table.deals.get(step.node)
    if deal is None or step.rows_from is None:
        return None
    spans = deal.given(chunk, step.chunks, table.rows[step.rows_from])
    return tuple(row for first, last in spans for row in range(first, last))


def _check_alike(step: Step, total: int, rows: Mapping[int, int]) -> None:
    """The guard behind HF420: no argument is cut within what belongs to one row of another."""
    for name, operand in step.arguments:
        own = rows.get(operand.node) if isinstance(operand, Ref) else None
        if own is not None and own != total and step.chunks > 1 and (step.pad is not None or own % step.chunks):
            raise SizeError(
                "HF420",
                f"'{step.label}' splits its arguments over {step.chunks} chunks, but '{name}' has {own} rows and "
                f"'{_first(step)}' has {total}: which rows belong together is unknown",
            )


def _first(step: Step) -> str:
    return next(name for name, operand in step.arguments if isinstance(operand, Ref) and operand.node == step.rows_from)


def rows_in(value: Value) -> Size | None:
    """The rows of a record, column or list of objects; None for what has none."""
    if isinstance(value, RecordValue):
        return value.rows
    return value.dims[0] if isinstance(value, (ColumnSpec, ObjSpec)) else None


def row_dims(plan: Plan) -> tuple[Any, ...]:
    """The dims that numbers of rows depend on."""
    sizes = [size for value in plan.inference.values if (size := rows_in(value)) is not None]
    return tuple(dict.fromkeys(atom for size in sizes for atom in size.atoms if not isinstance(atom, Kept)))


def number_of(node: Node, size: Size | None, sizes: Mapping[Any, int]) -> int | None:
    """The number of rows of a node's value for these sizes; None where one is unknown.

    Raises:
        SizeError: HF303 where it is not whole or below 0; a filter may keep none.
    """
    if size is None or any(atom not in sizes for atom in size.atoms):
        return None
    number = evaluate(size, sizes)
    if number.denominator != 1 or number < 0:
        where = f"'{node.label}' in line {node.span.line}"
        raise SizeError("HF303", f"{where} has {size} = {number} rows, which is no whole number of at least 0")
    return int(number)


def _missing(step: Step, total: int) -> int:
    group = step.signature.rows.n if isinstance(step.signature.rows, Grouped) else 1
    return pad_size(total, step.chunks, pad=step.pad, group=group, what=f"the call of '{step.label}'")


def _even(rows: int, chunks: int) -> tuple[int, ...]:
    return tuple(i * rows // chunks for i in range(chunks + 1))
