"""The models of the roles, and rollouts of a policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from hfdsl.errors import ResourceError
from hfdsl.protocols.call import Call, current_call
from hfdsl.protocols.collectives import AxisGroup, SoleRank
from hfdsl.protocols.worker import Worker
from hfdsl.rl.batches import Prompts
from hfdsl.rl.engines.handle import EngineHandle, Sampled, engine_config
from hfdsl.rl.engines.ranks import EngineRanks, engine_ranks
from hfdsl.rl.models.adapters import add_adapters
from hfdsl.rl.models.captured_generation import CapturedGenerator, capture_obstacle
from hfdsl.rl.models.device import autocast, device
from hfdsl.rl.models.engine_weights import EngineWeights
from hfdsl.rl.models.forward import Policy, Scorer
from hfdsl.rl.models.generation import TokenRecord, generate
from hfdsl.rl.models.generation_slices import GenerationSlices, generation_slices, replicas_of
from hfdsl.rl.models.loading import end_tokens, load, max_sequence_length, pad_token, saved_head
from hfdsl.rl.models.micro_batches import MicroBatch, assembled, micro_batches
from hfdsl.rl.models.row_errors import bad_row, check_ends, check_prompts
from hfdsl.rl.models.scoring import response_log_probs
from hfdsl.rl.models.sharding import (
    adapter_shapes,
    full_shapes,
    gathered_parameters,
)
from hfdsl.rl.workers.config import BatchingConfig, GenerationConfig, ModelConfig
from hfdsl.rl.workers.engine_adapters import is_apart
from hfdsl.rl.workers.lora import Lora
from hfdsl.rl.workers.model_config import FloatDType
from hfdsl.rl.workers.obstacles import adapter_obstacles, refuse


def policy(
    config: ModelConfig,
    temperature: float,
    tp: AxisGroup,
    lora: Lora | None = None,
    dtype: FloatDType | None = None,
    *,
    packing: bool = False,
) -> Policy:
    """A policy of a causal model, sliced over the ranks of ``tp`` or with an adapter; passes autocast to ``dtype``.

    Raises:
        ResourceError: HF962 for an adapter that the model cannot have.
    """
    model = load(config, tp)
    if lora is not None:
        add_adapters(model, lora, config.seed, dtype)
    return Policy(model, temperature, tp, packing=packing)


def scorer(
    config: ModelConfig,
    tp: AxisGroup,
    lora: Lora | None = None,
    dtype: FloatDType | None = None,
    *,
    packing: bool = False,
) -> Scorer:
    """A model with a head of one number, sliced in the same way; without a saved head, the head is zero.

    Its adapter is in the backbone; the whole head learns. Errors are as for ``policy``.
    """
    model = load(config, tp, output_layer=False)
    if lora is None:
        return Scorer(model, saved_head(config.path), tp, packing=packing)
    add_adapters(model.base_model, lora, config.seed, dtype)
    adapted = Scorer(model, saved_head(config.path), tp, packing=packing)
    adapted.score.float()  # it learns, as the adapter does
    return adapted


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a policy samples."""

    generation: GenerationConfig
    batching: BatchingConfig
    autocast: FloatDType | None
    end_tokens: tuple[int, ...]
    pad_token: int
    limit: int | None
    """The most tokens of a sequence; None if the model sets no limit."""

    captured: CapturedGenerator | None
    """The generator of the engine ``"captured"``; None with other engines."""

    external: EngineHandle | None
    """The engine in a process of its own; None if the policy itself samples."""

    engine_weights: EngineWeights | None
    """The policy's weights as that engine takes them."""

    slices: GenerationSlices | None
    """The slices that sample if ``gen_tp`` is not ``tp``; None if the policy itself samples."""

    replicas: AxisGroup
    """The ranks that sample the other rows of this rank's training chunk."""

    def forget(self) -> None:
        """Free the device memory that an engine holds between calls."""
        if self.captured is not None:
            self.captured.forget()
        if self.external is not None:
            self.external.release()
            self.external.sleep()


def sampling(
    policy: Policy,
    model: ModelConfig,
    generation: GenerationConfig,
    batching: BatchingConfig,
    dtype: FloatDType | None,
    worker: Worker | None = None,
    lora: Lora | None = None,
) -> Sampling:
    """How a policy samples under these configurations; peers of the ``worker`` may share an engine.

    Raises:
        ResourceError: HF812 for a model without a pad token, or whose steps cannot be captured; HF963 for an adapter
            that the engine cannot hold beside its weights.
    """
    ends, pad = end_tokens(model, policy.model), pad_token(model, policy.model)
    slices = generation_slices(policy, worker) if worker is not None and generation.engine != "vllm" else None
    sampler = slices.policy if slices is not None else policy
    captured = CapturedGenerator(sampler, generation, ends, pad, dtype) if _captures(sampler, generation) else None
    external, weights = None, None
    if generation.engine == "vllm":
        apart = apart_in_engine(generation, lora, policy.model)
        external = EngineHandle(
            engine_config(policy.model),
            full_shapes(policy),
            generation,
            dtype=dtype or model.dtype,
            end_tokens=ends,
            pad_token=pad,
            ranks=engine_ranks(worker, generation.engine_tp) if worker is not None else EngineRanks(),
            weight_peers=worker.axis("world") if worker is not None else SoleRank(),
            lora=apart,
            adapter_shapes=adapter_shapes(policy) if apart is not None else {},
        )
        external.sleep()  # until it is needed
        weights = EngineWeights(policy, apart=apart is not None)
    return Sampling(
        generation=generation,
        batching=batching,
        autocast=dtype,
        end_tokens=ends,
        pad_token=pad,
        limit=max_sequence_length(policy.model),
        captured=captured,
        external=external,
        engine_weights=weights,
        slices=slices,
        replicas=replicas_of(worker),
    )


def apart_in_engine(generation: GenerationConfig, lora: Lora | None, model: Any) -> Lora | None:
    """The adapter that an engine holds apart from the weights of a model of transformers; None for a merged one.

    Raises:
        ResourceError: HF963.
    """
    values = model.config.get_text_config().to_dict()
    if lora is None or not is_apart(generation, lora, values):
        return None
    refuse(adapter_obstacles(lora, values))
    return lora


def _captures(policy: Policy, generation: GenerationConfig) -> bool:
    problem = capture_obstacle(policy)
    if generation.engine == "captured" and problem is not None:
        raise ResourceError("HF812", f'engine="captured" cannot sample here: {problem}; engine="plain" can')
    return generation.engine == "captured" or (
        generation.engine in ("auto", "builtin") and problem is None and device().type == "cuda"
    )


def rollout(policy: Policy, prompts: Prompts, sampling: Sampling, *, greedy: bool) -> dict[str, Any]:
    """The columns of a ``Rollout``.

    Raises:
        HfError: HF811 for a prompt that leaves no room for a response, or that the model cannot continue.
    """
    length = sampling.generation.max_tokens
    ids, mask = _checked(policy, prompts, sampling)
    if not len(ids):
        none = _no_responses(ids, mask, length)
        return none if sampling.external is None else {**none, "engine_log_probs": none["log_probs"]}
    engine_log_probs = None
    if sampling.external is not None and sampling.engine_weights is not None:
        sampled = _generate_externally(policy, ids, mask, sampling.external, sampling.engine_weights, greedy)
        response, response_mask, engine_log_probs = sampled.response, sampled.mask, sampled.log_probs
    else:
        response, response_mask = _generate_micro_batches(policy, ids, mask, sampling, greedy)
    ids, mask = torch.cat([ids, response], 1), torch.cat([mask, response_mask], 1)
    log_probs = _trainer_log_probs(policy, ids, mask, response_mask, sampling)
    columns = {"ids": ids, "mask": mask, "response_mask": response_mask, "log_probs": log_probs}
    return columns if engine_log_probs is None else {**columns, "engine_log_probs": engine_log_probs}


def versioned_rollout(policy: Policy, prompts: Prompts, sampling: Sampling, *, greedy: bool) -> dict[str, Any]:
    """The columns of a ``VersionedRollout``: weights may arrive between tokens.

    Raises:
        HfError: HF811 for a prompt that leaves no room for a response, or that the model cannot continue.
    """
    length, call = sampling.generation.max_tokens, current_call()
    ids, mask = _checked(policy, prompts, sampling)
    if not len(ids):
        none = _no_responses(ids, mask, length)
        return {**none, "token_versions": torch.zeros_like(none["response_mask"], dtype=torch.int64)}
    uniforms = None if greedy else call.uniforms(length).to(ids.device)
    parts = _parts(mask, sampling)
    steps, columns = len(parts) * length, dict[str, list[tuple[MicroBatch, torch.Tensor]]]()
    with autocast(sampling.autocast, ids.device):
        for number, part in enumerate(parts):
            take = partial(_take, call, number * length, steps)
            tokens = TokenRecord(len(part.rows), length, take, ids.device)
            generated, real = generate(
                policy,
                part.sequences(ids, 0),
                part.sequences(mask, 0),
                None if uniforms is None else uniforms[part.rows],
                sampling.generation,
                sampling.end_tokens,
                sampling.pad_token,
                tokens,
            )
            token_columns = (generated, real, tokens.log_probs, tokens.versions)
            for name, column in zip(
                ("ids", "response_mask", "log_probs", "token_versions"), token_columns, strict=True
            ):
                columns.setdefault(name, []).append((part, column))
    response = {name: assembled(column, len(ids), length) for name, column in columns.items()}
    return response | {
        "ids": torch.cat([ids, response["ids"]], 1),
        "mask": torch.cat([mask, response["response_mask"]], 1),
    }


def _checked(policy: Policy, prompts: Prompts, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids and the mask of prompts that can be continued, on the policy's device; else HF811."""
    if sampling.external is None:
        check_prompts(prompts.ids.tensor, prompts.mask.tensor, policy.model)
    else:
        check_ends(prompts.mask.tensor)  # the engine names other prompts that it cannot take
    ids, mask = prompts.ids.tensor.to(device()), prompts.mask.tensor.to(device())
    check_lengths(mask, sampling.generation.max_tokens, sampling.limit)
    return ids, mask


def _no_responses(ids: torch.Tensor, mask: torch.Tensor, length: int) -> dict[str, Any]:
    """The columns of a rollout for no prompts, as where a filter keeps none."""
    response = mask.new_zeros(0, length)
    tokens, log_probs = torch.zeros_like(response, dtype=ids.dtype), torch.zeros_like(response, dtype=torch.float32)
    columns = {"ids": torch.cat([ids, tokens], 1), "mask": torch.cat([mask, response], 1)}
    return {**columns, "response_mask": response, "log_probs": log_probs}


def _take(call: Call, before: int, steps: int, token: int) -> int:
    """The version of a token's weights, after the decode steps of earlier micro-batches."""
    return call.take_weights(before + token, of=steps)


def _trainer_log_probs(
    policy: Policy, ids: torch.Tensor, mask: torch.Tensor, response_mask: torch.Tensor, sampling: Sampling
) -> torch.Tensor:
    """The log-probs of this rank's responses, f32[B, R], from the slices that learn, whose ranks all pass all rows."""
    replicas = sampling.replicas
    columns = ids, mask, response_mask
    if replicas.size > 1:
        ids, mask, response_mask = (torch.cat(replicas.all_gather(column)) for column in columns)
    log_probs = response_log_probs(policy, ids, mask, response_mask, sampling.batching, sampling.autocast)
    return log_probs.chunk(replicas.size)[replicas.rank] if replicas.size > 1 else log_probs


def _generate_externally(
    policy: Policy, ids: torch.Tensor, mask: torch.Tensor, engine: EngineHandle, weights: EngineWeights, greedy: bool
) -> Sampled:
    """The responses of an engine beside the policy; the two use the device's memory in turn."""
    _free_for_engine(policy)
    sampled = engine.sample(ids, mask, *weights.versions(), greedy=greedy)
    engine.sleep()
    return sampled


def _free_for_engine(policy: Policy) -> None:
    """Free gradients, which the next update computes again, and the cache of torch's allocator."""
    for parameter in policy.parameters():
        parameter.grad = None
    if device().type == "cuda":
        torch.cuda.empty_cache()


def _generate_micro_batches(
    policy: Policy, ids: torch.Tensor, mask: torch.Tensor, sampling: Sampling, greedy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    length = sampling.generation.max_tokens
    uniforms = None if greedy else current_call().uniforms(length).to(ids.device)
    responses, masks = [], []
    with _sampling_policy(policy, sampling) as sampler, autocast(sampling.autocast, ids.device):
        for part in _parts(mask, sampling):
            part_uniforms = None if uniforms is None else uniforms[part.rows]
            inputs = part.sequences(ids, 0), part.sequences(mask, 0), part_uniforms
            if sampling.captured is not None:
                tokens, token_mask = sampling.captured(*inputs)
            else:
                tokens, token_mask = generate(
                    sampler, *inputs, sampling.generation, sampling.end_tokens, sampling.pad_token
                )
            responses.append((part, tokens))
            masks.append((part, token_mask))
    return assembled(responses, len(ids), length), assembled(masks, len(ids), length)


@contextmanager
def _sampling_policy(policy: Policy, sampling: Sampling) -> Iterator[Policy]:
    """The policy that samples, with its weights within this context."""
    if sampling.slices is None:
        with gathered_parameters(policy):
            yield policy
        return
    with sampling.slices.gathered() as sampler:
        yield sampler
        if sampling.captured is not None:
            sampling.captured.forget()  # its graphs read the weights that are freed next


def _parts(mask: torch.Tensor, sampling: Sampling) -> list[MicroBatch]:
    """Micro-batches of as many rows as the cache can hold; for captured steps, all of one shape."""
    rows, length, tokens = len(mask), sampling.generation.max_tokens, sampling.generation.cache_tokens
    if sampling.captured is None or sampling.batching.rows is not None:
        return micro_batches(mask, 0, replace(sampling.batching, tokens=tokens, packing=False), extra_tokens=length)
    count = -(-rows * (mask.shape[1] + length) // tokens)
    return micro_batches(mask, 0, BatchingConfig(rows=-(-rows // count)))


def check_lengths(mask: torch.Tensor, length: int, limit: int | None) -> None:
    """Refuse prompts bool[B, P] that leave no room for ``length`` more tokens (HF811)."""
    tokens = mask.sum(1)
    if limit is not None and len(mask) and int(tokens.max()) + length > limit:
        row = int(tokens.argmax())
        raise bad_row(
            row,
            f"its prompt has {int(tokens[row])} tokens; with {length} for a response, that is more than the {limit} "
            "that the model takes; leave out prompts of this length, or shorten responses",
        )
