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
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from hfdsl.check.bodies.flow import FlowInterpretation
from hfdsl.check.bodies.interpretation import OPERATORS, SUBSCRIPT, Operation
from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.masked_models import masked_models
from hfdsl.check.bodies.next_tokens import next_token_models
from hfdsl.check.bodies.row_indices import Indices, called_indices, index_result, with_whole_rows
from hfdsl.check.bodies.row_tensors import functions
from hfdsl.check.bodies.syntax import definition_of
from hfdsl.check.sources import Function, span_of
from hfdsl.check.syntax_trees import index_parts
from hfdsl.graph.samples import is_token_column
from hfdsl.graph.signatures import PortType, Signature
from hfdsl.graph.spans import NOWHERE, Span, definition_span
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


@dataclass(frozen=True, slots=True)
class TokenPositions:
    """Tokens of a column, or the logits after each of them; the last ``-end`` are cut off.

    ``layout`` says whether they are in a list of parts with several rows each, or ``moved``: their positions are then
    in a dim that is not known.
    """

    column: str
    end: int = 0
    is_filled: bool = False
    layout: Literal["", "parts", "moved"] = ""


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """Something that a model gives for tokens; ``unmasked`` is the call, if it takes a mask and got only these."""

    tokens: TokenPositions
    unmasked: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits, or numbers made of them, after each of these tokens."""

    tokens: TokenPositions
    unmasked: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Hidden states of a model after each of these tokens, or what a head makes of them; of all layers ``of_layers``.

    They may be ``cut`` to those of the response, or to the last column.
    """

    tokens: TokenPositions
    cut: Literal["", "response", "last"] = ""
    of_layers: bool = False
    place: Span = field(default=NOWHERE, compare=False)
    unmasked: Span | None = field(default=None, compare=False)


AlignedValue: TypeAlias = (
    TokenPositions
    | ModelOutput
    | Logits
    | Outputs
    | Indices
    | Literal["number"]
    | tuple[Any, ...]
    | dict[str, Any]
    | None
)
"""The abstract value of an expression; None if unknown, a tuple for several, and a dictionary for one."""


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
        return _laid_out(value, "" if _tokens(value).layout == "parts" else "moved")

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
            return _part_of_output(function, source)
        if isinstance(source, Outputs) or (isinstance(source, Logits) and _takes_one(operation)):
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
            return _cut(source, _index_of_rows(operation, source))
        if function == "index_select" and isinstance(source, (TokenPositions, Logits)):
            is_of_rows = [ast.unparse(dim) for dim in operation.positional[:1]] == ["0"]
            return source if is_of_rows and not _tokens(source).layout else None
        if not isinstance(source, (TokenPositions, Logits)):
            return None
        is_moved = _tokens(source).layout == "moved" or function in MOVES
        if function in ("chunk", "split") and len(operation.others) == 1:
            return _laid_out(source, "moved" if is_moved else "parts")  # along the rows
        is_scaled = isinstance(source, Logits) and function in OPERATORS.values()
        if function not in SAME and not is_scaled:
            return None
        return _laid_out(source, "moved") if is_moved else source

    def of_outputs(self, operation: Operation[AlignedValue], source: Outputs | Logits) -> AlignedValue:
        """The result of an operation on numbers after each token: as many, or those of some columns."""
        if isinstance(source, Logits):
            source = Outputs(source.tokens, unmasked=source.unmasked)
        function = operation.function
        if function != SUBSCRIPT:
            is_same = function in SAME - MOVES or function in OPERATORS.values() or _takes_one(operation)
            return source if is_same and not source.of_layers else None
        [index] = operation.positional
        if source.of_layers:
            return replace(source, of_layers=False) if isinstance(index, (ast.Constant, ast.UnaryOp)) else None
        if source.cut:
            return source if _takes_one(operation) or _keeps_tokens(index) else None
        self.note_response(source, index)
        return _cut_outputs(source, index, span_of(self.file, operation.node))

    def note_response(self, source: TokenPositions | Logits | Outputs, index: ast.expr) -> None:
        """Collect a call of a model without a mask, if a body takes its numbers for a response behind a prompt."""
        parts = index_parts(index)
        is_of_response = len(parts) > 1 and isinstance(parts[1], ast.Slice) and _begins_at_response(parts[1].lower)
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


def _part_of_output(function: str, source: AlignedValue) -> AlignedValue:
    """The logits, or the hidden states, that a model gives."""
    match function, source:
        case "logits", Logits() | ModelOutput():
            return Logits(source.tokens, source.unmasked)
        case "hidden_states" | "last_hidden_state", ModelOutput():
            return Outputs(source.tokens, of_layers=function == "hidden_states", unmasked=source.unmasked)
    return None


def _tokens(source: TokenPositions | Logits) -> TokenPositions:
    return source if isinstance(source, TokenPositions) else source.tokens


def _laid_out(source: TokenPositions | Logits, layout: Literal["", "parts", "moved"]) -> TokenPositions | Logits:
    tokens = replace(_tokens(source), layout=layout)
    return tokens if isinstance(source, TokenPositions) else replace(source, tokens=tokens)


def _index_of_rows(operation: Operation[AlignedValue], source: TokenPositions | Logits) -> ast.expr:
    """The index of a subscript, with a slice in the place of indices of rows that take all tokens of these."""
    [index], [value] = operation.positional, operation.others
    first = value[0] if isinstance(index, ast.Tuple) and isinstance(value, tuple) and value else value
    return with_whole_rows(index) if first == Indices(1) and not _tokens(source).layout else index


def _cut(source: TokenPositions | Logits, index: ast.expr) -> TokenPositions | Logits | None:
    """Some tokens of all rows, or their logits; None if it is not certain where they end."""
    tokens = _tokens(source)
    if tokens.layout == "moved":
        parts = index_parts(index)
        keeps_ends = all(isinstance(part, (ast.Constant, ast.Slice)) and _is_open(part) for part in parts)
        return source if keeps_ends else None
    match index:
        case ast.Slice():
            return source
        case ast.Tuple([ast.Constant(value=dots), *rest]) if dots is ...:
            if all(isinstance(part, ast.Constant) and part.value is None for part in rest):
                return source
            is_of_positions = len(rest) == (1 if isinstance(source, TokenPositions) else 2)
            positions = rest[0] if is_of_positions else None
        case ast.Tuple([ast.Slice(), positions, *_]):
            pass
        case _:
            return None
    match positions:
        case ast.Slice(_, None, None):
            return source
        case ast.Slice(_, ast.UnaryOp(ast.USub(), ast.Constant(int() as count)), None):
            cut = replace(tokens, end=tokens.end - count)
            return cut if isinstance(source, TokenPositions) else replace(source, tokens=cut)
    return None


def _takes_one(operation: Operation[AlignedValue]) -> bool:
    """Whether an operation takes the only number of each token, or one of a few: ``x.squeeze(-1)``, ``x[..., 0]``."""
    [argument] = operation.positional if len(operation.positional) == 1 else [None]
    if argument is None:
        return False
    written = ast.unparse(argument).strip("()")
    if operation.function == SUBSCRIPT:
        return written in ("..., 0", ":, :, 0")
    return operation.function == "squeeze" and written in ("-1", "2")


def _keeps_tokens(index: ast.expr) -> bool:
    """Whether an index takes rows, or adds a dim."""
    return isinstance(index, (ast.Name, ast.Slice)) or ast.unparse(index).strip("()") in (":, None", ":, 0")


def _begins_at_response(node: ast.expr | None) -> bool:
    """Whether a slice begins a number of tokens before the end that is none of a literal: ``-n``, ``-n - 1``."""
    match node:
        case ast.BinOp(first, ast.Sub(), ast.Constant(1)):
            return _begins_at_response(first)
        case ast.UnaryOp(ast.USub(), operand):
            return not isinstance(operand, ast.Constant)
    return False


def _cut_outputs(outputs: Outputs, index: ast.expr, place: Span) -> Outputs | None:
    """Numbers after some tokens of all rows; None if it is not certain which."""
    parts = index_parts(index)
    if ast.unparse(index).strip("()") in ("..., 0", ":, :, 0") or isinstance(index, ast.Slice):
        return outputs
    if len(parts) not in (2, 3) or ast.unparse(parts[0]) != ":" or outputs.tokens.layout:
        return None
    tokens, positions = outputs.tokens, parts[1]
    if ast.unparse(positions) == "-1":
        return replace(outputs, cut="last", place=place)
    match positions:
        case ast.Slice(lower, None, None):
            pass
        case ast.Slice(lower, ast.UnaryOp(ast.USub(), ast.Constant(int() as count)), None):
            tokens = replace(tokens, end=tokens.end - count)
        case _:
            return None
    is_of_response = _begins_at_response(lower)
    if lower is not None and not is_of_response:
        return None
    return replace(outputs, tokens=tokens, cut="response" if is_of_response else "", place=place)


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


def _is_open(part: ast.Constant | ast.Slice) -> bool:
    """Whether a part of an index goes up to the end of its dim, or adds one."""
    return part.upper is None and part.step is None if isinstance(part, ast.Slice) else part.value in (None, ...)
