"""Model memory: do the weights, gradients, optimizer states and engines of the roles on a GPU fit into it?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Final

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label, in_words
from hfdsl.check.gpu_sizes import gpu_sizes
from hfdsl.check.offloads import SharedGpus
from hfdsl.check.repair.alternatives import placing, with_moved_roles, works
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.rules.placement.classes import spelled
from hfdsl.check.rules.placement.memory import overfull, own_pool
from hfdsl.check.rules.placement.slices import meshes_in_words, with_tp
from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.deployment import Placement
from hfdsl.deploy.memory import GpuMemory
from hfdsl.deploy.pools import ResourcePool
from hfdsl.deploy.weight_syncs import overrides
from hfdsl.protocols import role_facts
from hfdsl.protocols.offloading import not_offloadable, resident
from hfdsl.protocols.role_facts import GpuBytes
from hfdsl.types.numbers import byte_amount, byte_amounts, divisors

CACHE: Final = "engine's cache"

EXACT: Final = ("weights", "master weights", "gradients", "moments", "engine's weights", CACHE)
"""The parts of a role's ``gpu_bytes`` that follow from the sizes of its model; the others are estimates."""

DECLARED: Final = "gpu_memory"
"""The one part of a role without ``gpu_bytes``."""

LEARNED: Final = ("gradients", "moments")
"""The parts that a role has from its first update on."""

GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that roles hold of each GPU of some slots, of ``size`` bytes, by role and part.

    ``call`` is the one during which they do; None if they hold as much all the time.
    """

    root: ResourcePool
    size: int
    held: Mapping[str, Mapping[str, int]]
    call: str | None

    @property
    def bytes(self) -> int:
        """The sum over roles and parts."""
        return sum(sum(parts.values()) for parts in self.held.values())


def models_fit_gpus(context: Context) -> Iterator[Finding]:
    """Models on the same GPU hold no more than it has, where their bytes are known, beside what others declare.

    Roles whose declared ``gpu_memory`` is already too much are reported for that.
    """
    cluster, deployment = context.cluster, context.program.deployment
    if cluster is None or deployment is None:
        return
    reported = {role for memory, _ in overfull(context) for role in memory.amounts}
    for peak in sorted(_too_much(context), key=lambda peak: -peak.bytes):
        if reported.isdisjoint(peak.held):
            reported.update(peak.held)
            yield _finding(context, cluster, deployment.placements, peak)


def _too_much(context: Context) -> Iterator[Peak]:
    """The peaks that exceed the largest GPU which all of their slots may get."""
    gpus = SharedGpus(context)
    facts = {
        name: parts
        for name, place in gpus.places.items()
        if not overrides(place.role, "__init__", stated_by="gpu_bytes")  # what another constructor loads is unknown
        and (parts := role_facts.gpu_bytes.of(place))
    }
    for root, slots, roles in gpus.shared_slots:
        size = gpu_sizes(context.cluster, root, slots)[1]
        stated = {role: facts[role] for role in roles if role in facts}
        amounts = {role: amount for role in roles if role not in facts and (amount := gpus.places[role].gpu_memory)}
        if size is not None and stated:
            phases = list(_phases(gpus, root, int(size * GIB), stated, amounts))
            peak = max(phases, key=lambda phase: phase.bytes)
            if peak.bytes > peak.size:
                is_constant = all(phase.bytes == peak.bytes for phase in phases)
                yield replace(peak, call=None) if is_constant else peak


def _phases(
    gpus: SharedGpus,
    root: ResourcePool,
    size: int,
    stated: Mapping[str, GpuBytes],
    amounts: Mapping[str, GpuMemory],
) -> Iterator[Peak]:
    """The memory held during each call of these roles, or between calls if there are none.

    ``amounts`` are those that other roles on the same GPUs declare.
    """
    learning = {call.role for call in gpus.calls if "optimizer" in call.parts}
    calls = [(i, call) for i, call in enumerate(gpus.calls) if call.role in stated or call.role in amounts]
    for i, call in calls:
        methods, away = {role: call.method if role == call.role else "" for role in stated}, gpus.away.get(i, {})
        held = {
            role: resident(_exact(stated[role], method, role in learning), away.get(role, ()))
            for role, method in methods.items()
        }
        held |= _declared(gpus.remaining_memory(amounts, away), size)
        yield Peak(root, size, {role: parts for role, parts in held.items() if parts}, f"{call.role}.{call.method}")
    if not calls:
        held = {role: _exact(parts, "", learns=False) for role, parts in stated.items()}
        yield Peak(root, size, held | _declared(amounts, size), None)


def _declared(amounts: Mapping[str, GpuMemory], size: int) -> dict[str, dict[str, int]]:
    """The memory that roles declare to keep of a GPU of ``size`` bytes."""
    return {role: {DECLARED: int(memory.fraction * size + memory.gib * GIB)} for role, memory in amounts.items()}


def _exact(phases: GpuBytes, method: str, learns: bool) -> dict[str, int]:
    parts = phases.get(method, phases.get("", {}))
    return {name: parts[name] for name in EXACT if parts.get(name) and (learns or name not in LEARNED)}


def _finding(context: Context, cluster: Cluster, places: Mapping[str, Placement[Any]], peak: Peak) -> Finding:
    totals = {role: sum(parts.values()) for role, parts in peak.held.items()}
    roles = sorted(totals, key=lambda role: -totals[role])
    first, *others = (Label(places[role].span, f"holds {byte_amount(totals[role])}") for role in roles)
    hold = "hold" if others else "holds"
    when = f"while '{peak.call}' runs, " if peak.call is not None else ""
    finding = Finding(
        "HF504",
        f"{when}{in_words(roles)} {hold} {byte_amount(peak.bytes)} of each GPU of pool '{peak.root.name}', which has "
        f"{peak.size / GIB:g} GiB",
        first,
        (*others, Label(cluster.span, f"the cluster: {cluster}")),
        tuple(f"'{role}'{_model(places[role])}: {byte_amounts(peak.held[role])}" for role in roles),
    )
    times = peak.bytes / peak.size
    smaller = ", make the cache smaller" if any(CACHE in parts for parts in peak.held.values()) else ""
    note = f"that is {times:.1f} times a GPU: slice models by tp, shard those that learn{smaller}, or take larger GPUs"
    return with_suggestions(context, finding, _remedies(context, places, roles), note, most=2)


def _model(place: Placement[Any]) -> str:
    count = role_facts.parameter_count.of(place)
    return f", {count:,} parameters on {spelled(place.mesh)}" if count is not None else f" on {spelled(place.mesh)}"


def _remedies(context: Context, places: Mapping[str, Placement[Any]], roles: Sequence[str]) -> Iterator[Suggestion]:
    """The narrowest slices that fit, idle models on the host, or a pool for a role of its own."""
    for tp in divisors(gcd(*(size for role in roles for size in _sliced(places[role])))):
        narrower = {role: place for role in roles if (place := with_tp(places[role], tp)) is not None}
        if len(narrower) == len(roles) and works(context, narrower) and _fit(with_moved_roles(narrower, context)):
            yield placing(f"slice models over more GPUs: {meshes_in_words(narrower)}", narrower)
            break
    movable = [role for role in roles if places[role].offload is None and not_offloadable(places[role].role) is None]
    alone, together = [[role] for role in reversed(movable)], [movable] if len(movable) > 1 else []
    for moved in (*alone, *together):
        offloaded = {role: replace(places[role], offload=True) for role in moved}
        yield placing(f"place {in_words(moved)} with offload=True, to have what is idle in host memory", offloaded)
    yield from own_pool(context, tuple(roles))


def _sliced(place: Placement[Any]) -> Iterable[int]:
    """The sizes that tp must divide; 1 where the role states none, so that nothing else is tried."""
    return role_facts.sliced.of(place).values() or (1,)


def _fit(context: Context | None) -> bool:
    return context is not None and not any(_too_much(context))
