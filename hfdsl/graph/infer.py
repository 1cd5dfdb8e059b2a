"""Inference: the size of every value, and every argument that does not fit its port.

A role declares its columns with the row dim B. At a call with 8 rows per prompt, B of the ports means B*8:

>>> import hfdsl as hf
>>> class B(hf.Dim): ...
>>> class R(hf.Dim): ...
>>> class Rollout(hf.Batch):
...     ids: hf.i64[B, R]
>>> class Scores(hf.Batch):
...     score: hf.f32[B]
>>> class Reward(hf.Worker):
...     @hf.register(hf.Dispatch.DP_PROTO)
...     def score(self, rollout: Rollout) -> Scores: ...
>>> @hf.dataflow
... def flow(rollout: Rollout, reward: Reward) -> Scores:
...     return reward.score(hf.repeat(rollout, 8))
>>> inference = infer(flow.trace())
>>> [str(inference.rows(node)) for node in range(3)]  # the input, repeat, reward.score
['B', 'B*8', 'B*8']
>>> inference.bindings[2], inference.mismatches
({B: Size(...)}, ())

One forward pass suffices, since a node reads only earlier nodes. Each call matches its ports from left to right. The
first port with a row dim or a type variable binds it to the size of its argument, and later ports must agree; every
other dim is the same size in the whole program. The pass is exact for three reasons:

* Binding solves a linear equation in one unbound dim, so its solution is unique; ``solve`` refuses any other equation.
* Sizes are polynomials in normal form, so ``equals`` proves, refutes, or answers that it does not know. The last is a
  mismatch of its own kind (``ROWS_UNKNOWN``), which known sizes or the run decide.
* A mistake leaves dims unbound. Results that depend on them have the size ``LOST``, which every port accepts: one
  mistake is reported once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from hfdsl.graph.call_bindings import CallBindings
from hfdsl.graph.equal_values import equal_column, equal_values
from hfdsl.graph.program import (
    Constant,
    ErrorValue,
    Filter,
    FunctionCall,
    Graph,
    Input,
    MiniBatch,
    Node,
    Operand,
    Pack,
    Present,
    Queue,
    Ref,
    Repeat,
    RoleCall,
    Take,
)
from hfdsl.graph.signatures import ListType, PortType, RecordType
from hfdsl.graph.values import (
    LOST,
    ListValue,
    Mismatch,
    MismatchKind,
    RecordValue,
    Value,
    operand_value,
)
from hfdsl.types.batches import Batch, schema
from hfdsl.types.columns import ColumnSpec, MetricSpec, ObjSpec
from hfdsl.types.dims import KeptGroups, Size, at_most, atom_size, constant
from hfdsl.types.dtypes import Bool

ROWS: Any = TypeVar("rows")  # type: ignore[misc]  # its name is what messages show
"""The row dim of a filter's column, bound to the rows of the filtered record."""


@dataclass(frozen=True, slots=True)
class Inference:
    """The result of inference: the value of each node, the dims that its call bound, and all mismatches.

    ``alike[i]`` is the first node with the operation, the arguments, the result and the bindings of node i; a loop
    unrolls into many such nodes. They may differ in the index of a mini-batch, or in the role that is called.
    """

    values: tuple[Value, ...]
    bindings: tuple[Mapping[Any, Size], ...]
    alike: tuple[int, ...]
    mismatches: tuple[Mismatch, ...]
    misfits: frozenset[tuple[int, str]]  # the nodes and ports of all mismatches
    misplaced: frozenset[tuple[int, str]]  # those where another value is meant: sizes may decide a number of rows

    def rows(self, node: int) -> Size | None:
        """The rows of a record."""
        value = self.values[node]
        return value.rows if isinstance(value, RecordValue) else None

    def operand(self, operand: Operand) -> Value:
        """The value of a node or of one of its columns."""
        return operand_value(self.values, operand)


def infer(graph: Graph) -> Inference:
    """Infer the sizes and mismatches of a traced dataflow.

    A loop over mini-batches or epochs unrolls into many nodes with equal operations and arguments. The first one that
    fits determines the result and bindings of all; a node with a mistake is matched by itself, as its finding names it.
    """
    values: list[Value] = []
    bindings: list[Mapping[Any, Size]] = []
    alike: list[int] = []
    mismatches: list[Mismatch] = []
    filters = _Filters(graph)
    correct: dict[object, int] = {}
    for node in graph.nodes:
        work, before = _work(node, values), len(mismatches)
        first = correct.get(work, node.id)
        if first != node.id:
            values.append(values[first])
            bindings.append(bindings[first])
        else:
            call = CallBindings(node, mismatches)
            values.append(_value(node, call, values, filters))
            bindings.append(call.bound)
            if len(mismatches) == before:
                correct[work] = node.id
        alike.append(first)
    return Inference(
        values=tuple(values),
        bindings=tuple(bindings),
        alike=tuple(alike),
        mismatches=tuple(mismatches),
        misfits=frozenset((mismatch.node, mismatch.port) for mismatch in mismatches),
        misplaced=frozenset(
            (mismatch.node, mismatch.port) for mismatch in mismatches if mismatch.kind is not MismatchKind.ROWS_UNKNOWN
        ),
    )


def _work(node: Node, values: list[Value]) -> object:
    """A key of a node's operation and arguments, by identity, which ``values`` and the graph keep alive.

    An input or a filter equals no other node, since its rows are new.
    """
    operation: object = node.op
    match node.op:
        case Input() | Filter():
            return node.id
        case MiniBatch(_, count):
            operation = MiniBatch, count
        case RoleCall(_, signature) | FunctionCall(signature):
            operation = signature
    return operation, *[(port, *_identity(operand, values)) for port, operand in node.arguments]


def _identity(operand: Operand, values: list[Value]) -> tuple[object, ...]:
    if isinstance(operand, Ref):
        return id(values[operand.node]), operand.column
    return (id(operand.value),) if isinstance(operand, Constant) else ()


def _value(node: Node, call: CallBindings, values: list[Value], filters: _Filters) -> Value:
    match node.op:
        case Input(_, record, rows):
            return RecordValue(RecordType(record), rows or schema(record).row)
        case Repeat(times):
            return _scaled(operand_value(values, node.arguments[0][1]), constant(times))
        case MiniBatch(_, count):
            return _scaled(operand_value(values, node.arguments[0][1]), constant(1) / constant(count))
        case Take(rows):
            source = operand_value(values, node.arguments[0][1])
            return RecordValue(source.type, constant(rows)) if isinstance(source, RecordValue) else source
        case Queue():
            return _queued(node.op, operand_value(values, node.arguments[0][1]))
        case Filter(group):
            return _filtered_record(node, group, call, values, filters)
        case Pack(record):
            _match_columns(record, node, call, values)
            return RecordValue(RecordType(record), _result_rows(record, call))
        case Present():
            column = operand_value(values, node.arguments[0][1])
            return replace(column, optional=False) if isinstance(column, (ColumnSpec, ObjSpec)) else None
        case op:
            wired = {name for name, _ in node.arguments}
            call.broken = any(port.required and port.name not in wired for port in op.signature.ports)
            per_rank = op.signature.per_rank
            for name, operand in node.arguments:
                port = op.signature.port(name)
                actual = operand if isinstance(operand, Constant) else operand_value(values, operand)
                call.broken |= actual is None
                if port is not None and actual is not None and not isinstance(operand, ErrorValue):
                    formal = op.signature.takes(port) if per_rank else port.type
                    call.match(name, formal, actual, operand if isinstance(operand, Ref) else None)
            return _result(node.result, call)


def _queued(queue: Queue, source: Value) -> Value:
    """The value of a queue: all that a step may put in, also if a filter removed rows, unless it takes whole steps."""
    if not isinstance(source, RecordValue) or source.rows is None:
        return source
    rows = source.rows
    if queue.rows is not None:
        rows = constant(queue.rows) if isinstance(queue.rows, int) else atom_size(queue.rows)
    elif queue.decides:
        rows = at_most(rows)
    return RecordValue(source.type, rows)


def _filtered_record(node: Node, group: int, call: CallBindings, values: list[Value], filters: _Filters) -> Value:
    """The record with the rows that a filter keeps; filters by the same column keep the same rows."""
    (_, batch), (_, keep) = node.arguments
    record, column = operand_value(values, batch), keep if isinstance(keep, Constant) else operand_value(values, keep)
    if not isinstance(record, RecordValue) or record.rows is None:
        return record
    call.bound[ROWS], call.bound_by[ROWS], before = record.rows, "batch", len(call.mismatches)
    if column is not None and LOST not in record.rows.atoms:
        call.match("keep", ColumnSpec(Bool, (atom_size(ROWS),)), column, keep if isinstance(keep, Ref) else None)
    wrong = any(mismatch.kind is not MismatchKind.ROWS_UNKNOWN for mismatch in call.mismatches[before:])
    if wrong or column is None or LOST in record.rows.atoms:
        return RecordValue(record.type, atom_size(LOST))
    return RecordValue(record.type, atom_size(filters.kept_groups(keep, group, record.rows)) * constant(group))


@dataclass
class _Filters:
    """The numbers of kept groups by filter: equal where filters read equal columns."""

    graph: Graph
    groups: dict[tuple[Operand, int], KeptGroups] = field(default_factory=dict)

    @cached_property
    def equal(self) -> tuple[int, ...] | None:
        """By node the first one with an equal value; None for at most one filter, which needs no comparison."""
        filters = sum(isinstance(node.op, Filter) for node in self.graph.nodes)
        return equal_values(self.graph) if filters > 1 else None

    def kept_groups(self, keep: Operand, group: int, rows: Size) -> KeptGroups:
        """The number of groups of these rows that a filter by a column keeps."""
        column = keep if self.equal is None else equal_column(self.graph, self.equal, keep)
        return self.groups.setdefault((column, group), KeptGroups(len(self.groups) + 1, rows / constant(group)))


def _match_columns(record: type[Batch], node: Node, call: CallBindings, values: list[Value]) -> None:
    fields = schema(record).fields
    for name, operand in node.arguments:
        actual = operand if isinstance(operand, Constant) else operand_value(values, operand)
        call.broken |= actual is None
        number = isinstance(operand, Constant) and isinstance(operand.value, (int, float))
        if actual is not None and not (number and isinstance(fields[name], MetricSpec)):
            call.match(name, fields[name], actual, operand if isinstance(operand, Ref) else None)


def _result(declared: PortType, call: CallBindings) -> Value:
    if isinstance(declared, RecordType):
        return RecordValue(declared, _result_rows(declared.record, call))
    if isinstance(declared, ColumnSpec):
        return replace(declared, dims=(call.row(declared.dims[0]), *(call.inner(dim) for dim in declared.dims[1:])))
    if isinstance(declared, ObjSpec):
        return replace(declared, row=call.row(declared.row))
    return ListValue(declared.kind, _result(declared.inner, call)) if isinstance(declared, ListType) else declared


def _result_rows(record: type[Batch], call: CallBindings) -> Size | None:
    row = schema(record).row
    return None if row is None else call.row(row)


def _scaled(value: Value, factor: Size) -> Value:
    if isinstance(value, RecordValue) and value.rows is not None:
        return RecordValue(value.type, value.rows * factor)
    return value
