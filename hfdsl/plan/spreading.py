"""Spreading: weights that go from one process to all that load them at once, as one broadcast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hfdsl.deploy.pools import devices
from hfdsl.graph.columns import columns_read, result_origins
from hfdsl.graph.program import RoleCall
from hfdsl.graph.signatures import StaticType
from hfdsl.plan.payloads import Process
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.segments import Dependencies
from hfdsl.plan.transports import goes_direct
from hfdsl.protocols.state import effects_of


def broadcasts(plan: Plan, waits: Dependencies, linked: frozenset[str]) -> Mapping[int, tuple[Process, ...]]:
    """The exported states that are broadcast, each with the processes that take part, its maker first.

    The maker waits for all readers, and they for it. So that nobody waits for ever, the steps that load a state follow
    the one that exports it, as ``hf.sync`` has them: whatever comes before them comes before the broadcast everywhere.
    """
    found: dict[int, tuple[Process, ...]] = {}
    for position, step in enumerate(plan.steps):
        if not _exports(plan, step):
            continue
        readers = [one for one in plan.steps if step.node in {node for node, _ in columns_read(plan.graph, one.node)}]
        follow = readers == list(plan.steps[position + 1 : position + 1 + len(readers)])
        at_once = all(waits.queries[one.node] == waits.queries[step.node] for one in readers)
        direct = all(_takes_whole(one) and goes_direct(plan, linked, step.node, one.group) for one in readers)
        if readers and follow and at_once and direct and _apart(plan, [step, *readers]):
            reading = dict.fromkeys((one.group, rank) for one in readers for rank in one.ranks)
            found[step.node] = (step.layout.maker(0), *reading)
    return found


def _exports(plan: Plan, step: Step) -> bool:
    """Whether it gives a state as one value, which has no rows."""
    node = plan.node(step.node)
    effects = effects_of(step.signature.body) if isinstance(node.op, RoleCall) else ()
    one = not step.custom and step.layout.chunks == 1 and not step.layout.lists and isinstance(node.result, StaticType)
    returned = {made for ref in plan.graph.output.refs() for made, _ in result_origins(plan.graph, ref)}
    return one and step.node not in returned and any(effect.kind == "exports" for effect in effects)


def _takes_whole(step: Step) -> bool:
    return step.role is not None and not step.custom and not step.per_rank


def _apart(plan: Plan, steps: Sequence[Step]) -> bool:
    """Whether all groups of these steps have GPUs of their own: NCCL joins no two processes of one GPU."""
    pools = {group.name: group.pool for group in plan.groups}
    maker, *readers = (step.group for step in steps)
    used = [device for name in {maker, *readers} for device in devices(pools[name])]
    return maker not in readers and len(set(used)) == len(used)
