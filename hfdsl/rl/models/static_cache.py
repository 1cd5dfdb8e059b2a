"""What the captured steps of all shapes of batches share: weights, a cache, and graphs with their memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.func import functional_call
from transformers.cache_utils import StaticCache, StaticLayer

from hfdsl.rl.models.forward import Policy

MAX_GRAPHS = 64
"""How many graphs are kept, those that were used last."""

GraphKey: TypeAlias = tuple[Hashable, int, int]
"""The shape of batches that a graph is for, how many rows it decodes, and how many places of the cache it reads."""


class SharedState:
    """A policy whose steps are captured, and what they keep between calls."""

    def __init__(self, policy: Policy, dtype: torch.dtype | None) -> None:
        self.dtype, self.room, self.graphs = dtype, CacheMemory(), GraphCache()
        self.layers = len(StaticCache(policy.model.config.get_text_config(), max_cache_len=1).layers)
        self._next_logits = _NextLogits(policy)
        self._weights: dict[str, torch.Tensor] = {}

    def next_logits(
        self, ids: torch.Tensor, mask: torch.Tensor, places: torch.Tensor, cache: Any
    ) -> tuple[torch.Tensor, Any]:
        """``Policy.next_logits`` with the copies of weights that ``refresh`` has made."""
        found: tuple[torch.Tensor, Any] = functional_call(
            self._next_logits, self._weights, (ids, mask, places, cache), tie_weights=False
        )
        return found

    def refresh(self) -> None:
        """Copy weights of linear layers in the dtype that autocast takes them in, so that a step need not cast."""
        self._weights = self._weights or self._empty()
        for name, weight in self._weights.items():
            weight.copy_(self._next_logits.get_parameter(name))

    def _empty(self) -> dict[str, torch.Tensor]:
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
        """Where the parameters and buffers are: a graph reads them there."""
        module = self._next_logits
        return tuple(tensor.data_ptr() for group in (module.parameters(), module.buffers()) for tensor in group)

    def forget(self) -> None:
        """Give it all back."""
        self._weights.clear()
        self.room.clear()
        self.graphs.clear()

    def kept(self) -> int:
        """Its bytes."""
        return sum(weight.nbytes for weight in self._weights.values()) + self.room.kept() + self.graphs.kept()


class _NextLogits(nn.Module):
    """``Policy.next_logits`` as the forward pass of a module, which ``functional_call`` wants."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, places: torch.Tensor, cache: Any
    ) -> tuple[torch.Tensor, Any]:
        return self.policy.next_logits(ids, mask, places, cache)


class CacheMemory:
    """Memory for keys and values of so many tokens, which one batch uses after the other, whatever its shape."""

    def __init__(self) -> None:
        self.tokens = 0
        self._flat: dict[Hashable, torch.Tensor] = {}

    def part(self, name: Hashable, shape: tuple[int, int, int, int], like: torch.Tensor, dtype: Any) -> torch.Tensor:
        """A column [b, heads, places, width] of at most so many tokens."""
        rows, heads, places, width = shape
        if name not in self._flat:
            self._flat[name] = torch.zeros(self.tokens * heads * width, dtype=dtype, device=like.device)
        return self._flat[name][: rows * places * heads * width].view(shape)

    def clear(self) -> None:
        """Give it back; whoever asks again gets as much."""
        self._flat.clear()

    def kept(self) -> int:
        """Its bytes."""
        return sum(flat.nbytes for flat in self._flat.values())


class GraphCache:
    """Captured steps. One runs at a time and leaves nothing in its memory, so that all use the same."""

    def __init__(self) -> None:
        self._kept: OrderedDict[GraphKey, torch.cuda.CUDAGraph] = OrderedDict()
        self._pool: Any = None

    def replayed(self, key: GraphKey) -> bool:
        """Whether there was such a step to take."""
        if key not in self._kept:
            return False
        self._kept.move_to_end(key)
        self._kept[key].replay()
        return True

    def capture(self, key: GraphKey, step: Callable[[], None]) -> None:
        """Keep a step, which is not taken."""
        while len(self._kept) >= MAX_GRAPHS:
            self._kept.popitem(last=False)
        if not self._kept:  # a pool ends with its last graph
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"):  # roles may share the process
            step()
        self._kept[key] = graph

    def drop(self, shape: Hashable) -> None:
        """Give up the steps for a shape of batches."""
        for key in [key for key in self._kept if key[0] == shape]:
            del self._kept[key]

    def clear(self) -> None:
        """Give up all steps, and with them their memory."""
        self._kept.clear()

    def kept(self) -> int:
        """The bytes of their memory."""
        if not self._kept:
            return 0
        parts = torch.cuda.memory_snapshot()
        return sum(part["total_size"] for part in parts if tuple(part["segment_pool_id"]) == tuple(self._pool))


class PrefixLayer(StaticLayer):
    """Keys and values in the dtype that attention casts them to.

    Attention sees the first ``reach`` places of as many rows as a step has.
    """

    keys: Any  # None before the first tokens
    values: Any

    def __init__(self, room: CacheMemory, number: int, rows: int, places: int, dtype: torch.dtype | None) -> None:
        super().__init__(max_cache_len=places)
        self.room, self.number, self.rows, self.kept_in, self.reach = room, number, rows, dtype, places

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Take room, now that heads and their width are known."""
        self.dtype, self.device = self.kept_in or key_states.dtype, key_states.device
        self.keys, self.values = (
            self.room.part(
                (self.number, kind), (self.rows, given.shape[1], self.max_cache_len, given.shape[3]), given, self.dtype
            )
            for kind, given in (("keys", key_states), ("values", value_states))
        )
        self.cumulative_length = self.cumulative_length.to(self.device)
        self.is_initialized = True

    def refill(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Begin with those of a prompt; what comes after them is masked."""
        self.cumulative_length.zero_()
        self.update(keys, values)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add tokens to the first rows; what attention is to see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, _, count, _ = key_states.shape
        places = torch.arange(count, device=self.device) + self.cumulative_length
        self.cumulative_length.add_(count)
        keys, values = self.keys[:rows], self.values[:rows]
        keys.index_copy_(2, places, key_states.to(self.dtype))
        values.index_copy_(2, places, value_states.to(self.dtype))
        return keys[:, :, : self.reach], values[:, :, : self.reach]

    def keep(self, rows: torch.Tensor, filled: int) -> None:
        """Only these rows go on, from the front; so many places of them are in use."""
        for column in (self.keys, self.values):
            column[: len(rows), :, :filled] = column[:, :, :filled].index_select(0, rows)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many places attention sees, and from which on."""
        return self.reach, 0
