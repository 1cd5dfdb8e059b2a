"""The Ray backend: processes are worker groups; pieces travel from worker to worker as object references."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

from hfdsl.deploy.deployment import processes_per_slot
from hfdsl.deploy.pools import ResourcePool
from hfdsl.errors import HfError
from hfdsl.plan.plan import DRIVER, Plan, Step
from hfdsl.plan.reading import Piece
from hfdsl.protocols.worker import RankContext, Worker
from hfdsl.runtime.executor import Done, Executor, Order
from hfdsl.runtime.process_groups import ProcessCollectives
from hfdsl.single_controller.calls import fetch
from hfdsl.single_controller.group import RayWorkerGroup
from hfdsl.single_controller.pool import RayResourcePool, merge_resource_pool, split_resource_pool
from hfdsl.single_controller.roles import RayClassWithInitArgs
from hfdsl.types.batches import own_rows


class RankProcess(Worker):
    """One process of a plan: an executor behind an actor."""

    def __init__(self, plan: Plan, roles: tuple[str, ...], seed: int, deadline: float) -> None:
        context = RankContext.from_env()
        collectives = ProcessCollectives(
            context.rank, context.world_size, context.master_addr, context.master_port, deadline
        )
        self._executor = Executor(plan, roles, context, seed, collectives)

    def add(self, plan: Plan) -> None:
        """Learn another plan of the same deployment."""
        self._executor.add(plan)

    def run(
        self, order: Order, keys: Sequence[tuple[int, int]], direct: Mapping[str, Any] | None, *pieces: Piece
    ) -> tuple[Done, Piece | None]:
        """This rank's part of a step; Ray has brought the pieces when this starts."""
        done, piece = self._executor.run(order, dict(zip(keys, pieces, strict=True)), direct)
        return done, piece and {name: _travelling(value) for name, value in piece.items()}


class _FromGpu:
    """A CUDA tensor on its way: it travels as a CPU tensor and is back on a GPU where the reader has one."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (self._tensor.cpu(),)


def _travelling(value: Any) -> Any:
    return _FromGpu(value) if getattr(value, "is_cuda", False) else value


def _arrive(tensor: Any) -> Any:
    import torch

    return tensor.cuda() if torch.cuda.is_available() else tensor


class RayBackend:
    """Lowers a plan onto worker groups. A handle is an ``ObjectRef``; the driver never fetches what it does not return.

    Raises:
        ResourceError: HF502, HF505 where the cluster cannot hold the pools.
        RoleError: HF806 where a role's constructor raises.
    """

    def __init__(self, plan: Plan, seed: int, timeout: float, deadline: float, worker_env: Mapping[str, str]) -> None:
        self._deadline, self._until = deadline, 0.0
        self._owns_cluster = not ray.is_initialized()
        self._depth = processes_per_slot(plan.groups)
        self._pools: dict[str, RayResourcePool] = {}
        self._groups: dict[str, RayWorkerGroup] = {}
        self._driver = Executor(plan, (), RankContext(), seed, None)
        try:
            if self._owns_cluster:
                ray.init(include_dashboard=False, logging_level=logging.WARNING)
            for group in plan.groups:
                self._groups[group.name] = RayWorkerGroup(
                    self._pool(group.pool, timeout),
                    RayClassWithInitArgs(RankProcess, plan, group.roles, seed, deadline),
                    worker_env=worker_env,
                    timeout=timeout,
                )
        except BaseException:
            self.close()
            raise

    def _pool(self, pool: ResourcePool, timeout: float) -> RayResourcePool:
        """The pool as placement groups; merged and split pools share those of the pools that they are made of."""
        if pool.name not in self._pools:
            if pool.part_of:
                parent, start = pool.part_of
                rest = parent.world_size - start - pool.world_size
                sizes = [size for size in (start, pool.world_size, rest) if size]
                self._pools[pool.name] = split_resource_pool(self._pool(parent, timeout), sizes)[1 if start else 0]
            elif pool.parts:
                self._pools[pool.name] = merge_resource_pool(*(self._pool(part, timeout) for part in pool.parts))
            else:
                self._pools[pool.name] = RayResourcePool(
                    pool.processes,
                    pool.use_gpu,
                    f"{pool.name}-{secrets.token_hex(3)}",
                    self._depth,
                    timeout=timeout,
                )
        return self._pools[pool.name]

    def add(self, plan: Plan) -> None:
        """Teach every process another plan of the same deployment."""
        self._driver.add(plan)
        fetch([worker.add.remote(plan) for group in self._groups.values() for worker in group.workers])

    def put(self, piece: Piece) -> Any:
        """A piece of the driver's, in the object store."""
        return ray.put(own_rows(piece))

    def run(
        self,
        step: Step,
        order: Order,
        sources: Sequence[Mapping[tuple[int, int], Any]],
        direct: Sequence[Mapping[str, Any]] | None,
    ) -> list[tuple[Any, Any]]:
        """Submit a step: (acknowledgement, piece) references, a pair a rank; a rank starts when its pieces exist."""
        if step.group == DRIVER:
            pieces = dict(zip(sources[0], self.get(list(sources[0].values())), strict=True))
            done, piece = self._driver.run(order, pieces)
            return [(done, ray.put(piece) if piece is not None else None)]
        workers = self._groups[step.group].workers
        return [
            tuple(
                workers[rank]
                .run.options(num_returns=2)
                .remote(order, tuple(source), direct[i] if direct is not None else None, *source.values())
            )
            for i, (rank, source) in enumerate(zip(step.ranks, sources, strict=True))
        ]

    def done(self, acknowledged: Sequence[Any]) -> list[Done]:
        """Wait until every rank has done its part; the first failure is raised at once, whoever still waits for whom.

        Raises:
            RoleError: HF806 where a body raised or a process died.
            HfError: HF807 where the deadline passed.
        """
        pending = [ack for ack in acknowledged if isinstance(ack, ray.ObjectRef)]
        while pending:
            ready, pending = ray.wait(pending, timeout=self._left())
            if not ready:
                raise HfError(
                    "HF807",
                    f"{len(pending)} of {len(acknowledged)} parts of the step were not done after "
                    f"{self._deadline:g} s; a body may wait for a peer, or the step needs longer: "
                    "launch(..., deadline=...)",
                )
            fetch(ready)
        fetched: Iterator[Any] = iter(self.get([ack for ack in acknowledged if isinstance(ack, ray.ObjectRef)]))
        return [next(fetched) if isinstance(ack, ray.ObjectRef) else ack for ack in acknowledged]

    def begin(self) -> None:
        """A step begins: its deadline runs from now."""
        self._until = time.monotonic() + self._deadline

    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def get(self, handles: Sequence[Any]) -> list[Piece]:
        """The pieces, here.

        Raises:
            RoleError: HF806 where the body that makes one raised.
            HfError: HF807 where the deadline passed.
        """
        try:
            return fetch(handles, self._left())
        except GetTimeoutError:
            message = f"a value did not arrive within {self._deadline:g} s; launch(..., deadline=...) sets this"
            raise HfError("HF807", message) from None

    def close(self) -> None:
        """End the processes and give the slots back; a cluster that this backend started ends too."""
        for group in self._groups.values():
            group.shutdown()
        for pool in self._pools.values():
            pool.shutdown()
        self._groups.clear()
        self._pools.clear()
        if self._owns_cluster and ray.is_initialized():
            ray.shutdown()
