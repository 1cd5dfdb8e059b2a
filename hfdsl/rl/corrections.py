"""Corrections of a policy's loss for tokens that an engine sampled, whose probabilities differ from the trainer's.

A fast engine has kernels and a precision of its own, so even with equal weights its log-probs differ from the
trainer's, and its samples come from another policy than the one that learns. With pi for the trainer's policy at the
time of sampling and mu for the engine's, an update has three policies: the one that learns, pi, and mu. A loss clips
the ratio of the first two; the importance ratio pi / mu corrects for sampling from mu. It is a constant, without a
gradient.

An example
----------
Two responses, of two tokens and of one, and bounds of 0.5 and 2::

    pi / mu of tokens     truncated, by token    masked, by token     masked, by response (3.6 and 0.8)
    1.2   3.0             1.2   2.0              1.2   out            out   out
    0.8                   0.8                    0.8                  0.8

A weight multiplies the surrogate of its token. A masked token leaves the loss altogether: its surrogate, KL and entropy
have no gradient. It still counts as a token, and its response as a response, when the loss is averaged: the others
weigh as if nothing were masked, so an update with many masked tokens is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from hfdsl.rl.fields import Share, check_fields
from hfdsl.rl.kl import MAX_LOG_RATIO
from hfdsl.rl.masked import masked
from hfdsl.types.bounds import Within

if TYPE_CHECKING:
    import torch


class CorrectionTerms(NamedTuple):
    """The correction of each token, [B, R]; nothing has a gradient."""

    weight: torch.Tensor
    """The factor of the token's surrogate, f32; 0 if the token is masked."""

    kept: torch.Tensor
    """Whether the token stays in the loss, bool."""

    outside: torch.Tensor
    """Whether its ratio is out of bounds, and so truncated or masked, bool."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Truncated or masked importance sampling: a token weighs pi / mu, truncated to [low, high] or masked outside it.

    Truncation is that of Yao et al., 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training
    (TIS): min(pi / mu, C) for each token. Masking of tokens is IcePop (Ling Team, 2025, Every Step Evolves: Scaling
    Reinforcement Learning for Trillion-Scale Thinking Model, arXiv:2510.18855), which keeps the KL of a masked token;
    here all of its loss goes. Sequence level: Liu et al., 2025, When Speed Kills Stability: Demystifying RL Collapse
    from the Training-Inference Mismatch. Its ratio is the product over a response's tokens, so it spreads with length,
    and long responses are the first to be truncated or masked.

    >>> import torch
    >>> trainer, engine = torch.tensor([[1.2, 3.0]]).log(), torch.zeros(1, 2)
    >>> Correction(high=2.0)(trainer, engine, torch.ones(1, 2)).weight.tolist()
    [[1.2000..., 2.0]]
    >>> Correction(outside="mask", low=0.5, high=2.0)(trainer, engine, torch.ones(1, 2)).weight.tolist()
    [[1.2000..., 0.0]]
    """

    level: Literal["token", "sequence"] = "token"
    """Whether each token or each response has a ratio. A token's has the lower variance, and a bias, since it does not
    correct for the tokens before it."""

    outside: Literal["truncate", "mask"] = "truncate"
    """The treatment of a ratio outside of the bounds: clamp it, or mask its tokens in the loss."""

    low: Share = 0.0
    """The lower bound of the ratio, 0 to 1; usually 0 to truncate, 0.5 to mask."""

    high: Annotated[float, Within(at_least=1, infinite=True)] = 2.0
    """The upper bound of the ratio, at least 1; usually 2 to 5."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, log_probs: torch.Tensor, engine_log_probs: torch.Tensor, mask: torch.Tensor) -> CorrectionTerms:
        """The correction of every token from log-probs of pi and of mu, f32[B, R]; all is 0 outside of the mask.

        Where the two agree, every weight is 1 and nothing is masked, whatever the bounds.
        """
        gap = masked(log_probs - engine_log_probs, mask).detach()
        if self.level == "sequence":
            gap = gap.sum(-1, keepdim=True).expand(mask.shape)
        ratio = gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        outside = mask.bool() & ((ratio < self.low) | (ratio > self.high))
        kept_mask = mask.bool() & ~outside if self.outside == "mask" else mask.bool()
        return CorrectionTerms(masked(ratio.clamp(self.low, self.high), kept_mask), kept_mask, outside)


def no_correction(mask: torch.Tensor) -> CorrectionTerms:
    """Every token of the mask weighs 1, and none is outside of any bound.

    >>> import torch
    >>> no_correction(torch.tensor([[True, False]])).weight.tolist()
    [[1.0, 0.0]]
    """
    import torch

    return CorrectionTerms(mask.to(torch.float32), mask.bool(), torch.zeros_like(mask, dtype=torch.bool))
