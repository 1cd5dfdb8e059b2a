"""Selection of scheduled syncs: those of sharded weights whose parameters and layouts are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import get_origin

from hfdsl.deploy.deployment import Deployment, ProcessGroup
from hfdsl.deploy.pools import node_runs
from hfdsl.deploy.weight_syncs import WeightSync, overrides, unscheduled, weight_syncs
from hfdsl.graph.columns import result_origins
from hfdsl.graph.program import Graph, Ref
from hfdsl.plan.plan import Step, ValueLayout, WholeExport
from hfdsl.plan.resharding import BUCKET_BYTES, Schedule, compile_schedule
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.protocols.layouts import Layout, Parameter, Replicas, Tied
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.state import effects_of


def scheduled(
    steps: Sequence[Step],
    graph: Graph,
    deployment: Deployment,
    groups: tuple[ProcessGroup, ...],
    bucket_bytes: int = BUCKET_BYTES,
    *,
    deltas: bool = False,
) -> list[Step]:
    """The steps, with the schedules of those that export and load weights in parts.

    Raises:
        ProtocolError: HF734, HF735, HF736 if layouts do not fit; the check has reported that.
    """
    by_node = {step.node: step for step in steps}
    sync_of = {
        (sync.source.role, sync.source.method, sync.target.role, sync.target.method): sync
        for sync in weight_syncs(graph, deployment)
    }
    readers: dict[int, list[Step]] = {}
    for step in steps:
        for _, operand in step.arguments:
            if isinstance(operand, Ref) and operand.node in by_node:
                readers.setdefault(operand.node, []).append(step)
    returned = {origin for ref in graph.output.refs() for origin, _ in result_origins(graph, ref)}
    hosts = {group.name: _hosts(group) for group in groups}
    changed: dict[int, Step] = {}
    for node, loads in readers.items():
        export = by_node[node]
        syncs: list[ScheduledSync] = []
        for load in loads:
            sync = sync_of.get((export.role or "", export.signature.name, load.role or "", load.signature.name))
            is_whole = sync is None or unscheduled(sync, graph.nodes[load.node]) is not None
            by_schedule = None if sync is None or is_whole else _scheduled(export, load, sync, hosts, bucket_bytes)
            syncs += [] if by_schedule is None else [replace(by_schedule, deltas=deltas)]
        if node not in returned and len(syncs) == len(loads):
            layout = ValueLayout(export.group, export.ranks, lists=True)
            changed[node] = replace(export, layout=layout, parts=tuple(syncs))
            changed |= {load.node: replace(load, sync=sync) for load, sync in zip(loads, syncs, strict=True)}
        else:
            parameters = _exported_parameters(export, sync_of.values())
            is_shared = any(load.group == export.group for load in loads) and _declares_layout(export)
            if parameters or is_shared:
                changed[node] = replace(export, exports=WholeExport(parameters, is_shared))
    return [changed.get(step.node, step) for step in steps]


def _exported_parameters(export: Step, syncs: Iterable[WeightSync]) -> tuple[Parameter, ...]:
    """The parameters of which some role loads a whole value from this step, as the exporting role has them."""
    parameters = dict[Parameter, None]()
    for sync in syncs:
        if (sync.source.role, sync.source.method) == (export.role, export.signature.name):
            source, target = (side.layout() or Replicas() for side in (sync.source, sync.target))
            for exported, _ in sync.pairs(source, target):
                parameters[replace(exported, name=source.stored_as(exported.name))] = None
    return tuple(parameters)


def _declares_layout(export: Step) -> bool:
    """Whether a method declares its layout: it may return the weights that its rank holds, not copies of them."""
    return any(effect.kind == "exports" and effect.layout for effect in effects_of(export.signature.body))


def _returns_dict(export: Step) -> bool:
    """Whether a method returns weights by name, of which each can be converted; of other values nothing is known."""
    annotation = getattr(export.signature.returns, "annotation", None)
    returned = get_origin(annotation) or annotation
    return isinstance(returned, type) and issubclass(returned, Mapping)


def _hosts(group: ProcessGroup) -> list[int]:
    """A number for the host of each rank: before launch, two pools are taken to be on different hosts."""
    places = [(id(root), node) for root, node, slots in node_runs(group.pool) for _ in range(slots)]
    numbers = {place: hash(place) for place in places}
    return [numbers[place] for place in places]


def _scheduled(
    export: Step, load: Step, sync: WeightSync, hosts: Mapping[str, Sequence[int]], bucket_bytes: int
) -> ScheduledSync | None:
    """The schedule of a sync; None if it goes as a whole."""
    source, target, role = sync.source.layout(), sync.target.layout(), sync.source.placement.role
    overridden = hasattr(role, "held_weights") and overrides(role, sync.source.method, "held_weights")
    pairs = list(sync.pairs(source, target)) if source is not None and target is not None else []
    if source is None or target is None or not pairs or overridden:
        return None
    names = {
        loaded.name: stored
        for exported, loaded in pairs
        if (stored := source.stored_as(exported.name)) not in (loaded.name, target.stored_as(loaded.name))
        or exported.name != loaded.name
    }
    whole = Tied(Replicas(), names) if names else Replicas()
    source_mesh, target_mesh, ranks = sync.source.placement.mesh, sync.target.placement.mesh, export.ranks
    if len(ranks) != source_mesh.world_size:  # one rank has all of it
        source, source_mesh = whole, Mesh()
    shared = {rank: rank for rank in ranks} if export.group == load.group else {}

    def compiled(source: Layout, source_mesh: Mesh) -> Schedule:
        return compile_schedule(
            [loaded for _, loaded in pairs],
            source,
            source_mesh,
            target,
            target_mesh,
            {rank: ranks.index(source_rank) for rank, source_rank in shared.items() if rank < target_mesh.world_size},
            in_place=False,
            bucket_bytes=bucket_bytes,
            hosts=([hosts[export.group][rank] for rank in ranks], hosts[load.group]),
        )

    schedule = compiled(source, source_mesh)
    is_whole = schedule.is_whole
    broadcast = is_whole and not shared and hasattr(role, "held_weights")
    converts = _returns_dict(export) and any(exported.dtype != loaded.dtype for exported, loaded in pairs)
    if is_whole and not broadcast and not names and not converts:
        return None  # one value for all, which the method returns
    if broadcast:
        source, source_mesh = whole, Mesh()
        schedule = compiled(source, source_mesh)
    return ScheduledSync(
        state=sync.state,
        export=export.node,
        load=load.node,
        schedule=schedule,
        source_layout=source,
        target_layout=target,
        broadcast=broadcast,
        stated=frozenset(parameter.name for parameter in sync.source.parameters),
        defaulted=frozenset(
            loaded.name
            for exported, loaded in pairs
            if loaded.has_default_dtype and (exported.has_default_dtype or exported.item_bytes > loaded.item_bytes)
        ),
    )
