"""The Lagrange multiplier of a limit on cost: a role, since it has a state."""

from __future__ import annotations

from dataclasses import replace

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from hfdsl.rl.batches import Costs
from hfdsl.rl.lagrangian import Multiplier
from hfdsl.rl.workers.gpu_memory import no_gpu_bytes
from hfdsl.rl.workers.kept_bytes import one_number


class LagrangeMultiplier(hf.Worker):
    """The price of a unit of cost in units of reward; its first rank holds it."""

    gpu_bytes = staticmethod(no_gpu_bytes)
    kept_bytes = staticmethod(one_number)

    def __init__(self, multiplier: Multiplier) -> None:
        self.multiplier = multiplier

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    def after(self, costs: Costs) -> float:
        """The multiplier after a batch of these costs."""
        self.multiplier = self.multiplier.after(float(costs.cost.tensor.double().mean()))
        return self.multiplier.value

    def state(self) -> dict[str, float]:
        """The state in a checkpoint."""
        return {"value": self.multiplier.value}

    def load_state(self, state: dict[str, float]) -> None:
        """Continue from a checkpoint."""
        self.multiplier = replace(self.multiplier, value=state["value"])
