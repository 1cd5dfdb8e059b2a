"""The Lagrange multiplier of a limit on cost: a role, since it remembers."""

from __future__ import annotations

from dataclasses import replace

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from hfdsl.rl.batches import Costs
from hfdsl.rl.lagrangian import Multiplier


class LagrangeMultiplier(hf.Worker):
    """What a unit of cost is worth in reward; its first rank keeps it."""

    def __init__(self, multiplier: Multiplier) -> None:
        self.multiplier = multiplier

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    def after(self, costs: Costs) -> float:
        """The multiplier after a batch of these costs."""
        self.multiplier = self.multiplier.after(float(costs.cost.tensor.double().mean()))
        return self.multiplier.value

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"value": self.multiplier.value}

    def load_state(self, state: dict[str, float]) -> None:
        """Go on from a checkpoint."""
        self.multiplier = replace(self.multiplier, value=state["value"])
