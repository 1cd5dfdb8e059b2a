"""Resources: can the nodes of the cluster hold the pools?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any

from hfdsl.check.capacity import Capacity, Claim, Claims, capacity_for, claims, has_capacity, shape, words
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.alternatives import changed, placing, works
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.rules.placement.classes import spelled
from hfdsl.check.rules.placement.memory import overfull
from hfdsl.check.rules.placement.tensor_groups import crossings
from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.deploy.pools import ResourcePool
from hfdsl.protocols.bin_packing import CPU_UNITS, times, too_many
from hfdsl.types.dims import Answer

MAX_POOLS_TRIED = 4
"""The most alternative pools that are tried for one finding."""

MAX_NODES = 100_000
"""The most nodes over which a pool is spread."""

MAX_SIZES_TRIED = 64
"""The most sizes of a pool on one node that are considered for them."""


def pools_fit_cluster(context: Context) -> Iterator[Finding]:
    """The nodes of the cluster have GPUs and CPUs for all pools; each node of a pool is on one of them."""
    if context.program.deployment is None or context.cluster is None:
        return
    claimed = claims(context.program.deployment)
    for code, capacity in (
        ("HF502", capacity_for(context.program.deployment, context.cluster, "GPU")),
        ("HF505", capacity_for(context.program.deployment, context.cluster, "CPU")),
    ):
        if capacity.answer(claimed) is Answer.REFUTED:
            yield _too_large(context, code, capacity, claimed)
            return


def _too_large(context: Context, code: str, capacity: Capacity, claimed: Claims) -> Finding:
    """The first pool that does not fit beside those before it; alone, if it does not even fit alone."""
    relevant = [claim for claim in claimed if claim.pool.use_gpu or capacity.resource == "CPU"]
    alone = next((claim for claim in relevant if capacity.answer([claim]) is Answer.REFUTED), None)
    last = alone or next(
        claim for i, claim in enumerate(relevant, 1) if capacity.answer(relevant[:i]) is Answer.REFUTED
    )
    claimants = [alone] if alone else relevant
    finding = Finding(
        code,
        f"{_pools_in_words(claimants)} {'needs' if alone else 'need'} {_reason(capacity, claimants)}",
        Label(last.span, f"{_of(last, capacity)} for {words(last.roles)}"),
        (
            *(Label(d.span, f"{_of(d, capacity)} for {words(d.roles)}") for d in claimants if d is not last),
            Label(capacity.cluster.span, f"the cluster: {capacity.cluster}"),
        ),
    )
    return with_suggestions(context, finding, islice(_fixes(context, capacity, claimed, last), MAX_POOLS_TRIED), most=1)


def _reason(capacity: Capacity, claimed: Claims) -> str:
    """State the demand and the capacity, in the numbers that refute the placement."""
    parts, nodes = capacity.parts(claimed), capacity.nodes
    i = 0 if capacity.resource == "GPU" else 1
    scale = CPU_UNITS if i else 1
    need, have = (sum(Fraction(a[i], scale) * n for a, n in side.items()) for side in (parts, nodes))
    lacking = too_many(parts, nodes)
    if need > have or lacking is None:
        unit = f", {capacity.cpu / CPU_UNITS:g} a process slot" if i else ""
        unplaced = "" if need > have else ", but no layout on its nodes fits these parts"
        return f"{float(need):g} {capacity.resource}s{unit}, and the cluster has {float(have):g}{unplaced}"
    size, count, places = lacking
    part = " and ".join(
        f"{float(Fraction(amount, unit)):g} {name}s"
        for amount, unit, name in zip(size, (1, CPU_UNITS), ("GPU", "CPU"), strict=False)
        if amount
    )
    if not places:
        return f"{part} on one node, and no node of the cluster has so many"
    return f"{part} on one node {count} times, and the nodes have that {places} time{'s' if places > 1 else ''}"


def _of(claim: Claim, capacity: Capacity) -> str:
    slots = sum(size * count for size, count in claim.sizes.items())
    return f"{slots} GPUs" if capacity.resource == "GPU" else f"{slots * capacity.cpu / CPU_UNITS:g} CPUs"


def _pools_in_words(claimants: Claims) -> str:
    pools = [f"'{claim.pool.name}' {shape(claim.pool.processes)}" for claim in claimants[:4]]
    hidden = len(claimants) - len(pools)
    return (
        f"pool{'s' if len(claimants) > 1 else ''} {words([*pools, *([f'{hidden} more'] if hidden else [])], quote='')}"
    )


# -- repairs


def _fixes(context: Context, capacity: Capacity, claimed: Claims, culprit: Claim) -> Iterator[Suggestion]:
    """Other pools for the roles of the culprit with which rows, memory and groups work at least as well."""
    deployment, pool = context.program.deployment, culprit.pool
    if deployment is None or any(deployment[role].pool != pool for role in culprit.roles):
        return  # a pool that is split or merged: its parts would have to be rewritten
    fits = partial(_fits, context, deployment, capacity.cluster)
    wide = max(kind.gpus for kind in capacity.cluster.kinds)
    if pool.use_gpu and 0 < wide < max(pool.processes) and pool.world_size <= wide * MAX_NODES:
        parts = [min(wide, size - start) for size in pool.processes for start in range(0, size, wide)]
        spread = _like(pool, parts)
        places = {role: replace(deployment[role], pool=spread) for role in culprit.roles}
        if fits(places):
            gpus = f"{wide} GPU{'s' if wide > 1 else ''}"
            yield placing(f"spread '{pool.name}' over nodes of {gpus}: hf.ResourcePool({shape(parts)})", places)
    for claim in claimed:
        if claim.pool.use_gpu == pool.use_gpu:
            beside = _filling(deployment, culprit.roles, claim.pool)
            if beside and fits(beside):
                meshes = _meshes({role: place for role, place in beside.items() if place.mesh != deployment[role].mesh})
                text = f"place {words(culprit.roles)} on pool '{claim.pool.name}' beside {words(claim.roles)}{meshes}"
                yield placing(text, beside)
    slot = (int(pool.use_gpu), capacity.cpu)
    most = max(times(node, slot) for node in replace(capacity, resource="CPU").nodes)
    for number, processes in enumerate(_shorter(pool.processes, most)):
        if number == MAX_SIZES_TRIED:
            context.budget.exhausted = True
            break
        smaller = _filling(deployment, culprit.roles, _like(pool, processes))
        if smaller and fits(smaller):
            yield placing(f"hf.ResourcePool({shape(processes)}) for '{pool.name}' fits{_meshes(smaller)}", smaller)


def _filling(deployment: Deployment, roles: Sequence[str], pool: ResourcePool) -> Mapping[str, Placement[Any]] | None:
    """The roles on another pool, with dp to fill it; None if their models do not divide it."""
    placements = {}
    for role in roles:
        mesh = deployment[role].mesh
        dp, remainder = divmod(pool.world_size, mesh.pp * mesh.tp)
        if remainder:
            return None
        placements[role] = replace(deployment[role], pool=pool, mesh=replace(mesh, dp=dp))
    return placements


def _meshes(placements: Mapping[str, Placement[Any]]) -> str:
    return "".join(f"; give '{role}' {spelled(place.mesh)}" for role, place in placements.items())


def _like(pool: ResourcePool, processes: Sequence[int]) -> ResourcePool:
    """The pool with other nodes."""
    return ResourcePool(processes, pool.use_gpu, pool.name)


def _shorter(processes: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    """Fewer slots on a single node, at most ``most``; of several nodes, the first ones."""
    match processes:
        case (slots,):
            yield from ((fewer,) for fewer in range(min(slots - 1, most), 0, -1))
        case _:
            count = len(processes)
            shares = (count - 1, *(count * eighths // 8 for eighths in (7, 6, 5, 4, 3, 2, 1)), 1)
            yield from (processes[:nodes] for nodes in dict.fromkeys(shares) if nodes)


def _fits(context: Context, deployment: Deployment, cluster: Cluster, placements: Mapping[str, Placement[Any]]) -> bool:
    """Whether a deployment with other places certainly fits and, as far as can be decided quickly, breaks nothing."""
    moved = changed(deployment, placements)
    if not has_capacity(cluster, moved) or not works(context, placements):
        return False
    after = context.with_program(replace(context.program, deployment=moved))
    return len(list(overfull(after))) <= len(list(overfull(context))) and (
        len(list(crossings(after))) <= len(list(crossings(context)))
    )
