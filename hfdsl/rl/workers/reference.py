"""A frozen policy: the reference of a KL term, or a teacher."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.protocols.offloading import Part
from hfdsl.rl.batches import ReferenceLogProbs, Sequences
from hfdsl.rl.workers.config import ReferenceConfig, computes, policy_temperature
from hfdsl.rl.workers.gpu_memory import gpu_bytes, parameter_count
from hfdsl.rl.workers.obstacles import obstacles, refuse
from hfdsl.rl.workers.slicing import sliced, vocabulary


class Reference(hf.Worker):
    """A policy that does not learn: the actor's before training, or another one."""

    gpu_bytes = staticmethod(gpu_bytes)
    parameter_count = staticmethod(parameter_count)
    computes = staticmethod(computes)
    obstacles = staticmethod(obstacles)
    policy_temperature = staticmethod(policy_temperature)
    sliced = staticmethod(sliced)
    vocabulary = staticmethod(vocabulary)

    def __init__(self, config: ReferenceConfig) -> None:
        from hfdsl.rl.models.policies import policy

        refuse(obstacles(self.mesh, config))
        self.config = config
        self.policy = policy(
            config.model, config.temperature, self.axis("tp"), packing=config.batching.packing
        ).requires_grad_(False)

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("reference")
    def log_probs(self, sequences: Sequences) -> ReferenceLogProbs:
        """The log-probs of the responses; 0 on padding."""
        from hfdsl.rl.models.scoring import log_probs

        batching, autocast = self.config.batching, self.config.autocast
        return ReferenceLogProbs(ref_log_probs=log_probs(self.policy, sequences, batching, autocast))

    def offload(self, part: Part) -> None:
        """Move the weights to the host while the role is idle."""
        from hfdsl.rl.models.offloading import model_to_host

        model_to_host(self.policy)

    def onload(self, part: Part) -> None:
        """Move the weights back to the device."""
        from hfdsl.rl.models.offloading import model_to_device

        model_to_device(self.policy)
