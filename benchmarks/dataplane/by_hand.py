"""The chain as an expert writes it in Ray: no payload through the driver, no copy on reading, nothing moved in vain.

``Resident`` keeps every column in the process that made it. What the other pool reads is one object a rank; consecutive
calls on one pool are one task: 4 tasks and 2 objects a rank in a step. To write it, one has to know the whole graph.
``CallByCall`` is ordinary good Ray code, in which each role is a call and each column a reference.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
import torch

from benchmarks.dataplane.columns import CHAINS, MAKES, ON_ACTOR, Chain, bodies

Arrays = dict[str, np.ndarray[Any, Any]]


def arrays(columns: Mapping[str, torch.Tensor], names: Sequence[str]) -> Arrays:
    """As NumPy arrays, which Ray writes to its store in one copy and reads in none."""
    return {name: columns[name].numpy() for name in names}


def tensors(columns: Arrays) -> dict[str, torch.Tensor]:
    """Back, without a copy."""
    return {name: torch.from_numpy(column) for name, column in columns.items()}


class Process:
    """One process of either program."""

    def __init__(self, chains: Sequence[str], touch: bool) -> None:
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        self._bodies = {name: bodies(CHAINS[name], touch) for name in chains}
        self._columns: dict[str, Any] = {}

    def up(self) -> int:
        """It runs."""
        return 0

    def generate(self, chain: str, prompts: Arrays) -> Arrays:
        """Rollout and reference; gives what the critic's processes read."""
        body = self._bodies[chain]
        self._columns = body["generate"](tensors(prompts))
        self._columns = self._columns | body["reference"](self._columns)
        return arrays(self._columns, CHAINS[chain].crossing())

    def judge(self, chain: str, rollout: Arrays) -> Arrays:
        """Values, rewards, advantages; gives what the actor's processes read."""
        self._columns = dict(tensors(rollout))
        for role in ("estimate", "score", "advantage"):
            self._columns |= self._bodies[chain][role](self._columns)
        return arrays(self._columns, ["advantages"])

    def update_critic(self, chain: str) -> int:
        """The critic's update, on what is here."""
        columns, self._columns = self._columns, {}
        return int(self._bodies[chain]["update_critic"](columns)["digest"])

    def update_actor(self, chain: str, advantages: Arrays) -> int:
        """The actor's update, on what is here and the advantages."""
        columns, self._columns = self._columns | tensors(advantages), {}
        return int(self._bodies[chain]["update_actor"](columns)["digest"])

    def all_roles(self, chain: str, prompts: Arrays) -> tuple[int, int]:
        """The whole step, where all roles live here."""
        body, columns = self._bodies[chain], dict(tensors(prompts))
        for role in ("generate", "reference", "estimate", "score", "advantage"):
            columns |= body[role](columns)
        return body["update_critic"](columns)["digest"], body["update_actor"](columns)["digest"]

    def call(self, chain: str, role: str, *columns: np.ndarray[Any, Any]) -> Any:
        """One role; a value for each column that it makes."""
        names = CHAINS[chain].reads[role]
        outputs = self._bodies[chain][role](tensors(dict(zip(names, columns, strict=True))))
        columns_out = [value if isinstance(value, int) else value.numpy() for value in outputs.values()]
        return columns_out[0] if len(columns_out) == 1 else tuple(columns_out)


class Pools:
    """The processes of both programs."""

    def __init__(self, chains: Sequence[Chain], ranks: int, colocated: bool, touch: bool = False) -> None:
        actor: Any = ray.remote(Process)  # handles of methods have no types
        slot = actor.options(num_cpus=0.01)
        names = [chain.name for chain in chains]
        self.actor = [slot.remote(names, touch) for _ in range(ranks)]
        self.critic = self.actor if colocated else [slot.remote(names, touch) for _ in range(ranks)]
        self.ranks, self.colocated = ranks, colocated
        ray.get([process.up.remote() for process in self.actor + self.critic])

    def close(self) -> None:
        """End them."""
        for process in {*self.actor, *self.critic}:
            ray.kill(process)


def shards(batch: torch.Tensor, ranks: int) -> list[np.ndarray[Any, Any]]:
    """The prompts of every rank."""
    return [shard.numpy() for shard in batch.chunk(ranks)]


def total(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The sums of the digests of the ranks."""
    return sum(critic for critic, _ in pairs), sum(actor for _, actor in pairs)


class Resident:
    """Columns stay where they were made."""

    def __init__(self, pools: Pools, chain: Chain) -> None:
        self._pools, self._chain = pools, chain.name

    def prepare(self, batch: torch.Tensor) -> list[Arrays]:
        """The batch as ``step`` takes it."""
        return [{"prompts": shard} for shard in shards(batch, self._pools.ranks)]

    def step(self, shards: Sequence[Arrays]) -> tuple[int, int]:
        """One step: the two digests."""
        chain, actors, critics = self._chain, self._pools.actor, self._pools.critic
        if self._pools.colocated:
            tasks = [actor.all_roles.remote(chain, prompts) for actor, prompts in zip(actors, shards, strict=True)]
            return total(ray.get(tasks))
        updates = []
        for actor, critic, prompts in zip(actors, critics, shards, strict=True):
            advantages = critic.judge.remote(chain, actor.generate.remote(chain, prompts))
            updates += [critic.update_critic.remote(chain), actor.update_actor.remote(chain, advantages)]
        digests = ray.get(updates)
        return sum(digests[::2]), sum(digests[1::2])


class CallByCall:
    """A call a role, a reference a column."""

    def __init__(self, pools: Pools, chain: Chain) -> None:
        self._pools, self._chain = pools, chain

    def prepare(self, batch: torch.Tensor) -> list[np.ndarray[Any, Any]]:
        """The batch as ``step`` takes it."""
        return shards(batch, self._pools.ranks)

    def step(self, shards: Sequence[np.ndarray[Any, Any]]) -> tuple[int, int]:
        """One step: the two digests."""
        chain = self._chain
        columns: list[dict[str, Any]] = [{"prompts": shard} for shard in shards]
        for role in MAKES:
            processes = self._pools.actor if role in ON_ACTOR else self._pools.critic
            names = chain.makes(role) or (role,)
            for process, here in zip(processes, columns, strict=True):
                method = process.call.options(num_returns=len(names))
                refs = method.remote(chain.name, role, *(here[name] for name in chain.reads[role]))
                here.update(zip(names, refs if len(names) > 1 else [refs], strict=True))
        updates = ray.get([here[role] for here in columns for role in ("update_critic", "update_actor")])
        return sum(updates[::2]), sum(updates[1::2])
