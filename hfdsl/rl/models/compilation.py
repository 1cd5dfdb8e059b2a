"""Blocks of a model compiled by torch, each by itself.

All blocks of a model run the same code, so one compilation serves all of them. What surrounds a block stays as it is:
FSDP gathers its parameters before it and frees them after it, and checkpointing runs it a second time. Steps of
generation, which have a cache, are not compiled: their shapes change with every token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from transformers.cache_utils import Cache

RECOMPILE_LIMIT: Final = 64
"""How many versions of a block there may be: models of a process share the count, and each has one with gradients, one
without, and one more where a dim is 1."""


def compile_blocks(model: Any) -> None:
    """Compile the blocks of a model at their first use; the whole backbone where the model names no blocks."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
    names = tuple(model._no_split_modules or ())
    blocks = [module for module in model.base_model.modules() if type(module).__name__ in names]
    compiled = torch.compile(_forward, dynamic=True)  # micro-batches have many shapes
    for block in blocks or [model.base_model]:
        # The attribute of the instance, so that hooks around ``forward`` are not compiled.
        block.forward = partial(_without_cache, compiled, block)


def _forward(block: nn.Module, *arguments: Any, **options: Any) -> Any:
    # By the class at the time of the call: FSDP changes it, and transformers checkpoints in its ``forward``.
    return type(block).forward(block, *arguments, **options)


def _without_cache(compiled: Callable[..., Any], block: nn.Module, *arguments: Any, **options: Any) -> Any:
    """Run the compiled block, or with a cache the block itself."""
    caches = options.get("use_cache") or any(isinstance(value, Cache) for value in (*arguments, *options.values()))
    return (_forward if caches else compiled)(block, *arguments, **options)
