"""The policy: it generates, learns, and exports its weights."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.errors import ResourceError
from hfdsl.protocols.offloading import Part
from hfdsl.rl.batches import (
    ActorMetrics,
    Experience,
    ImitationMetrics,
    PreferenceMetrics,
    Preferences,
    Prompts,
    ReferenceLogProbs,
    Rollout,
    Sequences,
)
from hfdsl.rl.losses import DPO, PolicyLoss
from hfdsl.rl.workers.config import (
    ActorConfig,
    cached_tokens,
    call_obstacles,
    computes,
    learning,
    policy_temperature,
    repeats_responses,
    result_sizes,
    samples_with,
    truncates,
)
from hfdsl.rl.workers.copied_settings import adapter_settings, copied_settings
from hfdsl.rl.workers.gpu_memory import gpu_bytes, parameter_count
from hfdsl.rl.workers.kept_bytes import kept_bytes
from hfdsl.rl.workers.layouts import reshards, state_parameters, training_layout
from hfdsl.rl.workers.obstacles import obstacles, refuse
from hfdsl.rl.workers.slicing import drops, sliced, vocabulary
from hfdsl.rl.workers.special_tokens import misses_end
from hfdsl.rl.workers.state_bytes import state_bytes

if TYPE_CHECKING:
    from hfdsl.rl.models.held_weights import HeldWeights

FROM_FIRST = hf.Protocol("FROM_FIRST", collect={"dp": "first", "pp": "last", "tp": "first"})
"""All ranks take part; the value is that of the first rank of ``dp`` and ``tp``, in the last stage of ``pp``."""


class Actor(hf.Worker):
    """The policy: it generates, learns from any loss in ``hfdsl.rl.losses``, and exports its weights to other roles."""

    gpu_bytes = staticmethod(gpu_bytes)
    parameter_count = staticmethod(parameter_count)
    kept_bytes = staticmethod(kept_bytes)
    sliced = staticmethod(sliced)
    vocabulary = staticmethod(vocabulary)
    state_bytes = staticmethod(state_bytes)
    state_parameters = staticmethod(state_parameters)
    reshards = staticmethod(reshards)
    call_obstacles = staticmethod(call_obstacles)
    obstacles = staticmethod(obstacles)
    cached_tokens = staticmethod(cached_tokens)
    computes = staticmethod(computes)
    copied_settings = staticmethod(copied_settings)
    adapter_settings = staticmethod(adapter_settings)
    drops = staticmethod(drops)
    learning = staticmethod(learning)
    misses_end = staticmethod(misses_end)
    policy_temperature = staticmethod(policy_temperature)
    repeats_responses = staticmethod(repeats_responses)
    result_sizes = staticmethod(result_sizes)
    samples_with = staticmethod(samples_with)
    truncates = staticmethod(truncates)

    def __init__(self, config: ActorConfig) -> None:
        from hfdsl.rl.models.learning import Learner
        from hfdsl.rl.models.policies import policy, sampling

        refuse(obstacles(self.mesh, config))
        self.config = config
        packing, tp = config.batching.packing, self.axis("tp")
        self.policy = policy(
            config.model, config.generation.temperature, tp, config.lora, config.training.autocast, packing=packing
        )
        self.learner = Learner(self.policy, self.policy.model, config.training, self.axis("dp"))
        self.sampling = sampling(
            self.policy,
            config.model,
            config.generation,
            config.batching,
            config.training.autocast,
            worker=self,
            lora=config.lora,
        )

    @register(Dispatch.THREE_D_ALL_MICRO_DP)
    @hf.reads("policy")
    def generate(self, prompts: Prompts, *, greedy: bool = False) -> Rollout:
        """Responses with their log-probs, sampled or, with ``greedy``, of the likeliest tokens."""
        from hfdsl.rl.models.policies import rollout

        return Rollout(**rollout(self.policy, prompts, self.sampling, greedy=greedy))

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def log_probs(self, sequences: Sequences) -> ReferenceLogProbs:
        """The log-probs of responses, of this or another policy; 0 on padding."""
        from hfdsl.rl.models.scoring import log_probs

        autocast = self.config.training.autocast
        return ReferenceLogProbs(ref_log_probs=log_probs(self.policy, sequences, self.config.batching, autocast))

    @register(Dispatch.THREE_D_PROTO)
    def base_log_probs(self, sequences: Sequences) -> ReferenceLogProbs:
        """The log-probs of the model without its adapter: those of a ``Reference``, but without a second copy.

        Raises:
            ResourceError: HF812 for an actor without an adapter.
        """
        from hfdsl.rl.models.adapters import without_adapters
        from hfdsl.rl.models.scoring import log_probs

        if self.config.lora is None:
            raise ResourceError("HF812", f"base_log_probs {call_obstacles(self.config)['base_log_probs']}")
        with without_adapters(self.policy):
            batching, autocast = self.config.batching, self.config.training.autocast
            return ReferenceLogProbs(ref_log_probs=log_probs(self.policy, sequences, batching, autocast))

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy", ratio="log_probs")
    def update(self, experience: Experience, *, loss: PolicyLoss) -> ActorMetrics:
        """One optimizer step on the whole batch."""
        from hfdsl.rl.models.updates import policy_update

        return ActorMetrics(**policy_update(self.learner, experience, loss, self.config, self.axis("dp")))

    @register(Dispatch.THREE_D_PROTO, rows=hf.Grouped(2))
    @hf.writes("policy")
    def prefer(self, preferences: Preferences, *, loss: DPO) -> PreferenceMetrics:
        """One optimizer step on the whole batch of pairs."""
        from hfdsl.rl.models.updates import dpo_update

        return PreferenceMetrics(
            **dpo_update(self.policy, self.learner, preferences, loss, self.config, self.axis("dp"))
        )

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def imitate(self, sequences: Sequences) -> ImitationMetrics:
        """One optimizer step of a supervised stage: the cross entropy of the responses."""
        from hfdsl.rl.models.updates import sft_update

        return ImitationMetrics(**sft_update(self.learner, sequences, self.config, self.axis("dp")))

    @register(FROM_FIRST)
    @hf.exports("policy", layout=training_layout)
    def weights(self) -> dict[str, Any]:
        """Copies of the policy's weights by name for ``hf.sync``, or of its adapter's, as ``lora.exports`` decides."""
        from hfdsl.rl.models.sharding import full_adapter, full_state_dict

        if self.config.lora is not None and self.config.lora.exports == "adapter":
            return dict(full_adapter(self.policy))
        return full_state_dict(self.policy)

    def held_weights(self, state: str) -> dict[str, Any]:
        """The parts of the exported weights that this rank holds, for ``running.verify``."""
        return self._held.pieces()

    @cached_property
    def _held(self) -> HeldWeights:
        from hfdsl.rl.models.held_weights import HeldWeights

        return HeldWeights(self.policy, adapter=self.config.lora is not None and self.config.lora.exports == "adapter")

    def state(self) -> dict[str, Any]:
        """The state in a checkpoint: weights, the optimizer's states, the number of steps."""
        return self.learner.state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.learner.load_state(state)

    def offload(self, part: Part) -> None:
        """Move a part to the host while the role is idle; with the weights, the captured engine frees its memory."""
        if part == "weights":
            self.sampling.forget()
        self.learner.offload(part)

    def onload(self, part: Part) -> None:
        """Move the part back to the device."""
        self.learner.onload(part)
