"""Sampling in steps of fixed shapes, which a GPU takes as CUDA graphs.

An eager model gives a GPU one small kernel after the other, and the GPU waits for most of them. Here the whole step of
a token, with its sampling, is captured once and replayed. On a CPU it runs as it stands.
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
from hfdsl.rl.workers.config import FloatDType, GenerationConfig

CHECK_EVERY = 8
"""After how many tokens it is looked how many rows go on: a look is a wait for the GPU."""

SPAN = 128
"""A step attends to a multiple of so many places of the cache, so that early tokens do not read all of it."""

MAX_SPANS = 16
"""The most of such multiples; where there are more places than these cover, the spans are longer."""

MIN_ROWS = 8
"""A batch is halved as its rows end, down to so many: each size takes graphs, and fewer rows are hardly faster."""

MAX_SHAPES = 3
"""For how many shapes of batches steps are kept."""


def capture_obstacle(policy: Policy) -> str | None:
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
class BatchShape:
    """What steps are for: rows, tokens of a prompt, whether the likeliest token is taken, and where."""

    rows: int
    width: int
    greedy: bool
    device: torch.device


class CapturedGenerator:
    """Samples responses to batches of the same few shapes, over and over."""

    def __init__(
        self,
        policy: Policy,
        config: GenerationConfig,
        end_tokens: Collection[int],
        pad_token: int,
        dtype: FloatDType | None,
    ) -> None:
        self._how = config, sorted(end_tokens), pad_token
        self._shared = SharedState(policy, getattr(torch, dtype) if dtype else None)
        self._kept: OrderedDict[BatchShape, _CapturedBatch] = OrderedDict()
        self._where: tuple[int, ...] = ()

    def __call__(
        self, ids: torch.Tensor, mask: torch.Tensor, uniforms: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As :func:`hfdsl.rl.models.generation.generate` with the same prompts."""
        shape = BatchShape(ids.shape[0], ids.shape[1], greedy=uniforms is None, device=ids.device)
        places = -(-(shape.width + self._how[0].max_tokens) // 8) * 8  # kernels of masked attention want eights
        where, room = self._shared.addresses(), self._shared.room
        if where != self._where or shape.rows * places > room.tokens:  # a graph reads and writes where things were
            self.forget()
            self._where, room.tokens = where, max(room.tokens, shape.rows * places)
        steps = self._kept.pop(shape, None) or _CapturedBatch(shape, self._shared, places, *self._how)
        while len(self._kept) >= MAX_SHAPES:
            gone, _ = self._kept.popitem(last=False)
            self._shared.graphs.drop(gone)
        self._kept[shape] = steps
        return steps.run(ids, mask, uniforms)

    def forget(self) -> None:
        """Give back what is kept between calls."""
        self._kept.clear()
        self._shared.forget()

    def kept(self) -> int:
        """How many bytes are kept between calls."""
        return self._shared.kept() + sum(steps.kept() for steps in self._kept.values())


@dataclass(frozen=True, slots=True)
class _BatchState:
    """Where the rows of a batch are, those that are still decoded first."""

    uniforms: torch.Tensor
    tokens: torch.Tensor
    response_mask: torch.Tensor
    attended: torch.Tensor
    alive: torch.Tensor
    last: torch.Tensor  # the token before, and its position
    position: torch.Tensor
    origin: torch.Tensor  # the place in the batch that was asked for

    @classmethod
    def of(cls, shape: BatchShape, length: int, places: int) -> _BatchState:
        def zeros(*size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape.rows, *size, dtype=dtype, device=shape.device)

        return cls(
            uniforms=zeros(length, dtype=torch.float32),
            tokens=zeros(length),
            response_mask=zeros(length, dtype=torch.bool),
            attended=zeros(places),
            alive=zeros(dtype=torch.bool),
            last=zeros(1),
            position=zeros(1),
            origin=zeros(),
        )

    def all(self) -> list[torch.Tensor]:
        return [getattr(self, one.name) for one in fields(self)]

    def first(self, rows: int) -> _BatchState:
        return _BatchState(*(column[:rows] for column in self.all()))


class _CapturedBatch:
    """A batch in tensors that stay where they are, and the steps that change them."""

    def __init__(
        self, shape: BatchShape, shared: SharedState, places: int, config: GenerationConfig, ends: list[int], pad: int
    ) -> None:
        self.shape, self.shared, self.config, self.places, self.pad = shape, shared, config, places, pad
        self.span = max(SPAN, -(-places // (8 * MAX_SPANS)) * 8)
        self.layers = [
            PrefixLayer(shared.room, number, shape.rows, places, shared.dtype) for number in range(shared.layers)
        ]
        self.cache = Cache(layers=list(self.layers))
        self.ends = torch.tensor(ends, dtype=torch.int64, device=shape.device)
        self.number = torch.zeros(1, dtype=torch.int64, device=shape.device)  # of the token that comes next
        self.state = _BatchState.of(shape, config.max_tokens, places)

    def kept(self) -> int:
        """The bytes of what is not shared."""
        return sum(column.nbytes for column in (*self.state.all(), self.ends, self.number))

    @torch.no_grad()
    def run(
        self, ids: torch.Tensor, mask: torch.Tensor, uniforms: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Responses to prompts i64[b, P], bool[b, P]."""
        dtype, state, rows = self.shared.dtype, self.state, self.shape.rows
        computing = torch.autocast(  # without its cache: a graph must not read weights as they were
            ids.device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False
        )
        with computing:
            self._begin(ids, mask, uniforms)
            for number in range(1, self.config.max_tokens):
                if number % CHECK_EVERY == 0:
                    living = int(state.alive[:rows].sum())
                    if not living:
                        break
                    rows = self._compacted(rows, living, self.shape.width + number - 1)
                self._step(rows, min(-(-(self.shape.width + number) // self.span) * self.span, self.places))
        back = state.origin.argsort()
        return state.tokens[back], state.response_mask[back]

    def _begin(self, ids: torch.Tensor, mask: torch.Tensor, uniforms: torch.Tensor | None) -> None:
        self.shared.refresh()
        state = self.state
        if uniforms is not None:
            state.uniforms.copy_(uniforms)
        state.tokens.fill_(self.pad)
        state.response_mask.zero_()
        state.attended.zero_()[:, : self.shape.width] = mask
        state.alive.fill_(True)
        torch.arange(self.shape.rows, out=state.origin)
        self.number.zero_()
        place = positions(mask)
        state.position.copy_(place[:, -1:])
        logits, filled = self.shared.next_logits(ids, mask.long(), place, None)
        for layer, part in zip(self.layers, filled.layers, strict=True):
            layer.refill(part.keys, part.values)
        self._take(logits, state)

    def _compacted(self, rows: int, living: int, filled: int) -> int:
        """How many rows go on: halves, as long as all living ones are among them; these go to the front.

        So many places of their cache are filled: the last token has not been through the model.
        """
        fewer = rows
        while living <= -(-fewer // 2) < fewer and -(-fewer // 2) >= MIN_ROWS:
            fewer = -(-fewer // 2)
        if fewer < rows:
            order = self.state.alive[:rows].logical_not().long().argsort(stable=True)
            for column in self.state.first(rows).all():
                column.copy_(column[order])
            for layer in self.layers:
                layer.keep(order[:fewer], filled)
        return fewer

    def _step(self, rows: int, reach: int) -> None:
        """One more token, which attends to the first ``reach`` places; the first such step is followed by a capture."""
        key = self.shape, rows, reach
        if self.shared.graphs.replayed(key):
            return
        self._next(rows, reach)
        if self.shape.device.type == "cuda":
            self.shared.graphs.capture(key, lambda: self._next(rows, reach))

    def _next(self, rows: int, reach: int) -> None:
        state = self.state.first(rows)
        for layer in self.layers:
            layer.reach = reach
        logits, _ = self.shared.next_logits(state.last, state.attended[:, :reach], state.position, self.cache)
        self._take(logits, state)

    def _take(self, logits: torch.Tensor, state: _BatchState) -> None:
        """Sample a token and go on to the next, all on the GPU."""
        if self.shape.greedy:
            token = logits.argmax(-1)
        else:
            drawn = state.uniforms.index_select(1, self.number).squeeze(1)
            token = sample(logits, drawn, self.config.top_p, self.config.top_k)
        token = torch.where(state.alive, token, self.pad)
        state.tokens.index_copy_(1, self.number, token[:, None])
        state.response_mask.index_copy_(1, self.number, state.alive[:, None])
        state.attended.index_copy_(1, self.number + self.shape.width, state.alive[:, None].long())
        state.alive.logical_and_((token[:, None] != self.ends).all(1))
        state.last.copy_(token[:, None])
        state.position.add_(1)
        self.number.add_(1)
