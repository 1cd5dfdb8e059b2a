"""Offloads: the parts of roles that are in host memory while idle, and the memory of GPUs meanwhile.

A worked example. Two roles share a GPU of 80 GiB. The actor has 30 GiB of weights and 30 GiB of optimizer states, the
reward model 40 GiB of weights; 100 GiB are too many. The dataflow is one step of a loop, so that idle time wraps around
its end:

>>> import hfdsl as hf
>>> from hfdsl.check.run import build_context
>>> class B(hf.Dim): ...
>>> class Rows(hf.Batch):
...     x: hf.f32[B]
>>> class Model(hf.Worker):
...     @hf.register(hf.Dispatch.DP_PROTO)
...     @hf.reads("weights")
...     def apply(self, rows: Rows) -> Rows: ...
...     def offload(self, part: str) -> None: ...
...     def onload(self, part: str) -> None: ...
>>> class Actor(Model):
...     @hf.register(hf.Dispatch.DP_PROTO)
...     @hf.writes("weights")
...     def update(self, rows: Rows) -> Rows: ...
>>> def step(rows: Rows, actor: Actor, reward: Model) -> Rows:
...     return actor.update(reward.apply(actor.apply(rows)))
>>> pool = hf.ResourcePool([1])
>>> deployment = hf.Deployment(
...     actor=hf.place(Actor, pool=pool, gpu_memory={"weights": "30GiB", "optimizer": "30GiB"}),
...     reward=hf.place(Model, pool=pool, gpu_memory="40GiB"),
... )
>>> cluster = hf.Cluster(hf.Nodes(1, gpus=1, gpu_memory_gib=80, cpus=8))
>>> gpus = SharedGpus(build_context(step, deployment, {B: 8}, cluster))

Each part has a gap between every use and the next one, with the calls (0, 1, 2) that run on its GPUs meanwhile. The
actor's weights have none between call 2 and call 0 of the next step, for nothing runs in between:

>>> for gap in gpus.gaps:
...     print(gap.period.role, gap.period.part, sorted(gap.calls))
actor weights [1]
actor optimizer [0, 1]
reward weights [0, 2]

Call 0 is too full. Without the reward model it holds 60 GiB, without the optimizer 70 GiB, so the reward model is
chosen, which makes room in call 2 as well. Call 1 is too full: the reward model is in use there, so the actor is
chosen, with both of its parts. Finally each gap is dropped if all calls fit without it: the actor's weights can stay,
since call 1 then holds 70 GiB. The schedule::

                      0 actor.apply   1 reward.apply   2 actor.update
    actor weights          30               30               30
    actor optimizer       host             host              30
    reward weights        host              40              host
    on the GPU             30               70               60      GiB

>>> [(period.role, period.part) for period in gpus.idle_periods]
[('actor', 'optimizer'), ('reward', 'weights')]
>>> [(resident.place, int(resident.gib)) for resident, _ in gpus.fullest]
[(1, 70)]

Why this is right. A gap ends before the next use of its part, so whichever gaps are taken, every call finds on the GPU
what it uses. Taking another gap never adds to what a GPU holds. Each round takes a new gap or is the last, so the
search ends. It ends with a call too full only if everything that may be idle during that call is on the host; no other
choice of gaps would fit either. A gap is dropped only if all calls fit without it. Among the choices that fit, the
order of the search decides only about cost: few moves, and none within a loop where that can be avoided.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any

from hfdsl.check.capacity import gpu_slots, shared_slots
from hfdsl.check.context import Context
from hfdsl.check.gpu_sizes import gpu_sizes
from hfdsl.deploy.deployment import Placement, ProcessGroup, process_groups
from hfdsl.deploy.memory import GpuMemory, total
from hfdsl.deploy.pools import ResourcePool
from hfdsl.graph.program import RoleCall
from hfdsl.graph.signatures import Signature
from hfdsl.protocols.offloading import Part, not_offloadable, parts_of, parts_used

MAX_PRUNED_MOVES = 64
"""With more gaps than this, none is left out on trial, since each trial looks at all calls."""

UNKNOWN_GPU_GIB = 100
"""The memory of a GPU of unknown size, to compare shares of it with amounts in GiB."""


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
    """The memory that roles keep of each GPU of ``slots`` during a call.

    ``place`` is the position of the call in the step, -1 if all calls are alike.
    """

    root: ResourcePool
    slots: range
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
        """Whether the amount is too much for a GPU of this many GiB (None: for any GPU)."""
        if self.part > 1 or (self.part == 1 and self.gib > 0):
            return True
        return size is not None and self.part * size + self.gib > size

    def of(self, size: Fraction | None) -> Fraction:
        """The amount in GiB, for comparisons."""
        return self.part * (size or UNKNOWN_GPU_GIB) + self.gib


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """A call of a placed role, with the parts that it uses."""

    node: int
    role: str
    parts: tuple[Part, ...]
    by_all_ranks: bool  # a rank that is not called does not move anything either
    method: str


@dataclass(frozen=True, slots=True)
class _Gap:
    """A possible ``IdlePeriod``, with the calls on the same GPUs in between, by their positions in the step.

    ``in_loop`` says that it lies between two calls of one method, the turns of a loop.
    """

    period: IdlePeriod
    calls: frozenset[int]
    in_loop: bool


class SharedGpus:
    """The calls of a step, and the GPUs that they share."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.places = context.program.placements
        self.calls = tuple(_calls(context, self.places))

    @cached_property
    def _used_gaps(self) -> list[_Gap]:
        """The gaps in which parts are on the host, as in the worked example."""
        requested = [gap for gap in self.gaps if self.places[gap.period.role].offload and not gap.in_loop]
        used = {*requested, *self._without_spare(requested, self._needed_gaps(requested))}
        return [gap for gap in self.gaps if gap in used]

    def _needed_gaps(self, requested: Sequence[_Gap]) -> Sequence[_Gap]:
        """The gaps to use beside those of roles with ``offload=True``, until each call fits its GPUs or none helps."""
        needed: dict[_Gap, None] = {}
        while self.gaps:
            relieving: list[_Gap] = []
            for resident in self.too_full([*requested, *needed]):
                if not any(resident.place in gap.calls for gap in relieving):
                    relieving += self.relief(resident)
            if not relieving:
                break
            needed |= dict.fromkeys(relieving)
        return tuple(needed)

    def _without_spare(self, requested: Sequence[_Gap], needed: Sequence[_Gap]) -> Sequence[_Gap]:
        """``needed`` without the gaps that can be dropped; gaps in loops and short ones are tried first."""
        if len(needed) > MAX_PRUNED_MOVES:
            return needed
        for gap in sorted(needed, key=lambda gap: (not gap.in_loop, len(gap.calls))):
            others = [other_gap for other_gap in needed if other_gap is not gap]
            if not any(self.too_full([*requested, *others])):
                needed = others
        return needed

    @property
    def idle_periods(self) -> tuple[IdlePeriod, ...]:
        """The periods of parts in host memory: idle ones of roles with ``offload=True``, or without room on GPUs.

        Between two calls of one method, which are turns of a loop, a part stays on the GPU if there is room.
        """
        return tuple(gap.period for gap in self._used_gaps)

    @cached_property
    def fullest(self) -> list[tuple[ResidentMemory, Fraction | None]]:
        """For every set of GPUs the call in which roles keep most of them, with the largest size that all may have.

        More than that is too much wherever the nodes of the pool are placed.
        """
        most: dict[tuple[str, range], tuple[ResidentMemory, Fraction | None]] = {}
        for resident in self.resident_memory(self._used_gaps):
            where = resident.root.name, resident.slots
            size = gpu_sizes(self.context.cluster, resident.root, resident.slots)[1]
            if where not in most or resident.of(size) > most[where][0].of(size):
                most[where] = resident, size
        return list(most.values())

    @cached_property
    def slots(self) -> Mapping[str, tuple[ResourcePool, list[tuple[range, str]]]]:
        """The slots in use of each pool with GPUs, each range with its role."""
        deployment = self.context.program.deployment
        return gpu_slots(deployment) if deployment else {}

    @cached_property
    def shared_slots(self) -> tuple[tuple[ResourcePool, range, tuple[str, ...]], ...]:
        """The pool, the slots and the roles of each range of slots with GPUs that the same roles use."""
        deployment = self.context.program.deployment
        return tuple(shared_slots(deployment)) if deployment else ()

    @cached_property
    def away(self) -> Mapping[int, Mapping[str, set[Part]]]:
        """The parts on the host during each call, by its position and by role."""
        return _away(self._used_gaps)

    @cached_property
    def calls_on_gpus_of(self) -> Mapping[str, list[int]]:
        """For each role the calls that run on its GPUs, by their positions in order."""
        sharing: dict[str, set[str]] = {}
        for _, slots in self.slots.values():
            for used_slots, role in slots:
                start, stop = used_slots.start, used_slots.stop
                sharing.setdefault(role, set()).update(
                    other for used, other in slots if used.start < stop and start < used.stop
                )
        return {
            role: [i for i, call in enumerate(self.calls) if call.role in others] for role, others in sharing.items()
        }

    @cached_property
    def gaps(self) -> tuple[_Gap, ...]:
        """The idle time of every part that could be used."""
        if not self.context.offload:
            return ()
        groups = process_groups(self.context.program.deployment) if self.context.program.deployment else ()
        return tuple(
            gap
            for role in self.places
            if self._may_be_offloaded(role)
            for part in parts_of(self.places[role].role)
            for gap in self._gaps(role, part, groups)
        )

    def _may_be_offloaded(self, role: str) -> bool:
        """Whether a role on GPUs can be offloaded, and either must be or declares the memory that this frees."""
        place = self.places[role]
        allowed = place.offload or (place.offload is None and place.gpu_memory is not None)
        return bool(allowed) and role in self.calls_on_gpus_of and not_offloadable(place.role) is None

    def _gaps(self, role: str, part: Part, groups: Iterable[ProcessGroup]) -> Iterator[_Gap]:
        nearby = self.calls_on_gpus_of[role]
        used = [i for i, call in enumerate(self.calls) if call.role == role and part in call.parts]
        if not used:
            [group] = [group for group in groups if role in group.roles]
            if any(call.role in group.roles and call.by_all_ranks for call in self.calls):
                yield _Gap(IdlePeriod(role, part, None, None, True), frozenset(nearby), False)
            return
        for first, then in pairwise([*used, used[0]]):
            around = then <= first
            begin, end = bisect_right(nearby, first), bisect_left(nearby, then)
            between = [*nearby[begin:], *nearby[:end]] if around else nearby[begin:end]
            after, before = self.calls[first], self.calls[then]
            if between and after.by_all_ranks:
                period = IdlePeriod(role, part, after.node, before.node, around)
                yield _Gap(period, frozenset(between), in_loop=after.method == before.method and not around)

    def resident_memory(self, gaps_used: Iterable[_Gap]) -> Iterator[ResidentMemory]:
        """For each range of slots with the same roles, the memory that they keep during each call there."""
        away = _away(gaps_used)
        for root, slots, roles in self.shared_slots:
            amounts = {role: memory for role in roles if (memory := self.places[role].gpu_memory)}
            if not amounts:
                continue
            calls = [i for i, call in enumerate(self.calls) if call.role in roles] if self.gaps else []
            for i in calls:
                yield ResidentMemory(
                    root, slots, self.remaining_memory(amounts, away.get(i, {})), self.calls[i].node, i
                )
            if not calls:
                yield ResidentMemory(root, slots, amounts, None, -1)

    def remaining_memory(
        self, amounts: Mapping[str, GpuMemory], away: Mapping[str, set[Part]]
    ) -> Mapping[str, GpuMemory]:
        """The memory that roles keep while some of their parts are ``away``; roles that keep none are left out."""
        remaining: dict[str, GpuMemory] = {}
        for role, memory in amounts.items():
            parts = away.get(role, set[Part]())
            remaining_memory = memory.without(parts, parts >= set(parts_of(self.places[role].role)))
            if remaining_memory is not None:
                remaining[role] = remaining_memory
        return remaining

    def too_full(self, gaps_used: Iterable[_Gap]) -> Iterator[ResidentMemory]:
        """The calls in which roles keep more of a GPU than the smallest GPU that the launch may give them has.

        Which nodes a pool gets is known only at launch; what is moved is decided before.
        """
        return (
            resident for resident in self.resident_memory(gaps_used) if resident.more_than(self._smallest(resident))
        )

    def _smallest(self, resident: ResidentMemory) -> Fraction | None:
        return gpu_sizes(self.context.cluster, resident.root, resident.slots)[0]

    def relief(self, resident: ResidentMemory) -> list[_Gap]:
        """The gaps of all idle parts of one role, which relieve a call; none if no role can relieve it.

        It prefers a role that makes enough room, then one outside of loops, then the longest idle, then the largest.
        """
        size = self._smallest(resident)
        options: list[tuple[tuple[bool, bool, int, Fraction], list[_Gap]]] = []
        for role in resident.amounts:
            gaps = [gap for gap in self.gaps if gap.period.role == role and resident.place in gap.calls]
            after = replace(
                resident, amounts=self.remaining_memory(resident.amounts, {role: {gap.period.part for gap in gaps}})
            )
            if after.of(size) < resident.of(size):
                suffices, in_loop = not after.more_than(size), any(gap.in_loop for gap in gaps)
                calls = min(len(gap.calls) for gap in gaps)
                options.append(((suffices, not in_loop, calls, -after.of(size)), gaps))
        return max(options, key=lambda option: option[0])[1] if options else []


def _away(gaps_used: Iterable[_Gap]) -> Mapping[int, Mapping[str, set[Part]]]:
    """The parts on the host during each call, by its position and by role."""
    away: dict[int, dict[str, set[Part]]] = {}
    for gap in gaps_used:
        for i in gap.calls:
            away.setdefault(i, {}).setdefault(gap.period.role, set()).add(gap.period.part)
    return away


def _calls(context: Context, places: Mapping[str, Placement[Any]]) -> Iterator[PlacedCall]:
    methods: dict[tuple[str, Signature], tuple[tuple[Part, ...], bool]] = {}
    for node in context.program.graph.calls:
        if isinstance(node.op, RoleCall) and node.op.role in places:
            key = node.op.role, node.op.signature
            if key not in methods:
                methods[key] = _parts_used(places[node.op.role].role, node.op.signature)
            yield PlacedCall(node.id, node.op.role, *methods[key], node.op.signature.name)


def _parts_used(role: type, signature: Signature) -> tuple[tuple[Part, ...], bool]:
    """The parts that a call of a method on a role uses, and whether all ranks run it."""
    placed = getattr(role, signature.name, signature.body)
    return max(parts_used(placed), parts_used(signature.body), key=len), not signature.runs_on_rank_zero
