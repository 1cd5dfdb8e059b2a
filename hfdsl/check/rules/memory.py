"""Memory: is what roles on the same GPU keep of its memory no more than it has?"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise

from hfdsl.check.capacity import has_room, shape, slots_in_use, words
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.alternatives import changed, moved
from hfdsl.check.repair.offers import Offer, Option, mended
from hfdsl.check.subject import Subject
from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.memory import GpuMemory
from hfdsl.deploy.pools import ResourcePool


@dataclass(frozen=True, slots=True)
class Overfull:
    """Roles that keep too much of a GPU: a ``part`` of its memory and so many ``gib``; it has ``size`` GiB."""

    root: ResourcePool
    roles: tuple[str, ...]
    part: Fraction
    gib: Fraction
    size: Fraction | None

    @property
    def always(self) -> bool:
        """Whether that is too much for a GPU of any size."""
        return self.part > 1 or (self.part == 1 and self.gib > 0)


def overfull(subject: Subject) -> Iterator[Overfull]:
    """Every set of roles that is too much for the GPUs of a pool."""
    keepers: dict[str, tuple[ResourcePool, list[tuple[int, int, str, GpuMemory]]]] = {}
    for root, first, end, name in slots_in_use(subject.deployment) if subject.deployment else ():
        kept = subject.deployment[name].gpu_memory if subject.deployment else None
        if root.use_gpu and kept:
            keepers.setdefault(root.name, (root, []))[1].append((first, end, name, kept))
    told: set[tuple[str, ...]] = set()
    for root, runs in keepers.values():
        edges = sorted({edge for first, end, *_ in runs for edge in (first, end)})
        for low, high in pairwise(edges):
            there = [(name, kept) for first, end, name, kept in runs if first <= low < end]
            part, gib = (sum((each(kept) for _, kept in there), Fraction(0)) for each in (_part, _gib))
            found = Overfull(root, tuple(name for name, _ in there), part, gib, _size(subject.cluster, root, low, high))
            full = found.size is not None and part * found.size + gib > found.size
            if found.roles not in told and (found.always or full):
                told.add(found.roles)
                yield found


def _part(kept: GpuMemory) -> Fraction:
    return kept.fraction


def _gib(kept: GpuMemory) -> Fraction:
    return kept.gib


def memory_fits_gpus(subject: Subject) -> Iterator[Finding]:
    """What roles on the same GPU say they keep of its memory is no more than it has."""
    for found in overfull(subject):
        places = {name: subject.deployment[name] for name in found.roles} if subject.deployment else {}
        *others, last = [Label(place.span, f"keeps {place.gpu_memory}") for place in places.values()]
        listed = words([f"'{name}' ({place.gpu_memory})" for name, place in places.items()], quote="")
        if found.always or found.size is None or subject.cluster is None:
            gib = f" and {float(found.gib):g} GiB" if found.gib else ""
            amount, rest = f"{float(found.part * 100):g}%{gib}", "which they share" if others else "more than all of it"
        else:
            several = len({kind.gpu_memory_gib for kind in subject.cluster.kinds if kind.gpus}) > 1
            amount = f"{float(found.part * found.size + found.gib):g} GiB"
            rest = f"which has {'at most ' if several else ''}{float(found.size):g} GiB"
            others.append(Label(subject.cluster.span, f"the cluster: {subject.cluster}"))
        finding = Finding(
            "HF504",
            f"{listed} keep{'' if len(places) > 1 else 's'} {amount} of each GPU of pool '{found.root.name}', {rest}",
            last,
            tuple(others),
        )
        yield mended(subject, finding, _own_pool(subject, found.roles))


def _size(cluster: Cluster | None, root: ResourcePool, low: int, high: int) -> Fraction | None:
    """The memory of the largest GPU that these slots may get; None where it is unknown."""
    ends = list(accumulate(root.processes))
    largest = max(root.processes[bisect_right(ends, low) : bisect_left(ends, high) + 1])
    kinds = cluster.kinds if cluster else ()
    sizes = [Fraction(kind.gpu_memory_gib) for kind in kinds if kind.gpu_memory_gib and kind.gpus >= largest]
    return max(sizes, default=None)


def _own_pool(subject: Subject, names: tuple[str, ...]) -> Iterator[Offer]:
    """A pool of its own for the last role, where the cluster has room for it."""
    if subject.cluster is None or subject.deployment is None or len(names) < 2:
        return
    place = subject.deployment[names[-1]]
    pool = ResourcePool(place.pool.processes, name=f"for {names[-1]}")
    alone = {names[-1]: replace(place, pool=pool)}
    if has_room(subject.cluster, changed(subject.deployment, alone)):
        room = f"the cluster has room for hf.ResourcePool({shape(pool.processes)})"
        yield Offer((Option(f"give '{names[-1]}' a pool of its own: {room}", partial(moved, alone)),))
