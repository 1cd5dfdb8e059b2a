"""Terms of single tokens: the cross entropy of demonstrated ones, and the entropy of the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hfdsl.rl.masked import masked

if TYPE_CHECKING:
    import torch


def imitation(log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The cross entropy of demonstrated tokens, -log policy, f32[B, R] -> f32[B, R], in nats.

    Supervised stages train on it; beside a policy's loss it is the ptx term of InstructGPT (Ouyang et al., 2022,
    section 3.4, equation 2).

    >>> import torch
    >>> imitation(torch.tensor([[-0.5, float("nan")]]), torch.tensor([[True, False]])).tolist()
    [[0.5, 0.0]]
    """
    return masked(-log_probs, mask)


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """The entropy of the next token, f32[..., V] -> f32[...], in nats; a token with a logit of -inf adds 0.

    >>> import torch
    >>> round(entropy(torch.zeros(4)).item(), 4)  # log 4
    1.3863
    """
    log_policy = logits.log_softmax(-1)
    return -(log_policy.exp() * log_policy.masked_fill(log_policy.isneginf(), 0.0)).sum(-1)
