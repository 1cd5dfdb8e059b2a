"""Caches: does an engine have room for a prompt with its response?

A worked example with P = 1024 and R = 4096: a row has up to 5120 tokens, so an engine with a cache of 4096 may never
sample it. Roles state the tokens by ``cached_tokens``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.deploy.deployment import Placement
from hfdsl.deploy.weight_syncs import overrides
from hfdsl.graph.program import Node
from hfdsl.graph.samples import is_token_column
from hfdsl.graph.signatures import RecordType, Signature
from hfdsl.graph.type_sizes import dims_of
from hfdsl.protocols import role_facts
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dims import Dim, constant


@dataclass(frozen=True, slots=True)
class SmallCache:
    """A call that samples rows of more tokens than the engine of its role has room for."""

    call: Node
    role: str
    tokens: int
    longest: int

    @property
    def message(self) -> str:
        """The message of the finding."""
        return (
            f"the cache of the engine of '{self.role}' has {self.tokens} tokens, and a prompt with its response takes "
            f"up to {self.longest}"
        )


def caches_hold_a_row(context: Context) -> Iterator[Finding]:
    """HF952: the cache of an engine has room for a prompt and its response."""
    for small in small_caches(context.program, context.sizes):
        place = context.program.placement(small.call)
        if place is not None:
            yield Finding(
                "HF952",
                small.message,
                Label(place.span, f"has a cache of {small.tokens} tokens"),
                (Label(small.call.span, f"samples rows of up to {small.longest} tokens"),),
                notes=(f"set the cache to {small.longest} tokens times the rows that are to be sampled at once",),
            )


def small_caches(program: Program, sizes: Mapping[type[Dim], int]) -> Iterator[SmallCache]:
    """The calls with longer rows of these sizes than the cache of their role, each method once."""
    reported = set[tuple[str, str]]()
    for node, signature in program.graph.bodies:
        place, method = program.placement(node), signature.name
        own = place is not None and (
            overrides(place.role, name, stated_by="cached_tokens") for name in ("__init__", method)
        )
        if place is None or (node.role, method) in reported or (own and any(own)):
            continue
        tokens = role_facts.cached_tokens.of(place).get(method)
        longest = None if tokens is None else _longest_row(signature, place, sizes)
        if tokens is not None and longest is not None and tokens < longest:
            reported.add((node.role, method))
            yield SmallCache(node, node.role, tokens, longest)


def _longest_row(signature: Signature, place: Placement[Any], sizes: Mapping[type[Dim], int]) -> int | None:
    """The most tokens of a row in the result of a method; None if unknown."""
    if not isinstance(signature.returns, RecordType):
        return None
    stated = role_facts.result_sizes.of(place).get(signature.name, {})
    own = {dim: stated[dim.__name__] for dim in dims_of(signature) if dim.__name__ in stated}
    known = {dim: constant(size) for dim, size in {**own, **sizes}.items()}
    columns = [spec for spec in schema(signature.returns.record).fields.values() if isinstance(spec, ColumnSpec)]
    widths = [spec.dims[1].substitute(known).value for spec in columns if is_token_column(spec) and len(spec.dims) > 1]
    return max((int(width) for width in widths if width is not None), default=None)
