"""Shifted tokens: are log-probs of tokens those that a model gives before it has read them?

A worked example; only the last line is right::

    logits = self.model(ids).logits                                             after each token: of the next one
    logits.log_softmax(-1).gather(-1, ids[..., None])                           HF359: of tokens that it has read
    logits[:, -n:].log_softmax(-1).gather(-1, ids[:, -n:, None])                HF359: likewise
    logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])

Both sides have one length, so the rule compares where they end. It follows tokens from columns of integers to a model
that gives ``.logits``, as those of transformers do, or that the role samples the next token with, and to what picks
their log-probs. It is silent where tokens are put back together, rolled or written into, other than one number for
labels to ignore, and about a model that does not get the tokens as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from hfdsl.check.bodies.flow import FlowInterpretation
from hfdsl.check.bodies.interpretation import OPERATORS, SUBSCRIPT, Operation
from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.next_tokens import next_token_models
from hfdsl.check.bodies.row_indices import Indices, called_indices, index_result, with_whole_rows
from hfdsl.check.bodies.row_tensors import functions
from hfdsl.check.bodies.syntax import definition_of
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.check.sources import Function, span_of
from hfdsl.check.syntax_trees import index_parts
from hfdsl.graph.program import Node, RoleCall
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
    """Something that a model gives for tokens."""

    tokens: TokenPositions


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits, or numbers made of them, after each of these tokens."""

    tokens: TokenPositions


AlignedValue: TypeAlias = (
    TokenPositions | ModelOutput | Logits | Indices | Literal["number"] | tuple[Any, ...] | dict[str, Any] | None
)
"""The abstract value of an expression; None if unknown, a tuple for several, and a dictionary for one."""


class Misaligned(NamedTuple):
    """A place where numbers of tokens are picked, by tokens that the model has read there."""

    place: Span
    tokens: str


def log_probs_are_of_the_next_tokens(context: Context) -> Iterator[Finding]:
    """HF359: log-probs of tokens are taken from the logits before these tokens."""
    program, reported = context.program, set[Span]()
    for node, signature in program.graph.bodies if not program.graph.misuses else ():
        for place, tokens in _misaligned(program, node, signature):
            if place not in reported:
                reported.add(place)
                yield Finding(
                    "HF359",
                    f"'{node.label}' picks log-probs of '{tokens}' from the logits after these tokens, which predict "
                    "the tokens after them",
                    Label(place, "logits and tokens of the same positions"),
                    (Label(node.span, "called here"),),
                    notes=("the logits before a token predict it: logits[:, :-1] go with tokens[:, 1:]",),
                )


def _misaligned(program: Program, node: Node, signature: Signature) -> Sequence[Misaligned]:
    """The places in a user's body."""
    if signature.is_ready_made:
        return ()
    if not isinstance(node.op, RoleCall):
        definition = definition_of(signature.body)
        return () if definition is None else AlignmentInterpretation.of(signature, definition).completed().misaligned
    role = program.role_class(node.role)
    methods = methods_of(role)
    method = methods.get(node.method)
    if method is None:
        return ()
    body = AlignmentInterpretation.of_method(signature, method, methods)
    body.models = next_token_models(role)
    return body.completed().misaligned


class AlignmentInterpretation(FlowInterpretation[AlignedValue]):
    """The interpretation of a body in tokens and the logits after them; ``models`` are known to give such logits."""

    models: AbstractSet[str] = frozenset()

    def begin(self) -> None:
        """Begin with nothing found."""
        super().begin()
        self.file, self.misaligned = definition_span(self.body).file, list[Misaligned]()

    def inner(
        self, body: Callable[..., Any], definition: Function, ports: Mapping[str, PortType]
    ) -> AlignmentInterpretation:
        """The interpretation of a function that the body calls, which collects into the same list."""
        inner = super().inner(body, definition, ports)
        inner.misaligned, inner.models = self.misaligned, self.models
        return inner

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
        match call.func, named.get("input_ids", call.args[0] if call.args else None):
            case ((ast.Attribute(_, "Categorical") | ast.Name("Categorical")), first):
                logits = named.get("logits", first)
                return None if logits is None else self.value(logits)
            case ((ast.Attribute() | ast.Name()), ast.expr() as first):
                tokens = self.value(first)
                is_read = isinstance(tokens, TokenPositions) and not tokens.is_filled and "inputs_embeds" not in named
                if not is_read or not isinstance(tokens, TokenPositions):
                    return None
                return Logits(tokens) if ast.unparse(call.func) in self.models else ModelOutput(tokens)
        return None

    def of_operation(self, operation: Operation[AlignedValue]) -> AlignedValue:
        """The result of an operation on tokens, or on logits."""
        function, source = operation.function, operation.source
        if (indices := index_result(operation)) is not None:
            return indices
        if function == "logits":
            return Logits(source.tokens) if isinstance(source, (Logits, ModelOutput)) else None
        if function in PICKS and isinstance(source, Logits):
            self.pick(operation, source)
            return None
        if function in ("cat", "concat"):
            return self.joined_parts(operation)
        if isinstance(source, TokenPositions) and function in FILLS:
            return replace(source, is_filled=True)
        if function == SUBSCRIPT and isinstance(source, (TokenPositions, Logits)):
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


def _tokens(source: TokenPositions | Logits) -> TokenPositions:
    return source if isinstance(source, TokenPositions) else source.tokens


def _laid_out(source: TokenPositions | Logits, layout: Literal["", "parts", "moved"]) -> TokenPositions | Logits:
    tokens = replace(_tokens(source), layout=layout)
    return tokens if isinstance(source, TokenPositions) else Logits(tokens)


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
            return cut if isinstance(source, TokenPositions) else Logits(cut)
    return None


def _is_open(part: ast.Constant | ast.Slice) -> bool:
    """Whether a part of an index goes up to the end of its dim, or adds one."""
    return part.upper is None and part.step is None if isinstance(part, ast.Slice) else part.value in (None, ...)
