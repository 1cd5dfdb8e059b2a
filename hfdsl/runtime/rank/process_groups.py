"""Collectives over torch.distributed: the ranks of a role that are processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

from hfdsl.protocols.collectives import AxisGroup, Endpoint, is_recorded, record_collective, refuse_without_peers

T = TypeVar("T")


class ProcessCollectives:
    """Joins the processes of a worker group when a body first asks for an axis of several ranks.

    ``patience`` (seconds) bounds every wait for a peer.
    """

    def __init__(self, rank: int, world_size: int, address: str, port: int, patience: float) -> None:
        self._rank, self._world_size, self._address, self._port = rank, world_size, address, port
        self._patience = timedelta(seconds=patience)
        self._groups: dict[tuple[int, ...], _TorchGroup] = {}

    def group(self, ranks: tuple[int, ...], rank: int) -> AxisGroup:
        """The group of these ranks."""
        if ranks not in self._groups:
            self._groups[ranks] = _TorchGroup(self._join(ranks), ranks.index(rank), len(ranks), (self, rank))
        return self._groups[ranks]

    def _join(self, ranks: tuple[int, ...]) -> Any:
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            host = f"[{self._address}]" if ":" in self._address else self._address
            dist.init_process_group(
                backend="cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
                init_method=f"tcp://{host}:{self._port}",
                rank=self._rank,
                world_size=self._world_size,
                timeout=self._patience,
            )
        if ranks == tuple(range(self._world_size)):
            return dist.group.WORLD
        # Only the members meet: groups of different axes may be asked for in a different order on different ranks.
        return dist.new_group(sorted(ranks), timeout=self._patience, use_local_synchronization=True)


class _TorchGroup(AxisGroup):
    def __init__(self, group: Any, rank: int, size: int, endpoint: Endpoint) -> None:
        self.process_group, self.rank, self.size, self._endpoint = group, rank, size, endpoint

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, in coordinate order."""
        refuse_without_peers(self._endpoint)
        import torch
        import torch.distributed as dist

        if isinstance(value, torch.Tensor):
            parts = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(self.size)]
            dist.all_gather(parts, value.contiguous(), group=self.process_group)
            return cast(list[T], record_collective(self._endpoint, "gathered", parts))
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.process_group)
        return record_collective(self._endpoint, "gathered", values)

    def begin_gathers_into(self, gathered: Sequence[Any], values: Sequence[Any]) -> Callable[[], None]:
        """Gather tensors asynchronously, all of them in one operation."""
        refuse_without_peers(self._endpoint)
        group = self.process_group
        function = getattr(group, "all_gather_single_coalesced", None) or group.allgather_into_tensor_coalesced
        work = function([*gathered], [*values])
        return partial(self._arrived, work, gathered)

    def _arrived(self, work: Any, gathered: Sequence[Any]) -> None:
        work.wait()
        if is_recorded(self._endpoint):
            for joined in gathered:
                record_collective(self._endpoint, "gathered", [*joined.chunk(self.size)])

    def all_reduce(self, value: T, op: str = "sum") -> T:
        """Reduce with NCCL on a GPU; on a CPU in coordinate order, bit for bit as the local backend does."""
        refuse_without_peers(self._endpoint)
        import torch
        import torch.distributed as dist

        kinds = {
            "sum": dist.ReduceOp.SUM,
            "mean": dist.ReduceOp.AVG,
            "max": dist.ReduceOp.MAX,
            "min": dist.ReduceOp.MIN,
        }
        if isinstance(value, torch.Tensor) and value.is_cuda and op in kinds:
            total = value.clone()
            dist.all_reduce(total, kinds[op], group=self.process_group)
            return cast(T, record_collective(self._endpoint, "reduced", total))
        return super().all_reduce(value, op)


def all_gather_single(gathered: Any, sent: Any, group: Any, *, async_op: bool = False) -> Any:
    """Gather the tensors of all ranks into one; older versions of torch name this and the grouped one differently."""
    import torch.distributed as dist

    function = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return function(gathered, sent, group=group, async_op=async_op)
