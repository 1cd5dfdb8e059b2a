"""Liveness: is every batch of a queue eventually filled, and can its two stages overlap?

Let a step put D rows into a queue, a batch have R, and the lag be k, so that there are places for (k + 1) R rows. What
the reader leaves behind is fewer than R rows, and a multiple of gcd(D, R), so at most R - gcd(D, R). The next step is
dispatched if its D rows have places beside these: D + R - gcd(D, R) <= (k + 1) R. If not, both stages wait forever::

    D = 64, R = 64    k >= 0: 64 places, and nothing is left behind
    D = 96, R = 64    k >= 1: 96 + 32 <= 128
    D = 512, R = 64   k >= 7: the 512 rows of one step are eight batches, and the last is seven updates late

Under "drop" and "refill" late groups leave one by one, so R - group rows may be left behind (``needed_places``). The
same holds for groups that a filter in front of the queue removes.

This is the least capacity of an edge of a synchronous dataflow graph (Lee and Messerschmitt, 1987, Synchronous Data
Flow), p + c - gcd(p, c), against the tokens that a lag gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.queue_bounds import stated_rows
from hfdsl.check.repair.queues import queued
from hfdsl.check.repair.suggestions import with_suggestions
from hfdsl.check.sizes.demands import filtered
from hfdsl.deploy.deployment import Placement, process_groups
from hfdsl.deploy.pools import devices
from hfdsl.graph.ancestry import ancestors
from hfdsl.graph.columns import columns_read, result_origins
from hfdsl.graph.lags import stage_lags
from hfdsl.graph.program import Filter, Node, Queue, RoleCall
from hfdsl.graph.queue_problems import takes_weights_in_flight
from hfdsl.graph.stages import effects
from hfdsl.protocols.queueing import Late, needed_places
from hfdsl.types.dims import Answer, Size, at_most


def stages_overlap(context: Context) -> Iterator[Finding]:
    """HF744: stages on separate pools can work on two steps at the same time."""
    split = context.program.split
    if split.around or context.program.deployment is None:
        return
    for node, queue in split.queues:
        feeds, reads = split.producer(node), split.of[node.id]
        if queue.lag != 0 or not _one_step_at_a_time(context, feeds, reads):
            continue
        feeding, reading = (_devices(context, stage) for stage in (feeds, reads))
        if feeding and reading and feeding.isdisjoint(reading):
            finding = Finding(
                "HF744",
                "with lag=0 each stage waits for the other: rows that are dispatched during an update would be one "
                "update late, so the two pools work on one step at a time",
                Label(node.span, "separates stages on two pools"),
            )
            late = {} if queue.late else {"late": "wait"}
            one_step = queued(node, [{"lag": 1, **late}], "let the stages overlap: ")
            advice = "for a synchronous program, leave out lag="
            yield with_suggestions(context, finding, [one_step], advice)


def _one_step_at_a_time(context: Context, feeds: int, reads: int) -> bool:
    """Whether no call of a stage begins a step before all calls of a stage behind it have ended the last one.

    The driver begins no step of a stage before the last stages that may not be behind it have given a result. If queues
    decide or weights are in flight, it does not wait, and only a call in a process that loads weights waits for the
    update that they are of.
    """
    split, graph = context.program.split, context.program.graph
    ends = {*range(split.count)} - {split.producer(node) for node, _ in split.queues}
    held = {ahead for (ahead, behind), lag in stage_lags(split).items() if lag == 0 and behind in ends}
    if feeds not in held:
        return False
    behind = {node.id for node, *_ in _working_calls(context, reads)}
    results = {node for ref in graph.output.refs() for node, _ in result_origins(graph, ref)}
    decides = any(queue.decides for _, queue in split.queues)
    decides |= takes_weights_in_flight(graph)
    if not decides and behind <= _awaited(context, results):
        return True
    loads = {sync.target.role: sync.load for sync in context.program.syncs}
    loading = {node.id: role for stage in held for node, role, _ in _working_calls(context, stage) if role in loads}
    for node, *_ in _working_calls(context, feeds):
        waiting = loading.keys() & _awaited(context, {node.id})
        if not behind <= _awaited(context, {loads[loading[call]] for call in waiting}):
            return False
    return True


def _awaited(context: Context, ends: Iterable[int]) -> set[int]:
    """The calls that end before these can: what they read, and the updates of the states that they export."""
    graph, awaited, waiting = context.program.graph, set[int](), list(ends)
    exported = {sync.export: sync.source for sync in context.program.syncs}
    while waiting:
        number = waiting.pop()
        if number not in awaited:
            awaited.add(number)
            waiting += [source for source, _ in columns_read(graph, number)]
            waiting += [
                node.id
                for node in graph.calls
                for holder, effect in effects(node)
                if effect.kind == "writes" and holder == exported.get(number)
            ]
    return awaited


def stages_need_processes_of_their_own(context: Context) -> Iterator[Finding]:
    """HF754: with a lag, the stages do not share all of their processes, if these have GPUs."""
    split, deployment = context.program.split, context.program.deployment
    if split.around or deployment is None:
        return
    group_of = {role: group for group in process_groups(deployment) for role in group.roles}
    calls = [_gpu_calls(context, stage) for stage in range(split.count)]
    groups = {group_of[role] for stage in calls for role in stage.values()}
    if len(groups) != 1:
        return
    [gpus] = (len(devices(group.pool)) for group in groups)
    for node, queue in split.queues:
        feeding, reading = calls[split.producer(node)], calls[split.of[node.id]]
        if not queue.lag or not feeding or not reading:
            continue
        on = "the same GPU" if gpus == 1 else f"the same {gpus} GPUs"
        old = "1 update" if queue.lag == 1 else f"{queue.lag} updates"
        yield Finding(
            "HF754",
            f"{_calls_in_words(feeding)} before the queue and {_calls_in_words(reading)} behind it run on {on}, "
            f"in processes that take one call at a time: with lag={queue.lag} rows may be {old} old, but no call there "
            "begins sooner",
            Label(node.span, "separates the stages"),
            notes=("give the roles before the queue a pool of their own, or leave out the lag",),
        )


def _gpu_calls(context: Context, stage: int) -> dict[str, str]:
    """The roles of the calls that have GPUs, by label."""
    calls = _working_calls(context, stage)
    return {node.label.partition("#")[0]: role for node, role, placement in calls if placement.pool.use_gpu}


def _calls_in_words(calls: Mapping[str, object]) -> str:
    first, *others = calls
    return f"'{first}'" + (f" and {len(others)} more" if others else "")


def _devices(context: Context, stage: int) -> set[tuple[str, int]]:
    """The devices of the roles that a stage calls."""
    return {device for _, _, placement in _working_calls(context, stage) for device in devices(placement.pool)}


def _working_calls(context: Context, stage: int) -> Iterator[tuple[Node, str, Placement[Any]]]:
    """The calls of roles in a stage with their roles, but for those that only move weights."""
    for node in context.program.split.calls(stage):
        placement = context.program.placement(node)
        if isinstance(node.op, RoleCall) and placement is not None and not _is_transfer(context, node):
            yield node, node.op.role, placement


def _is_transfer(context: Context, node: Node) -> bool:
    return any(node.id in (sync.export, sync.load) for sync in context.program.syncs)


def batches_are_filled(context: Context) -> Iterator[Finding]:
    """HF745, HF752: a step puts in whole groups, and enough rows for a batch; without a lag, as many as are read."""
    for node in context.program.graph.nodes:
        if isinstance(node.op, Queue) and node.batch is not None:
            rows = context.program.inference.rows(node.batch.node)
            if rows is not None and not context.program.inference.misfits:
                yield from _filled(context, node, node.op, context.known(rows))


def _filled(context: Context, node: Node, queue: Queue, dispatched: Size) -> Iterator[Finding]:
    stated = stated_rows(context, queue)
    batch_rows = dispatched if stated is None else stated
    loses = filtered(dispatched) and queue.decides
    if not queue.splits:
        if (filtered(dispatched) and queue.rows is not None) or batch_rows.equals(dispatched) is Answer.REFUTED:
            yield _uneven(node, batch_rows, dispatched)
        return
    for rows, words in ((dispatched, "a step dispatches"), (batch_rows, "a batch has")):
        divides = rows.divisible_by(queue.group)
        if divides is Answer.REFUTED or (loses and filtered(rows) and divides is not Answer.PROVED):
            yield _unfilled(
                node,
                f"{words} {rows} rows, which are not whole groups of {queue.group}",
                "no batch can be filled",
            )
            return
    if loses:  # a dispatch puts in as many groups as the filter may keep, and a batch has as many if it has no rows=
        dispatched, original = context.known(at_most(dispatched)), dispatched
        batch_rows = dispatched if batch_rows is original else batch_rows
    sizes = (int(dispatched.value), int(batch_rows.value)) if dispatched.value and batch_rows.value else None
    starves, lag = loses and queue.rows is not None and queue.late != "refill", queue.lag or 0
    late: Late | None = "refill" if starves else queue.late
    least = lag if sizes is None else _least_lag(*sizes, queue.group, lag, late, loses)
    room = {"lag": least} if least > lag else {}
    if starves:
        suggestion = queued(node, [{"late": "refill", **room}], "dispatch other prompts in their place: ")
        yield with_suggestions(context, _starved(context, node, queue, batch_rows), [suggestion])
    elif room and sizes is not None:
        count, batch = sizes
        needed = needed_places(count, batch, queue.group, lag, late, loses)
        one_by_one = needed > needed_places(count, batch, queue.group, lag, "wait")
        remover = "the filter" if loses else f"late={late!r}"
        why = f" where {remover} removes groups one by one" if one_by_one else ""
        finding = _unfilled(
            node,
            f"a step dispatches {'at most ' * loses}{count} rows, a batch has {batch}, and lag={lag} leaves places for "
            f"{(lag + 1) * batch} rows, but {needed} are needed{why}",
            "both stages would wait for each other",
        )
        yield with_suggestions(context, finding, [queued(node, [room], "make room: ")])


def _least_lag(count: int, batch: int, group: int, lag: int, late: Late | None, loses: bool) -> int:
    """The least lag, from ``lag`` on, with enough places for the rows of a step."""
    lags = range(lag, lag + 2 + count // batch)
    return next(k for k in lags if needed_places(count, batch, group, k, late, loses) <= (k + 1) * batch)


def _uneven(node: Node, batch_rows: Size, dispatched: Size) -> Finding:
    return Finding(
        "HF752",
        f"a queue without a lag passes on the {dispatched} rows of this step, not {batch_rows}",
        Label(node.span, f"declares {batch_rows} rows"),
        notes=("leave out rows=, or give it a lag; hf.take and hf.fill change a number of rows within a step",),
    )


def _unfilled(node: Node, subject: str, why: str) -> Finding:
    return Finding("HF745", f"{subject}: {why}", Label(node.span, "this queue"))


def _starved(context: Context, node: Node, queue: Queue, batch_rows: Size) -> Finding:
    graph = context.program.graph
    before = (graph.nodes[number] for number in sorted(ancestors(graph, [node.id]), reverse=True))
    filters = [node for node in before if isinstance(node.op, Filter)]
    return Finding(
        "HF745",
        f"the queue waits for {batch_rows} rows, and nothing is dispatched in place of rows that the filter drops: "
        f"under late={queue.late!r} a batch may never be filled",
        Label(node.span, f"waits for {batch_rows} rows"),
        tuple(Label(filter_node.span, "drops rows") for filter_node in filters[:1]),
    )
