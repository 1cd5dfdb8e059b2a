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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hfdsl.graph.equal_values import equal_values
from hfdsl.graph.infer import Inference
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
    Queue,
    Ref,
    Repeat,
    RoleCall,
    Take,
)
from hfdsl.graph.reads import Reads, RowColumn, reads_of, signature_rows
from hfdsl.graph.row_steps import (
    FillStep,
    FilterKey,
    FilterStep,
    GroupStep,
    Origin,
    PartStep,
    QueueStep,
    RepeatStep,
    RowStep,
    SampleStep,
    TakeStep,
)
from hfdsl.graph.samples import NO_TOKENS, Tokens, call_outputs, generated_dims, input_tokens
from hfdsl.graph.signatures import VALUE, Signature
from hfdsl.types.dims import KeptGroups, Size
from hfdsl.types.rows import Grouped, Whole

ValueRows: TypeAlias = "Origin | Mapping[str, Origin | None] | None"
"""The origin of a value's rows; by column for a record of columns with different origins; None if unknown."""


@dataclass(frozen=True)
class Origins:
    """The origins of all values of a graph; ``filters`` names equal filters by one of them.

    ``reads`` has by node what a call, a filter or a record of columns reads.
    """

    nodes: tuple[Node, ...]
    reads: tuple[Sequence[Reads], ...]
    rows: tuple[ValueRows, ...]
    tokens: tuple[Tokens, ...]
    filters: Mapping[KeptGroups, FilterKey]

    def columns(self, node: int, reads: Sequence[Reads] | None = None) -> list[RowColumn]:
        """The columns with rows that a call, a filter or a record of columns reads, or those of some arguments."""
        arguments: Any = self.nodes[node].arguments
        return [
            column.of_node(arguments[position][1].node)
            for position, columns, _ in (self.reads[node] if reads is None else reads)
            for column in columns
        ]

    def one_of_each_origin(self, node: Node, reads: Sequence[Reads]) -> Iterator[RowColumn]:
        """The first column of each of these arguments, or all columns of one whose rows have several origins."""
        arguments: Any = node.arguments
        for position, columns, _ in reads:
            source = arguments[position][1].node
            for column in columns[:1] if isinstance(self.rows[source], Origin) else columns:
                yield column.of_node(source)

    def have_same_rows(self, node: Node, reads: Sequence[Reads]) -> bool:
        """Whether the same steps lead from all of these arguments to one source: nothing is to be compared."""
        arguments: Any = node.arguments
        paths: list[tuple[int, tuple[RowStep, ...] | None]] = []
        for position, _, _ in reads:
            rows = self.rows[arguments[position][1].node]
            if not isinstance(rows, Origin):
                return False
            paths.append((rows.source, rows.path()))
        return paths == paths[:1] * len(paths)

    def have_one_sample(self, node: Node, reads: Sequence[Reads]) -> bool:
        """Whether the tokens that a dim counts are in all of these arguments of one sample and of the same rows."""
        arguments: Any = node.arguments
        samples: dict[Any, tuple[int, ValueRows]] = {}
        for position, _, inner in reads:
            source = arguments[position][1].node
            tokens, rows = self.tokens[source], self.rows[source]
            if tokens.columns is not None or not isinstance(rows, Origin):
                return False
            for dim in inner:
                if dim in tokens.calls:
                    call, other_rows = samples.setdefault(dim, (tokens.calls[dim], rows))
                    if call != tokens.calls[dim] or other_rows is not rows:
                        return False
        return True

    def of(self, column: RowColumn) -> Origin | None:
        """The origin of a column's rows."""
        return self.rows_of(column.node, column.name)

    def rows_of(self, node: int, column: str | None) -> Origin | None:
        """The origin of the rows of a value, or of a column of it."""
        rows = self.rows[node]
        return rows if isinstance(rows, Origin) or rows is None else rows.get(column or VALUE)

    def samples(self, column: RowColumn) -> Mapping[Any, int]:
        """By inner dim of a column the call that generated it."""
        return self.tokens[column.node].of(column.name, column.inner)


def stored_column(graph: Graph, operand: Operand) -> Operand:
    """The column of a call or input that a derived column is read from."""
    while isinstance(operand, Ref):
        source = graph.nodes[operand.node].source(operand.column or VALUE)
        if source is None:
            break
        operand = source
    return operand


@dataclass(frozen=True, slots=True)
class _Effect:
    """The effect of a call on rows and tokens, shared by all equal calls.

    The result has the ``rows`` of the first of these columns with a known origin: each is an argument's position, the
    column's name and the step to the result. It has the samples of what it ``inherits``, and ``new`` dims of tokens.
    """

    rows: tuple[tuple[int, str | None, GroupStep | None], ...]
    inherits: tuple[Reads, ...]
    new: tuple[Any, ...]

    @classmethod
    def of(cls, inference: Inference, node: Node, signature: Signature, reads: Sequence[Reads]) -> _Effect:
        """The effect of a call with this signature on the arguments that it reads."""
        has_row_map = signature.registration is None or (signature.protocol is not None and not signature.per_rank)
        opaque = not has_row_map or signature.rows == Whole  # a body that says nothing of its rows
        outputs = call_outputs(inference, node, signature)
        inherits = () if opaque or not any(inner for *_, inner in outputs) else tuple(reads)
        new = generated_dims(node, signature, reads, outputs)
        return cls(() if opaque else tuple(_sources_of_rows(signature, reads)), inherits, tuple(new))


def _sources_of_rows(
    signature: Signature, reads: Sequence[Reads]
) -> Iterator[tuple[int, str | None, GroupStep | None]]:
    """The columns whose rows, or groups of them, a result has: those of the arguments with its row dim."""
    row = signature_rows(signature.returns) if signature.gives == "whole" else None
    group = signature.rows.n if isinstance(signature.rows, Grouped) else 1
    for position, columns, _ in reads if row is not None else ():
        for column in columns:
            if column.row is None or row is None:
                continue
            if column.row == row:
                yield position, column.name, GroupStep(group, group) if group > 1 else None
            elif group > 1 and len(column.row.terms) == 1:
                result = (row / column.row).value
                if result is not None and (result * group).denominator == 1 and result > 0:
                    yield position, column.name, GroupStep(group, int(result * group))


def origins(graph: Graph, inference: Inference) -> Origins:
    """One forward pass over a traced graph."""
    return _Pass(graph, inference).run()


@dataclass
class _Pass:
    graph: Graph
    inference: Inference

    def run(self) -> Origins:
        self.reads: list[Sequence[Reads]] = []
        self.rows: list[ValueRows] = []
        self.tokens: list[Tokens] = []
        self.filters: dict[KeptGroups, FilterKey] = {}
        self.effects: dict[int, _Effect] = {}
        filters = sum(isinstance(node.op, Filter) for node in self.graph.nodes)
        self.equal = equal_values(self.graph) if filters > 1 else None
        self.keys: dict[tuple[Ref, Origin | None, int], FilterKey] = {}
        for node, first in zip(self.graph.nodes, self.inference.alike, strict=True):
            if not isinstance(node.op, (RoleCall, FunctionCall, Filter, Pack)):
                self.reads.append(())
            else:
                self.reads.append(self.reads[first] if first < node.id else reads_of(self.inference, node))
            match node.op:
                case Input(_, record):
                    self.rows.append(Origin((), node.id))
                    self.tokens.append(input_tokens(node.id, record))
                case RoleCall(_, signature) | FunctionCall(signature):
                    if first == node.id:
                        self.effects[first] = _Effect.of(self.inference, node, signature, self.reads[first])
                    self.call(node, self.effects[first])
                case Derived():
                    self.rows.append(self.derived(node, node.op))
                    self.tokens.append(self.derived_tokens(node, node.op))
        reads, rows, tokens = tuple(self.reads), tuple(self.rows), tuple(self.tokens)
        return Origins(self.graph.nodes, reads, rows, tokens, self.filters)

    # -- rows

    def of(self, operand: Operand, column: str | None = None) -> ValueRows:
        """The origin of an operand, or of a column of it."""
        if not isinstance(operand, Ref):
            return None
        rows, column = self.rows[operand.node], operand.column or column
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
        if isinstance(op, Queue) and not op.splits:
            return rows
        step = self.step(node, op)
        if step is None:
            return None
        if isinstance(rows, Origin):
            return rows.after(step)
        return {name: None if origin is None else origin.after(step) for name, origin in rows.items()}

    def step(self, node: Node, op: Derived) -> RowStep | None:
        """The effect of an operation on the rows of its argument; None if a mistake hides it."""
        before = self.inference.rows(node.batch.node) if node.batch is not None else None
        after = self.inference.rows(node.id)
        match op:
            case Repeat(times):
                return RepeatStep(times)
            case MiniBatch(index, count) if after is not None:
                return PartStep(index, count, after)
            case Take(rows, fill) if before is not None:
                return FillStep(rows, before) if fill else TakeStep(rows, before)
            case Queue() if before is not None:
                return QueueStep(node.id, before)
            case Filter(group):
                return self.filter_step(node, group, after)
        return None

    def filter_step(self, node: Node, group: int, after: Size | None) -> RowStep | None:
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

    def call(self, node: Node, effect: _Effect) -> None:
        """The origin of a call's result, and the samples of its columns."""
        rows = self.result_rows(node, effect)
        if rows is None:
            rows = Origin((), node.id)
        elif effect.new:
            rows = rows.after(SampleStep(node.id))
        self.rows.append(rows)
        self.tokens.append(self.call_tokens(node, effect))

    def result_rows(self, node: Node, effect: _Effect) -> Origin | None:
        """The rows of a result: those of the first argument that has rows for it, or groups of them."""
        for position, column, step in effect.rows:
            origin = self.of(node.arguments[position][1], column)
            if isinstance(origin, Origin):
                return origin if step is None else origin.after(step)
        return None

    # -- tokens

    def call_tokens(self, node: Node, effect: _Effect) -> Tokens:
        """The samples of a call's columns: those that its arguments agree on, and its own."""
        call_of: dict[Any, int | None] = {}
        for reads in effect.inherits:
            source: Any = node.arguments[reads.position][1]
            for dim, call in self.tokens[source.node].read_by(reads):
                if call_of.setdefault(dim, call) != call:
                    call_of[dim] = None
        call_of |= dict.fromkeys(effect.new, node.id)
        calls = {dim: call for dim, call in call_of.items() if call is not None}
        return Tokens(calls) if calls else NO_TOKENS

    def derived_tokens(self, node: Node, op: Derived) -> Tokens:
        """The samples of a derived value: those of its source, or of its columns' sources."""
        if not isinstance(op, Pack):
            source = node.arguments[0][1] if node.arguments else None
            return self.tokens[source.node].in_column(source.column) if isinstance(source, Ref) else NO_TOKENS
        sources = [self.tokens[ref.node] for ref in node.refs]
        all_known = 0 < len(sources) == len(node.arguments) and not self.inference.mismatches
        if all_known and sources[0].columns is None and sources == sources[:1] * len(sources):
            return sources[0]
        columns: dict[str, Mapping[Any, int]] = {}
        for position, [column], _ in self.reads[node.id]:
            operand: Any = node.arguments[position][1]
            columns[column.port] = self.tokens[operand.node].of(column.name, column.inner)
        return Tokens(columns=columns)
