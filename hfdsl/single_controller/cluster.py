"""Whether a cluster can hold a pool: decided from totals where it can be, and told in the user's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ray

from hfdsl.errors import ResourceError

CODES = {"GPU": "HF502", "CPU": "HF505"}


def check_cluster(sizes: Sequence[int], bundle: Mapping[str, float], what: str) -> None:
    """Raise ``ResourceError`` when not even an idle cluster could hold ``sizes`` bundles, each size on one node."""
    if short_of(sizes, bundle, node_totals()) is not None:
        raise cannot_hold(sizes, bundle, what)


def node_totals() -> list[dict[str, float]]:
    """The resources of every living node."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # of Ray


def free_now() -> dict[str, float]:
    """The resources that nobody holds at the moment."""
    return dict(ray.available_resources())  # type: ignore[no-untyped-call]  # of Ray


def slots_on(node: Mapping[str, float], resource: str, each: float) -> int:
    """How many slots that need ``each`` of a resource one node has room for."""
    return int(node.get(resource, 0.0) / each + 1e-6)


def short_of(sizes: Sequence[int], bundle: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> str | None:
    """The resource that certainly does not suffice, GPUs first, or None.

    Entries of at least ``s`` slots each take up one place of ``s`` slots somewhere, and there must be enough of those.

    >>> short_of([4, 4], {"CPU": 0.1, "GPU": 1.0}, [{"CPU": 8.0, "GPU": 6.0}])
    'GPU'
    """
    for resource in ("GPU", "CPU"):
        each = bundle.get(resource, 0.0)
        if not each:
            continue
        room = [slots_on(node, resource, each) for node in nodes]
        for size in set(sizes):
            if sum(entry >= size for entry in sizes) > sum(slots // size for slots in room):
                return resource
        if sum(sizes) > sum(room):
            return resource
    return None


def cannot_hold(
    sizes: Sequence[int], bundle: Mapping[str, float], what: str, *, waited: float | None = None
) -> ResourceError:
    """The error for a pool that does not fit: what was asked, what there is, and what would fit."""
    nodes = node_totals()
    resource = short_of(sizes, bundle, nodes) or _scarce(sizes, bundle)
    each = bundle[resource]
    totals = ", ".join(f"{node.get(resource, 0.0):g}" for node in nodes)
    free = f", {free_now().get(resource, 0.0):g} of them free" if waited is not None else ""
    room = [slots for node in nodes if (slots := slots_on(node, resource, each))]
    fits = f"RayResourcePool({room}) is the most that fits a free cluster" if room else "no slot fits this cluster"
    fix = {
        "GPU": "use_gpu=False runs on CPUs; smaller or merged pools share devices",
        "CPU": "a lower max_colocate_count or ray.init(num_cpus=...) with more also helps",
    }[resource]
    asked = " + ".join(f"{size * each:g}" for size in sizes)
    return ResourceError(
        CODES[resource],
        f"{what} asks for {sum(sizes) * each:g} {resource}s ({asked} by node), "
        f"and the cluster has {totals or 'none'} on its {len(nodes)} node(s){free}"
        + (f"; waited {waited:g} s. " if waited is not None else ". ")
        + f"{fits}; {fix}",
    )


def _scarce(sizes: Sequence[int], bundle: Mapping[str, float]) -> str:
    free = free_now()
    return min(bundle, key=lambda resource: free.get(resource, 0.0) - sum(sizes) * bundle[resource])
