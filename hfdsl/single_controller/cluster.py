"""The check that a cluster can hold a pool, by the totals of its nodes, and its error in the user's numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import ray

from hfdsl.errors import ResourceError
from hfdsl.protocols.bin_packing import CPU_UNITS, fits
from hfdsl.types.dims import Answer

SHORTAGE_CODES = {"GPU": "HF502", "CPU": "HF505"}


def check_cluster(sizes: Sequence[int], bundle: Mapping[str, float], label: str) -> None:
    """Raise ``ResourceError`` if not even an idle cluster could hold ``sizes`` bundles, each size on one node."""
    if short_of(sizes, bundle, node_totals()) is not None:
        raise cannot_hold(sizes, bundle, label)


def node_totals() -> list[dict[str, float]]:
    """The resources of every live node."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # of Ray


def free_now() -> dict[str, float]:
    """The resources that are free at the moment."""
    return dict(ray.available_resources())  # type: ignore[no-untyped-call]  # of Ray


def slots_on(node: Mapping[str, float], resource: str, amount: float) -> int:
    """The number of slots on a node, each with an amount of a resource."""
    return int(node.get(resource, 0.0) / amount + 1e-6)


def short_of(sizes: Sequence[int], bundle: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> str | None:
    """The resource that the nodes certainly lack, GPUs first, or None.

    >>> short_of([4, 4], {"CPU": 0.1, "GPU": 1.0}, [{"CPU": 8.0, "GPU": 6.0}])
    'GPU'
    """
    for resource, together in (("GPU", ("GPU",)), ("CPU", ("GPU", "CPU"))):
        units_of_slot = {name: _units(bundle[name]) for name in together if bundle.get(name)}
        parts = Counter(tuple(size * units for units in units_of_slot.values()) for size in sizes)
        room = Counter(tuple(_units(node.get(name, 0.0)) for name in units_of_slot) for node in nodes)
        if resource in units_of_slot and fits(parts, room) is Answer.REFUTED:
            return resource
    return None


def _units(amount: float) -> int:
    return round(amount * CPU_UNITS)


def cannot_hold(
    sizes: Sequence[int], bundle: Mapping[str, float], label: str, *, waited: float | None = None
) -> ResourceError:
    """The error for a pool that does not fit: the request, the cluster, and what would fit."""
    nodes = node_totals()
    resource = short_of(sizes, bundle, nodes) or _scarce(sizes, bundle)
    amount = bundle[resource]
    totals = ", ".join(f"{node.get(resource, 0.0):g}" for node in nodes)
    free = f", {free_now().get(resource, 0.0):g} of them free" if waited is not None else ""
    room = [slots for node in nodes if (slots := slots_on(node, resource, amount))]
    fits = f"RayResourcePool({room}) is the most that fits a free cluster" if room else "no slot fits this cluster"
    fix = {
        "GPU": "use_gpu=False runs on CPUs; smaller or merged pools share devices",
        "CPU": "a lower max_colocate_count or ray.init(num_cpus=...) with more also helps",
    }[resource]
    request = " + ".join(f"{size * amount:g}" for size in sizes)
    return ResourceError(
        SHORTAGE_CODES[resource],
        f"{label} asks for {sum(sizes) * amount:g} {resource}s ({request} by node), "
        f"and the cluster has {totals or 'none'} on its {len(nodes)} node(s){free}"
        + (f"; waited {waited:g} s. " if waited is not None else ". ")
        + f"{fits}; {fix}",
    )


def _scarce(sizes: Sequence[int], bundle: Mapping[str, float]) -> str:
    free = free_now()
    return min(bundle, key=lambda resource: free.get(resource, 0.0) - sum(sizes) * bundle[resource])
