"""Tokens and what models give for them as abstract values: which tokens do logits come after, and what picks them?

A worked example, of a column ``ids: i64[B, Add[P, R]]``::

    out = self.model(ids)                           of a model that got no attention mask
    out.logits                                      numbers after each token
    out.logits[:, -n - 1 : -1]                      after the one before each token of the response
    hidden = out.hidden_states[-1]                  likewise after each token
    self.head(hidden).squeeze(-1)[:, -n:]           numbers after each token of the response
    self.head(hidden)[:, -1]                        numbers after the last column

It follows tokens from columns of integers to a model that gives ``.logits`` or hidden states, as those of transformers
do, or that the role samples the next token with. Nothing is known where tokens are put back together, rolled or written
into, other than one number for labels to ignore, and of a model that does not get the tokens as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from hfdsl.check.bodies.flow import FlowInterpretation
from hfdsl.check.bodies.interpretation import OPERATORS, SUBSCRIPT, Operation
from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.masked_models import masked_models
from hfdsl.check.bodies.next_tokens import next_token_models
from hfdsl.check.bodies.row_indices import Indices, called_indices, index_result
from hfdsl.check.bodies.row_tensors import functions
from hfdsl.check.bodies.syntax import definition_of
from hfdsl.check.bodies.token_positions import (
    AlignedValue,
    Logits,
    ModelOutput,
    Outputs,
    TokenPositions,
    begins_at_response,
    cut_outputs,
    cut_tokens,
    index_of_rows,
    keeps_tokens,
    laid_out,
    part_of_output,
    positions_of,
    takes_one,
)
from hfdsl.check.sources import Function, span_of
from hfdsl.check.syntax_trees import index_parts
from hfdsl.graph.samples import is_token_column
from hfdsl.graph.signatures import PortType, Signature
from hfdsl.graph.spans import Span, definition_span
from hfdsl.types.columns import ColumnSpec

SAME: Final = functions(
    "bfloat16 clone contiguous cpu cuda detach double expand flatten float half int long log_softmax permute reshape "
    "softmax squeeze t to transpose type unsqueeze view log"
)
"""Functions after which numbers are of the same tokens."""

MOVES: Final = functions("flatten permute reshape squeeze t transpose view")
"""Functions after which the positions of tokens may be another dim."""

FILLS: Final = functions("masked_fill where")
"""Functions that replace some tokens."""

PICKS: Final = functions("cross_entropy gather log_prob nll_loss take_along_dim")
"""Functions that pick numbers by tokens."""


OPTIONS: Final = functions("input_ids output_hidden_states return_dict use_cache")
"""Arguments of a model that say nothing of padding."""


class Unmasked(NamedTuple):
    """A call of a model on tokens alone, whose numbers for the response a body takes: the path of the tokens."""

    place: Span
    tokens: str


class Misaligned(NamedTuple):
    """A place where numbers of tokens are picked, by tokens that the model has read there."""

    place: Span
    tokens: str


class AlignmentInterpretation(FlowInterpretation[AlignedValue]):
    """The interpretation of a body in tokens and the logits after them.

    ``models`` are known to give such logits, and ``masked_models`` to take a mask.
    """

    models: AbstractSet[str] = frozenset()
    masked_models: AbstractSet[str] = frozenset()

    def begin(self) -> None:
        """Begin with nothing found."""
        super().begin()
        self.file, self.misaligned = definition_span(self.body).file, list[Misaligned]()
        self.unmasked, self.columns = list[Unmasked](), dict[str, AlignedValue]()

    def inner(
        self, body: Callable[..., Any], definition: Function, ports: Mapping[str, PortType]
    ) -> AlignmentInterpretation:
        """The interpretation of a function that the body calls, which collects into the same list."""
        inner = super().inner(body, definition, ports)
        inner.misaligned, inner.unmasked = self.misaligned, self.unmasked
        inner.models, inner.masked_models = self.models, self.masked_models
        return inner

    def run(self, statement: ast.stmt) -> None:
        """Run a statement; what a record is returned with is kept."""
        match statement:
            case ast.Return(ast.Call(keywords=columns)):
                self.columns |= {str(column.arg): self.value(column.value) for column in columns}
        super().run(statement)

    def several(self, values: Sequence[AlignedValue]) -> AlignedValue:
        """A tuple of values."""
        return tuple(values)

    def table(self, entries: Mapping[str, AlignedValue]) -> AlignedValue:
        """A dictionary of values."""
        return dict(entries)

    def entries(self, value: AlignedValue) -> Mapping[str, AlignedValue] | None:
        """The values of a dictionary by key."""
        return value if isinstance(value, dict) else None

    def of_part(self, value: AlignedValue, position: int) -> AlignedValue:
        """The value at a position of a tuple."""
        return value[position] if isinstance(value, tuple) and position < len(value) else None

    def of_element(self, value: AlignedValue) -> AlignedValue:
        """The part of tokens or logits that a loop takes at a time: a row, or several rows."""
        if isinstance(value, Indices):
            return value.element()
        if not isinstance(value, (TokenPositions, Logits)):
            return value
        return laid_out(value, "" if positions_of(value).layout == "parts" else "moved")

    def set_part(self, value: AlignedValue, part: AlignedValue) -> AlignedValue:
        """Tokens after some have been set: to one number, they are filled, and the others stay where they are."""
        return replace(value, is_filled=True) if isinstance(value, TokenPositions) and part == "number" else None

    def value(self, node: ast.expr) -> AlignedValue:
        """The value of an expression: also a literal number."""
        match node:
            case ast.Constant(int()) | ast.UnaryOp(ast.USub(), ast.Constant(int())):
                return "number"
        return super().value(node)

    def of_column(self, spec: ColumnSpec, path: str) -> AlignedValue:
        """Tokens of each row."""
        return TokenPositions(path) if is_token_column(spec) and len(spec.dims) == 2 else None

    def call(self, call: ast.Call) -> AlignedValue:
        """The result of a call; of tokens alone perhaps that of a model."""
        result = super().call(call)
        result = called_indices(call, self.value) if result is None else result
        if isinstance(result, ModelOutput) and ast.unparse(call.func) in self.models:
            return Logits(result.tokens)
        if result is not None:
            return result
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        takes_mask = ast.unparse(call.func) in self.masked_models
        place = None if not takes_mask or len(call.args) > 1 or named.keys() - OPTIONS else span_of(self.file, call)
        match call.func, named.get("input_ids", call.args[0] if call.args else None):
            case ((ast.Attribute(_, "Categorical") | ast.Name("Categorical")), first):
                logits = named.get("logits", first)
                return None if logits is None else self.value(logits)
            case ((ast.Attribute() | ast.Name()), ast.expr() as first):
                tokens = self.value(first)
                if isinstance(tokens, Outputs):
                    return tokens if not tokens.of_layers and len(call.args) == 1 else None
                is_read = isinstance(tokens, TokenPositions) and not tokens.is_filled and "inputs_embeds" not in named
                if not is_read or not isinstance(tokens, TokenPositions):
                    return None
                return Logits(tokens) if ast.unparse(call.func) in self.models else ModelOutput(tokens, place)
        return None

    def of_operation(self, operation: Operation[AlignedValue]) -> AlignedValue:
        """The result of an operation on tokens, or on logits."""
        function, source = operation.function, operation.source
        if (indices := index_result(operation)) is not None:
            return indices
        if function == "logits" or isinstance(source, ModelOutput):
            return part_of_output(function, source)
        if isinstance(source, Outputs) or (isinstance(source, Logits) and takes_one(operation)):
            return self.of_outputs(operation, source)
        if function in PICKS and isinstance(source, Logits):
            self.pick(operation, source)
            return None
        if function in ("cat", "concat"):
            return self.joined_parts(operation)
        if isinstance(source, TokenPositions) and function in FILLS:
            return replace(source, is_filled=True)
        if function == SUBSCRIPT and isinstance(source, (TokenPositions, Logits)):
            self.note_response(source, operation.positional[0])
            return cut_tokens(source, index_of_rows(operation, source))
        if function == "index_select" and isinstance(source, (TokenPositions, Logits)):
            is_of_rows = [ast.unparse(dim) for dim in operation.positional[:1]] == ["0"]
            return source if is_of_rows and not positions_of(source).layout else None
        if not isinstance(source, (TokenPositions, Logits)):
            return None
        is_moved = positions_of(source).layout == "moved" or function in MOVES
        if function in ("chunk", "split") and len(operation.others) == 1:
            return laid_out(source, "moved" if is_moved else "parts")  # along the rows
        is_scaled = isinstance(source, Logits) and function in OPERATORS.values()
        if function not in SAME and not is_scaled:
            return None
        return laid_out(source, "moved") if is_moved else source

    def of_outputs(self, operation: Operation[AlignedValue], source: Outputs | Logits) -> AlignedValue:
        """The result of an operation on numbers after each token: as many, or those of some columns."""
        if isinstance(source, Logits):
            source = Outputs(source.tokens, unmasked=source.unmasked)
        function = operation.function
        if function != SUBSCRIPT:
            is_same = function in SAME - MOVES or function in OPERATORS.values() or takes_one(operation)
            return source if is_same and not source.of_layers else None
        [index] = operation.positional
        if source.of_layers:
            return replace(source, of_layers=False) if isinstance(index, (ast.Constant, ast.UnaryOp)) else None
        if source.cut:
            return source if takes_one(operation) or keeps_tokens(index) else None
        self.note_response(source, index)
        return cut_outputs(source, index, span_of(self.file, operation.node))

    def note_response(self, source: TokenPositions | Logits | Outputs, index: ast.expr) -> None:
        """Collect a call of a model without a mask, if a body takes its numbers for a response behind a prompt."""
        parts = index_parts(index)
        is_of_response = len(parts) > 1 and isinstance(parts[1], ast.Slice) and begins_at_response(parts[1].lower)
        if not isinstance(source, TokenPositions) and source.unmasked is not None and is_of_response:
            self.unmasked.append(Unmasked(source.unmasked, source.tokens.column))

    def pick(self, operation: Operation[AlignedValue], logits: Logits) -> None:
        """Compare the tokens that pick numbers of logits with those after which they come."""
        for picked in operation.others:
            if (
                isinstance(picked, TokenPositions)
                and picked.column == logits.tokens.column
                and logits.tokens.end >= picked.end
            ):
                self.misaligned.append(Misaligned(span_of(self.file, operation.node), picked.column))

    def joined_parts(self, operation: Operation[AlignedValue]) -> AlignedValue:
        """Tokens behind others, such as a response behind its prompt: they end as the last ones do."""
        call = operation.node
        parts = call.args[0] if isinstance(call, ast.Call) and call.args else None
        dim = operation.named.get("dim", operation.positional[0] if operation.positional else None)
        if dim is None or ast.unparse(dim) not in ("1", "-1") or not isinstance(parts, (ast.List, ast.Tuple)):
            return None
        values: list[AlignedValue] = [self.value(part) for part in parts.elts]
        return values[-1] if values and all(isinstance(value, TokenPositions) for value in values) else None


# -- bodies


@lru_cache(maxsize=256)
def interpreted_tokens(signature: Signature, role: type | None, method: str) -> AlignmentInterpretation | None:
    """The interpretation of a user's body: of the method of a role, or of a function without one; None if unknown."""
    if signature.is_ready_made:
        return None
    if role is None:
        definition = definition_of(signature.body)
        return None if definition is None else AlignmentInterpretation.of(signature, definition).completed()
    methods = methods_of(role)
    if method not in methods:
        return None
    body = AlignmentInterpretation.of_method(signature, methods[method], methods)
    body.models, body.masked_models = next_token_models(role), masked_models(role)
    return body.completed()
