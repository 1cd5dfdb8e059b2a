"""Probes of custom protocols: at launch, numbered rows pass once through the functions of every pair.

A worked example, four rows on two ranks, and a collect that takes turns, ``[row for pair in zip(*outputs) for row in
pair]``, where the dispatch cut the rows in halves::

    dispatched to rank 0: 0 1      returned by rank 0: 0 1
    dispatched to rank 1: 2 3      returned by rank 1: 2 3      collected: 0 2 1 3

Row 1 of the result is row 2. Every shape is right, so that scores would meet other responses from the first step on.

Rows are numbered in all of their columns: integers and floats are the number, and masks are of different lengths, so
that functions that sort by length move rows, and those that sort them back by a column find it. A rank returns a row of
the method's result for each row that it received. Only the order and the repetition of rows are judged. A method that
declares ``rows=hf.Whole`` may return other rows, and of one whose result has another row dim nothing is known. If the
functions do not take such rows, and raise, that says nothing either: then a step will show what they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hfdsl.errors import ProtocolError
from hfdsl.graph.signatures import VALUE, PortType, RecordType, Signature, StaticType
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.reading import from_columns, to_columns
from hfdsl.protocols.dispatch import Functions
from hfdsl.protocols.mesh import Mesh
from hfdsl.runtime.custom_protocol import GroupView
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, FieldSpec, ObjSpec
from hfdsl.types.dims import Size, constant
from hfdsl.types.dtypes import Bool, Float32, Float64, Int32, Int64
from hfdsl.types.ragged import Jagged
from hfdsl.types.rows import Whole

if TYPE_CHECKING:
    import torch

WIDTH = 4
"""The size of every dim except the row dim."""

EXACT = (Int64, Int32, Float64, Float32)
"""The dtypes that represent every row number exactly."""


def probe_protocols(plan: Plan) -> None:
    """Send numbered rows through every custom protocol of a plan, once per method.

    Raises:
        ProtocolError: HF427 where rows come back in another order, or some twice.
    """
    probed = set[tuple[str | None, str]]()
    for step in plan.steps:
        method = step.role, step.signature.name
        if step.custom is not None and method not in probed:
            probed.add(method)
            wrong = _Probe(step, step.custom, plan.mesh(step.role or "")).wrong_row()
            if wrong is not None:
                raise ProtocolError("HF427", f"{_protocol_in_words(step, step.custom)} {wrong} ({step.signature.span})")


class _NoNumber(Exception):  # noqa: N818  # no error: what cannot be probed is left to the first step
    """A value without a column that can hold the number of a row."""


@dataclass(frozen=True, slots=True)
class _Probe:
    step: Step
    functions: Functions
    mesh: Mesh

    def wrong_row(self) -> str | None:
        """The mistake with the first misplaced row; None if no row is misplaced, or if that is unknown."""
        signature, group = self.step.signature, GroupView(self.mesh)
        if signature.rows == Whole or not _keeps_rows(signature):
            return None
        rows = list(range(2 * self.mesh.world_size * signature.group_size))
        try:
            values = {port.name: _value(port.type, rows) for port in signature.ports if port.required}
            received = self._received(group, values)
            outputs = [_value(signature.returns, numbers) for numbers in received]
            result = _numbers(self.functions.collect_fn(group, outputs))
        except Exception:  # noqa: BLE001  # users' functions, which may take other rows than these
            return None
        is_judged = len(result) == len(rows) and set(result) <= set().union(*received) <= set(rows)
        return _difference(rows, received, result) if is_judged else None

    def _received(self, group: GroupView, values: Mapping[str, Any]) -> list[list[int]]:
        """The row numbers that each rank receives."""
        ports = {port.name: port for port in self.step.signature.ports if port.name in values}
        positional = [values[name] for name, port in ports.items() if not port.keyword_only]
        keywords = {name: values[name] for name, port in ports.items() if port.keyword_only}
        args, kwargs = self.functions.dispatch_fn(group, *positional, **keywords)
        entries = next(iter([*args, *kwargs.values()]))
        return [_numbers(entries[rank]) for rank in range(group.world_size)]


def _protocol_in_words(step: Step, functions: Functions) -> str:
    names = [
        getattr(function, "__name__", type(function).__name__)
        for function in (functions.dispatch_fn, functions.collect_fn)
    ]
    return f"the protocol of '{step.label}', {names[0]} and {names[1]},"


def _difference(rows: Sequence[int], received: Sequence[Sequence[int]], result: Sequence[int]) -> str | None:
    place = next((row for row in rows if result[row] != row), None)
    if place is None:
        return None
    ranks = [rank for rank, numbers in enumerate(received) if result[place] in numbers]
    moved = (
        f"of {len(rows)} numbered rows, row {place} of the result is row {result[place]}, which rank {ranks[0]} "
        "returned"
    )
    lost = next((row for row in rows if row not in result), None)
    if lost is None:
        return f"returns rows in another order: {moved}; declare rows=hf.Whole if that is meant"
    return f"loses rows: {moved}, and row {lost} is not in it; declare rows=hf.Whole if that is meant"


def _keeps_rows(signature: Signature) -> bool:
    """Whether a result has the same row dim as all arguments with rows, and nothing else is required."""
    required = [port.type for port in signature.ports if port.required]
    dims = [_row(kind) for kind in required]
    row = _row(signature.returns)
    return row is not None and bool(dims) and all(dim == row for dim in dims)


def _row(kind: PortType) -> Size | None:
    if isinstance(kind, RecordType):
        return schema(kind.record).row
    return kind.dims[0] if isinstance(kind, (ColumnSpec, ObjSpec)) else None


def _value(kind: PortType, numbers: Sequence[int]) -> Any:
    """A value of a type whose columns all hold the numbers of its rows."""
    if isinstance(kind, RecordType):
        columns = {name: _column(spec, numbers) for name, spec in schema(kind.record).fields.items()}
        return from_columns(kind, columns)
    if isinstance(kind, StaticType) or not isinstance(kind, (ColumnSpec, ObjSpec)):
        raise _NoNumber
    return from_columns(kind, {VALUE: _column(kind, numbers)})


def _column(spec: FieldSpec, numbers: Sequence[int]) -> Any:
    import torch

    if isinstance(spec, ObjSpec) and spec.type is str:
        return [str(number) for number in numbers]
    if not isinstance(spec, ColumnSpec):
        raise _NoNumber
    dtype: torch.dtype = getattr(torch, spec.dtype.torch_name)
    shape = [_size(size) for size in spec.dims[1:]]
    if spec.ragged:
        return Jagged.of([torch.full((1 + number % shape[0], *shape[1:]), number).to(dtype) for number in numbers])
    column = torch.tensor(numbers).view(-1, *[1] * len(shape))
    if spec.dtype is Bool:
        return torch.arange(shape[-1]) <= column % shape[-1] if shape else column % 2 == 0
    return column.to(dtype).expand(-1, *shape).clone()


def _size(size: Size) -> int:
    number = size.substitute({atom: constant(WIDTH) for atom in size.atoms}).value
    if number is None or number.denominator != 1 or number < 1:
        raise _NoNumber
    return int(number)


def _numbers(value: Any) -> list[int]:
    """The numbers of a value's rows, on which all columns that can hold numbers must agree."""
    column_numbers = [numbers for column in to_columns(value).values() if (numbers := _numbers_of(column)) is not None]
    if not column_numbers or column_numbers != column_numbers[:1] * len(column_numbers):
        raise _NoNumber
    return column_numbers[0]


def _numbers_of(column: Any) -> list[int] | None:
    if isinstance(column, list):
        return [int(entry) for entry in column]
    values = column.values if isinstance(column, Jagged) else column
    if getattr(values, "dtype", None) not in _exact():
        return None
    firsts = values[column.offsets[:-1]] if isinstance(column, Jagged) else column.reshape(len(column), -1)[:, 0]
    numbers = [int(number) for number in firsts.tolist()]
    if numbers != firsts.tolist():
        raise _NoNumber  # computed, as a mean is
    return numbers


def _exact() -> set[torch.dtype]:
    import torch

    return {getattr(torch, dtype.torch_name) for dtype in EXACT}
