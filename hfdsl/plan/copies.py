"""The host memory of the state copies that ``hf.Retries`` keeps, predicted from what roles declare.

A worked example: an actor of 0.5 billion parameters in float32 with AdamW keeps 2 GB of weights and 4 GB of moments on
each of its 4 + 4 ranks, whose mesh has ``dp`` alone. A copy takes 24 GB on each node. With ``copies="peers"`` each node
keeps the copies of the one before it in a ring, too: 48 GB. While the next copy is made, the one before is still there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hfdsl.deploy.pools import ResourcePool
from hfdsl.deploy.retries import Retries
from hfdsl.plan.plan import Plan
from hfdsl.protocols import role_facts
from hfdsl.types.numbers import byte_amount


@dataclass(frozen=True, slots=True)
class PoolCopies:
    """The copies of states that the processes of a pool make: ``bytes`` of one copy on its fullest node.

    ``peer_bytes`` are those of the second copy, on another node; ``unknown`` the roles that state nothing of theirs.
    """

    pool: ResourcePool
    bytes: int
    peer_bytes: int
    unknown: tuple[str, ...]

    def __str__(self) -> str:
        sizes = [f"{byte_amount(self.bytes)} of host memory on each node"] if self.bytes else []
        sizes += ["as much on the node that keeps the second one"] if self.peer_bytes else []
        sizes += [f"what {' and '.join(self.unknown)} keep{'s' * (len(self.unknown) == 1)}"] if self.unknown else []
        return f"{self.pool.name} {', and '.join(sizes)}; twice while the next copy is made"


def pool_copies(plan: Plan, retries: Retries) -> Iterator[PoolCopies]:
    """The copies of every pool whose roles keep a state; none if the retries make none."""
    for pool in dict.fromkeys(group.pool for group in plan.groups) if retries.every is not None else ():
        of_rank, unknown = 0, list[str]()
        for role in (role for group in plan.groups if group.pool == pool for role in group.roles):
            place = plan.deployment[role]
            if callable(getattr(place.role, "state", None)):
                parts = role_facts.kept_bytes.of(place)
                of_rank += sum(parts.values())
                unknown += [] if parts else [role]
        if of_rank or unknown:
            size = of_rank * max(pool.processes)
            yield PoolCopies(pool, size, size if has_peers(plan, retries) else 0, tuple(unknown))


def has_peers(plan: Plan, retries: Retries) -> bool:
    """Whether there is to be a second copy; pools of their own may be on nodes of their own."""
    pools = {group.pool for group in plan.groups}
    return retries.copies == "peers" and (len(pools) > 1 or any(len(pool.processes) > 1 for pool in pools))


def copy_lines(plan: Plan, retries: Retries) -> Iterator[str]:
    """The copies that a run goes back to after a loss, and the memory that they take, for people."""
    if retries.every is None:
        return
    where = "on its own node"
    if retries.copies == "peers":
        where += " and on another one" if has_peers(plan, retries) else ": there is no second one"
    yield f"copies   every {retries.every} step{'s' * (retries.every > 1)}, each {where}"
    yield from (f"{'':8} {pool}" for pool in pool_copies(plan, retries))
