"""Overlaps: which steps of a plan can run at the same time.

A worked example: ``a``, ``b`` and ``c`` are roles on pools of their own, and ``b`` gets the rows of ``a`` that a filter
keeps::

    step   protocol           reads               submitted  waits for    level
    a.run  DP_PROTO           the caller's rows   first      -            1
    b.run  DP_PROTO           kept rows of a.run  last       a.run c.run  2
    c.run  pair of functions  the caller's rows   second     -            1

``a.run`` runs beside ``c.run``. ``b.run`` does not run beside ``c.run``: the functions of a pair run in the driver,
which waits for ``c.run`` and collects its results before it submits a later call. (So a pair may remember in its first
function what its second one needs.) And ``b.run`` is submitted later, although the program has it before: the driver
submits all that it can before it waits for the filter.

Why what is listed is true: the driver waits for pairs of functions and for what runtime queries read, which later steps
have in ``waits``, and for nothing else. So of two steps that do not wait for each other, the second one is on its way
before the first one has ended, if that takes long. The driver's own steps read only what the driver has, so they run
within submission, and are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from hfdsl.deploy.pools import devices
from hfdsl.plan.payloads import DRIVER_PROCESS
from hfdsl.plan.plan import DRIVER, Plan, Step
from hfdsl.plan.segments import dependencies, submission_order


def overlaps(plan: Plan) -> Iterator[tuple[Step, ...]]:
    """Steps that may all run at the same time; every step that overlaps with another is in one of these."""
    if not plan.optimize.overlap:
        return
    ordered = _ordered(_waits(plan))
    remote = [step for step in plan.steps if step.group != DRIVER]
    seen: set[int] = set()
    for first in remote:
        if first.node in seen:
            continue
        together, excluded = {first.node}, ordered[first.node]
        beside = (step for step in remote if not excluded >> step.node & 1)
        # Of those that may run beside it first the ones that begin at the same time.
        for step in sorted(beside, key=lambda other: abs(other.level - first.level)):
            if not excluded >> step.node & 1:
                together.add(step.node)
                excluded |= ordered[step.node]
        if len(together) > 1:
            seen |= together
            yield tuple(step for step in remote if step.node in together)


def with_levels(plan: Plan) -> tuple[Step, ...]:
    """The steps of a plan with their levels: each is one above the highest level that it waits for."""
    waits = _waits(plan)
    levels: dict[int, int] = {}
    for node, waited in waits.items():
        levels[node] = 1 + max((levels[last] for last in _last(waited, waits)), default=0)
    return tuple(replace(step, level=levels[step.node]) for step in plan.steps)


def _waits(plan: Plan) -> Mapping[int, int]:
    """For every step, in the order of submission, a bit for each step that has ended when it begins."""
    direct = dependencies(plan)
    pools = {group.name: group.pool for group in plan.groups}
    unresolved = deque(query for query in direct.query_sources if query not in direct.early_queries)
    last_on: dict[tuple[str, int], int] = {}
    waits: dict[int, int] = {}
    submitted = everyone = 0  # the steps so far, and those for which the driver has waited
    for step in submission_order(plan, direct):
        while unresolved and unresolved[0] <= direct.last_query(step.node):
            everyone |= _bits(direct.query_sources[unresolved.popleft()])
        used = [devices(pools[step.group])[rank] for rank in step.ranks] if step.group != DRIVER else [DRIVER_PROCESS]
        needed = everyone | direct.before[step.node] | _bits(last_on[device] for device in used if device in last_on)
        waits[step.node] = 0
        for node in _last(needed & submitted, waits):  # inputs of the caller are no steps
            waits[step.node] |= waits[node] | 1 << node
        last_on |= dict.fromkeys(used, step.node)
        submitted |= 1 << step.node
        if step.custom is not None:
            everyone |= 1 << step.node
    return waits


def _ordered(waits: Mapping[int, int]) -> Mapping[int, int]:
    """For every step a bit for itself, for each that it waits for, and for each that waits for it."""
    ordered = {node: waited | 1 << node for node, waited in waits.items()}
    for node, waited in waits.items():
        for earlier in waits:
            ordered[earlier] |= (waited >> earlier & 1) << node
    return ordered


def _bits(nodes: Iterable[int]) -> int:
    return sum(1 << node for node in set(nodes))


def _last(nodes: int, waits: Mapping[int, int]) -> Iterator[int]:
    """Some of these nodes, which wait for all the others.

    >>> list(_last(0b1011, {0: 0b0000, 1: 0b0001, 3: 0b0001}))
    [3, 1]
    """
    while nodes:
        node = nodes.bit_length() - 1
        nodes &= ~(waits[node] | 1 << node)
        yield node
