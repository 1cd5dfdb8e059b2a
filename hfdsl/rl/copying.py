"""Copies of many tensors at once."""

from __future__ import annotations

import torch


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its target: one call, and few kernels on a GPU, for many tensors.

    >>> target = torch.zeros(2)
    >>> copy_all([target[:1], target[1:]], [torch.ones(1), torch.tensor([5.0])])
    >>> target.tolist()
    [1.0, 5.0]
    """
    if targets:
        torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]  # torch's optimizers use it
