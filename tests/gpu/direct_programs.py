"""Actors on GPUs that send each other tensors."""

from __future__ import annotations

import torch

from hfdsl.runtime.transports.tensor_sharing import mappings
from tests.runtime.direct_programs import Process


class GpuProcess(Process):
    """Also runs bodies whose kernels wait for a peer's, and says what its GPU holds."""

    def overwrite(self, size: int) -> None:
        tensors = [torch.full((size,), 7.0, device="cuda") for _ in range(4)]
        torch.cuda.synchronize()
        del tensors

    def make_late(self, size: int, fill: float) -> None:
        """Return while the GPU is still busy for about a second."""
        tensor = torch.zeros(size, device="cuda")
        torch.cuda._sleep(2 * 10**9)
        tensor.fill_(fill)
        self.kept = tensor

    def write(self, fill: float) -> None:
        self.kept.fill_(fill)
        torch.cuda.synchronize()

    def allocated(self) -> int:
        torch.cuda.ipc_collect()  # the allocator does it before it asks for more
        return torch.cuda.memory_allocated()

    def renew(self, size: int, fill: float, between: int) -> None:
        """Give memory back to the system, and take some of it again, elsewhere."""
        self.kept = None
        torch.cuda.empty_cache()
        tensors = [torch.full((size,), -1.0, device="cuda") for _ in range(between)]
        self.kept = torch.full((size,), fill, device="cuda")
        del tensors
        torch.cuda.empty_cache()

    def mapped(self) -> int:
        return len(mappings)

    def free(self) -> int:
        """Bytes of the GPU that nobody has, once this process has given back what it does not use."""
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])

    def join(self, rank: int, port: int) -> None:
        torch.distributed.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

    def body(self, size: int) -> None:
        ones = torch.ones(size, device="cuda")
        torch.distributed.all_reduce(ones)
        self.kept = ones

    def body_told(self, size: int) -> list[float]:
        """Like a body whose next move depends on what comes back from all."""
        ones = torch.ones(size, device="cuda")
        torch.distributed.all_reduce(ones)
        return list(ones.tolist())
