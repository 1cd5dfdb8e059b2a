"""Compilation of a model's blocks by torch, one by one.

All blocks of a model run the same code, so one compilation serves all of them. Whatever surrounds a block stays
unchanged: FSDP gathers its parameters before it and frees them after it, and checkpointing runs it a second time. Steps
of generation, which have a cache, are not compiled: their shapes change with every token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from transformers.cache_utils import Cache

RECOMPILE_LIMIT: Final = 64
"""The most versions of a block. The models of a process share the count, and each has a version with gradients, one
without, and another if a dim is 1."""


def compile_blocks(model: Any) -> None:
    """Compile the blocks of a model at their first use; the whole backbone where the model names no blocks."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
    names = tuple(model._no_split_modules or ())
    blocks = [module for module in model.base_model.modules() if type(module).__name__ in names]
    compiled = torch.compile(_forward, dynamic=True)  # micro-batches have many shapes
    for block in blocks or [model.base_model]:
        # Set on the instance, so that hooks around ``forward`` are not compiled.
        block.forward = partial(_without_cache, compiled, block)


def _forward(block: nn.Module, *arguments: Any, **options: Any) -> Any:
    # The class at the time of the call: FSDP changes it, and the ``forward`` of transformers does checkpointing.
    return type(block).forward(block, *arguments, **options)


def _without_cache(compiled: Callable[..., Any], block: nn.Module, *arguments: Any, **options: Any) -> Any:
    """Run the compiled block, or with a cache the block itself."""
    has_cache = options.get("use_cache") or any(isinstance(value, Cache) for value in (*arguments, *options.values()))
    return (_forward if has_cache else compiled)(block, *arguments, **options)
