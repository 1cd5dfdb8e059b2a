"""Offloading in a plan: what a process does about it before and after a step, and the same in words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hfdsl.check.capacity import slots_in_use, words
from hfdsl.check.offloads import Idle, Keeps
from hfdsl.deploy.deployment import Placement
from hfdsl.deploy.memory import GpuMemory, total
from hfdsl.plan.plan import Plan
from hfdsl.protocols.offloading import Part, parts_of

Moved = tuple[str, Part]
"""A part of a role."""

FEW = 4
"""So many stretches of idleness are printed of a part."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What goes to the host: ``first`` before a step of the plan, ``after`` each step; ``ever`` is all that does."""

    ever: frozenset[Moved]
    first: frozenset[Moved]
    after: Mapping[int, tuple[Moved, ...]]


def moves(plan: Plan) -> Moves:
    """What goes to the host when."""
    after: dict[int, tuple[Moved, ...]] = {}
    for idle in plan.offloads:
        if idle.after is not None:
            after[idle.after] = (*after.get(idle.after, ()), (idle.role, idle.part))
    return Moves(
        frozenset((idle.role, idle.part) for idle in plan.offloads),
        frozenset((idle.role, idle.part) for idle in plan.offloads if idle.around),
        after,
    )


def offload_lines(plan: Plan) -> Iterator[str]:
    """The moves of every role, and what its GPUs keep at most."""
    labels = {step.node: step.label for step in plan.steps}
    stretches: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for role, idle, parts in _together(plan.offloads):
        stretches.setdefault((role, parts), []).append(_when(idle, labels))
    for (role, parts), when in stretches.items():
        named = words([f"{role}.{part}" for part in parts], quote="")
        more = f", and {len(when) - FEW} times more" if len(when) > FEW else ""
        yield f"{named}{_size(plan.deployment[role], parts)} on the host {', '.join(when[:FEW])}{more}"
    for keeps in plan.kept if plan.offloads else ():
        where = f" at {labels[keeps.node]}" if keeps.node is not None else ""
        most, without = _sum(keeps.amounts.values()), _sum(_all_there(plan, keeps))
        yield f"{keeps.root.name} keeps at most {most} of each GPU{where}, {without} without offload"


def _size(place: Placement[Any], parts: tuple[str, ...]) -> str:
    """What moves, as far as somebody has said how much it is."""
    memory = place.gpu_memory
    if memory is None or not (memory.parts or parts == parts_of(place.role)):
        return ""
    own = [memory.parts[part] for part in parts if part in memory.parts] if memory.parts else [memory]
    return f" ({_sum(own)})" if own else ""


def _together(idles: tuple[Idle, ...]) -> Iterator[tuple[str, Idle, tuple[str, ...]]]:
    """Parts of a role that go and come together are told together."""
    found: dict[tuple[str, int | None, int | None], list[Idle]] = {}
    for idle in idles:
        found.setdefault((idle.role, idle.after, idle.before), []).append(idle)
    for (role, _, _), same in found.items():
        yield role, same[0], tuple(idle.part for idle in same)


def _when(idle: Idle, labels: Mapping[int, str]) -> str:
    if idle.after is None or idle.before is None:
        return "always"
    return f"from {labels[idle.after]} to {'the next ' * idle.around}{labels[idle.before]}"


def _all_there(plan: Plan, keeps: Keeps) -> list[GpuMemory]:
    low, high = keeps.slots
    runs = slots_in_use(plan.deployment)
    there = {name for root, first, end, name in runs if root == keeps.root and first < high and low < end}
    return [memory for name in there if (memory := plan.deployment[name].gpu_memory)]


def _sum(amounts: Collection[GpuMemory]) -> str:
    part, gib = total(a.fraction for a in amounts), total(a.gib for a in amounts)
    parts = [f"{float(part * 100):g}%"] if part else []
    return " and ".join([*parts, *([f"{float(gib):g} GiB"] if gib or not part else [])])
