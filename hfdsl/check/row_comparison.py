"""Row comparison: do rows that meet in a call certainly differ?

``graph/origins.py`` says where the rows of every value come from. Here they are compared row by row, at some rows, in
some cases: every filter keeps all rows, or one filter drops its first group. Only a case that shows other rows counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm, prod
from typing import Any

from hfdsl.check.context import Context
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import (
    Derived,
    Filter,
    FunctionCall,
    Graph,
    Input,
    MiniBatch,
    Node,
    Pack,
    Queue,
    Ref,
    Repeat,
    RoleCall,
    Take,
)
from hfdsl.graph.reads import Reads, RowColumn, signature_rows
from hfdsl.graph.row_steps import (
    FilterKey,
    GroupStep,
    Origin,
    PartStep,
    RepeatStep,
    RowInterval,
    RowStep,
    SizeCase,
    row_back,
)
from hfdsl.graph.signatures import VALUE, Signature
from hfdsl.types.batches import schema
from hfdsl.types.dims import Size
from hfdsl.types.rows import Whole

PROBES = 32
"""The number of rows compared at the start, and spread over the rest."""


@dataclass(frozen=True)
class Meeting:
    """Columns whose rows belong together: row i of one is row i of all others."""

    node: Node
    reads: Sequence[Reads]


def meetings(context: Context) -> Iterator[Meeting]:
    """Find the columns that meet: arguments of a call with one row dim, columns of a record, a filter and its column.

    A ``Whole`` function pairs rows as it likes, and so does one whose result has other rows than its arguments.
    """
    program, paired = context.program, dict[Signature, bool | None]()
    for node in program.graph.nodes:
        if len(node.arguments) < 2:
            continue
        match node.op:
            case RoleCall(_, signature) | FunctionCall(signature):
                if signature not in paired:
                    paired[signature] = _pairs_rows(signature)
                pairs_rows, rows = paired[signature], program.origins.rows[node.id]
                if pairs_rows is None:
                    pairs_rows = not (isinstance(rows, Origin) and rows.source == node.id)
                for reads in _by_row_dim(program.origins.reads[node.id]) if pairs_rows else ():
                    if len(reads) > 1 or len(reads[0].columns) > 1:
                        yield Meeting(node, reads)
            case Pack() | Filter() if program.origins.reads[node.id]:
                yield Meeting(node, program.origins.reads[node.id])


def read_name(node: Node, column: RowColumn) -> str:
    """The name of a column where an operation reads it: ``scores.reward``, or ``rewards`` in a record of columns."""
    return column.port if isinstance(node.op, Pack) or column.name in (None, VALUE) else f"{column.port}.{column.name}"


def made_name(graph: Graph, column: RowColumn) -> str:
    """The name of a column where it is made, which both sides of a pair have."""
    stored = stored_column(graph, column.ref)
    if not isinstance(stored, Ref):
        return column.port
    return stored.column or graph.nodes[stored.node].label


def _by_row_dim(arguments: Sequence[Reads]) -> Iterable[Sequence[Reads]]:
    """The arguments of a call in groups with one row dim: nearly always all of them, with the very same one."""
    if arguments and all(reads.row is arguments[0].row for reads in arguments):
        return (arguments,)
    by_dim: dict[Size | None, list[Reads]] = {}
    for reads in arguments:
        by_dim.setdefault(reads.row, []).append(reads)
    return by_dim.values()


def _pairs_rows(signature: Signature) -> bool | None:
    """Whether row i of an argument belongs to row i of all others; None: if the result has the rows of one of them."""
    if signature.rows == Whole or signature.per_rank:
        return False
    if signature.registration is not None and signature.registration.protocol is None:
        return False  # users' functions cut the arguments
    if signature_rows(signature.returns) is None or (signature.protocol is None and signature.registration is not None):
        return True
    return None


@dataclass
class Comparison:
    """Comparisons of origins for the sizes of a context."""

    context: Context

    def __post_init__(self) -> None:
        self.origins = self.context.program.origins
        self.nodes = self.context.program.graph.nodes
        self.blamed: set[int] = set()
        self.known: dict[Any, bool] = {}
        self.base = SizeCase(self.context.sizes, self.origins.filters, size_of=lambda _: self.unknown_size)

    @cached_property
    def unknown_size(self) -> int:
        """The assumed size of a dim without one: divisible by every number that the program divides by."""
        counts = {1}
        for node in self.nodes:
            match node.op:
                case MiniBatch(_, count) | Repeat(count) | Filter(count) | Queue(_, count):
                    counts.add(count)
                case RoleCall(_, signature) | FunctionCall(signature):
                    counts.add(signature.group_size)
        rows = max((node.op.rows for node in self.nodes if isinstance(node.op, Take)), default=1)
        unit = 4 * prod(counts) * lcm(*counts)
        return unit * (rows // unit + 1)

    def cases(self, *filters: FilterKey) -> Iterator[SizeCase]:
        """The cases to compare: all filters keep everything, or one of them drops its first group."""
        yield self.base
        for filter_key in dict.fromkeys(filters):
            yield self.base.with_dropped(filter_key)

    def origin(self, column: RowColumn) -> Origin | None:
        """The origin of a column's rows; None also for a record that has its own finding."""
        return None if self.is_blamed(column) else self.origins.of(column)

    def is_blamed(self, column: RowColumn) -> bool:
        """Whether a column's record, or the record of its rows, has its own finding: one mistake, one finding."""
        if not self.blamed:
            return False
        node = self.nodes[column.node]
        while isinstance(node.op, Derived) and not isinstance(node.op, Pack) and node.batch is not None:
            node = self.nodes[node.batch.node]
        return node.id in self.blamed

    def different_rows(self, meeting: Meeting) -> tuple[RowColumn, RowColumn] | None:
        """The first two columns of a meeting with certainly different rows."""
        if self.origins.have_same_rows(meeting.node, meeting.reads):
            return None
        columns: list[RowColumn] = []
        origins: list[Origin] = []
        for column in self.origins.one_of_each_origin(meeting.node, meeting.reads):
            origin = self.origin(column)
            if origin is None or origin in origins:  # most are one object, which is found by identity
                continue
            for other_column, other_origin in zip(columns, origins, strict=True):
                if other_column.port != column.port and self.differ(other_column, other_origin, column, origin):
                    self.blamed.add(meeting.node.id)
                    return other_column, column
            columns.append(column)
            origins.append(origin)
        return None

    def differ(
        self, left: RowColumn, origin: Origin, right: RowColumn, other_origin: Origin, sample: int | None = None
    ) -> bool:
        """Whether two values have certainly different rows."""
        if origin.source != other_origin.source and sample is None:
            return self.other_parts(origin, other_origin)
        path, other_path = origin.path(sample), other_origin.path(sample)
        if path is None or other_path is None or path == other_path:
            return False
        # Without the calls that generated samples, the iterations of an unrolled loop compare alike: once is enough.
        sizes, filters = (left.rows, right.rows), (*origin.filters(), *other_origin.filters())
        key = path, other_path, sizes, filters
        if key not in self.known:
            self.known[key] = any(_part(path, other_path, sizes, case) for case in self.cases(*filters))
        return self.known[key]

    def other_parts(self, origin: Origin, other_origin: Origin) -> bool:
        """Whether two inputs with one row dim differ only in the mini-batches that are read from them."""
        inputs = [self.nodes[side.source].op for side in (origin, other_origin)]
        dims = [schema(op.record).row if isinstance(op, Input) else None for op in inputs]
        if dims[0] is None or dims[0] != dims[1]:
            return False
        steps, others = origin.path() or (), other_origin.path() or ()
        if not all(isinstance(step, (RepeatStep, PartStep, GroupStep)) for step in (*steps, *others)):
            return False
        return steps != others and [_any_part(step) for step in steps] == [_any_part(step) for step in others]


def _part(
    path: tuple[RowStep, ...], other_path: tuple[RowStep, ...], sizes: tuple[Size | None, Size | None], case: SizeCase
) -> bool:
    """Whether a row that two values have in a case is certainly another row at the beginning of their paths."""
    rows, others = (None if size is None else case.number(size) for size in sizes)
    if rows is None or rows != others:
        return False
    return any(disjoint(row_back(row, path, case), row_back(row, other_path, case)) for row in _probes(rows))


def _any_part(step: Any) -> object:
    return (step.count, step.rows) if isinstance(step, PartStep) else step


def disjoint(left: RowInterval | None, right: RowInterval | None) -> bool:
    """Whether two rows are certainly different ones."""
    return left is not None and right is not None and (left[1] <= right[0] or right[1] <= left[0])


def _probes(rows: int) -> Iterator[int]:
    yield from range(min(rows, PROBES))
    yield from range(PROBES, rows, max(1, rows // PROBES))
    if rows:
        yield rows - 1
