"""The critic: it estimates the value of the rest of a response, and learns from the returns."""

from __future__ import annotations

from typing import Any

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.protocols.offloading import Part
from hfdsl.rl.batches import CriticMetrics, Sequences, ValueExperience, Values
from hfdsl.rl.losses import ClippedValue
from hfdsl.rl.workers.config import CriticConfig, learning
from hfdsl.rl.workers.gpu_memory import gpu_bytes, parameter_count
from hfdsl.rl.workers.kept_bytes import kept_bytes
from hfdsl.rl.workers.obstacles import obstacles, refuse
from hfdsl.rl.workers.slicing import sliced, vocabulary


class Critic(hf.Worker):
    """A model with a linear head on its hidden states; the head of a new critic is zero."""

    gpu_bytes = staticmethod(gpu_bytes)
    parameter_count = staticmethod(parameter_count)
    kept_bytes = staticmethod(kept_bytes)
    learning = staticmethod(learning)
    obstacles = staticmethod(obstacles)
    sliced = staticmethod(sliced)
    vocabulary = staticmethod(vocabulary)

    def __init__(self, config: CriticConfig) -> None:
        from hfdsl.rl.models.learning import Learner
        from hfdsl.rl.models.policies import scorer

        refuse(obstacles(self.mesh, config))
        self.config = config
        packing = config.batching.packing
        self.critic = scorer(config.model, self.axis("tp"), config.lora, config.training.autocast, packing=packing)
        self.learner = Learner(self.critic, self.critic.base_model, config.training, self.axis("dp"))

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("critic")
    def values(self, sequences: Sequences) -> Values:
        """The value before each token of a response; 0 on padding."""
        from hfdsl.rl.models.scoring import values

        return Values(values=values(self.critic, sequences, self.config.batching, self.config.training.autocast))

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("critic")
    def update(self, experience: ValueExperience, *, loss: ClippedValue) -> CriticMetrics:
        """One optimizer step on the whole batch."""
        from hfdsl.rl.models.updates import value_update

        return CriticMetrics(**value_update(self.learner, experience, loss, self.config, self.axis("dp")))

    def state(self) -> dict[str, Any]:
        """The state in a checkpoint: weights, the optimizer's states, the number of steps."""
        return self.learner.state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.learner.load_state(state)

    def offload(self, part: Part) -> None:
        """Move a part to the host while the role is idle."""
        self.learner.offload(part)

    def onload(self, part: Part) -> None:
        """Move the part back to the device."""
        self.learner.onload(part)
