"""Tensors of tokens, some of which are padding, as abstract values.

A worked example::

gain = gains.advantage.tensor                     tokens
mean = gain.mean()                                a statistic in which padding counts
zeroed = gain * rollout.response_mask.tensor      the same tokens, 0 at padding
zeroed.mean()                                     one in which padding counts, too
scores.score.tensor                               numbers of responses
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TokenTensor:
    """A number for each token of a response, and for its padding unless a mask may have had a part in it.

    A ``mask`` is 1 at tokens and 0 at padding; ``zeroed`` numbers are 0 there, as they were multiplied by one. Those of
    one ``column`` are the same numbers: its path, or where they are computed.
    """

    masked: bool = False
    ones: bool = False
    mask: bool = False
    zeroed: bool = False
    column: str = ""


@dataclass(frozen=True, slots=True)
class RepeatedTokens:
    """A number for each token and its padding, which may be one number for all of a response."""

    column: str


@dataclass(frozen=True, slots=True)
class PerResponse:
    """A number for each response; a mask may have had a part in it."""

    masked: bool = False
    column: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class PaddedStatistic:
    """The mean of tokens and their padding or their spread, of each response or of all, and where it is computed.

    ``zeroed`` is the column whose numbers are 0 at padding; empty if they are any numbers there.
    """

    is_spread: bool
    of_all: bool
    place: ast.expr
    zeroed: str = ""


TokenValue: TypeAlias = TokenTensor | RepeatedTokens | PerResponse | PaddedStatistic | float | None
"""The abstract value of an expression: a number for all numbers that are the same for all rows; None if unknown."""


def combined(*values: TokenValue) -> TokenValue:
    """The result of computing elementwise: tokens, if any value is one for each token.

    >>> combined(TokenTensor(column="gain"), 2.0)
    TokenTensor(masked=False, ones=False, mask=False, zeroed=False, column='gain')
    """
    numbers = [value for value in values if not isinstance(value, float)]
    if len(numbers) == 1 and isinstance(numbers[0], RepeatedTokens):
        return numbers[0]
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
