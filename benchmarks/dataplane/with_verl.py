"""The chain with verl's single controller: as shipped in its three ways, and as well as a careful user can tune it.

Between calls the batch is in the driver, and the advantage is computed there, as in verl's trainers. With TransferQueue
the driver fetches what it computes with and writes back, as the newer trainer does. What the older trainer does beside
that, to turn each batch into tensors without padding and back, is left out.
"""

from __future__ import annotations

import os
from functools import partial
from itertools import count
from typing import Any

import ray
import torch
import transfer_queue as tq  # type: ignore[import-not-found]  # verl is in the benchmarks' own environment only
from tensordict import TensorDict  # type: ignore[import-not-found]
from verl import DataProto  # type: ignore[import-not-found]
from verl.single_controller.base import Worker  # type: ignore[import-not-found]
from verl.single_controller.base.decorator import (  # type: ignore[import-not-found]
    Dispatch,
    dispatch_lazy_compute_data_proto,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl.single_controller.ray import (  # type: ignore[import-not-found]
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
)

from benchmarks.dataplane.columns import CHAINS, MAKES, ON_ACTOR, WIDE, Body, Chain, bodies

SERIALIZER = "VERL_DATAPROTO_SERIALIZATION_METHOD"
MESH = make_nd_compute_dataproto_dispatch_fn(mesh_name="chain")


def as_list(group: Any, output: list[Any]) -> list[Any]:
    """Collect what every rank returned."""
    return output


TO_MESH_AS_LIST = {"dispatch_fn": partial(dispatch_lazy_compute_data_proto, "chain"), "collect_fn": as_list}


def dense(column: torch.Tensor) -> torch.Tensor:
    """Rows of one length that TransferQueue has made a nested tensor, as a matrix without a copy."""
    return column.values().view(len(column), -1) if column.is_nested else column


class Process(Worker):  # type: ignore[misc]  # verl's base class has no types here
    """One rank; any role."""

    def __init__(self, chain: str, touch: bool) -> None:
        super().__init__()
        self._register_dispatch_collect_info("chain", dp_rank=self.rank, is_collect=True)
        self._chain = CHAINS[chain]
        self._bodies = bodies(self._chain, touch)

    def _made(self, role: str, batch: Any) -> dict[str, Any]:
        return self._bodies[role]({name: dense(batch[name]) for name in self._chain.reads[role]})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def serializer(self, method: str) -> None:
        """Choose how DataProto is serialized: verl reads this each time."""
        os.environ[SERIALIZER] = method

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def same(self, value: int) -> int:
        """A tiny call."""
        return value

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)  # type: ignore[untyped-decorator]
    def proto(self, batch: Any) -> Any:
        """A role on a DataProto."""
        role, rows = batch.meta_info["role"], len(batch)
        outputs = self._made(role, batch.batch)
        if "digest" in outputs:
            return DataProto.from_dict(tensors={"digest": torch.tensor([outputs["digest"]])})
        if role == "generate" and batch.meta_info["whole"]:  # verl's rollout gives back what it was given
            outputs = outputs | {"prompts": batch.batch["prompts"]}
        assert all(len(column) == rows for column in outputs.values())
        return DataProto.from_dict(tensors=outputs)

    def _on_tensordict(self, role: str, batch: Any) -> Any:
        outputs = self._made(role, batch)
        if "digest" in outputs:
            return TensorDict({"digest": torch.tensor([outputs["digest"]])}, batch_size=[1])
        return TensorDict(outputs, batch_size=[len(next(iter(outputs.values())))])

    @register(dispatch_mode=MESH)  # type: ignore[untyped-decorator]
    def generate(self, batch: Any) -> Any:
        """A role on a TensorDict or on a TransferQueue's keys; its methods have no argument for the role."""
        return self._on_tensordict("generate", batch)

    @register(dispatch_mode=MESH)  # type: ignore[untyped-decorator]
    def reference(self, batch: Any) -> Any:
        """As ``generate``."""
        return self._on_tensordict("reference", batch)

    @register(dispatch_mode=MESH)  # type: ignore[untyped-decorator]
    def estimate(self, batch: Any) -> Any:
        """As ``generate``."""
        return self._on_tensordict("estimate", batch)

    @register(dispatch_mode=MESH)  # type: ignore[untyped-decorator]
    def score(self, batch: Any) -> Any:
        """As ``generate``."""
        return self._on_tensordict("score", batch)

    @register(dispatch_mode=MESH)  # type: ignore[untyped-decorator]
    def update_critic(self, batch: Any) -> Any:
        """As ``generate``."""
        return self._on_tensordict("update_critic", batch)

    @register(dispatch_mode=MESH)  # type: ignore[untyped-decorator]
    def update_actor(self, batch: Any) -> Any:
        """As ``generate``."""
        return self._on_tensordict("update_actor", batch)

    @register(dispatch_mode=TO_MESH_AS_LIST)  # type: ignore[untyped-decorator]
    def queue_update_critic(self, batch: Any) -> int:
        """An update that gives a number: without rows, nothing is written to the queue."""
        return int(self._made("update_critic", batch)["digest"])

    @register(dispatch_mode=TO_MESH_AS_LIST)  # type: ignore[untyped-decorator]
    def queue_update_actor(self, batch: Any) -> int:
        """As ``queue_update_critic``."""
        return int(self._made("update_actor", batch)["digest"])


def group(ranks: int, chain: Chain = WIDE, touch: bool = False) -> Any:
    """A worker group of verl's on CPUs."""
    pool = RayResourcePool([ranks], use_gpu=False, max_colocate_count=1)
    process = RayClassWithInitArgs(cls=ray.remote(Process), chain=chain.name, touch=touch)
    return RayWorkerGroup(pool, process, device_name="cpu")


class Pools:
    """The processes of all of verl's ways."""

    def __init__(self, chain: Chain, ranks: int, colocated: bool, touch: bool = False) -> None:
        self.actor = group(ranks, chain, touch)
        self.critic = self.actor if colocated else group(ranks, chain, touch)
        self.chain, self.touch = chain, touch
        self._method = ""

    def serializer(self, method: str) -> None:
        """Choose how every process serializes a DataProto."""
        if method != self._method:
            self._method = os.environ[SERIALIZER] = method
            self.actor.serializer(method)
            self.critic.serializer(method)

    def of(self, role: str) -> Any:
        """Where a role lives."""
        return self.actor if role in ON_ACTOR else self.critic

    def close(self) -> None:
        """End the processes."""
        for process in {*self.actor.workers, *self.critic.workers}:
            ray.kill(process)


class OnProto:
    """DataProto through DP_COMPUTE_PROTO; ``tuned`` with the numpy serializer, and sending only what is read."""

    def __init__(self, pools: Pools, tuned: bool) -> None:
        self._pools, self._tuned = pools, tuned
        self._advantage = Body(pools.chain, "advantage", pools.touch)

    def enter(self) -> None:
        """Before a step, outside of its time."""
        self._pools.serializer("numpy" if self._tuned else "")

    def prepare(self, batch: torch.Tensor) -> Any:
        """The batch as ``step`` takes it."""
        return batch

    def step(self, prompts: Any) -> tuple[int, int]:
        """One step: the two digests."""
        batch, digests = DataProto.from_dict(tensors={"prompts": prompts}), []  # union grows the batch in place
        for role in MAKES:
            if role == "advantage":
                batch = batch.union(DataProto.from_dict(tensors=self._advantage(batch.batch)))
                continue
            sent = batch.select(batch_keys=list(self._pools.chain.reads[role])) if self._tuned else batch
            sent.meta_info = {"role": role, "whole": not self._tuned}
            output = self._pools.of(role).proto(sent)
            if "digest" in output.batch:
                digests.append(int(output.batch["digest"].sum()))
            else:
                output.meta_info = batch.meta_info
                batch = batch.union(output)
        return digests[0], digests[1]


class OnTensorDict:
    """TensorDict through nd_compute, as verl's older trainer calls its workers."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._advantage = Body(pools.chain, "advantage", pools.touch)

    def enter(self) -> None:
        """Before a step, outside of its time."""
        self._pools.serializer("")

    def prepare(self, batch: torch.Tensor) -> Any:
        """The batch as ``step`` takes it."""
        return TensorDict({"prompts": batch}, batch_size=[len(batch)])

    def step(self, batch: Any) -> tuple[int, int]:
        """One step: the two digests."""
        batch, digests = batch.copy(), []
        for role in MAKES:
            if role == "advantage":
                batch.update(self._advantage(batch))
                continue
            output = getattr(self._pools.of(role), role)(batch)
            if "digest" in output.keys():  # noqa: SIM118  # iterating a TensorDict goes through its rows
                digests.append(int(output["digest"].sum()))
            else:
                batch.update(output)
        return digests[0], digests[1]


class OnQueue:
    """Keys of a TransferQueue, as verl's newer trainer calls its workers; two storage units, its default."""

    def __init__(self, pools: Pools) -> None:
        tq.init()
        self._pools, self._steps = pools, count()
        self._advantage = Body(pools.chain, "advantage", pools.touch)

    def enter(self) -> None:
        """Before a step, outside of its time."""
        self._pools.serializer("")

    def prepare(self, batch: torch.Tensor) -> Any:
        """The batch as ``step`` takes it."""
        return TensorDict({"prompts": batch}, batch_size=[len(batch)])

    def _again(self, keys: list[str], name: str) -> None:
        """The trainer reads a role's output and writes it under its own name."""
        fields = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=[name, "response_mask"])
        tq.kv_batch_put(keys=keys, partition_id="train", fields=fields.select(name))

    def step(self, batch: Any) -> tuple[int, int]:
        """One step: the two digests."""
        number = next(self._steps)
        keys = [f"{number}_{row}" for row in range(len(batch))]
        tags: list[dict[str, Any]] = [{} for _ in keys]
        tq.kv_batch_put(keys=keys, partition_id="train", fields=batch, tags=tags)
        meta = tq.KVBatchMeta(keys=keys, tags=tags, partition_id="train")
        actor, critic = self._pools.actor, self._pools.critic
        actor.generate(meta)
        actor.reference(meta)
        self._again(keys, "ref_log_probs")
        critic.estimate(meta)
        self._again(keys, "values")
        critic.score(meta)
        names = list(self._pools.chain.reads["advantage"])
        fields = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=names)
        advantages = self._advantage({name: dense(fields[name]) for name in names})
        tq.kv_batch_put(keys=keys, partition_id="train", fields=TensorDict(advantages, batch_size=[len(keys)]))
        digests = sum(critic.queue_update_critic(meta)), sum(actor.queue_update_actor(meta))
        tq.kv_clear(keys=keys, partition_id="train")
        return digests

    def close(self) -> None:
        """End the queue."""
        tq.close()
