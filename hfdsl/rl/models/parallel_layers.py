"""What the ranks of ``tp`` say to each other in a pass (Shoeybi et al., 2019, Megatron-LM), and the modules that do.

Every rank of ``tp`` has the same rows. What it computes of them is whole and the same on all, or a slice by features,
heads or vocabulary. Where whole becomes sliced, gradients are added up; where slices become whole, values are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from hfdsl.protocols.collectives import AxisGroup

# -- the four crossings; the gradient of each is the crossing back -----------------------------------------------------


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, peers: AxisGroup) -> torch.Tensor:
        ctx.peers = peers
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.peers.all_reduce(grad_outputs[0].contiguous()), None


class _ReduceFromRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, peers: AxisGroup) -> torch.Tensor:
        return peers.all_reduce(part.contiguous())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad_outputs[0], None


class _GatherFromRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, peers: AxisGroup) -> torch.Tensor:
        ctx.peers = peers
        return gathered_slices(part, peers)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        return local_slice(grad_outputs[0], -1, ctx.peers), None


class _ScatterToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, peers: AxisGroup) -> torch.Tensor:
        ctx.peers = peers
        return local_slice(whole, -1, peers)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gathered_slices(grad_outputs[0], ctx.peers), None


def copy_to_ranks(whole: torch.Tensor, peers: AxisGroup) -> torch.Tensor:
    """What is whole on every rank, to be read by slices: each rank's gradient is a part of the sum."""
    found: torch.Tensor = _CopyToRanks.apply(whole, peers)  # type: ignore[no-untyped-call]  # of torch
    return found


def reduce_from_ranks(part: torch.Tensor, peers: AxisGroup) -> torch.Tensor:
    """The sum of all ranks' parts, whole on every rank."""
    found: torch.Tensor = _ReduceFromRanks.apply(part, peers)  # type: ignore[no-untyped-call]  # of torch
    return found


def local_slice(whole: torch.Tensor, dim: int, peers: AxisGroup) -> torch.Tensor:
    """This rank's slice of a tensor, a copy."""
    return whole.chunk(peers.size, dim)[peers.rank].clone(memory_format=torch.contiguous_format)


def gathered_slices(part: torch.Tensor, peers: AxisGroup, dim: int = -1) -> torch.Tensor:
    """All ranks' slices one after another."""
    return torch.cat(peers.all_gather(part), dim)


# -- modules -----------------------------------------------------------------------------------------------------------


EnterParallel: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


class ParallelInput:
    """Where whole values become sliced. Modules that read the same one share it, and its gradient is added up once."""

    def __init__(self, peers: AxisGroup) -> None:
        self.peers = peers
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, whole: torch.Tensor) -> torch.Tensor:
        """The value for a slice to read."""
        if self._last is None or self._last[0] is not whole:
            self._last = whole, copy_to_ranks(whole, self.peers)
        return self._last[1]

    def forget(self, *_: Any) -> None:
        """The pass is over; a forward hook."""
        self._last = None


class Sliced(nn.Module):
    """A module that holds a slice of its parameters; ``dims`` says of which dim."""

    dims: ClassVar[Mapping[str, int]] = {}


class ColumnParallelLinear(Sliced):
    """A linear module of which every rank has some output features."""

    dims = {"weight": 0, "bias": 0}  # noqa: RUF012  # annotated above
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, enter: EnterParallel, peers: AxisGroup, gather: bool) -> None:
        super().__init__()
        self.enter, self.peers, self.gather = enter, peers, gather

    def forward(self, whole: torch.Tensor) -> torch.Tensor:
        """Own features of the output, or with ``gather`` all."""
        part = functional.linear(self.enter(whole), self.weight, self.bias)
        return _GatherFromRanks.apply(part, self.peers) if self.gather else part  # type: ignore[no-untyped-call]  # of torch


class RowParallelLinear(Sliced):
    """A linear module of which every rank has some input features; the bias is whole and added to the sum."""

    dims = {"weight": 1}  # noqa: RUF012  # as above
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, peers: AxisGroup, split: bool) -> None:
        super().__init__()
        self.peers, self.split = peers, split

    def forward(self, part: torch.Tensor) -> torch.Tensor:
        """The whole output of own features of the input, with ``split`` of a whole one."""
        if self.split:
            part = _ScatterToRanks.apply(part, self.peers)  # type: ignore[no-untyped-call]  # of torch
        whole = reduce_from_ranks(functional.linear(part, self.weight), self.peers)
        return whole if self.bias is None else whole + self.bias.to(whole.dtype)


class VocabParallelEmbedding(Sliced):
    """An embedding of which every rank has some tokens."""

    dims = {"weight": 0}  # noqa: RUF012  # as above
    weight: nn.Parameter

    def __init__(self, padding: int | None, peers: AxisGroup) -> None:
        super().__init__()
        self.padding, self.peers = padding, peers

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The embeddings of all tokens."""
        here, inside = places(ids, len(self.weight), self.peers)
        padding = None if self.padding is None else self.padding - self.peers.rank * len(self.weight)
        own = padding if padding is not None and 0 <= padding < len(self.weight) else None
        found = functional.embedding(here, self.weight, own)
        return reduce_from_ranks(found.masked_fill(~inside[..., None], 0.0), self.peers)


def places(ids: torch.Tensor, count: int, peers: AxisGroup) -> tuple[torch.Tensor, torch.Tensor]:
    """Where tokens are in this rank's slice of ``count``, and whether they are."""
    here = ids - peers.rank * count
    inside = (here >= 0) & (here < count)
    return torch.where(inside, here, 0), inside


def parallel_log_probs_and_entropies(
    logits: torch.Tensor, chosen: torch.Tensor, peers: AxisGroup, entropy: bool, differentiable: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of tokens i64[n], from this rank's slice f32[n, v] of their logits; no rank ever has those of all tokens."""
    own = logits.logsumexp(-1)
    peak = peers.all_reduce(own.detach(), "max")
    total = reduce_from_ranks((own - peak).exp(), peers).log() + peak
    here, inside = places(chosen, logits.shape[-1], peers)
    picked = logits.gather(-1, here[:, None]).squeeze(-1)
    log_probs = reduce_from_ranks(picked.where(inside, torch.zeros_like(picked)), peers) - total
    if not entropy:
        return log_probs, torch.zeros_like(total)
    with torch.set_grad_enabled(torch.is_grad_enabled() and differentiable):
        expected = ((logits - copy_to_ranks(total, peers)[:, None]).exp() * logits).sum(-1)
        return log_probs, total - reduce_from_ranks(expected, peers)
