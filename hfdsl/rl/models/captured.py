"""Sampling in steps of fixed shapes, which a GPU takes as CUDA graphs.

An eager model gives a GPU one small kernel after the other, and the GPU waits for most of them. Here the whole step of
a token, with its sampling, is captured once and replayed. On a CPU it runs as it stands.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from transformers.cache_utils import Cache, StaticCache, StaticLayer

from hfdsl.rl.models.forward import Policy, positions
from hfdsl.rl.models.generation import sample
from hfdsl.rl.models.sharding import is_sharded
from hfdsl.rl.workers.config import DType, GenerationConfig

LOOK = 8
"""After how many tokens it is looked whether all rows have ended: a look is a wait for the GPU."""

SPAN = 128
"""A step attends to a multiple of so many places of the cache, so that early tokens do not read all of it."""

SHAPES = 3
"""For how many shapes of batches steps are kept, each with a cache of its own."""


def obstacle(policy: Policy) -> str | None:
    """Why the steps of a policy cannot be captured; None where they can."""
    name, config = type(policy.model).__name__, policy.model.config.get_text_config()
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if is_sharded(policy):
        return 'sharding="fsdp" gives every rank a part of the model'
    if policy.tp.size > 1:
        return f"the mesh axis tp={policy.tp.size} slices the model"
    if not policy.model._can_compile_fullgraph:  # what transformers itself asks before it compiles
        return f"transformers does not compile {name}"
    if any(type(layer) is not StaticLayer for layer in StaticCache(config, max_cache_len=1).layers):
        return f"not all layers of {name} attend to all tokens"
    if rope in ("dynamic", "longrope"):
        return f"the rotations of {name} with rope_type={rope!r} depend on how long its sequences are"
    return None


@dataclass(frozen=True, slots=True)
class Shape:
    """What a graph is captured for: rows, tokens of a prompt, whether the likeliest token is taken, and where."""

    rows: int
    width: int
    greedy: bool
    device: torch.device


class Captured:
    """Samples responses to batches of the same few shapes, over and over."""

    def __init__(
        self, policy: Policy, config: GenerationConfig, end_tokens: Collection[int], pad_token: int, dtype: DType | None
    ) -> None:
        self._how = policy, config, sorted(end_tokens), pad_token, dtype
        self._kept: OrderedDict[Shape, _Steps] = OrderedDict()
        self._where: tuple[int, ...] = ()

    def __call__(
        self, ids: torch.Tensor, mask: torch.Tensor, uniforms: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As :func:`hfdsl.rl.models.generation.generate` with the same prompts."""
        shape = Shape(ids.shape[0], ids.shape[1], greedy=uniforms is None, device=ids.device)
        where = tuple(weight.data_ptr() for weight in self._how[0].parameters())  # a graph reads them there
        if where != self._where:
            self.forget()
            self._where = where
        steps = self._kept.pop(shape, None) or _Steps(shape, *self._how)
        while len(self._kept) >= SHAPES:
            self._kept.popitem(last=False)
        self._kept[shape] = steps
        return steps.run(ids, mask, uniforms)

    def forget(self) -> None:
        """Give back what is kept between calls."""
        self._kept.clear()


class _Steps:
    """A batch in tensors that stay where they are, and the steps that change them."""

    def __init__(
        self, shape: Shape, policy: Policy, config: GenerationConfig, ends: list[int], pad: int, dtype: DType | None
    ) -> None:
        rows, length, here = shape.rows, config.max_tokens, shape.device
        places = -(-(shape.width + length) // 8) * 8  # kernels of masked attention want eights
        layers = len(StaticCache(policy.model.config.get_text_config(), max_cache_len=1).layers)
        self.shape, self.config, self.places, self.pad = shape, config, places, pad
        self.dtype = getattr(torch, dtype) if dtype else None
        self.layers = [_Prefix(places, self.dtype) for _ in range(layers)]
        self.cache = Cache(layers=list(self.layers))
        self.ends = torch.tensor(ends, dtype=torch.int64, device=here)
        self.uniforms = torch.zeros(rows, length, device=here)
        self.tokens = torch.zeros(rows, length, dtype=torch.int64, device=here)
        self.response_mask = torch.zeros(rows, length, dtype=torch.bool, device=here)
        self.attended = torch.zeros(rows, places, dtype=torch.int64, device=here)
        self.alive = torch.zeros(rows, dtype=torch.bool, device=here)
        self.last = torch.zeros(rows, 1, dtype=torch.int64, device=here)  # the token before, and its position
        self.position = torch.zeros(rows, 1, dtype=torch.int64, device=here)
        self.number = torch.zeros(1, dtype=torch.int64, device=here)  # of the token that comes next
        self.following = _Following(policy)
        self.weights = _products(self.following, self.dtype)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @torch.no_grad()
    def run(
        self, ids: torch.Tensor, mask: torch.Tensor, uniforms: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Responses to prompts i64[b, P], bool[b, P]."""
        computing = torch.autocast(  # without its cache: a graph must not read weights as they were
            ids.device.type, dtype=self.dtype, enabled=self.dtype is not None, cache_enabled=False
        )
        with computing:
            self._begin(ids, mask, uniforms)
            for number in range(1, self.config.max_tokens):
                if number % LOOK == 0 and not self.alive.any():
                    break
                self._step(min(-(-(self.shape.width + number) // SPAN) * SPAN, self.places))
        return self.tokens.clone(), self.response_mask.clone()

    def _begin(self, ids: torch.Tensor, mask: torch.Tensor, uniforms: torch.Tensor | None) -> None:
        for name, weight in self.weights.items():
            weight.copy_(self.following.get_parameter(name))
        if uniforms is not None:
            self.uniforms.copy_(uniforms)
        self.tokens.fill_(self.pad)
        self.response_mask.zero_()
        self.attended.zero_()[:, : self.shape.width] = mask
        self.alive.fill_(True)
        self.number.zero_()
        place = positions(mask)
        self.position.copy_(place[:, -1:])
        logits, filled = self._logits(ids, mask.long(), place, None)
        for layer, part in zip(self.layers, filled.layers, strict=True):
            layer.refill(part.keys, part.values)
        self._take(logits)

    def _step(self, reach: int) -> None:
        """One more token, which attends to the first ``reach`` places; the first such step is followed by a capture."""
        if reach in self.graphs:
            self.graphs[reach].replay()
            return
        self._next(reach)
        if self.shape.device.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # roles may share the process
                self._next(reach)
            self.graphs[reach] = graph

    def _next(self, reach: int) -> None:
        for layer in self.layers:
            layer.reach = reach
        logits, _ = self._logits(self.last, self.attended[:, :reach], self.position, self.cache)
        self._take(logits)

    def _logits(
        self, ids: torch.Tensor, mask: torch.Tensor, places: torch.Tensor, cache: Any
    ) -> tuple[torch.Tensor, Any]:
        found: tuple[torch.Tensor, Any] = functional_call(
            self.following, self.weights, (ids, mask, places, cache), tie_weights=False
        )
        return found

    def _take(self, logits: torch.Tensor) -> None:
        """Sample a token and go on to the next, all on the GPU."""
        if self.shape.greedy:
            token = logits.argmax(-1)
        else:
            drawn = self.uniforms.index_select(1, self.number).squeeze(1)
            token = sample(logits, drawn, self.config.top_p, self.config.top_k)
        token = torch.where(self.alive, token, self.pad)
        self.tokens.index_copy_(1, self.number, token[:, None])
        self.response_mask.index_copy_(1, self.number, self.alive[:, None])
        self.attended.index_copy_(1, self.number + self.shape.width, self.alive[:, None].long())
        self.alive.logical_and_((token[:, None] != self.ends).all(1))
        self.last.copy_(token[:, None])
        self.position.add_(1)
        self.number.add_(1)


class _Following(nn.Module):
    """``Policy.following`` as the forward pass of a module, which ``functional_call`` wants."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, places: torch.Tensor, cache: Any
    ) -> tuple[torch.Tensor, Any]:
        return self.policy.following(ids, mask, places, cache)


class _Prefix(StaticLayer):
    """Keys and values in the dtype that attention casts them to; attention sees the first ``reach`` places."""

    def __init__(self, places: int, dtype: torch.dtype | None) -> None:
        super().__init__(max_cache_len=places)
        self.kept_in, self.reach = dtype, places

    def refill(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Begin with those of a prompt; what comes after them is masked."""
        self.cumulative_length.zero_()
        self.update(keys, values)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = self.kept_in or key_states.dtype
        keys, values = super().update(key_states.to(dtype), value_states.to(dtype))
        return keys[:, :, : self.reach], values[:, :, : self.reach]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.reach, 0


def _products(module: nn.Module, dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    """Room for the weights of linear layers in the dtype that autocast takes them in, so that a step need not cast."""
    if dtype is None:
        return {}
    return {
        f"{name}.{kind}": torch.empty_like(weight, dtype=dtype, requires_grad=False)
        for name, inner in module.named_modules()
        if isinstance(inner, nn.Linear)
        for kind, weight in inner.named_parameters(recurse=False)
        if weight.dtype == torch.float32
    }
