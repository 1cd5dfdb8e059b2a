"""Transports: which values bypass the object store, and how states are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from hfdsl.deploy.pools import devices
from hfdsl.graph.columns import columns_read, result_origins
from hfdsl.graph.program import RoleCall
from hfdsl.graph.signatures import StaticType
from hfdsl.plan.payloads import Process
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.segments import Dependencies
from hfdsl.protocols.state import effects_of


def goes_direct(plan: Plan, direct_groups: frozenset[str], node: int, reader: str) -> bool:
    """Whether a node's result bypasses the object store on its way to the processes of a group that it can reach."""
    op = plan.node(node).op
    stored = isinstance(op, RoleCall) and plan.deployment[op.role].transport == "object store"
    are_linked = reader in direct_groups and plan.layouts[node].group in direct_groups
    return plan.optimize.direct and not stored and are_linked


def keeps_mapped(plan: Plan) -> bool:
    """Whether readers keep the GPU memory of others mapped between transfers: not where roles are to release memory."""
    return plan.optimize.mappings and not plan.offloads


def broadcasts(plan: Plan, waits: Dependencies, direct_groups: frozenset[str]) -> Mapping[int, tuple[Process, ...]]:
    """The exported states that are broadcast, each with the processes that take part, its producer first.

    In a broadcast the producer waits for all readers, and they for it. This cannot deadlock: the steps that load a
    state directly follow the one that exports it, as ``hf.sync`` has them, so whatever comes before them in program
    order comes before the broadcast in every process.
    """
    participants: dict[int, tuple[Process, ...]] = {}
    for position, step in enumerate(plan.steps):
        if not _exports_state(plan, step):
            continue
        readers = [
            reader for reader in plan.steps if step.node in {node for node, _ in columns_read(plan.graph, reader.node)}
        ]
        follow = readers == list(plan.steps[position + 1 : position + 1 + len(readers)])
        at_once = all(waits.queries[reader.node] == waits.queries[step.node] for reader in readers)
        direct = all(
            _receives_whole(reader) and goes_direct(plan, direct_groups, step.node, reader.group) for reader in readers
        )
        waits_for_all = not _has_transport(plan, step) and not any(plan.loads_in_flight(reader) for reader in readers)
        if readers and waits_for_all and follow and at_once and direct and _on_separate_gpus(plan, [step, *readers]):
            reading = dict.fromkeys((reader.group, rank) for reader in readers for rank in reader.ranks)
            participants[step.node] = (step.layout.producer(0), *reading)
    return participants


def exchanges(
    plan: Plan, waits: Dependencies, groups: AbstractSet[str] | None = None
) -> Mapping[int, tuple[Process, ...]]:
    """For each load whose weights arrive bucket by bucket, the processes that take part: those that send come first.

    These are syncs by schedule between processes of ``groups``, all where it is None, that share no device. Why it
    cannot deadlock is said at ``broadcasts``; in a program with queues, both steps are of one stage.
    """
    participants: dict[int, tuple[Process, ...]] = {}
    for position, step in enumerate(plan.steps):
        loads = plan.steps[position + 1 : position + 1 + len(step.parts)]
        if not step.parts or [load.node for load in loads] != [sync.load for sync in step.parts]:
            continue
        steps = [step, *loads]
        together = all(
            waits.queries[load.node] == waits.queries[step.node]
            and plan.split.of[load.node] == plan.split.of[step.node]
            and not plan.loads_in_flight(load)
            for load in loads
        )
        linked = groups is None or all(step.group in groups for step in steps)
        stated = _has_transport(plan, step)
        if plan.optimize.direct and together and linked and not stated and _on_separate_gpus(plan, steps):
            for sync, load in zip(step.parts, loads, strict=True):
                senders = [(step.group, step.ranks[rank]) for rank in sync.senders]
                participants[load.node] = (*senders, *((load.group, rank) for rank in load.ranks))
    return participants


def _has_transport(plan: Plan, step: Step) -> bool:
    """Whether the placement of a step's role states a transport, by which its weights go, too."""
    return step.role is not None and plan.deployment[step.role].transport is not None


def _exports_state(plan: Plan, step: Step) -> bool:
    """Whether a step's result is a state, as one value without rows, that only other steps read."""
    node = plan.node(step.node)
    effects = effects_of(step.signature.body) if isinstance(node.op, RoleCall) else ()
    exports = any(effect.kind == "exports" for effect in effects)
    single = not step.custom and step.layout.chunks == 1 and not step.layout.lists
    return exports and single and isinstance(node.result, StaticType) and not _is_returned(plan, step.node)


def _is_returned(plan: Plan, node: int) -> bool:
    origins = (origin for ref in plan.graph.output.refs() for origin, _ in result_origins(plan.graph, ref))
    return node in origins


def _receives_whole(step: Step) -> bool:
    return step.role is not None and not step.custom and not step.per_rank


def _on_separate_gpus(plan: Plan, steps: Sequence[Step]) -> bool:
    """Whether no two groups of these steps share a GPU: NCCL does not connect two processes on one GPU."""
    pools = {group.name: group.pool for group in plan.groups}
    producer, *readers = (step.group for step in steps)
    used = [device for name in {producer, *readers} for device in devices(pools[name])]
    return producer not in readers and len(set(used)) == len(used)
