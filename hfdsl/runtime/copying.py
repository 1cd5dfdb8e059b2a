"""Copies of many tensors at once, and tensors whose memory comes and goes."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its target: one call, and few kernels on a GPU, for many tensors.

    There it is a kernel for each where one target has other strides than its source, so these are better left to a call
    of their own. What leaves a GPU in another dtype is converted there: torch would copy it to new memory of the host
    as it is, and convert it on a core.

    >>> target = torch.zeros(2)
    >>> copy_all([target[:1], target[1:]], [torch.ones(1), torch.tensor([5.0])])
    >>> target.tolist()
    [1.0, 5.0]
    """
    if targets:
        sources = [converted(source, target) for source, target in zip(sources, targets, strict=True)]
        torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]  # torch's optimizers use it


def converted(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The source of a copy, in the dtype of the target if it is on a GPU and the target is not."""
    return source.to(target.dtype) if source.is_cuda and not target.is_cuda else source


class EmptyTensors:
    """Tensors that have memory only between ``allocate`` and ``free``; views of them stay valid.

    >>> tensor = torch.ones(4)
    >>> half, memory = tensor[:2], EmptyTensors([tensor])
    >>> tensor.untyped_storage().nbytes()
    0
    >>> memory.allocate()
    >>> _ = tensor.fill_(5.0)
    >>> half.tolist()
    [5.0, 5.0]
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._storages = [(tensor.untyped_storage(), tensor.nbytes) for tensor in tensors]
        self.free()

    def allocate(self) -> None:
        """Give each its memory, with undefined values."""
        for storage, size in self._storages:
            storage.resize_(size)

    def free(self) -> None:
        """Free the memory of each."""
        for storage, _ in self._storages:
            storage.resize_(0)
