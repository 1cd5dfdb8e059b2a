"""Overlaps: which steps of a plan can run at the same time.

A worked example: ``a``, ``b`` and ``c`` are roles on pools of their own, and all of them read the caller's rows::

    step    protocol           waits for
    a.run   DP_PROTO           -
    b.run   pair of functions  -
    c.run   DP_PROTO           b.run

``a.run`` runs beside both others. ``c.run`` does not run beside ``b.run``: the functions of a pair run in the driver,
which waits for ``b.run`` and collects its results before it submits a later call. (So a pair may remember in its first
function what its second one needs.)

Why what is listed is true: a run submits a step as soon as all in ``waits`` has been submitted, and the driver waits
for nothing else. So of two steps that do not wait for each other, both are on their way before either has ended. The
driver's own steps run within submission, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hfdsl.deploy.pools import devices
from hfdsl.plan.plan import DRIVER, Plan, Step
from hfdsl.plan.segments import dependencies


def overlaps(plan: Plan) -> Iterator[tuple[Step, ...]]:
    """Steps that may all run at the same time; every step that overlaps with another is in one of these."""
    if not plan.optimize.overlap:
        return
    waits = _waits(plan)
    remote = [step for step in plan.steps if step.group != DRIVER]
    seen: set[int] = set()
    for i, first in enumerate(remote):
        if first.node in seen:
            continue
        together = [first]
        # Of those that may run beside it first the ones that begin at the same time.
        for step in sorted(remote[i + 1 :], key=lambda later: abs(later.stage - first.stage)):
            if not any((waits[step.node] >> member.node | waits[member.node] >> step.node) & 1 for member in together):
                together.append(step)
        if len(together) > 1:
            nodes = {step.node for step in together}
            seen |= nodes
            yield tuple(step for step in remote if step.node in nodes)


def _waits(plan: Plan) -> Mapping[int, int]:
    """For every step a bit for each step that has ended when it begins."""
    direct = dependencies(plan)
    pools = {group.name: group.pool for group in plan.groups}
    last_on: dict[tuple[str, int], int] = {}
    waits: dict[int, int] = {}
    everyone = 0  # what every later step waits for
    for step in plan.steps:
        needed = {node for node in waits if direct.before[step.node] >> node & 1}
        # The driver resolves queries one after another, so a step waits for the earlier ones, too.
        last_query = max(direct.queries[step.node] - direct.early_queries, default=-1)
        for query, sources in direct.query_sources.items():
            if query <= last_query and query not in direct.early_queries:
                needed |= waits.keys() & set(sources)
        used = [devices(pools[step.group])[rank] for rank in step.ranks] if step.group != DRIVER else []
        needed |= {last_on[device] for device in used if device in last_on}
        waits[step.node] = everyone
        for node in needed:
            waits[step.node] |= waits[node] | 1 << node
        last_on |= dict.fromkeys(used, step.node)
        if step.custom is not None:
            everyone |= waits[step.node] | 1 << step.node
    return waits
