"""Origins: which rows a value has, as an abstract interpretation of the graph.

Row counts say how many rows there are. An origin says which: the ``source`` that the rows come from, and the steps from
a row of the value back to a row of the source. A worked example, two prompts and four rows::

    questions = hf.repeat(prompts, 2)             # RepeatStep(2)                        0 0 1 1 of 'prompts'
    rollout = actor.generate(questions)           # SampleStep, RepeatStep(2)             0 0 1 1
    first, second = hf.minibatches(rollout, 2)    # PartStep(1, 2), SampleStep, RepeatStep(2) second: 1 1
    scores = reward.score(second)                 # the steps of 'second'              1 1

``actor.update(first, scores)`` has as many rows on both sides, and they are answers to different questions: row 0 of
``first`` comes from prompt 0, row 0 of ``scores`` from prompt 1.

A body keeps the origin of its arguments by its row dependence: ``Independent`` keeps every row; ``Grouped(n)`` keeps
groups, and a row of its result is any row of the group (``GroupStep``); ``Whole`` ends it, so that its result is a
source of its own, of which nothing is known. So does everything else whose rows the graph does not know.

There are two levels. The question is the row of the source. The *sample* is the row of the call that generated it: two
calls of ``generate`` answer the same questions with other tokens. A column has a sample for each of its inner dims
(``Tokens``), since it is a dim such as R, the tokens of a response, that a call introduces with the tokens themselves.

Why intervals are right: a step takes an interval of rows to an interval that has all rows which they may come from. So
rows of two values whose intervals at one source are disjoint are different rows, whatever the bodies do; where the
intervals meet, nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from hfdsl.graph.equal_values import equal_values
from hfdsl.graph.infer import Inference, RecordValue
from hfdsl.graph.program import (
    Derived,
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
    Ref,
    Repeat,
    RoleCall,
    Take,
)
from hfdsl.graph.row_steps import (
    FillStep,
    FilterKey,
    FilterStep,
    GroupStep,
    Origin,
    PartStep,
    RepeatStep,
    RowStep,
    SampleStep,
    TakeStep,
)
from hfdsl.graph.signatures import VALUE, PortType, RecordType, Signature
from hfdsl.protocols.state import effects_of
from hfdsl.types.batches import Batch, schema
from hfdsl.types.columns import ColumnSpec, FieldSpec, ObjSpec
from hfdsl.types.dims import KeptGroups, Size
from hfdsl.types.dtypes import FLOATS, Bool, Int8, Int16, Int32, Int64, UInt8
from hfdsl.types.rows import Grouped, Whole

ValueRows: TypeAlias = "Origin | Mapping[str, Origin | None] | None"
"""The origin of a value's rows; by column for a record of columns with different origins; None where it is unknown."""

Tokens: TypeAlias = Mapping[str, Mapping[Any, int]]
"""By column and inner dim the call that generated what the dim counts; only what is known."""

TOKEN_DTYPES = (Int8, Int16, Int32, Int64, UInt8)


class RowColumn(NamedTuple):  # a program has thousands of them, and a tuple is made fast
    """A column that an operation reads: at which port, which value it is, and the row dim that it has there.

    ``spec`` is the column as it is declared, ``rows`` how many rows it has here, ``inner`` its dims beside them.
    """

    port: str
    node: int
    name: str | None
    row: Size | None
    rows: Size | None
    spec: ColumnSpec | ObjSpec
    inner: tuple[Any, ...]

    @property
    def ref(self) -> Ref:
        """The value."""
        return Ref(self.node, self.name)


@dataclass(frozen=True)
class Origins:
    """The origins of all values of a graph; ``filters`` names equal filters by one of them.

    ``columns`` has by node the columns with rows that a call, a filter or a record of columns reads.
    """

    columns: tuple[Sequence[RowColumn], ...]
    rows: tuple[ValueRows, ...]
    tokens: tuple[Tokens, ...]
    filters: Mapping[KeptGroups, FilterKey]

    def of(self, column: RowColumn) -> Origin | None:
        """The origin of a column's rows."""
        rows = self.rows[column.node]
        return rows if isinstance(rows, Origin) or rows is None else rows.get(column.name or VALUE)

    def samples(self, column: RowColumn) -> Mapping[Any, int]:
        """By inner dim of a column the call that generated it."""
        return self.tokens[column.node].get(column.name or VALUE, {})


def signature_rows(kind: PortType) -> Size | None:
    """The row dim of what a signature declares."""
    if isinstance(kind, RecordType):
        return schema(kind.record).row
    if isinstance(kind, ObjSpec):
        return kind.row
    return kind.dims[0] if isinstance(kind, ColumnSpec) else None


def row_columns(inference: Inference, node: Node) -> list[RowColumn]:
    """The columns with rows that a call reads, or that a record is put together from."""
    columns: list[RowColumn] = []
    ports = _ports(node.op.signature) if isinstance(node.op, (RoleCall, FunctionCall)) else _fields(node.op)
    for port, operand in node.arguments:
        if not isinstance(operand, Ref) or (inference.misplaced and (node.id, port) in inference.misplaced):
            continue
        source, name, value = operand.node, operand.column, inference.values[operand.node]
        formal, row = ports.get(port, (None, None))
        if isinstance(value, RecordValue):
            read = formal if isinstance(formal, RecordType) else value.type
            declared = _columns(value.type, read) if name is None else _column(value.type, name)
            columns += [
                RowColumn(port=port, node=source, name=name, row=row, rows=value.rows, spec=spec, inner=inner)
                for name, spec, inner in declared
            ]
        elif isinstance(value, (ColumnSpec, ObjSpec)) and name is None:
            columns.append(
                RowColumn(
                    port=port, node=source, name=name, row=row, rows=value.dims[0], spec=value, inner=_inner(value)
                )
            )
    return columns


_Declared: TypeAlias = "tuple[str, ColumnSpec | ObjSpec, tuple[Any, ...]]"
"""The name of a column with rows, as what it is declared, and its dims beside them."""


@lru_cache(maxsize=1024)  # few kinds of records, read many times
def _columns(have: RecordType, read: RecordType) -> tuple[_Declared, ...]:
    """The columns with rows that a reader of one record gets of another."""
    names = schema(have.record).fields.keys()
    return tuple(column for name in schema(read.record).fields if name in names for column in _column(have, name))


@lru_cache(maxsize=1024)
def _column(kind: RecordType, name: str) -> tuple[_Declared, ...]:
    """A column of a record, if it has rows."""
    spec = schema(kind.record).fields[name]
    return ((name, spec, _inner(spec)),) if isinstance(spec, (ColumnSpec, ObjSpec)) else ()


def _inner(spec: ColumnSpec | ObjSpec) -> tuple[Any, ...]:
    """The dims of a column beside its rows."""
    return tuple(atom for size in spec.dims[1:] for atom in size.atoms if isinstance(atom, type))


_Formals: TypeAlias = "Mapping[str, tuple[PortType, Size | None]]"
"""By port what it takes, and the row dim of that."""


@lru_cache(maxsize=1024)
def _ports(signature: Signature) -> _Formals:
    return {port.name: (port.type, signature_rows(port.type)) for port in signature.ports}


@lru_cache(maxsize=1024)
def _fields(op: Derived) -> _Formals:
    fields = schema(op.record).fields if isinstance(op, Pack) else {}
    return {name: (spec, signature_rows(spec)) for name, spec in fields.items()}


def stored_column(graph: Graph, operand: Operand) -> Operand:
    """The column of a call or input that a derived column is read from."""
    while isinstance(operand, Ref):
        source = graph.nodes[operand.node].source(operand.column or VALUE)
        if source is None:
            break
        operand = source
    return operand


@dataclass(frozen=True, slots=True)
class _Result:
    """What a signature says of its result: the row dim of a whole value, and the rows that it comes from.

    ``opaque`` is a body that says nothing of those: ``Whole``, or one without a protocol that the graph knows;
    ``reads`` is a role's body that reads weights. ``columns`` are those of a record.
    """

    row: Size | None
    opaque: bool
    reads: bool
    columns: tuple[_Declared, ...]

    @classmethod
    def of(cls, signature: Signature) -> _Result:
        """Read from the signature of a function, or of a role's method."""
        known = signature.registration is None or (signature.protocol is not None and not signature.per_rank)
        row = signature_rows(signature.returns) if signature.gives == "whole" else None
        reads = signature.registration is not None and any(e.kind == "reads" for e in effects_of(signature.body))
        record = signature.result
        columns = _columns(record, record) if isinstance(record, RecordType) else ()
        return cls(row, not known or signature.rows == Whole, reads, columns)


def origins(graph: Graph, inference: Inference) -> Origins:
    """One forward pass over a traced graph."""
    return _Pass(graph, inference).run()


@dataclass
class _Pass:
    graph: Graph
    inference: Inference

    def run(self) -> Origins:
        self.columns: list[Sequence[RowColumn]] = []
        self.rows: list[ValueRows] = []
        self.tokens: list[Tokens] = []
        self.filters: dict[KeptGroups, FilterKey] = {}
        self.results: dict[Signature, _Result] = {}
        filters = sum(isinstance(node.op, Filter) for node in self.graph.nodes)
        self.equal = equal_values(self.graph) if filters > 1 else None
        self.keys: dict[tuple[Ref, Origin | None, int], FilterKey] = {}
        for node in self.graph.nodes:
            reads = isinstance(node.op, (RoleCall, FunctionCall, Filter, Pack))
            self.columns.append(row_columns(self.inference, node) if reads else [])
            match node.op:
                case Input(_, record):
                    self.rows.append(Origin((), node.id))
                    self.tokens.append(_input_tokens(node.id, record))
                case RoleCall(_, signature) | FunctionCall(signature):
                    self.call(node, signature)
                case Derived():
                    self.rows.append(self.derived(node, node.op))
                    self.tokens.append(self.derived_tokens(node, node.op))
        return Origins(tuple(self.columns), tuple(self.rows), tuple(self.tokens), self.filters)

    # -- rows

    def of(self, operand: Operand) -> ValueRows:
        """The origin of an operand."""
        return self.rows_of(operand.node, operand.column) if isinstance(operand, Ref) else None

    def rows_of(self, node: int, column: str | None) -> ValueRows:
        """The origin of a value or of its column."""
        rows = self.rows[node]
        return rows if isinstance(rows, Origin) or rows is None or column is None else rows.get(column)

    def derived(self, node: Node, op: Derived) -> ValueRows:
        """The origin of what an operation on rows gives."""
        if isinstance(op, Pack):
            columns: dict[str, Any] = {n: self.of(v) for n, v in node.arguments if isinstance(v, (Ref, ErrorValue))}
            origins = [*columns.values()]
            same = bool(origins) and origins == origins[:1] * len(origins)  # most are one object: quick to compare
            return origins[0] if same else columns
        rows = self.of(node.arguments[0][1]) if node.arguments else None
        if rows is None or isinstance(op, Present) or (isinstance(op, MiniBatch) and op.count == 1):
            return rows
        step = self.step(node, op)
        if step is None:
            return None
        if isinstance(rows, Origin):
            return rows.after(step)
        return {name: None if origin is None else origin.after(step) for name, origin in rows.items()}

    def step(self, node: Node, op: Derived) -> RowStep | None:
        """The effect of an operation on the rows of its argument; None where a mistake hides it."""
        before = self.inference.rows(node.batch.node) if node.batch is not None else None
        after = self.inference.rows(node.id)
        match op:
            case Repeat(times):
                return RepeatStep(times)
            case MiniBatch(index, count) if after is not None:
                return PartStep(index, count, after)
            case Take(rows, fill) if before is not None:
                return FillStep(rows, before) if fill else TakeStep(rows, before)
            case Filter(group):
                return self.kept(node, group, after)
        return None

    def kept(self, node: Node, group: int, after: Size | None) -> RowStep | None:
        """The key of a filter: its column, wherever it was read from, and the rows that the column has."""
        keep, column = node.arguments[1][1], stored_column(self.graph, node.arguments[1][1])
        rows, atom = self.of(keep), None if after is None else next(iter(after.atoms), None)
        if not isinstance(column, Ref) or not isinstance(atom, KeptGroups):
            return None
        if self.equal is not None:
            column = Ref(self.equal[column.node], column.column)
        same = column, rows if isinstance(rows, Origin) else None, group
        name = self.keys.setdefault(same, FilterKey(len(self.keys), column, group))
        self.filters.setdefault(atom, name)
        return FilterStep(name, node.id)

    def call(self, node: Node, signature: Signature) -> None:
        """The origin of a call's result, and the samples of its columns."""
        if signature not in self.results:
            self.results[signature] = _Result.of(signature)
        columns, result = self.columns[node.id], self.results[signature]
        introduced = self.call_tokens(node, result, columns)
        rows = None if result.opaque else self.result_rows(signature, result.row, columns)
        if rows is None:
            rows = Origin((), node.id)
        elif introduced:
            rows = rows.after(SampleStep(node.id))
        self.rows.append(rows)

    def result_rows(self, signature: Signature, row: Size | None, columns: Sequence[RowColumn]) -> Origin | None:
        """The rows of a result: those of the arguments with its row dim, or groups of them."""
        if row is None:
            return None
        group = signature.rows.n if isinstance(signature.rows, Grouped) else 1
        for column in columns:
            origin = self.rows_of(column.node, column.name)
            if column.row is None or not isinstance(origin, Origin):
                continue
            if column.row == row:
                return origin.after(GroupStep(group, group)) if group > 1 else origin
            if group > 1 and len(column.row.terms) == 1:
                result = (row / column.row).value
                if result is not None and (result * group).denominator == 1 and result > 0:
                    return origin.after(GroupStep(group, int(result * group)))
        return None

    # -- tokens

    def call_tokens(self, node: Node, result: _Result, columns: Sequence[RowColumn]) -> bool:
        """Note the samples of a call's columns; whether it generates some."""
        outputs = result.columns or _loose_column(self.inference, node)
        if not any(inner for *_, inner in outputs):
            self.tokens.append({})
            return False
        inherited: dict[Any, set[int | None]] = {}
        for column in columns:
            if column.inner:
                samples = self.tokens[column.node].get(column.name or VALUE, {})
                for dim in column.inner:
                    inherited.setdefault(dim, set()).add(samples.get(dim))
        new: set[Any] = set()
        if _may_generate(node, result, columns):
            new = {dim for _, spec, inner in outputs if is_token_column(spec) for dim in inner if dim not in inherited}
            new = {dim for dim in new if _is_sampled(result, dim, [spec for _, spec, _ in outputs], inherited)}
        known = {dim: next(iter(calls)) for dim, calls in inherited.items() if len(calls) == 1 and not result.opaque}
        known |= dict.fromkeys(new, node.id)
        self.tokens.append(
            {name: {d: c for d in inner if (c := known.get(d)) is not None} for name, _, inner in outputs}
        )
        return bool(new)

    def derived_tokens(self, node: Node, op: Derived) -> Tokens:
        """The samples of a derived value: those of its source."""
        if isinstance(op, Pack):
            return {name: self._tokens(value) for name, value in node.arguments if isinstance(value, Ref)}
        source = node.arguments[0][1] if node.arguments else None
        if not isinstance(source, Ref):
            return {}
        return self.tokens[source.node] if source.column is None else {VALUE: self._tokens(source)}

    def _tokens(self, ref: Ref) -> Mapping[Any, int]:
        return self.tokens[ref.node].get(ref.column or VALUE, {})


def _token_dims(record: type[Batch]) -> Mapping[str, frozenset[Any]]:
    """By column of a rollout the dims that count its tokens: those of a column of tokens and of one of floats."""
    columns = {
        name: (spec, _inner(spec)) for name, spec in schema(record).fields.items() if isinstance(spec, ColumnSpec)
    }
    tokens = {dim for spec, inner in columns.values() if is_token_column(spec) for dim in inner}
    floats = {dim for spec, inner in columns.values() if issubclass(spec.dtype, FLOATS) for dim in inner}
    return {name: frozenset(d) for name, (_, inner) in columns.items() if (d := tokens & floats & set(inner))}


def _input_tokens(node: int, record: type[Batch]) -> Tokens:
    """The samples of an input: a rollout of a data set or a buffer has tokens of its own."""
    return {name: dict.fromkeys(dims, node) for name, dims in _token_dims(record).items()}


def is_token_column(spec: FieldSpec) -> bool:
    """Whether a column may hold tokens: integers."""
    return isinstance(spec, ColumnSpec) and spec.dtype in TOKEN_DTYPES


def _loose_column(inference: Inference, node: Node) -> Sequence[_Declared]:
    value = inference.values[node.id]
    return [(VALUE, value, _inner(value))] if isinstance(value, (ColumnSpec, ObjSpec)) else []


def _may_generate(node: Node, result: _Result, columns: Sequence[RowColumn]) -> bool:
    """Whether the tokens that a call adds may be samples: a role's, from tokens or from weights.

    A function is stateless, and a role that makes tokens of text alone may be a tokenizer, whose results are equal.
    """
    return isinstance(node.op, RoleCall) and (
        result.reads or any(is_token_column(column.spec) and len(column.spec.dims) > 1 for column in columns)
    )


def _is_sampled(result: _Result, dim: Any, columns: list[ColumnSpec | ObjSpec], inherited: Mapping[Any, Any]) -> bool:
    """Whether a new dim counts generated tokens, and not what a model finds in its input, such as steps.

    It reads weights; or it appends tokens to those that it was given, as in ``i64[B, Add[P, R]]``; or it gives a float
    for each of them, their log-probs.
    """
    having = [spec for spec in columns if dim in _inner(spec)]
    appended = any(is_token_column(spec) and any(other in inherited for other in _inner(spec)) for spec in having)
    valued = any(
        isinstance(spec, ColumnSpec) and not is_token_column(spec) and spec.dtype is not Bool for spec in having
    )
    return result.reads or appended or valued
