"""The transfers of a plan's syncs, derived from the layouts that both sides declare.

A worked example: a model of 784 bytes on ``Mesh(dp=2, tp=2)`` goes to an engine on two other GPUs, ``Mesh(tp=2)``. Each
rank of the engine holds half of the sliced weights and all of the norms, and receives that much. The four trainers have
each element twice, so each of them sends half of what the engine's ranks receive, in the mean.

The time is that of the busiest rank on either side at the bandwidth of its link, and a latency for each bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from operator import add

from hfdsl.deploy.weight_syncs import WeightSync, weight_syncs
from hfdsl.errors import HfError
from hfdsl.graph.lags import stage_lags
from hfdsl.graph.program import RoleCall
from hfdsl.plan.delta_memory import delta_bytes
from hfdsl.plan.message_memory import buffer_bytes, largest_bucket
from hfdsl.plan.payloads import planned_topology
from hfdsl.plan.plan import Plan
from hfdsl.plan.predict import BANDWIDTHS, LATENCY_SECONDS
from hfdsl.plan.resharding import Schedule, compile_schedule
from hfdsl.plan.segments import dependencies
from hfdsl.plan.transports import exchanges, goes_direct
from hfdsl.protocols import role_facts
from hfdsl.types.numbers import byte_amount


@dataclass(frozen=True, slots=True)
class SyncTraffic:
    """A sync between declared layouts; bytes are those of the rank with most of them, ``moved`` those of all ranks."""

    state: str
    source: str
    """The call that exports."""
    target: str
    """The call that loads."""
    source_node: int
    target_node: int
    needed: int
    received: int
    redundant: int
    """The bytes that a rank keeps for the exporting role beside those that it loads, where both share its process."""
    peak: int
    moved: int
    buckets: int
    gathers: bool
    """Whether it is an all-gather within groups of ranks."""
    copied: int
    """The bytes that a rank copies for its readers, which read them at once; 0 if weights go bucket by bucket."""
    waiting: int
    """The most copies that wait for their readers while the rank trains on; 0 without a queue, and in flight."""
    leaving: int
    """The bytes of the buffers of a rank that sends; 0 unless weights go bucket by bucket."""
    kept: int
    """The bytes that a rank keeps of what it has sent, to send only changes of it; 0 if it sends all."""
    seconds: float

    def __str__(self) -> str:
        how = " by all-gather" if self.gathers else ""
        beside = f", beside {byte_amount(self.redundant)} of {self.source}" if self.redundant else ""
        way = f"within {self.target}" if self.within else f"from {self.source} to {self.target}"
        return (
            f"{self.state} {way}: a rank needs up to {byte_amount(self.needed)}{beside}, "
            f"receives up to {byte_amount(self.received)}{how}, and has at most {byte_amount(self.peak)} at once; "
            f"{byte_amount(self.moved)} in all, {self._duration}{self._only_changes}"
        )

    @property
    def _duration(self) -> str:
        return f"{self.seconds * 1e3:.3g} ms" if self.seconds < 1 else f"{self.seconds:.3g} s"

    @property
    def _only_changes(self) -> str:
        return f", less where few elements change; a rank keeps {byte_amount(self.kept)} of what it sent" * bool(
            self.kept
        )

    @property
    def within(self) -> bool:
        """Whether a method of a role reshards its own weights while it runs."""
        return self.source_node == self.target_node

    @property
    def added(self) -> Mapping[str, int]:
        """The extra GPU memory of a target rank while it loads or reshards."""
        arriving = {"arriving weights": self.peak - self.needed}
        if not self.within:
            return arriving
        return {"generation slices": self.needed if self.redundant else self.received, **arriving}

    def as_dict(self) -> dict[str, str | int | float | bool]:
        """The sync for machines."""
        return {
            "state": self.state,
            "source": self.source_node,
            "target": self.target_node,
            "needed": self.needed,
            "received": self.received,
            "redundant": self.redundant,
            "peak": self.peak,
            "moved": self.moved,
            "buckets": self.buckets,
            "gathers": self.gathers,
            "copied": self.copied,
            "waiting": self.waiting,
            "leaving": self.leaving,
            "kept": self.kept,
            "seconds": self.seconds,
        }


def syncs(plan: Plan, bandwidths: Mapping[str, float] = BANDWIDTHS) -> Iterator[SyncTraffic]:
    """The syncs of a plan with declared layouts and parameters, and the weights that roles reshard within a method."""
    loads = {step.node: step for step in plan.steps}
    exchanged = exchanges(plan, dependencies(plan))
    direct_groups = planned_topology(plan).direct_groups
    for sync in weight_syncs(plan.graph, plan.deployment):
        load = loads.get(sync.target.node.id)
        scheduled = None if load is None else load.sync
        schedule = _schedule(plan, sync) if scheduled is None else scheduled.schedule
        if schedule is None:
            continue
        is_broadcast = scheduled is not None and scheduled.broadcast  # what one rank sends, all receive
        at_once = (
            load is not None
            and load.node not in exchanged
            and load.group != plan.layouts[sync.source.node.id].group
            and goes_direct(plan, direct_groups, sync.source.node.id, load.group)
        )
        by_bucket = load is not None and load.node in exchanged
        if by_bucket and scheduled is not None and scheduled.deltas:
            buffers = _Buffers.of_changes(schedule)
        elif by_bucket:
            buffers = _Buffers.of_buckets(sync, schedule, is_broadcast)
        else:
            buffers = _Buffers.at_once(schedule) if at_once else _Buffers(peak=max(schedule.peak))
        moved, busiest = sum(schedule.received), max((*schedule.received, *(() if is_broadcast else schedule.sent)))
        buckets = len(schedule.buckets) if moved else 0
        yield SyncTraffic(
            state=sync.state,
            source=sync.source.node.label,
            target=sync.target.node.label,
            source_node=sync.source.node.id,
            target_node=sync.target.node.id,
            needed=max(schedule.needed),
            received=max(schedule.received),
            redundant=_redundant(sync, schedule),
            peak=buffers.peak,
            moved=moved,
            buckets=buckets,
            gathers=bool(schedule.gather_groups),
            copied=buffers.copied,
            waiting=_waiting_copies(plan, sync) if at_once else 0,
            leaving=buffers.leaving,
            kept=buffers.kept,
            seconds=buckets * LATENCY_SECONDS + busiest / _bandwidth(plan, sync, bandwidths),
        )
    yield from _reshardings(plan, bandwidths)


def _waiting_copies(plan: Plan, sync: WeightSync) -> int:
    """The most versions of a state that wait for calls of their readers which were submitted before.

    With a lag of k, k batches at most are trained while a call runs that was submitted k batches before.
    """
    load = plan.node(sync.target.node.id).op
    if isinstance(load, RoleCall) and load.during is not None:
        return 0
    ahead, of = stage_lags(plan.split), plan.split.of
    stages = {of[step.node] for step in plan.steps if step.role == sync.target.role}
    return max((ahead.get((stage, of[sync.source.node.id]), 0) for stage in stages), default=0)


def _reshardings(plan: Plan, bandwidths: Mapping[str, float]) -> Iterator[SyncTraffic]:
    """The transfers by which methods change the layout of their role's own weights."""
    labels = set[str]()
    for step in plan.steps:
        place = None if step.role is None else plan.deployment[step.role]
        change = role_facts.reshards.of(place).get(step.signature.name)
        if place is None or change is None or step.label in labels:
            continue
        labels.add(step.label)
        same = {rank: rank for rank in range(place.mesh.world_size)}
        try:
            schedule = compile_schedule(
                change.parameters,
                change.held,
                place.mesh,
                change.needed,
                place.mesh,
                same,
                in_place=change.in_place,
                bucket_bytes=0,
            )
        except HfError:  # the check reports it
            continue
        received, needed = max(schedule.received), max(schedule.needed)
        yield SyncTraffic(
            state=change.state,
            source=step.label,
            target=step.label,
            source_node=step.node,
            target_node=step.node,
            needed=needed,
            received=received,
            redundant=max(schedule.redundant),
            peak=needed + change.staging,
            moved=sum(schedule.received),
            buckets=-(-received // max(change.staging, 1)),
            gathers=bool(schedule.gather_groups),
            copied=0,
            waiting=0,
            leaving=0,
            kept=0,
            seconds=LATENCY_SECONDS + received / bandwidths["gpu" if place.pool.use_gpu else "copy"],
        )


def _schedule(plan: Plan, sync: WeightSync) -> Schedule | None:
    """The schedule of a sync; None if a side does not declare enough."""
    source, target = sync.source.placement, sync.target.placement
    try:
        layouts = sync.source.layout(), sync.target.layout()
        if not sync.declared or layouts[0] is None or layouts[1] is None:
            return None
        parameters = [loaded for _, loaded in sync.pairs(layouts[0], layouts[1])]
        shares = any({sync.source.role, sync.target.role} <= set(group.roles) for group in plan.groups)
        shared = {rank: rank for rank in range(target.mesh.world_size)} if shares else {}
        schedule = compile_schedule(
            parameters, layouts[0], source.mesh, layouts[1], target.mesh, shared, in_place=False
        )
    except HfError:  # the check reports it
        return None
    return schedule if parameters else None


@dataclass(frozen=True, slots=True)
class _Buffers:
    """The memory of a sync, in bytes of the rank with most of it; the fields are those of ``SyncTraffic``."""

    peak: int
    copied: int = 0
    leaving: int = 0
    kept: int = 0

    @classmethod
    def at_once(cls, schedule: Schedule) -> _Buffers:
        """Of a sync whose readers read copies of all their parts at once."""
        return cls(max(map(add, schedule.needed, schedule.received)), copied=ceil(max(schedule.sent)))

    @classmethod
    def of_changes(cls, schedule: Schedule) -> _Buffers:
        """Of an exchange of changed words alone."""
        largest = largest_bucket(schedule)
        return cls(
            max(schedule.needed) + delta_bytes(largest, "loads"),
            leaving=delta_bytes(largest, "exports"),
            kept=ceil(max(schedule.sent_once)),
        )

    @classmethod
    def of_buckets(cls, sync: WeightSync, schedule: Schedule, is_broadcast: bool) -> _Buffers:
        """Of an exchange, in which weights leave and arrive bucket by bucket."""
        source, target = sync.source, sync.target
        held, needed = source.layout(), target.layout()
        pairs = list(sync.pairs(held, needed)) if held is not None and needed is not None else []
        by_gpu = source.placement.pool.use_gpu and target.placement.pool.use_gpu
        leaves = {
            loaded.name
            for exported, loaded in pairs
            if source.parameters and exported.contiguous and exported.dtype == loaded.dtype
        }
        arrives = {loaded.name for _, loaded in pairs if target.parameters and loaded.contiguous}
        # Without GPUs on one side, what the other one has on its own goes through host memory.
        leaves, arrives = (
            names if side.placement.pool.use_gpu == by_gpu else set()
            for side, names in ((source, leaves), (target, arrives))
        )
        return cls(
            max(schedule.needed) + buffer_bytes(schedule, "loads", arrives),
            leaving=buffer_bytes(schedule, "exports", leaves, broadcast=is_broadcast),
        )


def _redundant(sync: WeightSync, schedule: Schedule) -> int:
    """The most bytes that a rank keeps for the source: weights in the dtype in which that has them."""
    source, target = sync.source.layout(), sync.target.layout()
    if not schedule.shared or source is None or target is None:
        return 0
    exported = {loaded.name: parameter.item_bytes for parameter, loaded in sync.pairs(source, target)}
    return max(schedule.source_bytes(lambda parameter: exported[parameter.name]))


def _bandwidth(plan: Plan, sync: WeightSync, bandwidths: Mapping[str, float]) -> float:
    """The bandwidth between GPUs where both sides have some, else that of the slowest link between their hosts."""
    source, target = sync.source.placement, sync.target.placement
    if source.pool.use_gpu and target.pool.use_gpu and plan.optimize.direct:
        return bandwidths["gpu"]
    host_of = planned_topology(plan).host_of
    hosts = {
        host_of((group.name, rank))
        for group in plan.groups
        if {sync.source.role, sync.target.role} & set(group.roles)
        for rank in range(group.pool.world_size)
    }
    return bandwidths["copy"] if len(hosts) == 1 else min(bandwidths["copy"], bandwidths["network"])
