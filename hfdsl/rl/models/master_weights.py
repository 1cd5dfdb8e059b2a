"""Parameters of 16 bits, whose optimizer learns in float32 (Micikevicius et al., 2018, Mixed Precision Training).

An example
----------
A parameter of 1.0 in bfloat16, whose neighbors are 0.996 and 1.008, and steps of 0.001::

    step   without a copy             master    parameter
      1    1.0 + 0.001 -> 1.0         1.001     1.0
      2    1.0 + 0.001 -> 1.0         1.002     1.0
      5    1.0 + 0.001 -> 1.0         1.005     1.008

Without the copy, every step is rounded away. So gradients add up in float32, the optimizer updates the copy, and the
parameter is the rounded copy, once a step. A gradient of 16 bits lives only until its backward pass has computed it:
the hook below adds it to the copy's, and frees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from hfdsl.rl.models.device import device
from hfdsl.rl.models.offloading import HOST

NARROW = (torch.bfloat16, torch.float16)


class MasterWeights:
    """The float32 copies of parameters of 16 bits."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._masters: dict[nn.Parameter, nn.Parameter] = {}
        for parameter in parameters:
            if parameter.dtype in NARROW:
                self._masters[parameter] = nn.Parameter(parameter.detach().float())
                parameter.register_post_accumulate_grad_hook(self._add_gradient)

    def __call__(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """The tensors that the optimizer updates for these parameters: their copies, or themselves without one."""
        return [self._masters.get(parameter, parameter) for parameter in parameters]

    def _add_gradient(self, parameter: torch.Tensor) -> None:
        master, gradient = self._masters[parameter], parameter.grad  # type: ignore[index]  # a parameter
        if gradient is not None:
            master.grad = gradient.float() if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None

    @torch.no_grad()
    def write(self) -> None:
        """Round the copies to their parameters."""
        for parameter, master in self._masters.items():
            parameter.copy_(master)

    def state(self) -> list[torch.Tensor]:
        """The copies, in the order of their parameters."""
        return [master.detach() for master in self._masters.values()]

    def load_state(self, state: Sequence[torch.Tensor]) -> None:
        """Take the copies of a checkpoint."""
        for master, value in zip(self._masters.values(), state, strict=True):
            master.data.copy_(value)

    def offload(self) -> None:
        """Move the copies to the host."""
        for master in self._masters.values():
            master.data = master.data.to(HOST, non_blocking=True)

    def onload(self) -> None:
        """Move them back to the device."""
        for master in self._masters.values():
            master.data = master.data.to(device(), non_blocking=True)
