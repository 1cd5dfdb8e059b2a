"""Tensors of tokens, some of which are padding, as abstract values.

A worked example::

gain = gains.advantage.tensor                     tokens
mean = gain.mean()                                a statistic in which padding counts
zeroed = gain * rollout.response_mask.tensor      the same tokens, 0 at padding
zeroed.mean()                                     one in which padding counts, too
scores.score.tensor                               numbers of responses
gain.split(8)                                     mini-batches, each with the same tokens of some rows
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from hfdsl.check.bodies.interpretation import SUBSCRIPT, Operation
from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.row_indices import PARTS, Indices, index_result
from hfdsl.check.syntax_trees import index_parts
from hfdsl.graph.spans import Span


@dataclass(frozen=True, slots=True)
class TokenTensor:
    """A number for each token of a response, and for its padding unless a mask may have had a part in it.

    A ``mask`` is 1 at tokens and 0 at padding; ``zeroed`` numbers are 0 there, as they were multiplied by one. Those of
    one ``column`` are the same numbers: its path, or where they are computed. A ``buffer`` is made of zeros.
    """

    masked: bool = False
    ones: bool = False
    mask: bool = False
    zeroed: bool = False
    column: str = ""
    buffer: bool = field(default=False, compare=False, repr=False)

    def filled(self, index: ast.expr, indices: TokenValue) -> TokenTensor:
        """This tensor after some of it has been set: a buffer step by step, or by a mask, has a number of each token.

        Its numbers at padding are of no token.
        """
        parts = index_parts(index)
        is_step = [*map(ast.unparse, parts[:-1])] == [":"] and isinstance(parts[-1], (ast.BinOp, ast.Name))
        is_mask = isinstance(indices, TokenTensor) and indices.mask
        if self.buffer and (is_step or is_mask):
            return replace(self, masked=True, zeroed=True)
        return TokenTensor(masked=True)


@dataclass(frozen=True, slots=True)
class RepeatedTokens:
    """A number for each token and its padding, which may be one number for all of a response.

    Those computed of several columns have no name.
    """

    column: str


@dataclass(frozen=True, slots=True)
class PerResponse:
    """A number for each response; a mask may have had a part in it."""

    masked: bool = False
    column: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class PaddedStatistic:
    """The mean of tokens and their padding or their spread, of each response or of all, as it is written at a place.

    ``zeroed`` is the column whose numbers are 0 at padding; empty if they are any numbers there.
    """

    is_spread: bool
    of_all: bool
    text: str
    place: Span
    zeroed: str = ""


class MiniBatches(NamedTuple):
    """Mini-batches that a loop takes one by one: each has some rows of a value, or of several."""

    rows: Any


TokenNumber: TypeAlias = TokenTensor | RepeatedTokens | PerResponse | PaddedStatistic | float
"""Numbers of tokens, of responses, or of all rows: a float for all that are the same for all rows."""

TokenValue: TypeAlias = TokenNumber | MiniBatches | Indices | tuple[Any, ...] | dict[str, Any] | None
"""The abstract value of an expression; None if unknown, a tuple for several, and a dictionary for one."""


def combined(*values: TokenValue) -> TokenValue:
    """The result of computing elementwise: tokens, if any value is one for each token.

    >>> combined(TokenTensor(column="gain"), 2.0)
    TokenTensor(masked=False, ones=False, mask=False, zeroed=False, column='gain')
    """
    values = tuple(value if isinstance(value, TokenNumber) else None for value in values)
    numbers = [value for value in values if not isinstance(value, float)]
    if numbers and all(isinstance(number, RepeatedTokens) for number in numbers):
        return numbers[0] if len(numbers) == 1 else RepeatedTokens("")
    values = tuple(None if isinstance(value, RepeatedTokens) else value for value in values)
    masked = any(value is None or getattr(value, "masked", False) for value in values)
    tokens = [value for value in values if isinstance(value, TokenTensor)]
    if tokens:
        is_scaled = len(tokens) == 1 and all(value is tokens[0] or isinstance(value, float) for value in values)
        return replace(tokens[0], ones=False, mask=False) if is_scaled else TokenTensor(masked)
    if None in values or any(isinstance(value, PaddedStatistic) for value in values):
        return None
    return PerResponse(masked) if any(isinstance(value, PerResponse) for value in values) else 1.0


def zeroed(left: TokenValue, right: TokenValue) -> TokenTensor | None:
    """The product of numbers with a mask, which is 0 at padding; None for another product.

    >>> zeroed(RepeatedTokens("gain"), TokenTensor(masked=True, mask=True))
    TokenTensor(masked=True, ones=False, mask=False, zeroed=True, column='gain')
    """
    for numbers, mask in ((left, right), (right, left)):
        if isinstance(mask, TokenTensor) and mask.mask and isinstance(numbers, (TokenTensor, RepeatedTokens)):
            is_plain = isinstance(numbers, RepeatedTokens) or not numbers.masked or numbers.zeroed
            return TokenTensor(masked=True, zeroed=True, column=numbers.column) if is_plain else None
    return None


# -- mini-batches


def of_rows(operation: Operation[TokenValue]) -> TokenValue:
    """The result of an operation on numbers of rows, or on what has their tokens; None for other operations.

    All tokens of some rows are such tokens as those of all rows.
    """
    source = operation.source
    match source:
        case MiniBatches(rows):
            is_one = operation.function == SUBSCRIPT and operation.others[0] in (Indices(0), 1.0)
            batch: TokenValue = rows
            return batch if is_one else None
        case TokenTensor() | RepeatedTokens() | PerResponse() if _keeps_tokens(operation):
            return MiniBatches(source) if operation.function in PARTS else source
    return index_result(operation)


def _keeps_tokens(operation: Operation[TokenValue]) -> bool:
    """Whether a function takes all tokens of some rows, or cuts these into mini-batches."""
    positional, dim = operation.positional, operation.named.get("dim")
    if operation.function == SUBSCRIPT:
        [index], [value] = positional, operation.others
        first, *others = index_parts(index) or [index]
        indices = value[0] if type(value) is tuple and value else value
        takes_rows = indices == Indices(1) or isinstance(first, ast.Slice)
        return takes_rows and all(ast.unparse(part) == ":" for part in others)
    if operation.function == "index_select":
        return ast.unparse(dim or positional[0]) == "0" if dim or positional else False
    written = [ast.unparse(argument) for argument in (*positional[1:], *([dim] if dim is not None else []))]
    return operation.function in PARTS and written in ([], ["0"])


def loaded_batches(call: ast.Call, value: Callable[[ast.expr], TokenValue]) -> MiniBatches | None:
    """The mini-batches of a data set of tensors, or of a loader of one; None for other calls."""
    match last_name(call.func), call.args:
        case "TensorDataset", columns:
            return MiniBatches(tuple(map(value, columns)))
        case "DataLoader", [data, *_] if "collate_fn" not in {keyword.arg for keyword in call.keywords}:
            batches = value(data)
            return batches if isinstance(batches, MiniBatches) else None
    return None
