"""A copy of a policy that samples: a transformers model, or an engine with a copy of its weights in host memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from hfdsl.errors import SyncError
from hfdsl.protocols.collectives import AxisGroup, SoleRank
from hfdsl.protocols.worker import Worker, current_rank
from hfdsl.rl.batches import Prompts
from hfdsl.rl.engines.handle import EngineHandle, Sampled, Versioned, engine_config
from hfdsl.rl.engines.ranks import EngineRanks, engine_ranks
from hfdsl.rl.engines.shared_weights import SharedWeights, whole_parts
from hfdsl.rl.engines.weights import fitting
from hfdsl.rl.models.adapters import Adapter, adapter_names, adapters, add_adapters, base_names
from hfdsl.rl.models.device import device
from hfdsl.rl.models.forward import Policy
from hfdsl.rl.models.held_weights import HeldWeights
from hfdsl.rl.models.loading import end_tokens, load, pad_token
from hfdsl.rl.models.offloading import model_to_device, model_to_host
from hfdsl.rl.models.policies import apart_in_engine, policy, rollout, sampling, versioned_rollout
from hfdsl.rl.models.row_errors import check_ends
from hfdsl.rl.models.sharding import (
    check_full_state_dict,
    full_adapter,
    load_full_state_dict,
)
from hfdsl.rl.workers.config import GenerationConfig, ModelConfig, SamplerConfig, kept_dtype
from hfdsl.rl.workers.lora import Lora
from hfdsl.runtime.copying import converted
from hfdsl.runtime.weights.held_parts import HeldPart


class PolicyCopy(Protocol):
    """The operations of a sampler on its copy of the policy."""

    def rollout(self, prompts: Prompts, *, greedy: bool) -> dict[str, Any]:
        """The columns of a ``Rollout``."""
        ...

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        """Take an actor's weights."""
        ...

    def receiving(self) -> AbstractContextManager[Mapping[str, HeldPart]]:
        """The memory that arriving weights are written to: all that the copy loads."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """The weights for a checkpoint."""
        ...

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take the weights of a checkpoint."""
        ...

    def held_weights(self) -> dict[str, HeldPart]:
        """The parts of the loaded weights that this rank holds."""
        ...

    def offload(self) -> None:
        """Free the memory of the device."""
        ...

    def onload(self) -> None:
        """Allocate it again."""
        ...


class VersionedCopy(PolicyCopy, Protocol):
    """A copy whose ``load`` may be called between tokens."""

    def versioned_rollout(self, prompts: Prompts, *, greedy: bool) -> dict[str, Any]:
        """The columns of a ``VersionedRollout``."""
        ...


def copy_in_flight(config: SamplerConfig, worker: Worker) -> VersionedCopy:
    """The copy of a sampler that takes weights between tokens."""
    if config.generation.engine == "vllm":
        ranks = engine_ranks(worker, config.generation.engine_tp)
        return EngineCopy(config, ranks, sleeps=True)  # weights cannot arrive in its memory between its steps
    return ModelCopy(config, worker.axis("gen_tp"))


def copy_of_policy(config: SamplerConfig, worker: Worker) -> PolicyCopy:
    """The copy that a configuration asks for, on a rank of a role."""
    generation = config.generation
    if generation.engine == "vllm":
        context = current_rank.get()
        offloads = context is not None and context.offloads
        return EngineCopy(config, engine_ranks(worker, generation.engine_tp), sleeps=offloads)
    return ModelCopy(config, worker.axis("gen_tp"))


class LoadFence:
    """Keeps a copy from sampling with weights of two versions, as a failed load may leave them.

    >>> fence = LoadFence()
    >>> with fence.loading():
    ...     pass  # writes the weights
    >>> fence.check()
    """

    def __init__(self) -> None:
        self._failure: str | None = None

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Guard a write of weights; after an error they are incomplete until a load succeeds."""
        try:
            yield
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"
            raise
        self._failure = None

    def check(self) -> None:
        """Refuse to use incomplete weights.

        Raises:
            SyncError: HF770.
        """
        if self._failure is not None:
            problem = f"the last load of weights failed ({self._failure}), and left a mix of old and new weights"
            raise SyncError("HF770", f"{problem}; sync again")


class ModelCopy:
    """A transformers model, or this rank's slice of it."""

    def __init__(self, config: SamplerConfig, tp: AxisGroup) -> None:
        self.policy = policy(
            config.model,
            config.generation.temperature,
            tp,
            config.lora,
            config.autocast,
            packing=config.batching.packing,
        )
        self.policy.requires_grad_(False)
        self.sampling = sampling(self.policy, config.model, config.generation, config.batching, config.autocast)
        self.fence = LoadFence()
        self._held = HeldWeights(self.policy, adapter=bool(adapter_names(self.policy)))

    def rollout(self, prompts: Prompts, *, greedy: bool) -> dict[str, Any]:
        """The columns of a ``Rollout``."""
        self.fence.check()
        return rollout(self.policy, prompts, self.sampling, greedy=greedy)

    def versioned_rollout(self, prompts: Prompts, *, greedy: bool) -> dict[str, Any]:
        """The columns of a ``VersionedRollout``: ``load`` may be called between tokens."""
        self.fence.check()
        return versioned_rollout(self.policy, prompts, self.sampling, greedy=greedy)

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        """Take an actor's weights."""
        check_full_state_dict(self.policy, weights)
        with self.fence.loading():
            load_full_state_dict(self.policy, weights)

    @contextmanager
    def receiving(self) -> Iterator[Mapping[str, HeldPart]]:
        """The memory that arriving weights are written to: the model's, or its adapter's."""
        with self.fence.loading():
            yield self.held_weights()

    def state(self) -> dict[str, torch.Tensor]:
        """The weights for a checkpoint; those of the adapter if the policy has one."""
        self.fence.check()
        names = adapter_names(self.policy).values()
        state = self.policy.state_dict()
        return {name: state[name] for name in names} if names else state

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take the weights of a checkpoint."""
        with self.fence.loading():
            self.policy.load_state_dict(state, strict=not adapter_names(self.policy))

    def held_weights(self) -> dict[str, HeldPart]:
        """The parts of the loaded weights that this rank holds."""
        return self._held.pieces()

    def offload(self) -> None:
        """Free the memory of the device."""
        self.sampling.forget()
        model_to_host(self.policy)

    def onload(self) -> None:
        """Allocate it again."""
        model_to_device(self.policy)


@dataclass(frozen=True, slots=True)
class _InitialModel:
    """The initial model of an engine: its weights on the host, and its configuration."""

    weights: dict[str, torch.Tensor]
    """In page-locked memory if there is a GPU, so that copies run at the speed of the bus."""

    adapter: dict[str, torch.Tensor]
    """The matrices of its adapter, by names as in ``full_adapter``."""

    adapted: dict[str, Adapter]
    """The adapters of weights, with the names of their matrices."""

    apart: Lora | None
    """The adapter that the engine holds apart from the weights."""

    config: Any
    ends: tuple[int, ...]
    pad: int


def _initial_model(config: ModelConfig, generation: GenerationConfig, lora: Lora | None) -> _InitialModel:
    model = load(config)
    config_of_engine, apart = engine_config(model), apart_in_engine(generation, lora, model)
    if lora is not None:
        add_adapters(model, lora, config.seed)
    initial = Policy(model, 1.0, SoleRank())
    model_to_host(initial)  # the engine needs the device
    state = initial.state_dict()
    outside = {inner: name for name, inner in adapter_names(initial).items()}
    names = base_names(initial)
    return _InitialModel(
        weights={base_name: state[name] for name, base_name in names.items()},
        adapter=dict(full_adapter(initial)),
        adapted={
            names[weight]: replace(adapter, a=outside[adapter.a], b=outside[adapter.b])
            for weight, adapter in adapters(initial).items()
        },
        apart=apart,
        config=config_of_engine,
        ends=end_tokens(config, model),
        pad=pad_token(config, model),
    )


def _read_by_engines(prompts: Prompts) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids and the mask of prompts on the host, since engines read lists; their responses follow in one tensor."""
    ids, mask = prompts.ids.tensor.cpu(), prompts.mask.tensor.cpu()
    check_ends(mask)
    return ids, mask


class EngineCopy:
    """An engine with a copy of its weights in host memory, for checkpoints and for a restart of the engine.

    An engine that need not sleep may share its memory, and a sync writes there: ``shared`` knows which is newer.
    """

    def __init__(self, config: SamplerConfig, ranks: EngineRanks, *, sleeps: bool) -> None:
        dtype = kept_dtype(config)
        initial = _initial_model(replace(config.model, dtype=dtype, compile=False), config.generation, config.lora)
        self.weights, self.adapter, self.version = initial.weights, initial.adapter, 1
        self.adapted, self.apart, self.fence = initial.adapted, initial.apart is not None, LoadFence()
        self.engine = EngineHandle(
            initial.config,
            _shapes(initial.weights),
            config.generation,
            dtype=dtype,
            end_tokens=initial.ends,
            pad_token=initial.pad,
            ranks=ranks,
            weight_peers=SoleRank(),
            lora=initial.apart,
            adapter_shapes=_shapes(initial.adapter) if self.apart else {},
            sleeps=sleeps or ranks.peers.size > 1 or config.lora is not None,
        )
        self.shared, self.on_host = SharedWeights(self.engine, self.weights), whole_parts(self.adapter or self.weights)

    def rollout(self, prompts: Prompts, *, greedy: bool) -> dict[str, Any]:
        """The columns of a ``Rollout``, whose log-probs are the engine's."""
        self.fence.check()
        ids, mask = _read_by_engines(prompts)
        adapter = Versioned(self.version, self.adapter.items) if self.apart else None
        weights = Versioned(1, self._on_device) if self.apart else Versioned(self.version, self._merged)
        return _columns(ids, mask, self.engine.sample(ids, mask, weights, adapter, greedy=greedy))

    def versioned_rollout(self, prompts: Prompts, *, greedy: bool) -> dict[str, Any]:
        """The columns of a ``VersionedRollout``: ``load`` may be called between the engine's decode steps."""
        self.fence.check()
        ids, mask = _read_by_engines(prompts)
        sampled = self.engine.sample_in_flight(ids, mask, self._current, greedy=greedy)
        return {**_columns(ids, mask, sampled), "token_versions": sampled.versions.to(device())}

    def _current(self) -> Versioned:
        self.fence.check()
        return Versioned(self.version, self._merged)

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        """Take an actor's weights, or its adapter.

        Raises:
            WiringError: HF956 for weights of another model; the copy then keeps its own.
        """
        held = self.adapter or self.weights
        for _ in fitting(weights.items(), _shapes(held), "engine"):
            pass
        with self.fence.loading():
            self.shared.overwrite_host()
            for name, weight in weights.items():
                held[name].copy_(converted(weight, held[name]))
            self.version += 1

    @contextmanager
    def receiving(self) -> Iterator[Mapping[str, HeldPart]]:
        """The memory that arriving weights, or an adapter's, are written to.

        It is the engine's, or that of the host; the engine then gets them before it samples.
        """
        with self.fence.loading():
            with self.shared.writing(self.version) as memory:
                yield memory or self.on_host
            self.version += 1

    def state(self) -> dict[str, torch.Tensor]:
        """The weights for a checkpoint; those of the adapter if the policy has one."""
        self.fence.check()
        self.shared.settle()
        return self.adapter or self.weights

    def held_weights(self) -> dict[str, HeldPart]:
        """The weights that the engine samples with, in its memory, or those that it loads before; complete."""
        return self.shared.newest or self.on_host

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take the weights of a checkpoint."""
        self.load(state)

    def offload(self) -> None:
        """Free the memory of the device."""
        self.shared.close()
        self.engine.sleep()

    def onload(self) -> None:
        """Do nothing: the engine wakes when it is called."""

    def _on_device(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights one by one on the device, so that the engine gets them by CUDA IPC."""
        for name, weight in self.weights.items():
            yield name, weight.to(device(), non_blocking=True)

    def _merged(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The newest weights, one by one on the device, with the adapters added.

        It is called before a dead engine's successor starts, which needs the memory that the dead one has left.
        """
        self.shared.settle()
        return self._each_merged()

    def _each_merged(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self._on_device():
            adapter = self.adapted.get(name)
            if adapter is None:
                yield name, weight
            else:
                a, b = (self.adapter[matrix].to(weight.device) for matrix in (adapter.a, adapter.b))
                yield name, adapter.merged(weight, a, b)


def _columns(ids: torch.Tensor, mask: torch.Tensor, sampled: Sampled) -> dict[str, Any]:
    """The columns of a ``Rollout`` on the role's device, whose log-probs are the engine's."""
    log_probs, response_mask = sampled.log_probs.to(device()), sampled.mask.to(device())
    return {
        "ids": torch.cat([ids, sampled.response], 1).to(device()),
        "mask": torch.cat([mask, sampled.mask], 1).to(device()),
        "response_mask": response_mask,
        "log_probs": log_probs,
        "engine_log_probs": log_probs,
    }


def _shapes(weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in weights.items()}
