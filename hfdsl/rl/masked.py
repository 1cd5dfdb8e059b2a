"""Sums, means and weights over the tokens of a mask. Values outside of the mask never matter, not even NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from hfdsl.rl.fields import Positive, check_argument

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Reduce: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

Aggregation: TypeAlias = Literal["token-mean", "sequence-mean-token-mean", "sequence-mean-token-sum"]
"""How a loss of every token becomes the loss of a batch: see :func:`token_weights`."""


def no_reduce(total: torch.Tensor) -> torch.Tensor:
    """The sum over ranks of a single rank: its argument. With several, pass ``self.axis("dp").all_reduce``.

    >>> import torch
    >>> no_reduce(torch.tensor(3.0)).item()
    3.0
    """
    return total


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``x`` where the mask is true and 0 elsewhere, f32[B, R] -> f32[B, R]; the gradient elsewhere is 0 too.

    >>> import torch
    >>> masked(torch.tensor([[1.0, float("nan")]]), torch.tensor([[True, False]])).tolist()
    [[1.0, 0.0]]
    """
    import torch

    return torch.where(mask.bool(), x, torch.zeros((), dtype=x.dtype, device=x.device))


def lengths(mask: torch.Tensor) -> torch.Tensor:
    """The number of tokens of every row, bool[B, R] -> i64[B].

    >>> import torch
    >>> lengths(torch.tensor([[True, True, False], [False, False, False]])).tolist()
    [2, 0]
    """
    return mask.bool().sum(-1)


def masked_sum(x: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """The sum over the tokens of the mask, f32[B, R] -> a number, or f32[B] with ``dim=-1``; 0 if there is none.

    >>> import torch
    >>> masked_sum(torch.tensor([[1.0, 2.0, float("inf")]]), torch.tensor([[True, True, False]]), dim=-1).tolist()
    [3.0]
    """
    return masked(x, mask).sum() if dim is None else masked(x, mask).sum(dim)


def masked_mean(x: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """The mean over the tokens of the mask, f32[B, R] -> a number, or f32[B] with ``dim=-1``; 0 if there is none.

    >>> import torch
    >>> mask = torch.tensor([[True, True, False], [False, False, False]])
    >>> masked_mean(torch.tensor([[1.0, 2.0, 9.0], [9.0, 9.0, 9.0]]), mask, dim=-1).tolist()
    [1.5, 0.0]
    """
    count = mask.bool().sum() if dim is None else mask.bool().sum(dim)
    return masked_sum(x, mask, dim) / count.clamp(min=1)


def whitened(
    x: torch.Tensor, mask: torch.Tensor, reduce: Reduce = no_reduce, *, center: bool = True, epsilon: float = 1e-8
) -> torch.Tensor:
    """``x`` with mean 0 and variance 1 over the tokens of the mask, f32[B, R] -> f32[B, R], and 0 elsewhere.

    (x - mean) / sqrt(variance + epsilon), the variance with n - 1; ``center=False`` keeps the mean. ``reduce`` sums a
    tensor over the ranks that hold the other rows: every rank then gets its rows of the whole batch's result. The
    statistics are taken in float64 (normalized advantages: Andrychowicz et al., 2021, What Matters for On-Policy
    Deep Actor-Critic Methods).

    >>> import torch
    >>> whitened(torch.tensor([[1.0, 3.0, 99.0]]), torch.tensor([[True, True, False]])).tolist()
    [[-0.7071..., 0.7071..., 0.0]]
    """
    import torch

    tokens = masked(x, mask).double()
    count, total = reduce(torch.stack([mask.bool().sum().double(), tokens.sum()]))
    mean = total / count.clamp(min=1)
    deviations = masked(tokens - mean, mask)
    variance = reduce((deviations * deviations).sum()) / (count - 1).clamp(min=1)
    scaled = deviations / (variance + epsilon).sqrt()
    return (scaled if center else masked(scaled + mean, mask)).to(x.dtype)


def token_weights(
    mask: torch.Tensor, mode: Aggregation = "token-mean", reduce: Reduce = no_reduce, *, constant: float | None = 1.0
) -> torch.Tensor:
    """Every token's weight in the loss of a batch, bool[B, R] -> f64[B, R]: the loss is (terms * weights).sum().

    With ``reduce``, which sums over ranks, each rank gets its rows of the whole batch's weights; micro-batches take
    their rows of these. The losses and gradients of all micro-batches and ranks then add up to those of the batch, for
    any split (:mod:`hfdsl.rl.models.updates` follows an example). Rows without a token count for nothing.

    - ``token-mean``: all tokens weigh the same, 1 / tokens of the batch (DAPO: Yu et al., 2025, section 3.3, equation
      12);
    - ``sequence-mean-token-mean``: all responses weigh the same, 1 / (its tokens * responses) (GRPO: Shao et al., 2024,
      equation 3);
    - ``sequence-mean-token-sum``: 1 / (``constant`` * responses), ``constant`` being the longest response that
      generation allows (Dr. GRPO: Liu et al., 2025, Understanding R1-Zero-Like Training, section 3.2); None is R.

    Raises:
        ConfigError: HF940 for another mode, or a constant that is not above 0.

    >>> import torch
    >>> mask = torch.tensor([[True, True, True], [True, False, False]])
    >>> token_weights(mask).tolist()
    [[0.25, 0.25, 0.25], [0.25, 0.0, 0.0]]
    >>> token_weights(mask, "sequence-mean-token-sum", constant=2).tolist()
    [[0.25, 0.25, 0.25], [0.25, 0.0, 0.0]]
    >>> token_weights(mask, "sequence-mean-token-sum", constant=None).sum(-1).tolist()  # R = 3
    [0.5, 0.16...]
    >>> token_weights(mask[1:], "sequence-mean-token-mean").tolist()
    [[1.0, 0.0, 0.0]]
    """
    check_argument("token_weights", "mode", Aggregation, mode)
    check_argument("token_weights", "constant", Positive | None, constant)
    divisor = mask.shape[-1] if constant is None else constant
    tokens = mask.bool().double()
    length = tokens.sum(-1, keepdim=True)
    if mode == "token-mean":
        return tokens / reduce(length.sum()).clamp(min=1)
    responses = reduce((length > 0).double().sum()).clamp(min=1)
    return tokens / (length.clamp(min=1) if mode == "sequence-mean-token-mean" else divisor) / responses


def aggregated(
    terms: torch.Tensor,
    mask: torch.Tensor,
    mode: Aggregation = "token-mean",
    reduce: Reduce = no_reduce,
    *,
    constant: float | None = 1.0,
) -> torch.Tensor:
    """The loss of a batch, or a rank's share of it, from the loss of every token, f32[B, R] -> a number.

    >>> import torch
    >>> mask = torch.tensor([[True, True, True], [True, False, False]])
    >>> aggregated(torch.tensor([[1.0, 1.0, 1.0], [5.0, 0.0, 0.0]]), mask).item()
    2.0
    >>> aggregated(torch.tensor([[1.0, 1.0, 1.0], [5.0, 0.0, 0.0]]), mask, "sequence-mean-token-mean").item()
    3.0
    """
    return (masked(terms, mask) * token_weights(mask, mode, reduce, constant=constant)).sum().to(terms.dtype)
