"""Offloading in a plan: which parts of roles move to host memory after which step, and how a plan prints that."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hfdsl.check.capacity import slots_in_use, words
from hfdsl.check.offloads import IdlePeriod, ResidentMemory
from hfdsl.deploy.deployment import Placement
from hfdsl.deploy.memory import GpuMemory, total
from hfdsl.plan.plan import Plan
from hfdsl.protocols.offloading import Part, parts_of

RolePart: TypeAlias = tuple[str, Part]
"""A role's name and a part of it."""

MAX_PRINTED_PERIODS = 4
"""How many idle periods are printed for each part."""


@dataclass(frozen=True, slots=True)
class OffloadSchedule:
    """Parts moved to host memory: ``at_start`` before the first call, ``after[call]`` after one, ``parts`` in all."""

    parts: frozenset[RolePart]
    at_start: frozenset[RolePart]
    after: Mapping[int, tuple[RolePart, ...]]


def offload_schedule(plan: Plan) -> OffloadSchedule:
    """The moves of a role's parts to host memory and back."""
    after: dict[int, tuple[RolePart, ...]] = {}
    for period in plan.offloads:
        if period.after is not None:
            after[period.after] = (*after.get(period.after, ()), (period.role, period.part))
    return OffloadSchedule(
        parts=frozenset((period.role, period.part) for period in plan.offloads),
        at_start=frozenset((period.role, period.part) for period in plan.offloads if period.around),
        after=after,
    )


def offload_lines(plan: Plan) -> Iterator[str]:
    """The offloading of every role, with the peak memory of its GPUs."""
    labels = {step.node: step.label for step in plan.steps}
    idle_times: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for role, period, parts in _together(plan.offloads):
        idle_times.setdefault((role, parts), []).append(_when(period, labels))
    for (role, parts), when in idle_times.items():
        named = words([f"{role}.{part}" for part in parts], quote="")
        more = f", and {len(when) - MAX_PRINTED_PERIODS} times more" if len(when) > MAX_PRINTED_PERIODS else ""
        yield f"{named}{_size(plan.deployment[role], parts)} on the host {', '.join(when[:MAX_PRINTED_PERIODS])}{more}"
    for resident in plan.resident if plan.offloads else ():
        where = f" at {labels[resident.node]}" if resident.node is not None else ""
        most, without = _sum(resident.amounts.values()), _sum(_without_offload(plan, resident))
        yield f"{resident.root.name} keeps at most {most} of each GPU{where}, {without} without offload"


def _size(place: Placement[Any], parts: tuple[str, ...]) -> str:
    """The size of these parts, as far as the deployment declares it."""
    memory = place.gpu_memory
    if memory is None or not (memory.parts or parts == parts_of(place.role)):
        return ""
    amounts = [memory.parts[part] for part in parts if part in memory.parts] if memory.parts else [memory]
    return f" ({_sum(amounts)})" if amounts else ""


def _together(periods: tuple[IdlePeriod, ...]) -> Iterator[tuple[str, IdlePeriod, tuple[str, ...]]]:
    """Each period in which parts of a role are in host memory, with all parts that share it."""
    by_time: dict[tuple[str, int | None, int | None], list[IdlePeriod]] = {}
    for period in periods:
        by_time.setdefault((period.role, period.after, period.before), []).append(period)
    for (role, _, _), same in by_time.items():
        yield role, same[0], tuple(period.part for period in same)


def _when(period: IdlePeriod, labels: Mapping[int, str]) -> str:
    if period.after is None or period.before is None:
        return "always"
    return f"from {labels[period.after]} to {'the next ' * period.around}{labels[period.before]}"


def _without_offload(plan: Plan, resident: ResidentMemory) -> list[GpuMemory]:
    """The memory that all roles on these GPUs would keep."""
    used = slots_in_use(plan.deployment)
    low, high = resident.slots.start, resident.slots.stop
    roles = {role for root, slots, role in used if root == resident.root and slots.start < high and low < slots.stop}
    return [memory for role in roles if (memory := plan.deployment[role].gpu_memory)]


def _sum(amounts: Collection[GpuMemory]) -> str:
    part, gib = total(amount.fraction for amount in amounts), total(amount.gib for amount in amounts)
    parts = [f"{float(part * 100):g}%"] if part else []
    return " and ".join([*parts, *([f"{float(gib):g} GiB"] if gib or not part else [])])
