"""Responses by the continuous batching of transformers: a row that has ended gives its place to the next."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from transformers import ContinuousBatchingConfig
from transformers import GenerationConfig as HuggingFaceConfig

from hfdsl.errors import ResourceError
from hfdsl.rl.models.forward import Policy
from hfdsl.rl.models.row_errors import bad_row
from hfdsl.rl.models.sharding import is_sharded
from hfdsl.rl.workers.config import GenerationConfig

PAGE = 256
"""The tokens of a page of the cache in transformers."""


def generate_continuously(
    policy: Policy,
    ids: torch.Tensor,
    mask: torch.Tensor,
    seed: int | None,
    config: GenerationConfig,
    end_tokens: Collection[int],
    pad_token: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Responses to prompts i64[B, P], bool[B, P]: tokens i64[B, R] and their mask bool[B, R].

    Without a ``seed``, the likeliest token is taken.

    Raises:
        ResourceError: HF812 for a model of which this rank holds a shard or a slice.
        HfError: HF811 for a row that the engine fails to generate.
    """
    if is_sharded(policy) or policy.tp.size > 1:
        cut = 'sharding="fsdp"' if is_sharded(policy) else f"the mesh axis tp={policy.tp.size}"
        raise ResourceError(
            "HF812",
            f'engine="continuous" needs the whole model on every rank, and {cut} gives a part to each; '
            "use a Sampler on a pool of its own",
        )
    prompts = [row[real].tolist() for row, real in zip(ids.cpu(), mask.cpu(), strict=True)]
    outputs = policy.model.generate_batch(
        prompts,
        generation_config=HuggingFaceConfig(
            max_new_tokens=config.max_tokens,
            do_sample=seed is not None,
            temperature=policy.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            eos_token_id=sorted(end_tokens) or [-1],
            pad_token_id=pad_token,
        ),
        continuous_batching_config=_sizes(ids, seed, config),
    )
    tokens = torch.full((len(ids), config.max_tokens), pad_token)
    lengths = torch.zeros(len(ids), 1, dtype=torch.int64)
    for row, output in enumerate(outputs.values()):
        if output.error is not None:
            raise bad_row(row, f"continuous batching gave it up: {output.error}")
        tokens[row, : len(output.generated_tokens)] = torch.tensor(output.generated_tokens)
        lengths[row] = len(output.generated_tokens)
    return tokens.to(ids.device), (torch.arange(config.max_tokens) < lengths).to(ids.device)


def _sizes(ids: torch.Tensor, seed: int | None, config: GenerationConfig) -> ContinuousBatchingConfig:
    """The size of the cache: on a GPU a share of the free memory, on a CPU what these rows need."""
    options: dict[str, Any] = {"max_memory_percent": config.cache_memory}
    if seed is not None:
        options["seed"] = seed % 2**31
    if hasattr(ContinuousBatchingConfig, "auto_switch_to_flash"):  # newer versions
        options["auto_switch_to_flash"] = False  # else it downloads kernels from the hub
    if not ids.is_cuda:
        pages = -(-(ids.shape[1] + config.max_tokens) // PAGE)
        options |= {"num_blocks": len(ids) * pages + 1, "max_batch_tokens": max(ids.shape[1], PAGE)}
    return ContinuousBatchingConfig(**options)
