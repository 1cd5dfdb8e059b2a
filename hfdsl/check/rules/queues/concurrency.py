"""Concurrent calls: can a run overlap the calls of a process as declared, and does it gain anything?

A worked example, a role that declares ``concurrent_calls`` of 5 for ``generate``::

    rollout = engine.generate(prompts)                      # up to five of these calls in progress in a process
    batch   = hf.queue(rollout, lag=4, late="wait")         # at most five dispatches are in flight
    metrics = actor.update(batch)
    hf.sync(actor, engine, during="generate")               # loaded when all five are between two tokens

A sync between calls would have to wait until all of them have ended, and others wait for it: nothing would overlap. In
a program without a lag, no two calls of a stage are in progress at once, whatever a role declares.
"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.deploy.deployment import process_groups
from hfdsl.graph.program import Node, RoleCall
from hfdsl.protocols import role_facts


def concurrent_calls_overlap(context: Context) -> Iterator[Finding]:
    """HF755, HF756: a role's concurrent calls can overlap, and are no more than a lag allows."""
    split = context.program.split
    for stage in range(split.count):
        lags = [queue.lag or 0 for node, queue in split.queues if split.producer(node) == stage]
        for node in split.calls(stage) if lags else ():
            calls = _concurrency(context, node)
            if not isinstance(node.op, RoleCall) or calls < 2:
                continue
            why = _obstacle(context, node, node.op, stage)
            if why is not None:
                yield Finding(
                    "HF755",
                    f"up to {calls} calls of '{node.label}' would be in progress at once in a process, but {why}",
                    Label(node.span, "is called before a queue with a lag"),
                )
            elif calls > max(lags) + 1:
                lag = max(lags)
                yield Finding(
                    "HF756",
                    f"up to {calls} calls of '{node.label}' may be in progress at once in a process, and lag={lag} "
                    f"allows {lag + 1} dispatches in flight",
                    Label(node.span, "is called before that queue"),
                    notes=(f"declare {lag + 1} concurrent calls: more gain nothing",),
                )


def _concurrency(context: Context, node: Node) -> int:
    place = context.program.placement(node)
    if place is None or not isinstance(node.op, RoleCall):
        return 1
    return role_facts.concurrent_calls.of(place).get(node.op.signature.name, 1)


def _obstacle(context: Context, node: Node, op: RoleCall, stage: int) -> str | None:
    """Why calls of a role cannot overlap."""
    program, method = context.program, op.signature.name
    calls = [(call, call.op) for call in program.graph.calls if isinstance(call.op, RoleCall)]
    of_role = [(call, other_op) for call, other_op in calls if other_op.role == op.role]
    if method not in [other_op.during for _, other_op in of_role]:
        return f'no hf.sync sends its role weights in flight, with during="{method}"'
    before = [call.label for call, _ in of_role if program.split.of[call.id] == stage and call.id < node.id]
    if before:
        return f"'{before[0]}' of the same step comes before it there"
    groups = () if program.deployment is None else process_groups(program.deployment)
    sharing = [role for group in groups if op.role in group.roles for role in group.roles if role != op.role]
    if sharing:
        return f"role '{sharing[0]}' runs in the same processes: give one of them its own pool, or colocate=False"
    return None
