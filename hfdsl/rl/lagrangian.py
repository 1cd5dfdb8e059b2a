"""Reward under a constraint on cost, by a Lagrange multiplier that grows while the constraint is violated."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hfdsl.errors import ConfigError
from hfdsl.rl.fields import FiniteFloat, Limit, NonNegative, Positive, check_fields

if TYPE_CHECKING:
    import torch

MAX_NEGATIVE_LOG = 60.0
"""A multiplier is at least e**-60, so that its logarithm is finite."""


def safe_advantages(reward_advantages: torch.Tensor, cost_advantages: torch.Tensor, multiplier: float) -> torch.Tensor:
    """The advantage of reward less that of cost, f32[B, R] -> f32[B, R], on the scale of one of them.

    (A_reward - multiplier * A_cost) / (1 + multiplier) (Dai et al., 2024, Safe RLHF, appendix B, equation 30).

    >>> import torch
    >>> safe_advantages(torch.tensor([[1.0]]), torch.tensor([[-0.5]]), multiplier=1.0).item()
    0.75
    """
    return (reward_advantages - multiplier * cost_advantages) / (1 + multiplier)


@dataclass(frozen=True, slots=True)
class Multiplier:
    """A Lagrange multiplier of the constraint that responses cost ``limit`` or less on average.

    log multiplier + rate * multiplier * (mean cost - limit) (Dai et al., 2024, Safe RLHF, appendix B, equation 31); it
    stays positive and at most ``largest``.

    >>> Multiplier(1.0, rate=0.1).after(mean_cost=2.0).value  # e**0.2
    1.2214027581601699
    """

    value: Positive = 1.0
    """The first multiplier, above 0: the price of a unit of cost in units of reward."""

    rate: NonNegative = 0.04
    """How fast its logarithm grows with the violation of the limit."""

    limit: FiniteFloat = 0.0
    """The mean cost that is allowed, in the units of the cost model."""

    largest: Limit = 5.0
    """The largest multiplier."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.value > self.largest:
            raise ConfigError("HF940", f"Multiplier: value must be at most largest = {self.largest}, got {self.value}")

    def after(self, mean_cost: float) -> Multiplier:
        """The multiplier after a batch of this mean cost."""
        log = math.log(self.value) + self.rate * self.value * (mean_cost - self.limit)
        return replace(self, value=math.exp(min(max(log, -MAX_NEGATIVE_LOG), math.log(self.largest))))
