"""Predicted GPU memory: what roles hold on each of the GPUs that they share, and the most in a step.

Roles share the GPUs of one pool, or those of slots that their pools have in common. While one of them runs, the others
hold what they hold between calls, less what is offloaded then::

                      between calls    while it runs
    actor.generate        19.8             35.7        peak: 35.7 + 4.7 = 40.4 GiB at actor.generate
    reference              4.7              8.8

So the engine of ``actor`` and the passes of ``reference`` do not add up: they are never awake at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hfdsl.check.capacity import shared_slots
from hfdsl.deploy.pools import ResourcePool, slot_ranges
from hfdsl.graph.program import RoleCall
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.syncs import SyncTraffic
from hfdsl.protocols import role_facts
from hfdsl.protocols.offloading import Part, resident
from hfdsl.protocols.role_facts import GpuBytes
from hfdsl.types.numbers import byte_amount, byte_amounts

CONTEXT: Final = 2**29
"""The CUDA context of a process, with the kernels that it has loaded; roles that share a process share it."""


@dataclass(frozen=True, slots=True)
class GpuPeak:
    """The most that roles hold on each of some GPUs, and at which step."""

    gpus: str
    """The pool, or the slots of it, in words."""

    step: str
    """The label of the step."""

    roles: Mapping[str, Mapping[str, int]]
    """By role the bytes of each part."""

    unknown: tuple[str, ...]
    """The roles on the same GPUs that state nothing."""

    processes: int
    """The number of processes that have a context on the GPU."""

    @property
    def bytes(self) -> int:
        """The sum over roles and parts."""
        return self.processes * CONTEXT + sum(sum(parts.values()) for parts in self.roles.values())

    def __str__(self) -> str:
        held = "; ".join(f"{role} {byte_amounts(parts)}" for role, parts in self.roles.items() if parts)
        held += f"; {byte_amount(CONTEXT)} of CUDA for each process"
        besides = f"; besides, {', '.join(self.unknown)}" if self.unknown else ""
        return f"{self.gpus} {byte_amount(self.bytes)} of each GPU at {self.step}: {held}{besides}"


def gpu_peaks(plan: Plan, syncs: Sequence[SyncTraffic]) -> Iterator[GpuPeak]:
    """The peak of all GPUs that the same roles use, where one of them states its ``gpu_bytes``.

    While weights go from one role to another, buffers of two buckets are on the GPUs of both, also on their way to host
    memory, for the parts that do not leave or arrive where a role has them (``message_memory``). Where only changes go,
    both sides have twice as much, and the role that sends keeps what it has sent. While a role generates from other
    slices, the rest of these is there. Weights that its process reads in the memory of another one are there as a
    whole, in copies of both sides; in flight also while it generates. Behind a queue a copy may wait for a reader at
    any time, one for each step that the reader may be ahead.
    """
    added = {step.node: _added(plan, syncs, step) for step in plan.steps}
    places = plan.deployment.placements
    slots_by_roles: dict[tuple[str, ...], list[tuple[ResourcePool, range]]] = {}
    for root, slots, roles in shared_slots(plan.deployment):
        slots_by_roles.setdefault(roles, []).append((root, slots))
    for sharing, ranges in slots_by_roles.items():
        stated = {name: role_facts.gpu_bytes.of(places[name]) for name in sharing}
        phases = {name: stated[name] for name in sharing if stated[name]}
        unknown = tuple(name for name in sharing if not stated[name])
        processes = sum(not set(sharing).isdisjoint(group.roles) for group in plan.groups)
        peaks = [
            GpuPeak(
                gpus=_in_words({places[name].pool for name in sharing}, ranges),
                step=step.label,
                roles={
                    role: {**parts, **added[step.node].get(role, {})}
                    for role, parts in _held_parts(plan, phases, step.node, step.role, _method(plan, step)).items()
                },
                unknown=unknown,
                processes=processes,
            )
            for step in plan.steps
            if step.role in phases
        ]
        if peaks:
            yield max(peaks, key=lambda peak: peak.bytes)


def _in_words(pools: Collection[ResourcePool], ranges: Sequence[tuple[ResourcePool, range]]) -> str:
    """The pool whose slots these are, or the slots as the parts of a split pool are named."""
    whole = [pool.name for pool in pools if set(slot_ranges(pool)) == set(ranges)]
    if len(pools) == len(whole) == 1:
        return whole[0]
    counts = Counter[ResourcePool]()
    for root, slots in ranges:
        counts[root] += len(slots)
    return ", ".join(
        dict.fromkeys(
            root.name if counts[root] == root.world_size else f"{root.name}[{slots.start}:{slots.stop}]"
            for root, slots in ranges
        )
    )


def _method(plan: Plan, step: Step) -> str:
    """The method that runs: that of a step, or where weights are exported in parts, ``held_weights``."""
    in_parts = step.parts and step.role is not None and hasattr(plan.deployment[step.role].role, "held_weights")
    return "held_weights" if in_parts else step.signature.name


def _added(plan: Plan, syncs: Sequence[SyncTraffic], step: Step) -> Mapping[str, Mapping[str, int]]:
    """The memory that syncs add to roles during a step."""
    added: dict[str, Counter[str]] = {}
    for sync in syncs:
        load, export = plan.node(sync.target_node).op, plan.node(sync.source_node).op
        if not isinstance(load, RoleCall) or not isinstance(export, RoleCall):
            continue
        beside = load.during is not None and (step.role, step.signature.name) == (load.role, load.during)
        loads = beside or step.node == sync.target_node or (sync.within and step.label == sync.target)
        if loads:
            added.setdefault(load.role, Counter()).update(sync.added)
        if sync.copied and (sync.waiting or loads or step.node == sync.source_node):
            added.setdefault(export.role, Counter()).update({"copied weights": sync.copied * max(1, sync.waiting)})
        if sync.kept:
            added.setdefault(export.role, Counter()).update({"weights sent last": sync.kept})
        if sync.leaving and (loads or step.node == sync.source_node):
            added.setdefault(export.role, Counter()).update({"leaving weights": sync.leaving})
    return added


def _held_parts(
    plan: Plan, phases: Mapping[str, GpuBytes], node: int, running: str | None, method: str
) -> dict[str, Mapping[str, int]]:
    away: dict[str, set[Part]] = {}
    for period in plan.offloads:
        if _covers(period.after, period.before, node):
            away.setdefault(period.role, set()).add(period.part)
    held: dict[str, Mapping[str, int]] = {}
    for role, by_method in phases.items():
        parts = by_method.get(method, by_method.get("", {})) if role == running else by_method.get("", {})
        held[role] = resident(parts, away.get(role, ()))
    return held


def _covers(after: int | None, before: int | None, node: int) -> bool:
    """Whether an idle period from the end of one call to the start of another has a node in it."""
    if after is None or before is None:
        return True
    return after < node < before if after < before else node > after or node < before
