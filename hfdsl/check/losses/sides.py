"""Sides of preference pairs: what of an update is of the preferred response, and what of the rejected one?

A worked example, of ``def update(self, pairs: Pairs)`` whose record has these columns::

    chosen_ids, rejected_ids            a pair: two names that differ in one word
    chosen_mask, rejected_mask          likewise
    negative_weight                     nothing: there is no ``positive_weight``

Two records of an update are a pair by their names, as in ``update(self, chosen, rejected)``, or by their classes. A
column ``desirable`` of truth values, as for KTO, says of each row by itself whether its response is a good one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from hfdsl.graph.signatures import RecordType, Signature
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dtypes import Bool

PREFERRED: Final = frozenset({"accepted", "better", "chosen", "pos", "positive", "preferred", "winner", "winning"})
"""The words for a response that is better than another one."""

REJECTED: Final = frozenset(
    {"dispreferred", "loser", "losing", "neg", "negative", "rejected", "unpreferred", "worse", "nonpreferred"}
)
"""The words for a response that is worse than another one."""

LETTERS: Final = {"w": 1, "l": -1}
"""The letters for the winner of a pair and for its loser, in names without another word for either."""

DESIRABLE: Final = re.compile(r"(is_)?(accepted|chosen|desirable|desired|good|liked|preferred|thumbs_up)(_labels?)?")
"""The names of truth values that are true of good responses."""

WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
"""A word in a name."""


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name, or of a path, without capitals.

    >>> words_of("self.RewardModel.chosen_ids")
    ('self', 'reward', 'model', 'chosen', 'ids')
    """
    return tuple(word.lower() for word in WORD.findall(name))


@lru_cache(maxsize=256)
def sides_of(signature: Signature) -> Mapping[str, int]:
    """By name the columns and parameters of an update that are of one response of pairs: 1 preferred, -1 rejected."""
    columns = {port.name: port.name for port in signature.ports}
    classes = dict[str, str]()
    for port in signature.ports:
        if isinstance(port.type, RecordType):
            classes[port.name] = port.type.record.__name__
            columns |= {name: name for name in schema(port.type.record).fields}
    return {**_paired(classes), **_paired(columns)}


@lru_cache(maxsize=256)
def desirable_of(signature: Signature) -> str:
    """The name of the only column of an update that says of each row whether its response is good; empty if none."""
    specs: dict[str, object] = {port.name: port.type for port in signature.ports}
    for port in signature.ports:
        if isinstance(port.type, RecordType):
            specs |= schema(port.type.record).fields
    names = [
        name
        for name, spec in specs.items()
        if isinstance(spec, ColumnSpec) and len(spec.dims) == 1 and issubclass(spec.dtype, Bool)
    ]
    good = [*filter(DESIRABLE.fullmatch, names)]
    return good[0] if len(good) == 1 and not sides_of(signature) else ""


def _paired(names: Mapping[str, str]) -> dict[str, int]:
    """The sides of what is called by names that differ in one word alone, which says which response it is of."""
    sides = dict[tuple[str, ...], set[int]]()
    marked = dict[str, tuple[tuple[str, ...], int]]()
    for key, name in names.items():
        words = words_of(name)
        by_word = {word: 1 for word in words if word in PREFERRED} | {word: -1 for word in words if word in REJECTED}
        marks = by_word or {word: LETTERS[word] for word in words if word in LETTERS}
        if len(marks) == 1 and sum(word in marks for word in words) == 1:
            others = tuple("" if word in marks else word for word in words)
            [side] = marks.values()
            marked[key] = others, side
            sides.setdefault(others, set()).add(side)
    return {key: side for key, (others, side) in marked.items() if sides[others] == {1, -1}}
