"""A copy of a policy that samples: a model of transformers, or an engine with the weights in host memory beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from hfdsl.protocols.collectives import AxisGroup, SoleRank
from hfdsl.protocols.worker import Worker
from hfdsl.rl.batches import Prompts
from hfdsl.rl.engines.handle import EngineHandle, engine_config
from hfdsl.rl.engines.ranks import EngineRanks, engine_ranks
from hfdsl.rl.models.device import device
from hfdsl.rl.models.forward import Policy
from hfdsl.rl.models.loading import end_tokens, load, pad_token
from hfdsl.rl.models.offloading import model_to_device, model_to_host
from hfdsl.rl.models.policies import policy, rollout, sampling
from hfdsl.rl.models.sharding import load_full_state_dict
from hfdsl.rl.workers.config import ModelConfig, SamplerConfig, computes


class PolicyCopy(Protocol):
    """What a sampler does with its copy of the policy."""

    def rollout(self, prompts: Prompts, *, greedy: bool) -> dict[str, Any]:
        """The columns of a ``Rollout``."""
        ...

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        """Take an actor's weights."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """The weights for a checkpoint."""
        ...

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take the weights of a checkpoint."""
        ...

    def offload(self) -> None:
        """Free the memory of the device."""
        ...

    def onload(self) -> None:
        """Take it again."""
        ...


def copy_of_policy(config: SamplerConfig, worker: Worker) -> PolicyCopy:
    """The copy that a configuration asks for, on a rank of a role."""
    generation = config.generation
    if generation.engine == "vllm":
        return EngineCopy(config, engine_ranks(worker, generation.engine_tp))
    return ModelCopy(config, worker.axis("gen_tp"))


class ModelCopy:
    """A model of transformers, of which this rank may hold a slice."""

    def __init__(self, config: SamplerConfig, tp: AxisGroup) -> None:
        self.policy = policy(config.model, config.generation.temperature, tp, packing=config.batching.packing)
        self.policy.requires_grad_(False)
        self.sampling = sampling(self.policy, config.model, config.generation, config.batching, config.autocast)

    def rollout(self, prompts: Prompts, *, greedy: bool) -> dict[str, Any]:
        """The columns of a ``Rollout``."""
        return rollout(self.policy, prompts, self.sampling, greedy=greedy)

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        """Take an actor's weights."""
        load_full_state_dict(self.policy, weights)

    def state(self) -> dict[str, torch.Tensor]:
        """The weights for a checkpoint."""
        return self.policy.state_dict()

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take the weights of a checkpoint."""
        self.policy.load_state_dict(state)

    def offload(self) -> None:
        """Free the memory of the device."""
        self.sampling.forget()
        model_to_host(self.policy)

    def onload(self) -> None:
        """Take it again."""
        model_to_device(self.policy)


@dataclass(frozen=True, slots=True)
class _FirstWeights:
    """What an engine's model starts with: its weights on the host, and its configuration."""

    weights: dict[str, torch.Tensor]
    config: Any
    ends: tuple[int, ...]
    pad: int


def _first_weights(config: ModelConfig) -> _FirstWeights:
    model = load(config)
    whole = Policy(model, 1.0, SoleRank())
    model_to_host(whole)  # the engine needs the device
    weights = {name: weight.clone() for name, weight in whole.state_dict().items()}
    return _FirstWeights(weights, engine_config(model), end_tokens(config, model), pad_token(config, model))


class EngineCopy:
    """An engine, with its weights in host memory beside it: for checkpoints, and for an engine that starts again."""

    def __init__(self, config: SamplerConfig, ranks: EngineRanks) -> None:
        dtype = computes(config)
        first = _first_weights(replace(config.model, dtype=dtype, compile=False))
        self.weights, self.version = first.weights, 1
        shapes = {name: tuple(weight.shape) for name, weight in self.weights.items()}
        self.engine = EngineHandle(
            first.config, shapes, config.generation, dtype, first.ends, first.pad, ranks, SoleRank()
        )

    def rollout(self, prompts: Prompts, *, greedy: bool) -> dict[str, Any]:
        """The columns of a ``Rollout``, whose log-probs are the engine's."""
        ids, mask = prompts.ids.tensor.to(device()), prompts.mask.tensor.to(device())
        sampled = self.engine.sample(ids, mask, self.version, self._weights, greedy=greedy)
        return {
            "ids": torch.cat([ids, sampled.response], 1),
            "mask": torch.cat([mask, sampled.mask], 1),
            "response_mask": sampled.mask,
            "log_probs": sampled.log_probs,
            "engine_log_probs": sampled.log_probs,
        }

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        """Take an actor's weights.

        Raises:
            WiringError: HF956 where they are those of another model; the copy keeps its own then.
        """
        self.engine.check_weights(weights)
        for name, weight in weights.items():
            self.weights[name].copy_(weight)
        self.version += 1

    def state(self) -> dict[str, torch.Tensor]:
        """The weights for a checkpoint."""
        return self.weights

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take the weights of a checkpoint."""
        self.load(state)

    def offload(self) -> None:
        """Free the memory of the device."""
        self.engine.sleep()

    def onload(self) -> None:
        """Nothing: the engine wakes when it is called."""

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.weights.items())
