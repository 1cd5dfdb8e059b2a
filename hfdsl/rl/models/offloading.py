"""Models and optimizers that leave the GPU for the host's memory while their role is idle, and come back.

A copy to the host that does not block makes pinned memory, whose pages PyTorch keeps for the next time.
"""

from __future__ import annotations

import torch
from torch import nn

from hfdsl.rl.models.device import device

HOST = torch.device("cpu")


def model_to_host(module: nn.Module) -> None:
    """Parameters and buffers go to the host; of a sharded module this rank's parts of them."""
    module.to(HOST, non_blocking=True)
    _give_back()


def model_to_device(module: nn.Module) -> None:
    """They come back to where the role computes."""
    module.to(device(), non_blocking=True)
    _arrive()


def optimizer_to_host(optimizer: torch.optim.Optimizer) -> None:
    """Its states go to the host; gradients go altogether, since every update makes its own."""
    optimizer.zero_grad()
    _move(optimizer, HOST)
    _give_back()


def optimizer_to_device(optimizer: torch.optim.Optimizer) -> None:
    """The states come back."""
    _move(optimizer, device())
    _arrive()


def _move(optimizer: torch.optim.Optimizer, target: torch.device) -> None:
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim():  # a number of steps is wherever the optimizer wants it
                state[name] = moved_tensor(value, target)


def moved_tensor(value: torch.Tensor, target: torch.device) -> torch.Tensor:
    """A tensor, or this rank's part of one, on another device."""
    return value.to(target, non_blocking=True)


def _give_back() -> None:
    """Wait for the copies, and give the memory to other processes of this GPU too."""
    if device().type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _arrive() -> None:
    """Wait for the copies: the pages that they come from are used again."""
    if device().type == "cuda":
        torch.cuda.synchronize()
