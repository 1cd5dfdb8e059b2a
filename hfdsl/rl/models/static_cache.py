"""The state that the captured steps of all shapes of batches share: weights, a key-value cache, and graphs.

One batch runs at a time and leaves nothing behind that the next one needs, so all shapes use the same memory:

- ``CacheMemory`` is a flat tensor for each layer's keys and one for its values, as large as the largest batch needs; a
  batch of another shape is another view of it.
- ``GraphCache`` captures all graphs into one memory pool, where intermediate results of one graph overwrite those of
  another.
- ``SharedState.refresh`` casts the weights of linear layers to the dtype of autocast once a batch. Without it every
  step, and so every token, would cast all of them again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.func import functional_call
from transformers.cache_utils import StaticCache, StaticLayer

from hfdsl.rl.models.forward import Policy
from hfdsl.rl.models.grouped_attention import grouped_attention

MAX_GRAPHS = 64
"""The most graphs of a cache, which drops the least recently used."""

GraphKey: TypeAlias = tuple[Hashable, int, int]
"""A graph's shape of batches, the rows that it decodes, and the slots of the cache that it reads."""


class SharedState:
    """A policy whose steps are captured, and the memory that they hold between calls."""

    def __init__(self, policy: Policy, dtype: torch.dtype | None) -> None:
        self.dtype, self.memory, self.graphs = dtype, CacheMemory(), GraphCache()
        self.layers = len(StaticCache(policy.model.config.get_text_config(), max_cache_len=1).layers)
        self._next_logits, self._config = _NextLogits(policy), policy.model.config
        self._weights: dict[str, torch.Tensor] = {}

    def next_logits(
        self, ids: torch.Tensor, mask: torch.Tensor, token_positions: torch.Tensor, cache: Any
    ) -> tuple[torch.Tensor, Any]:
        """``Policy.next_logits`` with the copies of the weights that ``refresh`` made."""
        with grouped_attention(self._config):
            result: tuple[torch.Tensor, Any] = functional_call(
                self._next_logits, self._weights, (ids, mask, token_positions, cache), tie_weights=False
            )
        return result

    def refresh(self) -> None:
        """Copy the weights of linear layers, cast to the dtype of autocast."""
        self._weights = self._weights or self._empty_copies()
        for name, weight in self._weights.items():
            weight.copy_(self._next_logits.get_parameter(name))

    def _empty_copies(self) -> dict[str, torch.Tensor]:
        if self.dtype is None:
            return {}
        return {
            f"{name}.{kind}": torch.empty_like(weight, dtype=self.dtype, requires_grad=False)
            for name, inner in self._next_logits.named_modules()
            if isinstance(inner, nn.Linear)
            for kind, weight in inner.named_parameters(recurse=False)
            if weight.dtype == torch.float32
        }

    def addresses(self) -> tuple[int, ...]:
        """The addresses of parameters and buffers, which graphs read."""
        module = self._next_logits
        return tuple(tensor.data_ptr() for group in (module.parameters(), module.buffers()) for tensor in group)

    def forget(self) -> None:
        """Free the weights, the cache and the graphs."""
        self._weights.clear()
        self.memory.clear()
        self.graphs.clear()

    def nbytes(self) -> int:
        """The bytes of the weights, the cache and the graphs."""
        return sum(weight.nbytes for weight in self._weights.values()) + self.memory.nbytes() + self.graphs.nbytes()


class _NextLogits(nn.Module):
    """``Policy.next_logits`` as the forward pass of a module, which ``functional_call`` needs."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, token_positions: torch.Tensor, cache: Any
    ) -> tuple[torch.Tensor, Any]:
        return self.policy.next_logits(ids, mask, token_positions, cache)


class CacheMemory:
    """Memory for the keys and values of ``tokens`` tokens, which batches of any shape use in turn."""

    def __init__(self) -> None:
        self.tokens = 0
        self._flat: dict[Hashable, torch.Tensor] = {}

    def view(self, name: Hashable, shape: tuple[int, int, int, int], like: torch.Tensor, dtype: Any) -> torch.Tensor:
        """A tensor [b, heads, slots, width] of at most ``tokens`` tokens."""
        rows, heads, slots, width = shape
        if name not in self._flat:
            self._flat[name] = torch.zeros(self.tokens * heads * width, dtype=dtype, device=like.device)
        return self._flat[name][: rows * slots * heads * width].view(shape)

    def clear(self) -> None:
        """Free the memory; the next view allocates it again."""
        self._flat.clear()

    def nbytes(self) -> int:
        """The bytes of the memory."""
        return sum(flat.nbytes for flat in self._flat.values())


class GraphCache:
    """Captured steps in one memory pool: one runs at a time, and leaves nothing there that another needs."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[GraphKey, torch.cuda.CUDAGraph] = OrderedDict()
        self._pool: Any = None

    def replay(self, key: GraphKey) -> bool:
        """Replay a step; False if it has not been captured."""
        if key not in self._graphs:
            return False
        self._graphs.move_to_end(key)
        self._graphs[key].replay()
        return True

    def capture(self, key: GraphKey, step: Callable[[], None]) -> None:
        """Capture a step without running it."""
        while len(self._graphs) >= MAX_GRAPHS:
            self._graphs.popitem(last=False)
        if not self._graphs:  # CUDA frees a pool with its last graph
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"):  # roles share a process
            step()
        self._graphs[key] = graph

    def drop(self, shape: Hashable) -> None:
        """Drop the graphs for a shape of batches."""
        for key in [key for key in self._graphs if key[0] == shape]:
            del self._graphs[key]

    def clear(self) -> None:
        """Drop all graphs, and with them their memory."""
        self._graphs.clear()

    def nbytes(self) -> int:
        """The bytes of their memory pool."""
        if not self._graphs:
            return 0
        segments = torch.cuda.memory_snapshot()
        pool = tuple(self._pool)
        return sum(segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) == pool)


class PrefixLayer(StaticLayer):
    """A layer's keys and values, in the dtype that attention casts them to.

    Attention reads the first ``reach`` slots of the rows of a step.
    """

    keys: Any  # None before the first tokens
    values: Any

    def __init__(self, memory: CacheMemory, layer: int, rows: int, slots: int, dtype: torch.dtype | None) -> None:
        super().__init__(max_cache_len=slots)
        self.memory, self.layer, self.rows, self.storage_dtype, self.reach = memory, layer, rows, dtype, slots

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the tensors: the number of heads and their width are known now."""
        self.dtype, self.device = self.storage_dtype or key_states.dtype, key_states.device
        self.keys, self.values = (
            self.memory.view(
                (self.layer, kind),
                (self.rows, states.shape[1], self.max_cache_len, states.shape[3]),
                states,
                self.dtype,
            )
            for kind, states in (("keys", key_states), ("values", value_states))
        )
        self.cumulative_length = self.cumulative_length.to(self.device)
        self.is_initialized = True

    def prefill(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Start over with the keys and values of prompts; the slots after them are masked, whatever they hold."""
        self.cumulative_length.zero_()
        self.update(keys, values)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append tokens to the first rows, and return the keys and values that attention reads."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, _, count, _ = key_states.shape
        slots = torch.arange(count, device=self.device) + self.cumulative_length
        self.cumulative_length.add_(count)
        keys, values = self.keys[:rows], self.values[:rows]
        keys.index_copy_(2, slots, key_states.to(self.dtype))
        values.index_copy_(2, slots, value_states.to(self.dtype))
        return keys[:, :, : self.reach], values[:, :, : self.reach]

    def keep(self, rows: torch.Tensor, filled: int) -> None:
        """Move these rows to the front; ``filled`` slots of each are in use."""
        for column in (self.keys, self.values):
            column[: len(rows), :, :filled] = column[:, :, :filled].index_select(0, rows)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of slots that attention reads, and the first of them."""
        return self.reach, 0
