"""The graph: nodes in program order, and what each reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from hfdsl.graph.misuses import Misuse
from hfdsl.graph.signatures import PortType, Signature
from hfdsl.graph.spans import Span
from hfdsl.protocols.filtering import taken_rows
from hfdsl.protocols.queueing import Late
from hfdsl.protocols.ranges import NO_ROWS, RowRanges, as_ranges
from hfdsl.types.batches import Batch
from hfdsl.types.dims import Dim, Size
from hfdsl.types.joining import picked_rows, repeated_rows


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the program: what a node makes, or one column of it."""

    node: int
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    """A plain Python value written in the dataflow."""

    value: Any


@dataclass(frozen=True, slots=True)
class ErrorValue:
    """Stands for a value that a mistake hides: it fits everywhere, so that a mistake is reported once."""


Operand: TypeAlias = Ref | Constant | ErrorValue
Arguments: TypeAlias = "tuple[tuple[str, Operand], ...]"
"""The operand of each port, in order."""


@dataclass(frozen=True, slots=True)
class Input:
    """A record from the caller of the dataflow; ``rows`` if they differ from those that its class declares."""

    name: str
    record: type[Batch]
    rows: Size | None = None

    @property
    def label(self) -> str:
        """The parameter's name."""
        return self.name


@dataclass(frozen=True, slots=True)
class RoleCall:
    """A role method; ``call`` numbers the calls of roles and functions, which random streams are derived from.

    ``during`` is the method between whose tokens a load takes effect; None for one between calls.
    """

    role: str
    signature: Signature
    call: int
    during: str | None = None

    @property
    def label(self) -> str:
        """As it is written: ``actor.generate``."""
        return f"{self.role}.{self.signature.name}"


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A stateless function, run where its rows are."""

    signature: Signature
    call: int

    @property
    def label(self) -> str:
        """The function's name."""
        return self.signature.name


@dataclass(frozen=True, slots=True)
class Derived:
    """An operation that no process carries out: readers of its result read rows of its arguments instead.

    A subclass says where a column comes from (``source``), which rows of it (``source_rows``) and, if these are not the
    rows of the result yet, what to do with them (``from_source``). Everything that follows a value back to the process
    that stores it, a check, a plan or a reader, asks these methods. ``selected`` is what ``select`` returned.
    """

    transparent: ClassVar[bool] = True
    """Whether rows of the source are the rows of the result: nothing is changed, and nothing checked."""
    same_rows: ClassVar[bool] = False
    """Whether row i of the result is row i of every argument."""

    @property
    def label(self) -> str:
        """A name for people."""
        return type(self).__name__.lower()

    def source(self, arguments: Arguments, column: str) -> Operand:
        """The operand from which a column of the result is read."""
        _, batch = arguments[0]
        return Ref(batch.node, column or None) if isinstance(batch, Ref) else batch

    def select(self, rows: int | None, kept_rows: tuple[int, ...] | None, subject: str) -> tuple[int, ...] | None:
        """The rows that are picked one by one out of ``rows``; None if none are, or it is not known yet which.

        ``kept_rows`` are those that a filter keeps, once the run knows; ``subject`` names the operation in an error.
        """
        return None

    def source_rows(self, ranges: RowRanges, rows: int, selected: Sequence[int]) -> RowRanges:
        """The rows of the source to read for these rows of the result, which has ``rows`` rows."""
        return ranges

    def from_source(self, value: Any, ranges: RowRanges) -> Any:
        """These rows of the result, made of the rows of the source that ``source_rows`` names for them."""
        return value


@dataclass(frozen=True, slots=True)
class Repeat(Derived):
    """Every row ``times`` times in a row: groups of ``times`` consecutive rows.

    Rows 1 to 3 of ``repeat(x, 2)`` are rows 0, 1, 1 of x, of which two are read:

    >>> twice = Repeat(2)
    >>> twice.source_rows(((1, 4),), 8, ()), twice.from_source(["x0", "x1"], ((1, 4),))
    (((0, 2),), ['x0', 'x1', 'x1'])
    """

    times: int

    transparent = False

    def source_rows(self, ranges: RowRanges, rows: int, selected: Sequence[int]) -> RowRanges:
        """Every row once, however many of its copies are asked for."""
        return tuple((start // self.times, -(-stop // self.times)) for start, stop in ranges)

    def from_source(self, value: Any, ranges: RowRanges) -> Any:
        """The rows repeated, without the copies at both ends that were not asked for."""
        if len(ranges) == 1:
            ((start, stop),) = ranges
            begin = start // self.times * self.times
            return repeated_rows(value, self.times)[start - begin : stop - begin]
        picks, before = list[int](), 0
        for (start, stop), (source_start, source_stop) in zip(ranges, self.source_rows(ranges, 0, ()), strict=True):
            picks += [before + row // self.times - source_start for row in range(start, stop)]
            before += source_stop - source_start
        return picked_rows(value, picks)


@dataclass(frozen=True, slots=True)
class MiniBatch(Derived):
    """The ``index``-th of ``count`` equal runs of consecutive rows.

    >>> MiniBatch(1, 2).source_rows(((0, 3),), 4, ())
    ((4, 7),)
    """

    index: int
    count: int

    @property
    def label(self) -> str:
        """The index and the number of mini-batches."""
        return f"minibatch {self.index + 1}/{self.count}"

    def source_rows(self, ranges: RowRanges, rows: int, selected: Sequence[int]) -> RowRanges:
        """The rows of this mini-batch: those after the mini-batches before it."""
        return tuple((start + self.index * rows, stop + self.index * rows) for start, stop in ranges)


@dataclass(frozen=True, slots=True)
class Filter(Derived):
    """The rows for which the column ``keep`` is true, in order; runs of ``group`` rows are kept or dropped together.

    >>> Filter(1).source_rows(((0, 2),), 3, (1, 4, 5))
    ((1, 2), (4, 5))
    """

    group: int

    def select(self, rows: int | None, kept_rows: tuple[int, ...] | None, subject: str) -> tuple[int, ...] | None:
        """The rows that are kept."""
        return kept_rows

    def source_rows(self, ranges: RowRanges, rows: int, selected: Sequence[int]) -> RowRanges:
        """The selected rows."""
        return _selected_ranges(ranges, selected)


@dataclass(frozen=True, slots=True)
class Take(Derived):
    """The first ``rows`` rows; with ``fill`` the rows start over if there are fewer."""

    rows: int
    fill: bool

    @property
    def label(self) -> str:
        """The function that was called."""
        return "fill" if self.fill else "take"

    def select(self, rows: int | None, kept_rows: tuple[int, ...] | None, subject: str) -> tuple[int, ...] | None:
        """The rows that are taken; errors as for ``taken_rows``."""
        return None if rows is None else taken_rows(rows, self.rows, fill=self.fill, subject=subject)

    def source_rows(self, ranges: RowRanges, rows: int, selected: Sequence[int]) -> RowRanges:
        """The selected rows."""
        return _selected_ranges(ranges, selected)


@dataclass(frozen=True, slots=True)
class Pack(Derived):
    """A record built from columns: every argument is one column of ``record``."""

    record: type[Batch]

    same_rows = True

    @property
    def label(self) -> str:
        """The record's name."""
        return self.record.__name__

    def source(self, arguments: Arguments, column: str) -> Operand:
        """The argument of that name."""
        return dict(arguments).get(column, ErrorValue())


@dataclass(frozen=True, slots=True)
class Present(Derived):
    """An optional column, its only argument, asserted to be present; reading it fails if it is absent."""

    transparent = False
    same_rows = True

    def source(self, arguments: Arguments, column: str) -> Operand:
        """The optional column."""
        return arguments[0][1]


@dataclass(frozen=True, slots=True)
class Queue(Derived):
    """The output of a queue: with a ``lag``, possibly rows of an earlier step; without one, those of this step.

    ``rows`` is how many are taken out at once, as a number or a dim; None for as many as a step puts in. Runs of
    ``group`` rows stay whole. ``late`` is the discipline for groups that would be staler than ``lag``.
    """

    rows: int | type[Dim] | None = None
    group: int = 1
    lag: int | None = None
    late: Late | None = None

    @property
    def splits(self) -> bool:
        """Whether it separates two stages; without a lag it is a synchronous edge."""
        return self.lag is not None

    @property
    def decides(self) -> bool:
        """Whether it may take groups of several steps: it does not wait in order, or its batches have a size."""
        return self.late in ("drop", "refill", "mask") or self.rows is not None


def _selected_ranges(ranges: RowRanges, selected: Sequence[int]) -> RowRanges:
    return as_ranges([row for start, stop in ranges for row in selected[start:stop]]) or NO_ROWS


Op: TypeAlias = Input | RoleCall | FunctionCall | Repeat | MiniBatch | Filter | Take | Queue | Pack | Present


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: its arguments by port, the declared type of its result, and the user's line."""

    id: int
    op: Op
    arguments: Arguments
    result: PortType
    span: Span

    @property
    def label(self) -> str:
        """A name for people: ``actor.generate``, ``repeat``, ``prompts``."""
        return self.op.label

    @property
    def role(self) -> str:
        """The role that it calls; empty for another operation."""
        return self.op.role if isinstance(self.op, RoleCall) else ""

    @property
    def method(self) -> str:
        """The name of the method of a role that it calls; empty for another operation."""
        return self.op.signature.name if isinstance(self.op, RoleCall) else ""

    @property
    def batch(self) -> Ref | None:
        """The value whose rows an operation on rows gives: its first argument."""
        ref = self.arguments[0][1]
        return ref if isinstance(ref, Ref) else None

    @property
    def refs(self) -> Iterator[Ref]:
        """The values that this node reads."""
        return (operand for _, operand in self.arguments if isinstance(operand, Ref))

    def source(self, column: str) -> Operand | None:
        """The operand from which a derived column is read; None for one that is stored as this node makes it."""
        return self.op.source(self.arguments, column) if isinstance(self.op, Derived) else None


@dataclass(frozen=True, slots=True)
class InnerCall:
    """A call of an inner dataflow, which is not a node: its values and roles by parameter, and the user's line."""

    signature: Signature
    arguments: Arguments
    span: Span


@dataclass(frozen=True, slots=True)
class Output:
    """The shape of what a dataflow returns: a value, or outputs in a ``container`` (tuple, list, ...) or a dict."""

    value: Operand | tuple[Output, ...] | dict[Any, Output]
    container: type = tuple

    def refs(self) -> Iterator[Ref]:
        """The values returned, depth first."""
        if isinstance(self.value, (tuple, dict)):
            for inner in self.value.values() if isinstance(self.value, dict) else self.value:
                yield from inner.refs()
        elif isinstance(self.value, Ref):
            yield self.value

    def build(self, value_of: Callable[[Ref], Any]) -> Any:
        """The result of the dataflow, from its values, which are asked for depth first."""
        if isinstance(self.value, tuple):
            parts = [inner.build(value_of) for inner in self.value]
            return self.container(*parts) if hasattr(self.container, "_fields") else self.container(parts)
        if isinstance(self.value, dict):
            return {key: inner.build(value_of) for key, inner in self.value.items()}
        if isinstance(self.value, Ref):
            return value_of(self.value)
        return self.value.value if isinstance(self.value, Constant) else None


@dataclass(frozen=True, slots=True)
class Graph:
    """A traced dataflow. ``roles`` are its role parameters with their classes, in order.

    ``returns`` is the annotation of its result (``inspect.Signature.empty`` if it has none). ``optional_reads`` are
    the places that read an optional column, each with what it is called and declared as. ``inner_calls`` are the calls
    of other dataflows.
    """

    name: str
    nodes: tuple[Node, ...]
    roles: dict[str, type]
    output: Output
    misuses: tuple[Misuse, ...]
    span: Span
    returns: Any = inspect.Signature.empty
    optional_reads: tuple[tuple[Span, str, PortType], ...] = ()
    inner_calls: tuple[InnerCall, ...] = ()
    calls: tuple[Node, ...] = field(init=False, repr=False, compare=False)
    """The nodes that run a body, role methods and functions: most rules go through them."""
    bodies: tuple[tuple[Node, Signature], ...] = field(init=False, repr=False, compare=False)
    """The calls, each with the signature of the body that it runs."""

    def __post_init__(self) -> None:
        bodies = [(node, node.op.signature) for node in self.nodes if isinstance(node.op, (RoleCall, FunctionCall))]
        object.__setattr__(self, "bodies", tuple(bodies))
        object.__setattr__(self, "calls", tuple(node for node, _ in bodies))

    @property
    def inputs(self) -> Iterator[Node]:
        """The nodes that the caller feeds."""
        return (node for node in self.nodes if isinstance(node.op, Input))
