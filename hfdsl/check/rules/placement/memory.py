"""Memory: do the roles on a GPU fit into its memory?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from hfdsl.check.capacity import has_capacity, shape, words
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.offloads import ResidentMemory, SharedGpus
from hfdsl.check.repair.alternatives import changed, placing
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.deploy.pools import ResourcePool


def overfull(context: Context) -> Iterator[tuple[ResidentMemory, Fraction | None]]:
    """Every set of roles that is too much for the GPUs of a pool, with the size of these GPUs, if known."""
    reported: set[frozenset[str]] = set()
    for resident, size in SharedGpus(context).fullest:
        if resident.more_than(size) and frozenset(resident.amounts) not in reported:
            reported.add(frozenset(resident.amounts))
            yield resident, size


def memory_fits_gpus(context: Context) -> Iterator[Finding]:
    """Roles on the same GPU declare to keep no more of its memory than it has, at best if nodes differ."""
    places = context.program.placements
    for resident, size in overfull(context):
        *others, last = [Label(places[name].span, f"keeps {amount}") for name, amount in resident.amounts.items()]
        keep = "keep" if others else "keeps"
        role_amounts = words([f"'{name}' ({amount})" for name, amount in resident.amounts.items()], quote="")
        if resident.more_than(None) or size is None or context.cluster is None:
            gib = f" and {float(resident.gib):g} GiB" if resident.gib else ""
            amount, reason = (
                f"{float(resident.part * 100):g}%{gib}",
                "which they share" if others else "more than all of it",
            )
        else:
            several = len({kind.gpu_memory_gib for kind in context.cluster.kinds if kind.gpus}) > 1
            amount = f"{float(resident.part * size + resident.gib):g} GiB"
            reason = f"which has {'at most ' if several else ''}{float(size):g} GiB"
            others.append(Label(context.cluster.span, f"the cluster: {context.cluster}"))
        when = f"while '{context.program.graph.nodes[resident.node].label}' runs, " if resident.node is not None else ""
        finding = Finding(
            "HF504",
            f"{when}{role_amounts} {keep} {amount} of each GPU of pool '{resident.root.name}', {reason}",
            last,
            tuple(others),
        )
        yield with_suggestions(context, finding, own_pool(context, tuple(resident.amounts)))


def own_pool(context: Context, names: tuple[str, ...]) -> Iterator[Suggestion]:
    """A separate pool for the last role, if the cluster has room for it."""
    if context.cluster is None or context.program.deployment is None:
        return
    place = context.program.deployment[names[-1]]
    pool = ResourcePool(place.pool.processes, name=f"for {names[-1]}")
    alone = {names[-1]: replace(place, pool=pool)}
    if has_capacity(context.cluster, changed(context.program.deployment, alone)):
        room = f"the cluster has room for hf.ResourcePool({shape(pool.processes)})"
        yield placing(f"give '{names[-1]}' a pool of its own: {room}", alone)
