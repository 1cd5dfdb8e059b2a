"""Printing a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from hfdsl.graph.columns import stored_spec
from hfdsl.graph.program import Input, RoleCall
from hfdsl.plan.concurrency import calls_at_once
from hfdsl.plan.edges import sizes_known
from hfdsl.plan.gpu_memory import gpu_peaks
from hfdsl.plan.memory import MAX_PRINTED_PROCESSES, ProcessMemory, peaks, process_memory
from hfdsl.plan.offloading import offload_lines
from hfdsl.plan.overlaps import overlaps
from hfdsl.plan.plan import DRIVER, Edge, Plan, Step
from hfdsl.plan.routes import Phase, phases
from hfdsl.plan.segments import dependencies, submission_order
from hfdsl.plan.syncs import SyncTraffic
from hfdsl.plan.transports import keeps_mapped
from hfdsl.plan.versions import tokens_have_versions, versions_text
from hfdsl.plan.weight_senders import weight_senders
from hfdsl.protocols import role_facts
from hfdsl.types.columns import ObjSpec
from hfdsl.types.numbers import byte_amount


def show(plan: Plan, syncs: Sequence[SyncTraffic]) -> str:
    """Processes, steps with the edges that they read, and sums."""
    sizes = " ".join(f"{dim}={number}" for dim, number in plan.dims.items())
    lines = [f"plan of '{plan.name}'  {sizes}".rstrip(), "", "processes"]
    for group in plan.groups:
        roles = ", ".join(_role(plan, name) for name in group.roles)
        count = group.pool.world_size
        lines.append(f"  {group.pool}: {count} process{'es' if count > 1 else ''} with {roles}")
    lines += ["", "steps"]
    table = [row for step in plan.steps for row in _rows(plan, step)]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    lines += [f"  {'  '.join(map(str.ljust, row, widths))}".rstrip() for row in table]
    return "\n".join([*lines, "", *_sums(plan, syncs)])


def _role(plan: Plan, name: str) -> str:
    placement = plan.deployment[name]
    memory = f", {placement.gpu_memory} of each GPU" if placement.gpu_memory else ""
    engine = role_facts.samples_with.of(placement)
    samples = f", samples with {engine}" if engine else ""
    return f"{name} ({placement.role.__name__}, {placement.mesh}{samples}{memory})"


def _rows(plan: Plan, step: Step) -> Iterator[tuple[str, str, str, str, str]]:
    level, label, where, protocol = str(step.level), step.label, _where(plan, step), _protocol(plan, step)
    reads = [edge for edge in plan.edges if edge.target == step.node]
    for i, edge in enumerate(reads):
        yield (level, label, where, protocol, _edge(plan, edge)) if not i else ("", "", "", "", _edge(plan, edge))
    if not reads:
        yield level, label, where, protocol, ""


def _where(plan: Plan, step: Step) -> str:
    if step.group == DRIVER:
        return "driver"
    pool = next(group.pool.name for group in plan.groups if group.name == step.group)
    first, last = min(step.ranks), max(step.ranks)
    consecutive = len(step.ranks) > 2 and step.ranks == tuple(range(first, last + 1))
    ranks = f"{first}-{last}" if consecutive else ",".join(map(str, step.ranks))
    return f"{pool} rank{'s' if len(step.ranks) > 1 else ''} {ranks}"


def _protocol(plan: Plan, step: Step) -> str:
    if step.role is None:
        return f"function, {step.chunks} part{'s' if step.chunks > 1 else ''}"
    registration = step.signature.registration
    name = f"{registration.name if registration else ''}{during_text(plan, step)}{at_once_text(plan, step)}"
    by = f" by {registration.balance}" if registration and step.balance else ""
    return f"{name}, {step.chunks} chunks{by}" if step.chunks > 1 else name


def during_text(plan: Plan, step: Step) -> str:
    """The method between whose tokens a step loads weights; empty for any other step."""
    op = plan.node(step.node).op
    return f", during {op.during}" if isinstance(op, RoleCall) and op.during else ""


def at_once_text(plan: Plan, step: Step) -> str:
    """The number of calls of a step that may be in progress in a process, if more than one."""
    calls = calls_at_once(plan, step)
    return f", up to {calls} at once" if calls > 1 else ""


def _edge(plan: Plan, edge: Edge) -> str:
    source = plan.node(edge.source).label
    named = ", ".join(f"{column}{_maybe(plan, edge.source, column)}" for column in edge.columns if column)
    size = "unknown size" if edge.bytes is None else byte_amount(edge.bytes)
    rank_bytes = plan.value_bytes.get(edge.source)
    sync = next((step.sync for step in plan.steps if step.node == edge.target), None)
    if sync is not None and sync.export == edge.source:
        rank_bytes = max(sync.schedule.needed)
    if rank_bytes and edge.bytes != rank_bytes:
        size += f" ({byte_amount(rank_bytes)} per rank)"
    if any(isinstance(stored_spec(plan.node(edge.source).result, column), ObjSpec) for column in edge.columns):
        size += " and objects"  # of unknown size before a run
    late = plan.read_lags.get((edge.source, edge.target))
    versions = f", {versions_text(late, tokens_have_versions(plan.graph, edge.source))}" if late else ""
    return f"<- {source}{f' ({named})' if named else ''}: {size} {edge.transport}{versions}"


def _maybe(plan: Plan, node: int, column: str) -> str:
    """The mark of a column that may be absent; it is counted as present."""
    spec = stored_spec(plan.node(node).result, column)
    return "?" if spec is not None and spec.optional and column not in plan.presence.get(node, {}) else ""


def _sums(plan: Plan, syncs: Sequence[SyncTraffic]) -> Iterator[str]:
    yield from _queues(plan)
    yield from _overlap(plan)
    sized = [edge for edge in plan.edges if edge.bytes is not None]
    unknown = dict.fromkeys(plan.node(edge.source).label for edge in plan.edges if edge.bytes is None)
    if sized:
        inputs = sum(edge.bytes or 0 for edge in sized if isinstance(plan.node(edge.source).op, Input))
        moved = sum(edge.moved or 0 for edge in sized if not isinstance(plan.node(edge.source).op, Input))
        stay = sum((edge.bytes or 0) - (edge.moved or 0) for edge in sized)
        besides = f"; besides, {_first_names(unknown)} of unknown size" if unknown else ""
        sums = (inputs, "from the caller"), (moved, "between processes"), (stay, "read in place")
        yield f"bytes    {', '.join(f'{byte_amount(count)} {where}' for count, where in sums)}{besides}"
    yield from (f"{'sync' if not i else '':8} {sync}" for i, sync in enumerate(syncs))
    yield from (f"{'offload' if not i else '':8} {line}" for i, line in enumerate(offload_lines(plan)))
    if any(edge.transport == "cuda ipc" for edge in plan.edges) and plan.optimize.mappings:
        yield "cuda ipc " + (
            "readers keep GPU memory mapped between transfers"
            if keeps_mapped(plan)
            else "readers map GPU memory again for every transfer, since offload releases memory"
        )
    if sizes_known(plan) and sum(group.pool.world_size for group in plan.groups) <= MAX_PRINTED_PROCESSES:
        order = tuple(phases(plan, plan.dims))
        yield "fused    " + ("; ".join(map(_together, _fused(order))) or "none")
        yield from _memory(plan, process_memory(plan, plan.dims, order).values())
    yield from (f"{'gpu' if not i else '':8} {peak}" for i, peak in enumerate(gpu_peaks(plan, syncs)))


def _overlap(plan: Plan) -> Iterator[str]:
    """The steps that run side by side, and those for which later ones wait."""
    together = [" with ".join(step.label for step in steps) for steps in overlaps(plan)]
    stages = ", within a step; stages of several steps run side by side" if plan.split.queues else ""
    yield f"overlap  {'; '.join(together) or 'none'}{stages}"
    in_order = submission_order(plan, dependencies(plan))
    pairs = [step.label for step in in_order[:-1] if step.custom is not None]
    if pairs:
        ends, their = ("ends", "its") if len(pairs) == 1 else ("end", "their")
        yield f"         later steps begin once {_first_names(pairs)} {ends}: the driver runs {their} collect function"


def queue_texts(plan: Plan) -> Iterator[str]:
    """For each queue of a plan: the stages before and behind it, and its lag and discipline."""
    split = plan.split
    for node, queue in split.queues:
        group = f", groups of {queue.group}" if queue.group > 1 else ""
        rows = "" if queue.rows is None else f", batches of {getattr(queue.rows, '__name__', queue.rows)} rows"
        ends = f"{split.producer(node)} -> {split.of[node.id]}"
        yield f"from stage {ends}: lag={queue.lag} {queue.late or 'as ready'}{group}{rows}"


def _queues(plan: Plan) -> Iterator[str]:
    """The queues between stages that step on their own, and which calls each stage has."""
    split = plan.split
    yield from (f"queue    {text}" for text in queue_texts(plan))
    for part in range(split.count) if split.queues else ():
        labels = [step.label for step in plan.steps if split.of[step.node] == part]
        yield f"stage {part}  {', '.join(labels)}"
    steps = {step.node: step for step in plan.steps}
    for node, senders in weight_senders(plan).items() if split.queues else ():
        groups, load = ", ".join(dict.fromkeys(group for group, _ in senders)), steps[node]
        yield f"waits    {groups} in {load.label}, for the calls of {load.role} that were dispatched before it"


def _fused(order: Iterable[Phase]) -> Iterator[list[str]]:
    for segment in (segment for phase in order for segment in phase.segments):
        if len(segment.steps) > 1:
            yield [step.label for step in segment.steps]


def _together(labels: list[str]) -> str:
    return " + ".join(labels) if len(labels) < 5 else f"{labels[0]} to {labels[-1]} ({len(labels)} steps)"


def _memory(plan: Plan, processes: Collection[ProcessMemory]) -> Iterator[str]:
    """For each pool the most bytes of values that a process holds at once, and the most that a process sends."""
    pools = {group.name: group.pool.name for group in plan.groups}
    lines = []
    for fullest in peaks(processes):
        unsized = fullest.unsized
        more = f", plus {_first_names(unsized)} of unknown size," if unsized else ""
        group, rank = fullest.process
        text = f"{pools[group]}: values peak at {byte_amount(fullest.bytes)}{more} on rank {rank} in {fullest.step}"
        most = max(
            (memory for memory in processes if memory.process[0] == group),
            key=lambda memory: (memory.sent_bytes, memory.payloads),
        )
        lines.append(f"{text}; {_most_sent(most)}")
    yield from (f"{'memory' if not i else '':8} {line}" for i, line in enumerate(lines))


def _most_sent(memory: ProcessMemory) -> str:
    """The payloads of the process that sends most."""
    payloads = f"{memory.payloads} payload{'s' * (memory.payloads != 1)}"
    if not memory.payloads:
        return "no process sends any"
    if memory.sent_bytes or not memory.sends_unsized:
        return f"a process sends up to {byte_amount(memory.sent_bytes)} in {payloads}"
    return f"a process sends up to {payloads} of unknown size"


def _first_names(names: Iterable[str]) -> str:
    """The first two names, and a sign that there are more."""
    first = tuple(islice(names, 3))
    return f"{', '.join(first[:2])}{' ...' if len(first) > 2 else ''}"
