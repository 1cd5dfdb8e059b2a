"""Columns with padding: which columns of a call have numbers for tokens of responses and for their padding?

A worked example, of ``def update(self, rollout: Rollout)`` whose record has these columns::

    log_probs: f32[B, R]            padded where R is the dim of the ready-made records, hfdsl.rl.batches.R
    response_mask: bool_[B, W]      a mask, which says that W is padded, too
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeGuard

from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.row_tensors import functions
from hfdsl.check.bodies.syntax import definition_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.signatures import RecordType, Signature
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dims import Size
from hfdsl.types.dtypes import Bool

VOCABULARY: Final = "hfdsl.rl.batches"
"""The module of the ready-made records, whose names mean the same in all of them."""

MASKS: Final = re.compile(r"(.*_)?(actions?|answers?|completions?|gen|generated|outputs?|resp|responses?)_mask")
"""The names of columns that say which tokens of a padded response are there."""

ONES_MAKERS: Final = functions("full full_like new_full new_ones ones ones_like")
"""The functions that fill a tensor with one number."""


def columns_with_width(signature: Signature) -> Iterator[tuple[str, ColumnSpec]]:
    """The dense columns of two dims that a body takes, each as the body names it."""
    for port in signature.ports:
        if isinstance(port.type, RecordType):
            yield from ((f"{port.name}.{column}", spec) for column, spec in record_columns(port.type))
        elif has_width(port.type):
            yield port.name, port.type


def record_columns(kind: RecordType) -> Iterator[tuple[str, ColumnSpec]]:
    """The dense columns of two dims that a record has."""
    return ((column, spec) for column, spec in schema(kind.record).fields.items() if has_width(spec))


def has_width(spec: object) -> TypeGuard[ColumnSpec]:
    """Whether a column is dense and has two dims."""
    return isinstance(spec, ColumnSpec) and not spec.ragged and len(spec.dims) == 2


def padded_widths(columns: Iterable[tuple[str, ColumnSpec]]) -> tuple[frozenset[Size], frozenset[Size]]:
    """The second dims of padded responses: that of ready-made records, and those of users' records with a mask."""
    ready, masked = set[Size](), set[Size]()
    for path, spec in columns:
        width = spec.dims[1]
        if [(getattr(dim, "__module__", ""), getattr(dim, "__name__", "")) for dim in width.atoms] == [
            (VOCABULARY, "R")
        ]:
            ready.add(width)
        elif is_mask(spec) and MASKS.fullmatch(path.rpartition(".")[2]):
            masked.add(width)
    return frozenset(ready), frozenset(masked)


def samples_full_responses(signature: Signature) -> bool:
    """Whether a user's body that takes no responses may return a mask of ones for those that it makes."""
    kind = signature.returns
    if signature.is_ready_made or not isinstance(kind, RecordType) or any(padded_widths(columns_with_width(signature))):
        return False
    columns = [*record_columns(kind)]
    padded = frozenset[Size]().union(*padded_widths(columns))
    makes_mask = any(is_mask(spec) and spec.dims[1] in padded for _, spec in columns)
    definition = definition_of(signature.body) if makes_mask else None
    calls = (call for call in nodes_of(definition) if isinstance(call, ast.Call)) if definition is not None else ()
    return any(last_name(call.func) in ONES_MAKERS and not _is_of_one_column(call) for call in calls)


def _is_of_one_column(call: ast.Call) -> bool:
    """Whether a tensor has one column, as that of first tokens, which are never padding: ``ones_like(ids[:, :1])``."""
    match call.args:
        case [ast.Subscript(_, ast.Tuple([ast.Slice(None, None, None), ast.Slice(None, ast.Constant(1), None)])), *_]:
            return True
        case [_, ast.Constant(1), *_] | [ast.Tuple([_, ast.Constant(1)]), *_]:
            return last_name(call.func) in ("new_ones", "ones")
    return False


def is_mask(spec: object) -> bool:
    """Whether a column is of booleans."""
    return isinstance(spec, ColumnSpec) and issubclass(spec.dtype, Bool)
