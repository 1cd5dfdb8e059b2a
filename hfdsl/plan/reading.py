"""Reading: which stored rows a reader's rows are, which processes keep them, and how they are joined.

``repeat``, mini-batches, filters and records made of columns are never carried out as steps: a reader follows them back
to the rows that calls made. In this program two ranks make y, two rows each; its second mini-batch is repeated for the
caller, and three of its rows go to another call, with a pad row:

>>> import hfdsl as hf
>>> from hfdsl.plan.rows import row_table
>>> class B(hf.Dim): ...
>>> class Rows(hf.Batch):
...     text: hf.Obj[str, B]
>>> class Role(hf.Worker):
...     @hf.register(hf.Dispatch.DP_PROTO, pad="repeat_last")
...     def work(self, rows: Rows) -> Rows: ...
>>> @hf.dataflow
... def flow(x: Rows, role: Role) -> tuple[Rows, Rows]:
...     y = role.work(x)
...     first, second = hf.minibatches(y, 2)
...     return hf.repeat(second, 2), role.work(hf.take(y, 3))
>>> plan = flow.compile(hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([2]))), dims={B: 4})
>>> [(node.id, node.label) for node in plan.graph.nodes if node.label in ("repeat", "take")]
[(4, 'repeat'), (5, 'take')]
>>> kept = {0: ["y0", "y1"], 1: ["y2", "y3"]}
>>> def fetch(node, column, chunk, rows):
...     print(f"chunk {chunk}: {rows}")
...     return [text for start, stop in rows for text in kept[chunk][start:stop]]
>>> reader = Reader(plan.graph.nodes, plan.layouts, row_table(plan, {B: 4}), fetch)
>>> reader.column(4, "text", ((1, 4),))
chunk 1: ((0, 2),)
['y2', 'y3', 'y3']
>>> reader.column(5, "text", ((2, 3), (2, 3)))
chunk 1: ((0, 1),)
['y2', 'y2']
>>> reader.column(1, "text", ((1, 3),))
chunk 0: ((1, 2),)
chunk 1: ((0, 1),)
['y1', 'y2']

The first read, step by step: rows 1 to 3 of the repeat are copies of rows 0 and 1 of the mini-batch
(``Repeat.source_rows``); these are rows 2 and 3 of y (``MiniBatch.source_rows``), and rows 0 and 1 of chunk 1, which
begins at row 2 (``Reader.overlap``). They are fetched and repeated, and the copy that was not asked for is dropped
(``Repeat.from_source``). The second read asks for row 2 twice, as itself and as padding: it is fetched once and picked
twice. The third crosses two chunks.

Why it is right. Each step back maps rows of a result to the rows of its argument that they are made of, and the rows
that come back are turned into the result's in reverse order; so by induction over the operations in between, a reader
gets exactly the rows it asked for. At the end, rows are fetched in order and each once (``merged``), since chunks keep
them in order; ``positions`` has the place of each requested row among them. Planned transfers and actual reads
cannot differ: ``locate_reads`` follows the same ``Reader.sources``, and fetches nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hfdsl.errors import WiringError
from hfdsl.graph.columns import columns_of, result_type, row_weight_of, stored_spec
from hfdsl.graph.program import Constant, Derived, Input, Node, Operand, Present, Ref
from hfdsl.graph.signatures import LIST_KINDS, VALUE, ListType, PortType, RecordType
from hfdsl.plan.plan import DRIVER, Plan, Step, ValueLayout
from hfdsl.plan.rows import RowTable, argument_rows
from hfdsl.protocols.ranges import RowRange, RowRanges, merged, positions
from hfdsl.types.batches import Batch, rebuild, schema, wrap_field
from hfdsl.types.columns import Column, ColumnSpec, FieldSpec, Metric, MetricSpec, Obj, ObjSpec
from hfdsl.types.joining import all_present, join_column, picked_rows

Piece = Mapping[str, Any]
"""One chunk of a value: raw columns by name."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads rows of values by graph node.

    ``fetch(node, column, chunk, rows)`` returns rows of a chunk's column; ``rows`` are in order, each once, or None for
    the whole of a column without rows.
    """

    nodes: tuple[Node, ...]
    layouts: Mapping[int, ValueLayout]
    table: RowTable
    fetch: Callable[[int, str, int, RowRanges | None], Any]
    _sorted: dict[tuple[int, tuple[str, ...]], tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    _columns: dict[tuple[int, tuple[str, ...]], tuple[tuple[int, tuple[str, ...]], ...]] = field(default_factory=dict)
    _places: dict[tuple[int, str, RowRanges], tuple[int, str, int, RowRanges] | None] = field(default_factory=dict)

    # -- which chunks

    def sources(
        self, node: int, columns: tuple[str, ...], ranges: RowRanges
    ) -> Iterator[tuple[int, tuple[str, ...], RowRanges]]:
        """The stored values, their columns and rows that rows of some columns are read from."""
        if not isinstance(self.nodes[node].op, Derived):
            yield node, columns, self.table.stored(node, ranges)
            return
        if (node, columns) not in self._columns:
            self._columns[node, columns] = self._source_columns(node, columns)
        inner = self.source_rows(node, ranges)
        for source, names in self._columns[node, columns]:
            yield from self.sources(source, names, inner)

    def _source_columns(self, node: int, columns: tuple[str, ...]) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """The values, one step back, that columns of a derived value are read from, each with its columns."""
        by_source: dict[int, dict[str, None]] = {}
        for column in columns:
            if isinstance(source := self.nodes[node].source(column), Ref):
                by_source.setdefault(source.node, {})[source.column or VALUE] = None
        return tuple((source, tuple(names)) for source, names in by_source.items())

    def source_rows(self, node: int, ranges: RowRanges) -> RowRanges:
        """The rows, one step back, that rows of a derived value are read from."""
        op, table = self.nodes[node].op, self.table
        if not isinstance(op, Derived):
            return ranges
        return op.source_rows(ranges, table.rows.get(node, 0), table.selected.get(node, ()))

    def has_rows(self, node: int, column: str) -> bool:
        """Whether rows of a stored column can be read alone."""
        spec = stored_spec(self.nodes[node].result, column)
        return not (spec is None or isinstance(spec, MetricSpec) or self.layouts[node].lists)

    def sorted_by_rows(self, node: int, columns: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The stored columns whose rows can be read separately, and the others."""
        if (node, columns) not in self._sorted:
            with_rows = tuple(name for name in columns if self.has_rows(node, name))
            self._sorted[node, columns] = with_rows, tuple(name for name in columns if name not in with_rows)
        return self._sorted[node, columns]

    def overlap(self, node: int, ranges: RowRanges) -> Mapping[int, RowRanges]:
        """Every chunk with some of these rows, which are in order, and which of the chunk's rows they are."""
        bounds, by_chunk = self.table.bounds[node], dict[int, list[RowRange]]()
        for start, stop in ranges:
            if start == stop:
                by_chunk.setdefault(0, []).append((0, 0))  # no rows have a dtype and a shape too
            for chunk in range(max(bisect_right(bounds, start) - 1, 0), len(bounds) - 1):
                low, high = bounds[chunk], bounds[chunk + 1]
                if low >= stop:
                    break
                if max(low, start) < min(high, stop):
                    by_chunk.setdefault(chunk, []).append((max(low, start) - low, min(high, stop) - low))
        return {chunk: tuple(rows) for chunk, rows in by_chunk.items()}

    # -- the rows themselves

    def column(self, node: int, column: str, ranges: RowRanges) -> Any:
        """Rows of a column (for a metric: its reduced value); None if it is absent.

        Raises:
            WiringError: HF231 if it is absent under ``hf.present``, HF810 if only some ranks have it, HF805 if ranks
                returned rows of different shapes.
        """
        if (key := (node, column, ranges)) not in self._places:
            self._places[key] = self._place(*key)
        if (place := self._places[key]) is not None:
            return self.fetch(*place)
        op, spec = self.nodes[node].op, stored_spec(self.nodes[node].result, column)
        if not isinstance(op, Derived):
            return self._stored(node, column, spec, ranges)
        source = self.nodes[node].source(column)
        if not isinstance(source, Ref):
            return source.value if isinstance(source, Constant) else None
        reduced = isinstance(spec, MetricSpec)  # a number, which has no rows
        value = self.column(source.node, source.column or VALUE, ranges if reduced else self.source_rows(node, ranges))
        if value is None and isinstance(op, Present):
            raise WiringError("HF231", f"hf.present at {self.nodes[node].span}: {self._absent(source, ranges)}")
        return value if value is None or reduced else op.from_source(value, ranges)

    def _place(self, node: int, column: str, ranges: RowRanges) -> tuple[int, str, int, RowRanges] | None:
        """The single chunk that holds these rows in the order asked for, if there is one.

        There nearly always is one, and every step asks for the same rows, so it is looked up once.
        """
        op, spec = self.nodes[node].op, stored_spec(self.nodes[node].result, column)
        if spec is None or isinstance(spec, MetricSpec):
            return None
        if isinstance(op, Derived):
            source = self.nodes[node].source(column)
            if not op.transparent or not isinstance(source, Ref):
                return None
            return self._place(source.node, source.column or VALUE, self.source_rows(node, ranges))
        stored = self.table.stored(node, ranges)
        overlap = self.overlap(node, stored) if merged(stored) == stored else {}
        places = [(node, column, chunk, rows) for chunk, rows in overlap.items()]
        return places[0] if len(places) == 1 else None

    def _stored(self, node: int, column: str, spec: FieldSpec | None, ranges: RowRanges) -> Any:
        if spec is None:
            return self.fetch(node, column, 0, None)
        if isinstance(spec, MetricSpec):
            chunks = range(self.layouts[node].chunks)
            return join_column(spec, [self.fetch(node, column, chunk, None) for chunk in chunks])
        ranges = self.table.stored(node, ranges)
        needed = merged(ranges)
        overlap = self.overlap(node, needed)
        parts = [self.fetch(node, column, chunk, rows) for chunk, rows in overlap.items()]
        if len(parts) > 1:
            ranks = [f"rank {self.layouts[node].holders[chunk]}" for chunk in overlap]
            all_present(self._label(node, column), parts, ranks)
            _alike(self._label(node, column), spec, parts, ranks)
        return picked_rows(join_column(spec, parts), positions(ranges, needed))

    def _label(self, node: int, column: str) -> str:
        label = self.nodes[node].label
        return f"column '{column}' of '{label}'" if column else f"the result of '{label}'"

    def _absent(self, ref: Ref, ranges: RowRanges) -> str:
        """In words, that a column is absent and which ranks left it out."""
        for node, (column, *_), rows in self.sources(ref.node, (ref.column or VALUE,), ranges):
            layout, label = self.layouts[node], self._label(node, column)
            if isinstance(self.nodes[node].op, Input) or layout.group == DRIVER:
                return f"{label} is absent"
            ranks = [str(layout.holders[chunk]) for chunk in self.overlap(node, merged(rows))]
            return f"{label} is absent (rank{'s' if ranks[1:] else ''} {', '.join(ranks)} did not return it)"
        return f"{self._label(ref.node, ref.column or VALUE)} is absent: the record was built without it"

    def value(self, operand: Operand, wanted: PortType, ranges: RowRanges) -> Any:
        """Rows of an operand as the body of ``wanted``'s port takes them: record, column, metric, list or object."""
        if not isinstance(operand, Ref):
            return operand.value if isinstance(operand, Constant) else None
        node, layout = operand.node, self.layouts.get(operand.node)
        if isinstance(wanted, ListType):
            list_class = LIST_KINDS["per_rank" if wanted.kind == "PerRank" else "per_stage"]
            return list_class(
                [self.entry(node, chunk, wanted.inner) for chunk in range(layout.chunks if layout else 0)]
            )
        if isinstance(wanted, RecordType):
            columns = {name: self.column(node, name, ranges) for name in schema(wanted.record).fields}
            return rebuild(wanted.record, columns)
        return wrap(wanted, self.column(node, operand.column or VALUE, ranges))

    def entry(self, node: int, chunk: int, wanted: PortType) -> Any:
        """One rank's value of a list."""
        if isinstance(wanted, RecordType):
            names = schema(wanted.record).fields
            return rebuild(wanted.record, {name: self.fetch(node, name, chunk, None) for name in names})
        return wrap(wanted, self.fetch(node, VALUE, chunk, None))


def _alike(subject: str, spec: FieldSpec, parts: Sequence[Any], ranks: Sequence[str]) -> None:
    """Refuse rows that are longer on one rank than on another, as if each had padded to its longest row."""
    if not isinstance(spec, ColumnSpec) or spec.ragged or len(spec.dims) == 1 or parts[0] is None:
        return
    first, *others = (list(part.shape[1:]) for part in parts)
    for rank, shape in zip(ranks[1:], others, strict=True):
        if shape != first:
            raise WiringError(
                "HF805",
                f"{subject} has rows of shape {first} on {ranks[0]} and {shape} on {rank}, which are not one column; "
                "give rows one length on all ranks, or make the column ragged",
            )


def wrap(port_type: PortType, raw: Any) -> Any:
    """A raw value as a body sees it."""
    return wrap_field(port_type, raw) if isinstance(port_type, (ColumnSpec, ObjSpec, MetricSpec)) else raw


def from_columns(port_type: PortType, piece: Piece) -> Any:
    """The value of raw columns, as a body sees it."""
    if isinstance(port_type, RecordType):
        return rebuild(port_type.record, dict(piece))
    return wrap(port_type, piece[VALUE])


def to_columns(value: Any) -> dict[str, Any]:
    """A value as raw columns, under ``VALUE`` if it is not a record."""
    if isinstance(value, Batch):
        return value.__hf_columns__
    return {VALUE: value._value if isinstance(value, (Column, Obj, Metric)) else value}


@dataclass(frozen=True, slots=True)
class Read:
    """Rows of some columns of a chunk, counted within the chunk; ``rows`` is None for columns without rows."""

    node: int
    chunk: int
    columns: tuple[str, ...]
    rows: RowRanges | None


def locate_reads(plan: Plan, step: Step, table: RowTable) -> tuple[tuple[Read, ...], ...]:
    """The reads of each rank of a step; ranks that get the same chunk share a tuple."""
    if step.sync is not None:
        sync = step.sync
        return tuple(
            tuple(Read(sync.export, source, (sync.column(rank),), None) for source in sync.schedule.sources[rank])
            for rank in step.ranks
        )
    reader = locating_reader(plan, table)
    keys = range(len(step.ranks)) if step.per_rank else step.chunk_of
    by_key = {key: tuple(_reads(reader, step, key)) for key in dict.fromkeys(keys)}
    return tuple(by_key[key] for key in keys)


def locate_arguments(plan: Plan, step: Step, table: RowTable) -> Iterator[Read]:
    """The driver's reads for a step with a custom protocol, whose functions get whole values."""
    for name, operand in step.arguments:
        port = step.signature.port(name)
        if isinstance(operand, Ref) and port is not None:
            yield from locate_whole(plan, operand, columns_of(port.type, operand), table)


def locate_result(plan: Plan, ref: Ref, table: RowTable) -> Iterator[Read]:
    """The driver's reads of a value that the dataflow returns."""
    yield from locate_whole(plan, ref, columns_of(result_type(plan.graph, ref), ref), table)


def locate_row_weights(plan: Plan, ref: Ref, table: RowTable) -> Iterator[Read]:
    """The driver's reads of row weights: a number per row, computed where the column is."""
    for read in locate_whole(plan, ref, (ref.column or VALUE,), table):
        yield replace(read, columns=tuple(map(row_weight_of, read.columns)))


def locate_whole(plan: Plan, ref: Ref, columns: tuple[str, ...], table: RowTable) -> Iterator[Read]:
    """All rows of some columns of a value."""
    yield from _resolved(locating_reader(plan, table), ref, columns, ((0, table.rows.get(ref.node, 0)),))


def locating_reader(plan: Plan, table: RowTable) -> Reader:
    """A reader that follows columns to their stored values, and fetches nothing."""
    return Reader(plan.graph.nodes, plan.layouts, table, _nothing)


def _nothing(node: int, column: str, chunk: int, rows: RowRanges | None) -> Any:
    raise LookupError(node, column, chunk, rows)


def _reads(reader: Reader, step: Step, key: int) -> Iterator[Read]:
    for name, operand in step.arguments:
        port = step.signature.port(name)
        if not isinstance(operand, Ref) or port is None:
            continue
        columns = columns_of(port.type, operand)
        if step.per_rank:
            yield Read(operand.node, key, columns, None)
        else:
            yield from _resolved(reader, operand, columns, argument_rows(reader.table, step, operand, key))


def _resolved(reader: Reader, ref: Ref, columns: tuple[str, ...], ranges: RowRanges) -> Iterator[Read]:
    for node, names, rows in reader.sources(ref.node, columns, ranges):
        sliced, unsliced = reader.sorted_by_rows(node, names)
        if sliced:
            yield from (Read(node, chunk, sliced, part) for chunk, part in reader.overlap(node, merged(rows)).items())
        if unsliced:
            yield from (Read(node, chunk, unsliced, None) for chunk in range(reader.layouts[node].chunks))
