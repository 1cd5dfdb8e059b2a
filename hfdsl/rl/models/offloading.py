"""Offloads of models and optimizers to host memory while their role is idle.

A non-blocking copy to the host allocates pinned memory, which PyTorch keeps in its cache for the next offload.
"""

from __future__ import annotations

import torch
from torch import nn

from hfdsl.rl.models.device import device

HOST = torch.device("cpu")


def model_to_host(module: nn.Module) -> None:
    """Move parameters and buffers, or this rank's shards of them, to the host."""
    module.to(HOST, non_blocking=True)
    _free()


def model_to_device(module: nn.Module) -> None:
    """Move them back to the role's device."""
    module.to(device(), non_blocking=True)
    _synchronize()


def optimizer_to_host(optimizer: torch.optim.Optimizer) -> None:
    """Move an optimizer's states to the host, and free gradients, since every update computes its own."""
    optimizer.zero_grad()
    _move(optimizer, HOST)
    _free()


def optimizer_to_device(optimizer: torch.optim.Optimizer) -> None:
    """Move the states back to the role's device."""
    _move(optimizer, device())
    _synchronize()


def _move(optimizer: torch.optim.Optimizer, target: torch.device) -> None:
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim():  # step counts stay where the optimizer puts them
                state[name] = moved_tensor(value, target)


def moved_tensor(value: torch.Tensor, target: torch.device) -> torch.Tensor:
    """A tensor, or this rank's shard of one, on another device."""
    return value.to(target, non_blocking=True)


def _free() -> None:
    """Wait for the copies, and free the memory for other processes on this GPU."""
    if device().type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _synchronize() -> None:
    """Wait for the copies: the pinned pages that they read may be reused."""
    if device().type == "cuda":
        torch.cuda.synchronize()
