"""Who reads what, cell by cell: the rows of every value followed one by one, without spans, chunks or payloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import hfdsl as hf
from hfdsl.graph.program import Filter, Input, MiniBatch, Node, Pack, Ref, Repeat, Take
from hfdsl.graph.signatures import ListType, RecordType
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.payloads import Process
from hfdsl.plan.plan import DRIVER, Step
from hfdsl.protocols.partitioning import partition_evenly
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, MetricSpec

Cell = tuple[int, str, int, int]
"""Node, column, row; for a value without rows (a metric, an entry of a list), -1 and the chunk."""

HOME: Process = (DRIVER, 0)


@dataclass
class Cells:
    """``read`` is in program order: which step, in which process, which cells by a port; the result is step -1,
    and what filters look at step -2."""

    plan: CompiledPlan
    rows: int  # of every input
    kept: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # by filters, without all; and what rows weigh
    home: dict[Cell, Process] = field(default_factory=dict)
    read: list[tuple[int, Process, frozenset[Cell]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._of: dict[int, dict[str, list[Cell]]] = {}
        self._count: dict[int, int] = {}  # rows of a value, or of every entry of a list
        self._dealt: dict[int, tuple[int, list[list[int]]]] = {}  # rows a unit, and the rows of each chunk
        steps = {step.node: step for step in self.plan.steps}
        for node in self.plan.graph.nodes:
            refs = {name: value for name, value in node.arguments if isinstance(value, Ref)}
            if node.id in steps:
                self._step(steps[node.id], node, refs)
            else:
                self._of[node.id] = self._seen_through(node, refs)
                if isinstance(node.op, Filter):
                    self.read.append((-2, HOME, frozenset(*self._value(refs["keep"]).values())))
                self._count[node.id] = len(next(iter(self._of[node.id].values())))
        output = frozenset(c for ref in self.plan.graph.output.refs() for v in self._value(ref).values() for c in v)
        self.read.append((-1, HOME, output))

    def width(self, cell: Cell) -> int:
        """Bytes of a cell; of objects 0."""
        result = self.plan.node(cell[0]).result
        spec: Any = schema(result.record).fields[cell[1]] if isinstance(result, RecordType) else result
        if not isinstance(spec, ColumnSpec):
            return 0
        size = spec.dtype.itemsize
        for dim in spec.dims[1:]:
            size *= next(n for known, n in self.plan.dims.items() if known is dim.atoms[0])
        return size

    def _value(self, ref: Ref) -> dict[str, list[Cell]]:
        return {ref.column: self._of[ref.node][ref.column]} if ref.column else self._of[ref.node]

    def _seen_through(self, node: Node, refs: Mapping[str, Ref]) -> dict[str, list[Cell]]:
        if isinstance(node.op, Pack):
            return {column: next(iter(self._value(ref).values())) for column, ref in refs.items()}
        if isinstance(node.op, Input):
            cells = {c: [(node.id, c, i, 0) for i in range(self.rows)] for c in columns_of(node.result)}
            self.home |= {cell: HOME for column_cells in cells.values() for cell in column_cells}
            return cells
        inner = self._value(refs["batch"])
        count = self._count[refs["batch"].node]
        match node.op:
            case Repeat(times):
                rows = [i for i in range(count) for _ in range(times)]
            case MiniBatch(index, parts):
                rows = list(range(index * (count // parts), (index + 1) * (count // parts)))
            case Filter():
                rows = list(self.kept.get(node.id, range(count)))
            case Take(taken):
                rows = [i % count for i in range(taken)]
            case _:
                raise TypeError(node)
        return {column: [cells[i] for i in rows] for column, cells in inner.items()}

    def _step(self, step: Step, node: Node, refs: Mapping[str, Ref]) -> None:
        ports = {name: self._value(ref) for name, ref in refs.items()}
        count = self._count[next(iter(refs.values())).node] if refs else 0
        padded = -(-count // step.chunks) * step.chunks
        chunks = self._deal(step, count, padded)
        for index, rank in enumerate(step.ranks):
            chunk = chunks[step.chunk_of[index]] if not step.per_rank else []
            for name, ref in refs.items():
                wanted = set[Cell]()
                port: Any = step.signature.port(name)
                listed = isinstance(self.plan.node(ref.node).result, ListType)
                kind = port.type.inner if isinstance(port.type, ListType) else port.type
                for column in columns_of(kind) if isinstance(kind, RecordType) else ports[name]:
                    cells = ports[name][column]
                    if step.per_rank:
                        wanted.add(cells[index])
                    elif listed:
                        wanted |= set(cells)
                    else:
                        last = {"repeat_last": count - 1}
                        wanted |= {cells[i if i < count else last.get(step.pad or "", i % count)] for i in chunk}
                self.read.append((step.node, (step.group, rank), frozenset(wanted)))
        self._made(step, node, count, chunks)

    def _deal(self, step: Step, count: int, padded: int) -> list[list[int]]:
        """The rows of each chunk, those from ``count`` on being padding."""
        unit = step.signature.rows.n if isinstance(step.signature.rows, hf.Grouped) else 1
        size = padded // step.chunks
        in_order = [list(range(c * size, (c + 1) * size)) for c in range(step.chunks)]
        chunks = in_order
        if step.balance is not None and step.balance.query in self.kept:
            weights = self.kept[step.balance.query]
            self._weigh(step.balance.weights)
            repeated = {"repeat_last": count - 1}
            rows = [i if i < count else repeated.get(step.pad or "", i % count) for i in range(padded)]
            unit_weights = [sum(max(0, weights[row]) for row in rows[i : i + unit]) for i in range(0, padded, unit)]
            order = [number * unit + i for number in partition_evenly(unit_weights, step.chunks) for i in range(unit)]
            chunks = [order[c * size : (c + 1) * size] for c in range(step.chunks)]
        elif step.role is None and step.chunks > 1:
            earlier = (self._dealt[node] for node in step.follows if node in self._dealt and self._count[node] == count)
            fits = ((rows, n) for n, rows in earlier if (count // unit) % (count // n) == 0)
            chunks, unit = next(fits, (in_order, unit))
        if padded == count and chunks != in_order:
            self._dealt[step.node] = unit, chunks
        return chunks

    def _weigh(self, ref: Ref) -> None:
        """The driver reads of each row what it weighs, where that was made."""
        cells = {cell: (cell[0], f"weight of {cell[1]}", *cell[2:]) for cell in next(iter(self._value(ref).values()))}
        self.home |= {derived: self.home[cell] for cell, derived in cells.items()}
        self.read.append((-2, HOME, frozenset(cells.values())))

    def _made(self, step: Step, node: Node, count: int, chunk_rows: list[list[int]]) -> None:
        layout, chunks = step.layout, range(step.layout.chunks)
        kind: Any = node.result.inner if isinstance(node.result, ListType) else node.result
        on_every_rank = {n for n in columns_of(kind) if layout.lists or isinstance(_spec(kind, n), MetricSpec)}
        size = max(1, -(-count // step.layout.chunks))
        self._count[node.id], self._of[node.id] = count, {}
        for column in columns_of(kind):
            chunk_of = {(node.id, column, -1, c): c for c in chunks}
            if column not in on_every_rank and len(chunks) == step.chunks:
                chunk = {row: c for c, rows in enumerate(chunk_rows) for row in rows}
                chunk_of = {(node.id, column, i, 0): chunk[i] for i in range(count)}
            elif column not in on_every_rank:
                chunk_of = {(node.id, column, i, 0): min(i // size, chunks[-1]) for i in range(count)}
            self._of[node.id][column] = list(chunk_of)
            self.home |= {cell: layout.producer(chunk) for cell, chunk in chunk_of.items()}


def columns_of(result: Any) -> tuple[str, ...]:
    return tuple(schema(result.record).fields) if isinstance(result, RecordType) else ("",)


def _spec(kind: Any, column: str) -> Any:
    return schema(kind.record).fields[column] if isinstance(kind, RecordType) else kind
