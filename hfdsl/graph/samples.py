"""Samples: which call sampled the tokens of a value, for each dim that counts tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

from hfdsl.graph.infer import Inference
from hfdsl.graph.program import Node, RoleCall
from hfdsl.graph.reads import DeclaredColumn, Reads, columns_read, inner_dims
from hfdsl.graph.signatures import VALUE, RecordType, Signature
from hfdsl.protocols.state import effects_of
from hfdsl.types.batches import Batch, schema
from hfdsl.types.columns import ColumnSpec, FieldSpec, ObjSpec
from hfdsl.types.dtypes import FLOATS, Bool, Int8, Int16, Int32, Int64, UInt8

TOKEN_DTYPES = (Int8, Int16, Int32, Int64, UInt8)
"""The dtypes of columns that may hold tokens."""


class Tokens(NamedTuple):
    """The call that generated the tokens that a dim of a value counts, for each dim with a known call.

    ``calls`` has it by dim, for all columns alike; ``columns`` by column and dim, for a record of other samples.
    """

    calls: Mapping[Any, int] = MappingProxyType({})
    columns: Mapping[str, Mapping[Any, int]] | None = None

    def of(self, name: str | None, inner: Sequence[Any]) -> Mapping[Any, int]:
        """The call that generated the tokens of each inner dim of a column."""
        if self.columns is not None:
            return self.columns.get(name or VALUE, {})
        return {dim: self.calls[dim] for dim in inner if dim in self.calls}

    def read_by(self, reads: Reads) -> Iterable[tuple[Any, int | None]]:
        """The inner dims that an argument reads, each with the call that generated it; None if unknown."""
        if self.columns is None:
            return [(dim, self.calls.get(dim)) for dim in reads.inner]
        samples = ((column, self.of(column.name, ())) for column in reads.columns)
        return [(dim, calls.get(dim)) for column, calls in samples for dim in column.inner]

    def in_column(self, name: str | None) -> Tokens:
        """The samples of a column as a value of its own; for None those of the value itself."""
        return self if name is None or self.columns is None else Tokens(columns={VALUE: self.of(name, ())})


NO_TOKENS = Tokens()


def input_tokens(node: int, record: type[Batch]) -> Tokens:
    """The samples of an input: a rollout from a data set or a buffer has its own tokens.

    They are counted by the dims that a column of tokens and one of floats have.
    """
    columns = [spec for spec in schema(record).fields.values() if isinstance(spec, ColumnSpec)]
    tokens = {dim for spec in columns if is_token_column(spec) for dim in inner_dims(spec)}
    floats = {dim for spec in columns if issubclass(spec.dtype, FLOATS) for dim in inner_dims(spec)}
    return Tokens(dict.fromkeys(tokens & floats, node)) if tokens & floats else NO_TOKENS


def is_token_column(spec: FieldSpec) -> bool:
    """Whether a column may hold tokens: integers."""
    return isinstance(spec, ColumnSpec) and spec.dtype in TOKEN_DTYPES


def is_float_column(spec: object) -> bool:
    """Whether a column holds floats."""
    return isinstance(spec, ColumnSpec) and issubclass(spec.dtype, FLOATS)


def call_outputs(inference: Inference, node: Node, signature: Signature) -> Sequence[DeclaredColumn]:
    """The columns with rows in the result of a call."""
    if isinstance(signature.result, RecordType):
        return columns_read(signature.result, signature.result)
    value = inference.values[node.id]
    return [(None, value, inner_dims(value))] if isinstance(value, (ColumnSpec, ObjSpec)) else []


def generated_dims(
    node: Node, signature: Signature, reads: Sequence[Reads], outputs: Sequence[DeclaredColumn]
) -> Iterable[Any]:
    """The dims that count tokens which a call samples: a role's, from tokens or from weights.

    A function is stateless, and a role that makes tokens of text alone may be a tokenizer, whose results are equal.
    """
    columns = [column for argument in reads for column in argument.columns]
    inherited = {dim for column in columns for dim in column.inner}
    weights = signature.registration is not None and any(
        effect.kind == "reads" for effect in effects_of(signature.body)
    )
    tokens = any(is_token_column(column.spec) and len(column.spec.dims) > 1 for column in columns)
    if not isinstance(node.op, RoleCall) or not (weights or tokens):
        return ()
    dims = dict.fromkeys(dim for _, spec, inner in outputs if is_token_column(spec) for dim in inner)
    new = (dim for dim in dims if dim not in inherited)
    return [dim for dim in new if weights or _is_sampled(dim, [spec for _, spec, _ in outputs], inherited)]


def _is_sampled(dim: Any, columns: list[ColumnSpec | ObjSpec], inherited: Set[Any]) -> bool:
    """Whether a new dim counts generated tokens, and not what a model finds in its input, such as steps.

    The call appends tokens to those that it was given, as in ``i64[B, Add[P, R]]``; or it gives a float for each of
    them, their log-probs.
    """
    having = [spec for spec in columns if dim in inner_dims(spec)]
    appended = any(is_token_column(spec) and any(inner in inherited for inner in inner_dims(spec)) for spec in having)
    return appended or any(
        isinstance(spec, ColumnSpec) and not is_token_column(spec) and spec.dtype is not Bool for spec in having
    )
