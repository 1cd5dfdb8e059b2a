"""Offloads: which parts of which roles are on the host while idle, and what GPUs hold meanwhile.

A dataflow is one step of a loop, so idle time wraps around its end: a part that is used last in one step and first in
the next is never idle. This decides a schedule: ``IdlePeriod`` and ``ResidentMemory`` are fields of a plan.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any

from hfdsl.check.capacity import slots_in_use
from hfdsl.check.context import Context
from hfdsl.check.gpu_sizes import gpu_sizes
from hfdsl.deploy.deployment import Placement, ProcessGroup, process_groups
from hfdsl.deploy.memory import GpuMemory, total
from hfdsl.deploy.pools import ResourcePool
from hfdsl.graph.program import RoleCall
from hfdsl.protocols.dispatch import Execute
from hfdsl.protocols.offloading import Part, not_offloadable, parts_of, parts_used

MAX_PRUNED_MOVES = 64
"""Up to so many moves, those that can be left out are found at no cost worth counting."""


@dataclass(frozen=True, slots=True)
class IdlePeriod:
    """A part of a role is on the host from the end of one call of the role to the start of another.

    Both are nodes; None for a role that is never called, whose part is always on the host. ``around`` says whether a
    step ends in between.
    """

    role: str
    part: Part
    after: int | None
    before: int | None
    around: bool


@dataclass(frozen=True, slots=True)
class ResidentMemory:
    """What roles keep of each GPU of ``slots`` during a call.

    ``place`` is the position of the call in the step, -1 if all calls are alike.
    """

    root: ResourcePool
    slots: tuple[int, int]
    amounts: Mapping[str, GpuMemory]
    node: int | None
    place: int

    @property
    def part(self) -> Fraction:
        """The amounts that were given as fractions of a GPU's memory."""
        return total(amount.fraction for amount in self.amounts.values())

    @property
    def gib(self) -> Fraction:
        """The amounts that were given in GiB."""
        return total(amount.gib for amount in self.amounts.values())

    def more_than(self, size: Fraction | None) -> bool:
        """Whether that is too much for a GPU of so many GiB (None: of any size)."""
        if self.part > 1 or (self.part == 1 and self.gib > 0):
            return True
        return size is not None and self.part * size + self.gib > size

    def of(self, size: Fraction | None) -> Fraction:
        """How much it is, for comparisons; if the size is unknown, of a GPU of 100 GiB."""
        return self.part * (size or 100) + self.gib


def _schedule(gpus: SharedGpus) -> list[_Gap]:
    asked = {gap for gap in gpus.gaps if gpus.places[gap.period.role].offload and not gap.loop}
    needed: list[_Gap] = []
    while gpus.gaps:
        more: list[_Gap] = []
        for resident in gpus.too_full([*asked, *needed]):
            if not any(resident.place in gap.calls for gap in more):
                more += gpus.relief(resident)
        if not more:
            break
        needed = list(dict.fromkeys([*needed, *more]))
    if len(needed) <= MAX_PRUNED_MOVES:
        for gap in sorted(needed, key=lambda gap: (not gap.loop, len(gap.calls))):  # the most expensive first
            others = [other for other in needed if other is not gap]
            needed = needed if any(gpus.too_full([*asked, *others])) else others
    taken = asked.union(needed)
    return [gap for gap in gpus.gaps if gap in taken]


@dataclass(frozen=True, slots=True)
class _PlacedCall:
    node: int
    role: str
    parts: tuple[Part, ...]
    by_all: bool  # of the role's ranks: a rank that is not called does not move anything either
    method: str


@dataclass(frozen=True, slots=True)
class _Gap:
    """A possible ``IdlePeriod``, with the calls in between, by their positions in the step."""

    period: IdlePeriod
    calls: frozenset[int]
    loop: bool


class SharedGpus:
    """The calls of a step, and the GPUs that they share."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.places = context.program.deployment.placements if context.program.deployment else {}
        self.calls = tuple(_calls(context, self.places))

    @cached_property
    def _taken(self) -> list[_Gap]:
        return _schedule(self)

    @property
    def idle_periods(self) -> tuple[IdlePeriod, ...]:
        """What is in host memory when: idle parts of roles with ``offload=True``, and what GPUs have no room for.

        Between two calls of one method, which are turns of a loop, a part stays on the GPU if there is room.
        """
        return tuple(gap.period for gap in self._taken)

    @cached_property
    def fullest(self) -> list[tuple[ResidentMemory, Fraction | None]]:
        """For every set of GPUs the call in which roles keep most of them, with the largest size that all may have.

        More than that is too much wherever the nodes of the pool are placed.
        """
        most: dict[tuple[str, tuple[int, int]], tuple[ResidentMemory, Fraction | None]] = {}
        for resident in self.resident_memory(self._taken):
            where = resident.root.name, resident.slots
            size = gpu_sizes(self.context.cluster, resident.root, resident.slots)[1]
            if where not in most or resident.of(size) > most[where][0].of(size):
                most[where] = resident, size
        return list(most.values())

    @cached_property
    def runs(self) -> Mapping[str, tuple[ResourcePool, list[tuple[int, int, str]]]]:
        """The slots of each pool with GPUs, as (first, end, role)."""
        runs: dict[str, tuple[ResourcePool, list[tuple[int, int, str]]]] = {}
        for root, first, end, name in (
            slots_in_use(self.context.program.deployment) if self.context.program.deployment else ()
        ):
            if root.use_gpu:
                runs.setdefault(root.name, (root, []))[1].append((first, end, name))
        return runs

    @cached_property
    def near(self) -> Mapping[str, list[int]]:
        """For each role the calls that run on its GPUs, by their positions in order."""
        sharing: dict[str, set[str]] = {}
        for _, runs in self.runs.values():
            for first, end, name in runs:
                sharing.setdefault(name, set()).update(other for a, b, other in runs if a < end and first < b)
        return {
            name: [i for i, call in enumerate(self.calls) if call.role in others] for name, others in sharing.items()
        }

    @cached_property
    def gaps(self) -> tuple[_Gap, ...]:
        """The idle time of every part that could be used."""
        if not self.context.offload:
            return ()
        asked = (
            name
            for name, place in self.places.items()
            if place.offload or (place.offload is None and place.gpu_memory is not None)
        )
        able = [name for name in asked if not_offloadable(self.places[name].role) is None and name in self.near]
        groups = process_groups(self.context.program.deployment) if self.context.program.deployment else ()
        return tuple(
            gap for name in able for part in parts_of(self.places[name].role) for gap in self._gaps(name, part, groups)
        )

    def _gaps(self, role: str, part: Part, groups: Iterable[ProcessGroup]) -> Iterator[_Gap]:
        near = self.near[role]
        used = [i for i, call in enumerate(self.calls) if call.role == role and part in call.parts]
        if not used:
            [group] = [group for group in groups if role in group.roles]
            if any(call.role in group.roles and call.by_all for call in self.calls):
                yield _Gap(IdlePeriod(role, part, None, None, True), frozenset(near), False)
            return
        for first, then in pairwise([*used, used[0]]):
            around = then <= first
            begin, end = bisect_right(near, first), bisect_left(near, then)
            between = frozenset([*near[begin:], *near[:end]] if around else near[begin:end])
            if between and self.calls[first].by_all:
                after, before = self.calls[first], self.calls[then]
                loop = after.method == before.method and not around
                yield _Gap(IdlePeriod(role, part, after.node, before.node, around), between, loop)

    def resident_memory(self, taken: Iterable[_Gap]) -> Iterator[ResidentMemory]:
        """For each range of slots with the same roles, what they keep during each call there."""
        away: dict[int, dict[str, set[str]]] = {}
        for gap in taken:
            for i in gap.calls:
                away.setdefault(i, {}).setdefault(gap.period.role, set()).add(gap.period.part)
        for root, runs in self.runs.values():
            edges = sorted({edge for first, end, _ in runs for edge in (first, end)})
            for low, high in pairwise(edges):
                names = tuple(name for first, end, name in runs if first <= low < end)
                amounts = {name: memory for name in names if (memory := self.places[name].gpu_memory)}
                if amounts:
                    here = [i for i, call in enumerate(self.calls) if call.role in names] if self.gaps else []
                    for i in here or (-1,):
                        left = self._left(amounts, away.get(i, {}))
                        yield ResidentMemory(root, (low, high), left, self.calls[i].node if i >= 0 else None, i)

    def _left(self, amounts: Mapping[str, GpuMemory], away: Mapping[str, set[str]]) -> Mapping[str, GpuMemory]:
        gone = {name: away.get(name, set()) for name in amounts}
        all_gone = {name: parts >= set(parts_of(self.places[name].role)) for name, parts in gone.items()}
        left = {name: memory.without(gone[name], all_gone[name]) for name, memory in amounts.items()}
        return {name: memory for name, memory in left.items() if memory is not None}

    def too_full(self, taken: Iterable[_Gap]) -> Iterator[ResidentMemory]:
        """The calls in which roles keep more of a GPU than the smallest GPU that the launch may give them has.

        Which nodes a pool gets is known only at launch; what is moved is decided before.
        """
        return (resident for resident in self.resident_memory(taken) if resident.more_than(self._smallest(resident)))

    def _smallest(self, resident: ResidentMemory) -> Fraction | None:
        return gpu_sizes(self.context.cluster, resident.root, resident.slots)[0]

    def relief(self, resident: ResidentMemory) -> list[_Gap]:
        """What to move so that less is kept during a call: what suffices, idles longest, and keeps most."""
        size = self._smallest(resident)
        options: list[tuple[tuple[Any, ...], list[_Gap]]] = []
        for role in resident.amounts:
            gaps = [gap for gap in self.gaps if gap.period.role == role and resident.place in gap.calls]
            after = replace(resident, amounts=self._left(resident.amounts, {role: {gap.period.part for gap in gaps}}))
            if after.of(size) < resident.of(size):
                length = min(len(gap.calls) for gap in gaps)
                rank = (not after.more_than(size), not any(gap.loop for gap in gaps), length, -after.of(size))
                options.append((rank, gaps))
        return max(options, key=lambda option: option[0], default=((), []))[1]


def _calls(context: Context, places: Mapping[str, Placement[Any]]) -> Iterator[_PlacedCall]:
    for node in context.program.graph.calls:
        if isinstance(node.op, RoleCall) and node.op.role in places:
            registration = node.op.signature.registration
            by_all = registration is None or registration.execute_mode is not Execute.RANK_ZERO
            placed = getattr(places[node.op.role].role, node.op.signature.name, node.op.signature.body)
            parts = max(parts_used(placed), parts_used(node.op.signature.body), key=len)
            yield _PlacedCall(node.id, node.op.role, parts, by_all, node.op.signature.name)
