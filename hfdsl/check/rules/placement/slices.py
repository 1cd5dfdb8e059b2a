"""Slices: does the tensor-parallel size of a role divide the sizes of its model?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import gcd
from typing import Any

from hfdsl.check.capacity import words
from hfdsl.check.context import Change, Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.alternatives import with_moved_roles, works
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.rules.placement.classes import spelled
from hfdsl.deploy.deployment import Placement
from hfdsl.errors import HfError
from hfdsl.protocols import role_facts
from hfdsl.types.numbers import divisors

MAX_CHANGES = 3
"""How many meshes a help line names."""

DIVIDED = ": tp then divides the model and the pool is filled"
"""The effect of other slices."""


def tp_divides_models(context: Context) -> Iterator[Finding]:
    """Sliced sizes, such as heads, are multiples of ``tp``; roles with the same sizes share a finding.

    Sizes that a role does not declare are left to its launch.
    """
    places_by_size: dict[tuple[int, tuple[tuple[str, int], ...]], dict[str, Placement[Any]]] = {}
    for name, placement in context.program.placements.items():
        tp = placement.mesh.tp
        sizes = role_facts.sliced.of(placement) if tp > 1 else {}
        if any(size % tp for size in sizes.values()):
            places_by_size.setdefault((tp, tuple(sizes.items())), {})[name] = placement
    for (tp, alike), places in places_by_size.items():
        yield _finding(context, tp, dict(alike), places)


def _finding(context: Context, tp: int, sizes: Mapping[str, int], places: Mapping[str, Placement[Any]]) -> Finding:
    broken = [f"{name} = {size} ({size} % {tp} = {size % tp})" for name, size in sizes.items() if size % tp]
    fitting = divisors(gcd(*sizes.values()))
    *fewer, most = map(str, fitting)
    can = f"{', '.join(fewer)} or {most}" if fewer else most
    first, *others = dict.fromkeys(Label(place.span, f"tp = {tp}") for place in places.values())
    finding = Finding(
        "HF813",
        f"role{'s' * (len(places) > 1)} {words(list(places))}: tp = {tp} does not divide {words(broken, quote='')} of "
        f"the model, which tp slices; tp can be {can}",
        first,
        tuple(others),
    )
    return with_suggestions(
        context, finding, narrower(context, places, sorted(fitting, key=lambda size: abs(size - tp)))
    )


def narrower(
    context: Context, places: Mapping[str, Placement[Any]], nearest: Sequence[int], why: str = DIVIDED
) -> Iterator[Suggestion]:
    """Meshes of the nearest sizes that divide the model, with dp to fill the pools."""
    changes: list[Change] = []
    for size in nearest:
        if len(changes) == MAX_CHANGES:
            break
        changed = {name: narrowed for name, place in places.items() if (narrowed := with_tp(place, size)) is not None}
        if len(changed) == len(places) and works(context, changed):
            changes.append(Change(meshes_in_words(changed), partial(with_moved_roles, changed)))
    yield Suggestion(tuple(changes), "use ", why)


def meshes_in_words(places: Mapping[str, Placement[Any]]) -> str:
    """The meshes of roles as a user writes them, a common one once."""
    meshes = {role: spelled(place.mesh) for role, place in places.items()}
    first, *others = dict.fromkeys(meshes.values())
    return ", ".join(f"{mesh} for '{role}'" for role, mesh in meshes.items()) if others else first


def with_tp(placement: Placement[Any], tp: int) -> Placement[Any] | None:
    """A role in slices of ``tp``, with dp to fill its pool; None if no mesh does."""
    dp, remainder = divmod(placement.pool.world_size, placement.mesh.pp * tp)
    with suppress(HfError):  # a size of generation that does not divide this one
        return None if remainder else replace(placement, mesh=replace(placement.mesh, tp=tp, dp=dp))
    return None
