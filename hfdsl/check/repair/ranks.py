"""Ranks: other numbers of data-parallel ranks, over which the rows of a role split evenly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import gcd
from typing import Any, TypeAlias

from hfdsl.check.capacity import has_capacity, shape
from hfdsl.check.context import Change, Context
from hfdsl.check.findings import in_words
from hfdsl.check.repair.alternatives import MOVE, with_moved_roles
from hfdsl.check.repair.fixes import split_off
from hfdsl.check.repair.suggestions import Suggestion
from hfdsl.check.rules.placement.tensor_groups import crossings
from hfdsl.check.sizes.demands import Divisible
from hfdsl.check.sources import call_at
from hfdsl.deploy.deployment import Placement
from hfdsl.deploy.pools import ResourcePool, roots
from hfdsl.graph.program import Node, RoleCall
from hfdsl.protocols.mesh import Mesh
from hfdsl.types.numbers import divisors

Placements: TypeAlias = Mapping[str, Placement[Any]]
"""Roles, each with its place."""

SPLITS = ("HF310", "HF313")  # the codes of demands that a number of ranks decides
NEAR = 2  # the factor by which a number of ranks may differ: beyond it, the plan is another one
MOST = 2  # how many smaller and how many larger numbers of ranks are tried
SPARE = 30  # as many trials must be left in the budget: sizes that repair other findings come before these repairs


def other_ranks(context: Context, calls: Iterable[tuple[Node, Divisible]]) -> Iterator[Suggestion]:
    """The nearest smaller and larger numbers of data-parallel ranks over which the rows of these calls split evenly.

    All roles on the pool move together, to a pool with as many slots; where other pools or meshes need its devices,
    to a part of it. A number is larger only where a described cluster, or the one node of a pool without GPUs,
    certainly has room.
    """
    splits = [(node.op.role, call) for node, call in calls if isinstance(node.op, RoleCall) and call.code in SPLITS]
    roles = {role for role, _ in splits}
    places = [place for role, place in context.program.placements.items() if role in roles]
    if not places or any(place.pool != places[0].pool for place in places) or not _affordable(context):
        return
    place = places[0]
    rows = [combination.known(call.size).value for combination in context.combinations for _, call in splits]
    common = gcd(*(count.numerator if count is not None and count.denominator == 1 else 1 for count in rows))
    dp = place.mesh.dp
    if dp == 1 or place.mesh.world_size != place.pool.world_size:
        return
    near = [ranks for ranks in divisors(common) if ranks > 1 and dp <= NEAR * ranks and ranks <= NEAR * dp]
    smaller, larger = [ranks for ranks in reversed(near) if ranks < dp], [ranks for ranks in near if ranks > dp]
    moves = [move for side in (smaller, larger) for move in islice(_moves(context, place, side[:MOST]), 1)]
    if len({before for before, _ in moves}) == 1:
        yield Suggestion(tuple(change for _, change in moves), moves[0][0])
    else:
        yield from (Suggestion((change,), before) for before, change in moves)


def _affordable(context: Context) -> bool:
    """Whether the trials of other repairs are certain to fit into the budget too."""
    cost = context.cost * len(context.combinations)
    return SPARE * cost <= context.budget.visits and SPARE * (cost + MOVE) <= context.budget.moves


def _moves(context: Context, place: Placement[Any], counts: Sequence[int]) -> Iterator[tuple[str, Change]]:
    """The changes to these numbers of ranks with which rows split evenly, each with the words that it begins with."""
    together = {name: other for name, other in context.program.placements.items() if other.pool == place.pool}
    owned = place.pool in roots(place.pool)
    others = [other.pool for name, other in context.program.placements.items() if name not in together]
    shared = not owned or any(not set(roots(place.pool)).isdisjoint(roots(pool)) for pool in others)
    for dp in counts:
        slots = place.mesh.pp * place.mesh.tp * dp
        meshes = {name: _filling(other.mesh, slots) for name, other in together.items()}
        fitting = {name: mesh for name, mesh in meshes.items() if mesh is not None}
        if not shared and len(fitting) == len(together):
            for processes in _shapes(place.pool, slots):
                pool = ResourcePool(processes, place.pool.use_gpu, place.pool.name)
                moved = {name: replace(together[name], mesh=mesh, pool=pool) for name, mesh in fitting.items()}
                after = _evenly_split(context, moved)
                if after is not None and _has_room(context, place.pool, after, pool):
                    before = f"{_with_meshes(context, together, fitting)}give {_in_words(pool, moved)} "
                    words = f"{slots} slots: processes {shape(processes)}"
                    yield before, Change(words, partial(with_moved_roles, moved))
                    break
        elif slots < place.pool.world_size:
            alike = {name: replace(other.mesh, dp=dp) for name, other in together.items() if other.mesh == place.mesh}
            words, part = split_off(context, place.pool, slots)
            moved = {name: replace(together[name], mesh=mesh, pool=part) for name, mesh in alike.items()}
            if _evenly_split(context, moved) is not None:
                yield _with_meshes(context, together, alike), Change(words, partial(with_moved_roles, moved))


def _filling(mesh: Mesh, slots: int) -> Mesh | None:
    """The mesh with as many data-parallel ranks as fill the slots."""
    dp, remainder = divmod(slots, mesh.pp * mesh.tp)
    return None if remainder else replace(mesh, dp=dp)


def _shapes(pool: ResourcePool, slots: int) -> Iterator[list[int]]:
    """Slots on nodes like those of the pool: on one if it has one, else equally many on each, else filled in order."""
    most = max(pool.processes)
    nodes = -(-slots // most)
    if len(pool.processes) == 1:
        yield [slots]
    if not slots % nodes:
        yield [slots // nodes] * nodes
    yield [min(most, slots - first) for first in range(0, slots, most)]


def _evenly_split(context: Context, moved: Placements) -> Context | None:
    """The program with some roles placed elsewhere, if all their rows then split evenly, with all sizes."""
    if not context.budget.spend("moves", MOVE + context.cost * len(context.combinations)):
        return None
    after = with_moved_roles(moved, context)
    refuted = [demand for combination in after.combinations for demand in combination.refuted] if after else []
    split = [demand for demand in refuted if isinstance(demand, Divisible) and demand.code in SPLITS]
    roles = {node.op.role for demand in split for node in demand.nodes if isinstance(node.op, RoleCall)}
    return after if roles.isdisjoint(moved) else None


def _has_room(context: Context, now: ResourcePool, after: Context, pool: ResourcePool) -> bool:
    """Whether there certainly is room for the new pool, on nodes that no more tensor-parallel groups cross than now."""
    if len(list(crossings(after))) > len(list(crossings(context))):
        return False
    if pool.world_size < now.world_size:
        return True
    if context.cluster is not None and after.program.deployment is not None:
        return has_capacity(context.cluster, after.program.deployment)
    return not pool.use_gpu and len(now.processes) == len(pool.processes) == 1


def _in_words(pool: ResourcePool, roles: Iterable[str]) -> str:
    """The pool by its name, or by its roles if it was numbered instead of named."""
    return f"the pool of {in_words(list(roles))}" if re.fullmatch(r"pool\d+", pool.name) else f"pool '{pool.name}'"


def _with_meshes(context: Context, now: Placements, meshes: Mapping[str, Mesh]) -> str:
    """The words for the meshes that are written and change: those that follow from a pool change with it."""
    written = {name: mesh.dp for name, mesh in meshes.items() if context.numbers is not None or _has_mesh(now[name])}
    if len(written) == len(meshes) and len(set(written.values())) == 1:
        return f"set dp to {next(iter(written.values()))} and "
    each = [f"dp of '{name}' to {dp}" for name, dp in written.items()]
    return f"set {', '.join(each)} and " if each else ""


def _has_mesh(place: Placement[Any]) -> bool:
    """Whether a mesh is written for a role, unless its text shows that there is none."""
    call = call_at(place.span)
    derived = call is not None and not any(keyword.arg in ("mesh", None) for keyword in call.keywords)
    return not derived or place.mesh != Mesh(dp=place.pool.world_size)
