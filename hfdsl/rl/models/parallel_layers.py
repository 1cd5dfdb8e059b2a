"""Layers that compute on slices, and the collectives between them (Shoeybi et al., 2019, Megatron-LM).

Every rank of ``tp`` has the same rows. A value is either replicated, the same on all ranks, or sliced by features,
heads or tokens of the vocabulary. A partial sum has the shape of a whole value; the ranks' partial sums add up to it.

An example
----------
A block of two linear layers, y = B (A x), with two hidden features, over ``tp=2``: A is sliced by its output features,
B by its input features. With x = 3, A = [1, 2], B = [10, 1]::

                       copy       A: columns      B: rows           reduce
    rank 0    x = 3    x = 3      h0 = 1 * 3      10 * 3 = 30       y = 36
    rank 1    x = 3    x = 3      h1 = 2 * 3       1 * 6 =  6       y = 36

One collective, and no rank has all of A, B or h. Backwards, from dL/dy = 1 on both ranks::

                       reduce     B                A                            copy
    rank 0    dy = 1   dy = 1     dh0 = 10         dA0 = 30, dx part = 10       dx = 12
    rank 1    dy = 1   dy = 1     dh1 = 1          dA1 = 3,  dx part = 2        dx = 12

Why this is right: after the reduce, every rank computes the same loss from the same y. dL/dy is replicated, so the
backward pass of an all-reduce of values is the identity; an all-reduce there would count the loss once for each rank.
The copy is its mirror image: slices read x, and each contributes to dL/dx, so its backward pass adds up the parts.
Gather and scatter are each other's backward pass in the same way:

    ==================  ========================  =======================
    crossing            forward                   backward
    ==================  ========================  =======================
    copy to ranks       identity                  all-reduce
    reduce from ranks   all-reduce                identity
    gather from ranks   all-gather                this rank's slice
    scatter to ranks    this rank's slice         all-gather
    ==================  ========================  =======================

The log-softmax over a sliced vocabulary needs two reduces of one number per token instead of a gather of the logits:
each rank sends the logsumexp of its slice, and only the rank that holds the chosen token adds its logit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from hfdsl.protocols.collectives import AxisGroup

# -- the four crossings ------------------------------------------------------------------------------------------------


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, replicated: torch.Tensor, peers: AxisGroup) -> torch.Tensor:
        ctx.peers = peers
        return replicated.view_as(replicated)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.peers.all_reduce(grad_outputs[0].contiguous()), None


class _ReduceFromRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, peers: AxisGroup) -> torch.Tensor:
        return peers.all_reduce(partial.contiguous())

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
    def forward(ctx: Any, replicated: torch.Tensor, peers: AxisGroup) -> torch.Tensor:
        ctx.peers = peers
        return local_slice(replicated, -1, peers)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gathered_slices(grad_outputs[0], ctx.peers), None


def copy_to_ranks(replicated: torch.Tensor, peers: AxisGroup) -> torch.Tensor:
    """A replicated value for slices to read; its gradient is the sum of the ranks' gradients."""
    copied: torch.Tensor = _CopyToRanks.apply(replicated, peers)  # type: ignore[no-untyped-call]  # of torch
    return copied


def reduce_from_ranks(partial: torch.Tensor, peers: AxisGroup) -> torch.Tensor:
    """The sum of all ranks' partial sums, replicated."""
    total: torch.Tensor = _ReduceFromRanks.apply(partial, peers)  # type: ignore[no-untyped-call]  # of torch
    return total


def local_slice(full: torch.Tensor, dim: int, peers: AxisGroup) -> torch.Tensor:
    """This rank's slice of a tensor, a copy."""
    return full.chunk(peers.size, dim)[peers.rank].clone(memory_format=torch.contiguous_format)


def gathered_slices(part: torch.Tensor, peers: AxisGroup, dim: int = -1) -> torch.Tensor:
    """All ranks' slices, concatenated."""
    return torch.cat(peers.all_gather(part), dim)


# -- layers ------------------------------------------------------------------------------------------------------------


EnterParallel: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


class ParallelInput:
    """The copy of a replicated value that several layers read.

    Queries, keys and values are projections of one hidden state. If each projection copied it, the backward pass would
    have three all-reduces; with a single copy, autograd adds up the three gradients first.
    """

    def __init__(self, peers: AxisGroup) -> None:
        self.peers = peers
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, replicated: torch.Tensor) -> torch.Tensor:
        """The copy for a slice to read."""
        if self._last is None or self._last[0] is not replicated:
            self._last = replicated, copy_to_ranks(replicated, self.peers)
        return self._last[1]

    def forget(self, *_: Any) -> None:
        """Drop the copy after a pass; a forward hook."""
        self._last = None


class Sliced(nn.Module):
    """A module that holds a slice of its parameters; ``dims`` has the dim by which each is sliced."""

    dims: ClassVar[Mapping[str, int]] = {}


class ColumnParallelLinear(Sliced):
    """A linear layer whose output features are sliced over ranks."""

    dims = {"weight": 0, "bias": 0}  # noqa: RUF012  # annotated above
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, enter: EnterParallel, peers: AxisGroup, gather: bool) -> None:
        super().__init__()
        self.enter, self.peers, self.gather = enter, peers, gather

    def forward(self, replicated: torch.Tensor) -> torch.Tensor:
        """This rank's features of the output, or with ``gather`` all of them."""
        part = functional.linear(self.enter(replicated), self.weight, self.bias)
        return _GatherFromRanks.apply(part, self.peers) if self.gather else part  # type: ignore[no-untyped-call]  # of torch


class RowParallelLinear(Sliced):
    """A linear layer whose input features are sliced over ranks; the bias is replicated and added to the sum."""

    dims = {"weight": 1}  # noqa: RUF012  # as above
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, peers: AxisGroup, split: bool) -> None:
        super().__init__()
        self.peers, self.split = peers, split

    def forward(self, part: torch.Tensor) -> torch.Tensor:
        """The replicated output from this rank's features of the input, or with ``split`` from a replicated input."""
        if self.split:
            part = _ScatterToRanks.apply(part, self.peers)  # type: ignore[no-untyped-call]  # of torch
        total = reduce_from_ranks(functional.linear(part, self.weight), self.peers)
        # After the reduce: before it, the sum would have the bias once for each rank.
        return total if self.bias is None else total + self.bias.to(total.dtype)


class VocabParallelEmbedding(Sliced):
    """An embedding whose tokens are sliced over ranks."""

    dims = {"weight": 0}  # noqa: RUF012  # as above
    weight: nn.Parameter

    def __init__(self, padding: int | None, peers: AxisGroup) -> None:
        super().__init__()
        self.padding, self.peers = padding, peers

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The embeddings of all tokens, replicated."""
        indices, is_local = local_tokens(ids, len(self.weight), self.peers)
        padding = None if self.padding is None else self.padding - self.peers.rank * len(self.weight)
        local_padding = padding if padding is not None and 0 <= padding < len(self.weight) else None
        embeddings = functional.embedding(indices, self.weight, local_padding)
        return reduce_from_ranks(embeddings.masked_fill(~is_local[..., None], 0.0), self.peers)


def local_tokens(ids: torch.Tensor, count: int, peers: AxisGroup) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices of tokens in this rank's slice of ``count`` tokens, 0 outside of it, and whether they are in it."""
    indices = ids - peers.rank * count
    is_local = (indices >= 0) & (indices < count)
    return torch.where(is_local, indices, 0), is_local


def parallel_log_probs_and_entropies(
    logits: torch.Tensor, chosen: torch.Tensor, peers: AxisGroup, entropy: bool, differentiable: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probs of tokens i64[n] and their entropies, from this rank's slice f32[n, v] of the logits."""
    slice_total = logits.logsumexp(-1)
    peak = peers.all_reduce(slice_total.detach(), "max")
    total = reduce_from_ranks((slice_total - peak).exp(), peers).log() + peak
    indices, is_local = local_tokens(chosen, logits.shape[-1], peers)
    picked = logits.gather(-1, indices[:, None]).squeeze(-1)
    log_probs = reduce_from_ranks(picked.where(is_local, torch.zeros_like(picked)), peers) - total
    if not entropy:
        return log_probs, torch.zeros_like(total)
    with torch.set_grad_enabled(torch.is_grad_enabled() and differentiable):
        # H = total - sum of p * logit; total is replicated and read by slices, hence the copy.
        expected = ((logits - copy_to_ranks(total, peers)[:, None]).exp() * logits).sum(-1)
        return log_probs, total - reduce_from_ranks(expected, peers)
