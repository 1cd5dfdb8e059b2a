"""A policy that only generates, on a pool of its own, with weights that ``hf.sync`` sends from the actor."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.errors import WiringError
from hfdsl.protocols.offloading import Part
from hfdsl.rl.batches import Prompts, Rollout, VersionedRollout
from hfdsl.rl.workers.config import (
    SamplerConfig,
    cached_tokens,
    computes,
    concurrent_calls,
    in_flight_obstacle,
    policy_temperature,
    repeats_responses,
    result_sizes,
    samples_with,
    truncates,
)
from hfdsl.rl.workers.copied_settings import adapter_settings, copied_settings
from hfdsl.rl.workers.gpu_memory import gpu_bytes, parameter_count
from hfdsl.rl.workers.kept_bytes import kept_bytes
from hfdsl.rl.workers.layouts import sampler_layout, state_parameters
from hfdsl.rl.workers.obstacles import obstacles, refuse
from hfdsl.rl.workers.slicing import sliced, vocabulary
from hfdsl.rl.workers.special_tokens import misses_end


class Sampler(hf.Worker):
    """Generates like the actor, from a copy of its weights."""

    gpu_bytes = staticmethod(gpu_bytes)
    parameter_count = staticmethod(parameter_count)
    kept_bytes = staticmethod(kept_bytes)
    sliced = staticmethod(sliced)
    vocabulary = staticmethod(vocabulary)
    state_parameters = staticmethod(state_parameters)
    cached_tokens = staticmethod(cached_tokens)
    computes = staticmethod(computes)
    copied_settings = staticmethod(copied_settings)
    adapter_settings = staticmethod(adapter_settings)
    concurrent_calls = staticmethod(concurrent_calls)
    misses_end = staticmethod(misses_end)
    obstacles = staticmethod(obstacles)
    policy_temperature = staticmethod(policy_temperature)
    repeats_responses = staticmethod(repeats_responses)
    result_sizes = staticmethod(result_sizes)
    samples_with = staticmethod(samples_with)
    truncates = staticmethod(truncates)

    def __init__(self, config: SamplerConfig) -> None:
        from hfdsl.rl.models.copies import copy_of_policy

        refuse(obstacles(self.mesh, config))
        self.copy = copy_of_policy(config, self)

    @register(Dispatch.THREE_D_ALL_MICRO_DP)
    @hf.reads("policy")
    def generate(self, prompts: Prompts, *, greedy: bool = False) -> Rollout:
        """Responses with their log-probs, sampled or, with ``greedy``, of the likeliest tokens."""
        return Rollout(**self.copy.rollout(prompts, greedy=greedy))

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=sampler_layout)
    def load(self, weights: dict[str, Any]) -> None:
        """Load the actor's weights."""
        self.copy.load(weights)

    def receiving(self, state: str) -> AbstractContextManager[Mapping[str, Any] | None]:
        """The memory to which weights that arrive bucket by bucket are written: an engine's, if it shares that."""
        return self.copy.receiving()

    def held_weights(self, state: str) -> dict[str, Any]:
        """The parts of the loaded weights that this rank holds, for ``running.verify``."""
        return self.copy.held_weights()

    def state(self) -> dict[str, Any]:
        """The state in a checkpoint: the weights, which may be older than the actor's."""
        return self.copy.state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.copy.load_state(state)

    def offload(self, part: Part) -> None:
        """Move the weights to the host while the role is idle; an engine frees its memory."""
        self.copy.offload()

    def onload(self, part: Part) -> None:
        """Move the weights back to the device."""
        self.copy.onload()


class InFlightSampler(Sampler):
    """A sampler that takes weights between tokens, by ``hf.sync(actor, sampler, during="generate")``.

    Responses continue with the new weights, and every token has the version and the log-prob of the weights that
    sampled it. The KV cache is recomputed with the new weights, so no token depends on two versions. The engine is
    ``"plain"`` or ``"vllm"``. With ``concurrent_calls``, vLLM samples the rows of several calls in one batch.
    """

    in_flight_obstacle = staticmethod(in_flight_obstacle)
    cached_tokens = staticmethod(cached_tokens)  # again, as the next ones, since the methods below are its own
    gpu_bytes = staticmethod(gpu_bytes)
    obstacles = staticmethod(obstacles)
    state_parameters = staticmethod(state_parameters)
    copied_settings = staticmethod(copied_settings)
    adapter_settings = staticmethod(adapter_settings)

    def __init__(self, config: SamplerConfig) -> None:
        from hfdsl.rl.models.copies import copy_in_flight

        if (why := in_flight_obstacle(config)) is not None:
            raise WiringError("HF753", f"InFlightSampler: {why}")
        refuse(obstacles(self.mesh, config))
        self.copy = self.versioned = copy_in_flight(config, self)

    @register(Dispatch.THREE_D_ALL_MICRO_DP)
    @hf.reads("policy")
    def generate(self, prompts: Prompts, *, greedy: bool = False) -> VersionedRollout:
        """Responses with the log-probs and the versions of their tokens."""
        return VersionedRollout(**self.versioned.versioned_rollout(prompts, greedy=greedy))

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=sampler_layout, during="generate")
    def load(self, weights: dict[str, Any]) -> None:
        """Load the actor's weights, also while ``generate`` runs."""
        self.copy.load(weights)
