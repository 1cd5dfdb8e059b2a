"""Queues: are their lags really bounds, and does each stage read values of one version?

The staleness of a row is v - w: its rows are dispatched under version w of a state, and are in the update that makes
version v + 1. ``lag=k`` says v - w <= k for every row that is trained. Let B be the groups of a batch.

- ``wait``: a group is dispatched while fewer than (k + w + 1) B groups before it are not lost, where w batches were
  taken, and batches are taken in the order of dispatch. So at most (k + w + 1) B - 1 groups are taken before it, it is
  in batch number k + w (from 0) or an earlier one, and batch number v makes version v + 1: v <= k + w.
- ``drop``: before a batch is taken under v, every group with v - w > k leaves the queue. What is trained has
  v - w <= k.
- ``refill``: the same, and what is dispatched in place of a group is a group of its own, with its own w.
- ``mask``: every group with v - w > k is trained with a mask of zeros, which is no gradient: it counts as not
  trained.

Without a discipline, the reader takes groups as they become ready. At most (k + 1) B groups are in the system, and B
leave it with an update, so by Little's law a group stays for k + 1 updates on average. Others overtake a slow group
again and again: there is no bound on v - w (HF743).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, dropwhile

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import signature_of
from hfdsl.check.repair.queues import queued
from hfdsl.check.repair.suggestions import with_suggestions
from hfdsl.graph.lags import carried
from hfdsl.graph.program import Node, Queue
from hfdsl.graph.row_steps import PartStep, QueueStep, SampleStep
from hfdsl.graph.stages import HeldState, effects
from hfdsl.protocols.queueing import DISCIPLINES


def values_do_not_bypass_queues(context: Context) -> Iterator[Finding]:
    """HF742: values that are read together with rows of a queue pass through that queue as well."""
    if context.program.graph.misuses:
        return
    for queue, value, reader in context.program.split.around:
        yield Finding(
            "HF742",
            f"'{reader.label}' reads '{value.label}' of this step together with rows of a queue, which may be of an "
            "earlier step",
            Label(reader.span, "reads rows of two steps"),
            (Label(queue.span, "the queue"), Label(value.span, "does not go through it")),
            notes=(
                f"put '{value.label}' into the record that goes through the queue, or compute it from the queue's rows",
            ),
        )


def lags_are_bounds(context: Context) -> Iterator[Finding]:
    """HF743: a queue with a lag has a discipline that keeps it."""
    for node, queue in context.program.split.queues:
        if queue.lag and queue.late is None:
            finding = Finding(
                "HF743",
                f"lag={queue.lag} is no bound here, where groups are taken as they become ready: staleness is at most "
                f"{queue.lag} on average, and the worst case is unbounded",
                Label(node.span, "does not say what happens to late groups"),
            )
            words = "say what happens to them: "
            choices = [{"late": late} for late in DISCIPLINES]
            advice = "late= takes 'wait', 'drop', 'refill' or 'mask', each of which keeps the bound"
            yield with_suggestions(context, finding, [queued(node, choices, words)], advice)


def states_have_one_queue(context: Context) -> Iterator[Finding]:
    """HF746: a state has one stage that writes it, and a stage reads rows made under it from one queue."""
    split = context.program.split
    if not split.queues or split.around or context.program.graph.misuses:
        return
    writers: dict[HeldState, Node] = {}
    for node in context.program.graph.calls:
        for holder, effect in effects(node):
            if effect.kind != "writes":
                continue
            first = writers.setdefault(holder, node)
            if split.of[first.id] != split.of[node.id]:
                labels = " and ".join(f"'{label}'" for label in dict.fromkeys((first.label, node.label)))
                how = "both change" if first.label != node.label else "changes"
                yield Finding(
                    "HF746",
                    f"{labels} {how} '{holder.state}' of '{holder.role}', in two stages that step independently: "
                    "its versions have no order",
                    Label(node.span, "changes it in another stage"),
                    (Label(first.span, "changes it here"),),
                    notes=("update a state in one stage",),
                )
    for stage in range(split.count):
        queues: dict[HeldState, Node] = {}
        for node, state in carried(split, stage, context.program.lags):
            if queues.setdefault(state, node) is not node:
                yield Finding(
                    "HF746",
                    f"rows made under '{state.state}' of '{state.role}' reach one stage by two queues, which deliver "
                    "rows of different steps and versions",
                    Label(node.span, "the second queue"),
                    (Label(queues[state].span, "the first queue"),),
                    notes=("put the columns into one record, and pass it through one queue",),
                )
                break


def groups_stay_whole(context: Context) -> Iterator[Finding]:
    """HF747: a queue drops and masks whole groups of the functions that read them."""
    reported: set[int] = set()
    for node in context.program.graph.calls if context.program.split.queues else ():
        signature = signature_of(node)
        size = 1 if signature is None else signature.group_size
        for column in context.program.origins.columns(node.id) if size > 1 else ():
            origin = context.program.origins.of(column)
            changes = dropwhile(lambda step: isinstance(step, (SampleStep, PartStep)), origin.steps if origin else ())
            step = next(changes, None)
            queue = context.program.graph.nodes[step.node] if isinstance(step, QueueStep) else None
            if queue is not None and _cuts(queue, size) and queue.id not in reported:
                reported.add(queue.id)
                yield _cut(context, queue, node, size)


def _cuts(queue: Node, size: int) -> bool:
    """Whether a queue may drop or mask a part of a group of ``size`` rows."""
    return isinstance(queue.op, Queue) and queue.op.late != "wait" and queue.op.group % size != 0


def _cut(context: Context, queue: Node, reader: Node, size: int) -> Finding:
    group = queue.op.group if isinstance(queue.op, Queue) else 1
    finding = Finding(
        "HF747",
        f"the queue drops or masks {group} row{'s' * (group > 1)} at a time, but '{reader.label}' reads groups of "
        f"{size}, which the queue would cut",
        Label(queue.span, f"keeps {group} row{'s' * (group > 1)} together"),
        (Label(reader.span, f"reads groups of {size} rows"),),
    )
    return with_suggestions(context, finding, [queued(queue, [{"group": size}], "keep groups whole: ")])


def loads_are_whole(context: Context) -> Iterator[Finding]:
    """HF748: a state that another stage reads is loaded by one call, between whose parts no call reads it."""
    split = context.program.split
    if not split.queues or split.around or context.program.graph.misuses:
        return
    calls = [(node, *item) for node in context.program.graph.calls for item in effects(node)]
    readers = {holder: node for node, holder, effect in calls if effect.kind == "reads"}
    loads: dict[HeldState, list[Node]] = {}
    for node, holder, effect in calls:
        if effect.kind == "loads":
            loads.setdefault(holder, []).append(node)
    for holder, nodes in loads.items():
        first, reader = nodes[0], readers.get(holder)
        second = next((node for node in nodes if node.label != first.label), None)
        if second is None or reader is None or split.of[reader.id] in {split.of[node.id] for node in nodes}:
            continue
        yield Finding(
            "HF748",
            f"'{reader.label}' may read '{holder.state}' between '{first.label}' and '{second.label}', which load "
            "parts of it: its stage steps independently",
            Label(reader.span, "may read weights of two versions"),
            tuple(Label(node.span, "loads a part") for node in (first, second)),
            notes=("load the whole state with one method",),
        )


def all_rules(context: Context) -> Iterator[Finding]:
    """Every rule of this module; a program without queues pays for none of them."""
    if context.program.split.queues:
        rules = lags_are_bounds, values_do_not_bypass_queues, states_have_one_queue, groups_stay_whole, loads_are_whole
        yield from chain.from_iterable(rule(context) for rule in rules)
