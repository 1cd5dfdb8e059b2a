"""Sampling in steps of fixed shapes, which a GPU runs as CUDA graphs.

An eager model launches one small kernel after another, and the GPU idles between most of them. Here the whole step of
a token, sampling included, is captured once and replayed. On a CPU the same steps run eagerly.

An example
----------
Four prompts of 5 tokens, with spans of ``SPAN = 8`` cache slots and a check every ``CHECK_EVERY = 2`` tokens (the real
numbers are larger)::

    token   rows   slots attended   what runs
      0       4      5 (prompt)     the model over the prompts, eagerly; their keys and values go to slots 0 to 4
      1       4      8              the step eagerly, then captured as graph (4 rows, 8 slots)
      2       4      8              check: 3 rows active, more than half; replay (4, 8)
      3       4      8              replay (4, 8)
      4       2     16              check: 2 rows active; they move to the front; new graph (2, 16)
      5       2     16              replay (2, 16)

So few graphs serve a batch: one for each halving of its rows and each multiple of ``SPAN``, not one for each token.

Why the tokens are those of the plain engine, up to rounding: a row attends to its own slots only, so rows that leave
change nothing for the others. Slots beyond the current token are masked, and their attention weights are exactly 0, so
a longer reach changes nothing either. Each row is sampled with its own uniforms, wherever it has moved; ``origin``
holds its place in the caller's batch, and puts the results back in order.

Why replaying is safe: a graph reads and writes fixed addresses. Everything that changes from step to step (the number
of the token, the positions, the masks) is in tensors that are updated in place; nothing in a step depends on a Python
number. The weights' addresses are compared before each batch, and all graphs are dropped if they have moved, as after
an offload. An update or an ``hf.sync`` writes weights in place, so graphs stay valid.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, fields

import torch
from transformers.cache_utils import Cache, StaticCache, StaticLayer

from hfdsl.rl.models.forward import Policy, positions
from hfdsl.rl.models.generation import sample
from hfdsl.rl.models.sharding import is_sharded
from hfdsl.rl.models.static_cache import PrefixLayer, SharedState
from hfdsl.rl.workers.config import GenerationConfig
from hfdsl.rl.workers.model_config import FloatDType

CHECK_EVERY = 8
"""The tokens between two counts of the active rows; each count waits for the GPU."""

SPAN = 128
"""A step attends to a multiple of this many slots of the cache, so that early tokens do not read all of it."""

MAX_SPANS = 16
"""The most spans of a cache, and so the most graphs for a number of rows; a longer cache has longer spans."""

MIN_ROWS = 8
"""The rows below which a batch is not halved: each size needs graphs of its own, and fewer rows are hardly faster."""

MAX_SHAPES = 3
"""The most shapes of batches whose graphs are kept."""


def capture_obstacle(policy: Policy) -> str | None:
    """Why the steps of a policy cannot be captured; None if they can."""
    name, config = type(policy.model).__name__, policy.model.config.get_text_config()
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if is_sharded(policy):
        return 'sharding="fsdp" gives every rank a part of the model'
    if policy.tp.size > 1:
        return f"the mesh axis tp={policy.tp.size} slices the model"
    if not policy.model._can_compile_fullgraph:  # the condition of transformers itself
        return f"transformers does not compile {name}"
    if any(type(layer) is not StaticLayer for layer in StaticCache(config, max_cache_len=1).layers):
        return f"not all layers of {name} attend to all tokens"
    if rope in ("dynamic", "longrope"):
        return f"the rotations of {name} with rope_type={rope!r} depend on how long its sequences are"
    return None


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The shape of a batch, on which its graphs depend."""

    rows: int
    width: int
    """The columns of the prompts."""

    greedy: bool
    device: torch.device


class CapturedGenerator:
    """Samples responses to many batches of few shapes."""

    def __init__(
        self,
        policy: Policy,
        config: GenerationConfig,
        end_tokens: Collection[int],
        pad_token: int,
        dtype: FloatDType | None,
    ) -> None:
        self._config, self._end_tokens, self._pad_token = config, sorted(end_tokens), pad_token
        self._shared = SharedState(policy, getattr(torch, dtype) if dtype else None)
        self._batches: OrderedDict[BatchShape, _CapturedBatch] = OrderedDict()
        self._addresses: tuple[int, ...] = ()

    def __call__(
        self, ids: torch.Tensor, mask: torch.Tensor, uniforms: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The responses of :func:`hfdsl.rl.models.generation.generate` to the same prompts."""
        shape = BatchShape(ids.shape[0], ids.shape[1], greedy=uniforms is None, device=ids.device)
        # Kernels of masked attention want lengths that are multiples of 8.
        slots = -(-(shape.width + self._config.max_tokens) // 8) * 8
        addresses, memory = self._shared.addresses(), self._shared.memory
        if addresses != self._addresses or shape.rows * slots > memory.tokens:
            # Graphs read and write the addresses of weights and cache at their capture.
            self.forget()
            self._addresses, memory.tokens = addresses, max(memory.tokens, shape.rows * slots)
        batch = self._batches.pop(shape, None) or _CapturedBatch(
            shape=shape,
            shared=self._shared,
            slots=slots,
            config=self._config,
            end_tokens=self._end_tokens,
            pad_token=self._pad_token,
        )
        while len(self._batches) >= MAX_SHAPES:
            oldest, _ = self._batches.popitem(last=False)
            self._shared.graphs.drop(oldest)
        self._batches[shape] = batch
        return batch.run(ids, mask, uniforms)

    def forget(self) -> None:
        """Free all memory that stays allocated between calls."""
        self._batches.clear()
        self._shared.forget()

    def kept(self) -> int:
        """The bytes that stay allocated between calls."""
        return self._shared.nbytes() + sum(batch.nbytes() for batch in self._batches.values())


@dataclass(frozen=True, slots=True)
class _BatchState:
    """The state of a batch's rows, active ones first."""

    uniforms: torch.Tensor
    tokens: torch.Tensor
    response_mask: torch.Tensor
    attended: torch.Tensor
    active: torch.Tensor
    last: torch.Tensor
    """The token before the next one, i64[b, 1]."""

    position: torch.Tensor
    """The next token's position less one, which is the position of ``last``."""

    origin: torch.Tensor
    """Each row's number in the batch of the caller."""

    @classmethod
    def of(cls, shape: BatchShape, length: int, slots: int) -> _BatchState:
        def zeros(*size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape.rows, *size, dtype=dtype, device=shape.device)

        return cls(
            uniforms=zeros(length, dtype=torch.float32),
            tokens=zeros(length),
            response_mask=zeros(length, dtype=torch.bool),
            attended=zeros(slots),
            active=zeros(dtype=torch.bool),
            last=zeros(1),
            position=zeros(1),
            origin=zeros(),
        )

    def columns(self) -> list[torch.Tensor]:
        return [getattr(self, field.name) for field in fields(self)]

    def first(self, rows: int) -> _BatchState:
        return _BatchState(*(column[:rows] for column in self.columns()))


class _CapturedBatch:
    """A batch in tensors at fixed addresses, and the steps that update them."""

    def __init__(
        self,
        shape: BatchShape,
        shared: SharedState,
        slots: int,
        config: GenerationConfig,
        end_tokens: list[int],
        pad_token: int,
    ) -> None:
        self.shape, self.shared, self.config, self.slots, self.pad_token = shape, shared, config, slots, pad_token
        self.span = max(SPAN, -(-slots // (8 * MAX_SPANS)) * 8)
        self.layers = [
            PrefixLayer(shared.memory, layer, shape.rows, slots, shared.dtype) for layer in range(shared.layers)
        ]
        self.cache = Cache(layers=list(self.layers))
        self.end_tokens = torch.tensor(end_tokens, dtype=torch.int64, device=shape.device)
        self.token_index = torch.zeros(1, dtype=torch.int64, device=shape.device)  # of the next token in its response
        self.state = _BatchState.of(shape, config.max_tokens, slots)

    def nbytes(self) -> int:
        """The bytes of the tensors that other batches do not share."""
        return sum(column.nbytes for column in (*self.state.columns(), self.end_tokens, self.token_index))

    @torch.no_grad()
    def run(
        self, ids: torch.Tensor, mask: torch.Tensor, uniforms: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Responses to prompts i64[b, P], bool[b, P]."""
        dtype, state, rows = self.shared.dtype, self.state, self.shape.rows
        # A capture would include autocast's cache of cast weights, so replays would read those from before an update.
        autocast = torch.autocast(ids.device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False)
        with autocast:
            self._prefill(ids, mask, uniforms)
            for token_index in range(1, self.config.max_tokens):
                if token_index % CHECK_EVERY == 0:
                    active = int(state.active[:rows].sum())
                    if not active:
                        break
                    rows = self._compacted(rows, active, self.shape.width + token_index - 1)
                self._step(rows, min(-(-(self.shape.width + token_index) // self.span) * self.span, self.slots))
        order = state.origin.argsort()
        return state.tokens[order], state.response_mask[order]

    def _prefill(self, ids: torch.Tensor, mask: torch.Tensor, uniforms: torch.Tensor | None) -> None:
        """Run the model over the prompts, fill the cache, and sample the first token."""
        self.shared.refresh()
        state = self.state
        if uniforms is not None:
            state.uniforms.copy_(uniforms)
        state.tokens.fill_(self.pad_token)
        state.response_mask.zero_()
        state.attended.zero_()[:, : self.shape.width] = mask
        state.active.fill_(True)
        torch.arange(self.shape.rows, out=state.origin)
        self.token_index.zero_()
        prompt_positions = positions(mask)
        state.position.copy_(prompt_positions[:, -1:])
        logits, cache = self.shared.next_logits(ids, mask.long(), prompt_positions, None)
        for layer, prompt_layer in zip(self.layers, cache.layers, strict=True):
            layer.prefill(prompt_layer.keys, prompt_layer.values)
        self._sample(logits, state)

    def _compacted(self, rows: int, active: int, filled: int) -> int:
        """Halve the rows as long as all active ones fit, move these to the front, and return the number of rows.

        ``filled`` slots of the cache are in use: all but that of the last token, which no pass has read yet.
        """
        fewer = rows
        while active <= -(-fewer // 2) < fewer and -(-fewer // 2) >= MIN_ROWS:
            fewer = -(-fewer // 2)
        if fewer < rows:
            order = self.state.active[:rows].logical_not().long().argsort(stable=True)
            for column in self.state.first(rows).columns():
                column.copy_(column[order])
            for layer in self.layers:
                layer.keep(order[:fewer], filled)
        return fewer

    def _step(self, rows: int, reach: int) -> None:
        """Sample one more token, which attends to the first ``reach`` slots.

        The first step of its kind runs eagerly, since a capture records kernels without running them.
        """
        key = self.shape, rows, reach
        if self.shared.graphs.replay(key):
            return
        self._decode(rows, reach)
        if self.shape.device.type == "cuda":
            self.shared.graphs.capture(key, lambda: self._decode(rows, reach))

    def _decode(self, rows: int, reach: int) -> None:
        state = self.state.first(rows)
        for layer in self.layers:
            layer.reach = reach
        logits, _ = self.shared.next_logits(state.last, state.attended[:, :reach], state.position, self.cache)
        self._sample(logits, state)

    def _sample(self, logits: torch.Tensor, state: _BatchState) -> None:
        """Sample a token and advance the state, all on the GPU."""
        if self.shape.greedy:
            token = logits.argmax(-1)
        else:
            uniforms = state.uniforms.index_select(1, self.token_index).squeeze(1)
            token = sample(logits, uniforms, self.config.top_p, self.config.top_k)
        token = torch.where(state.active, token, self.pad_token)
        state.tokens.index_copy_(1, self.token_index, token[:, None])
        state.response_mask.index_copy_(1, self.token_index, state.active[:, None])
        state.attended.index_copy_(1, self.token_index + self.shape.width, state.active[:, None].long())
        state.active.logical_and_((token[:, None] != self.end_tokens).all(1))
        state.last.copy_(token[:, None])
        state.position.add_(1)
        self.token_index.add_(1)
