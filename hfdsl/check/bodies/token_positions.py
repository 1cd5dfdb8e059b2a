"""Where tokens end that a body takes from a column, and the numbers that a model gives after each of them.

A worked example, of rows with the tokens a b c d, where a and b are the prompt::

    tokens[:, 1:]                  b c d        they end as the column does
    logits[:, :-1]                 after a b c  the last one is cut off
    hidden[:, -n - 1 : -1]         after b c    the response, without the last one
    hidden[:, -1]                  after d      the last column

An index of which it is not certain where its tokens end gives nothing.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from hfdsl.check.bodies.interpretation import SUBSCRIPT, Operation
from hfdsl.check.bodies.row_indices import Indices, with_whole_rows
from hfdsl.check.syntax_trees import index_parts
from hfdsl.graph.spans import NOWHERE, Span


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


def part_of_output(function: str, source: AlignedValue) -> AlignedValue:
    """The logits, or the hidden states, that a model gives."""
    match function, source:
        case "logits", Logits() | ModelOutput():
            return Logits(source.tokens, source.unmasked)
        case "hidden_states" | "last_hidden_state", ModelOutput():
            return Outputs(source.tokens, of_layers=function == "hidden_states", unmasked=source.unmasked)
    return None


def positions_of(source: TokenPositions | Logits) -> TokenPositions:
    """The tokens themselves, or those after which logits are."""
    return source if isinstance(source, TokenPositions) else source.tokens


def laid_out(source: TokenPositions | Logits, layout: Literal["", "parts", "moved"]) -> TokenPositions | Logits:
    """Tokens in another layout, or their logits."""
    tokens = replace(positions_of(source), layout=layout)
    return tokens if isinstance(source, TokenPositions) else replace(source, tokens=tokens)


def index_of_rows(operation: Operation[AlignedValue], source: TokenPositions | Logits) -> ast.expr:
    """The index of a subscript, with a slice in the place of indices of rows that take all tokens of these."""
    [index], [value] = operation.positional, operation.others
    first = value[0] if isinstance(index, ast.Tuple) and isinstance(value, tuple) and value else value
    return with_whole_rows(index) if first == Indices(1) and not positions_of(source).layout else index


def cut_tokens(source: TokenPositions | Logits, index: ast.expr) -> TokenPositions | Logits | None:
    """Some tokens of all rows, or their logits; None if it is not certain where they end."""
    tokens = positions_of(source)
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
            kept = replace(tokens, end=tokens.end - count)
            return kept if isinstance(source, TokenPositions) else replace(source, tokens=kept)
    return None


def takes_one(operation: Operation[AlignedValue]) -> bool:
    """Whether an operation takes the only number of each token, or one of a few: ``x.squeeze(-1)``, ``x[..., 0]``."""
    [argument] = operation.positional if len(operation.positional) == 1 else [None]
    if argument is None:
        return False
    written = ast.unparse(argument).strip("()")
    if operation.function == SUBSCRIPT:
        return written in ("..., 0", ":, :, 0")
    return operation.function == "squeeze" and written in ("-1", "2")


def keeps_tokens(index: ast.expr) -> bool:
    """Whether an index takes rows, or adds a dim."""
    return isinstance(index, (ast.Name, ast.Slice)) or ast.unparse(index).strip("()") in (":, None", ":, 0")


def begins_at_response(node: ast.expr | None) -> bool:
    """Whether a slice begins a number of tokens before the end that is none of a literal: ``-n``, ``-n - 1``."""
    match node:
        case ast.BinOp(first, ast.Sub(), ast.Constant(1)):
            return begins_at_response(first)
        case ast.UnaryOp(ast.USub(), operand):
            return not isinstance(operand, ast.Constant)
    return False


def cut_outputs(outputs: Outputs, index: ast.expr, place: Span) -> Outputs | None:
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
    is_of_response = begins_at_response(lower)
    if lower is not None and not is_of_response:
        return None
    return replace(outputs, tokens=tokens, cut="response" if is_of_response else "", place=place)


def _is_open(part: ast.Constant | ast.Slice) -> bool:
    """Whether a part of an index goes up to the end of its dim, or adds one."""
    return part.upper is None and part.step is None if isinstance(part, ast.Slice) else part.value in (None, ...)
