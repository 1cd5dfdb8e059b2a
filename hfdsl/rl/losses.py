"""Losses, a term a token. That of a policy is a small frozen object, so that a dataflow can say which one it wants.

``actor.update(experience, loss=Clip(0.2, 0.28))``. Its terms are weighted with ``loss.weights(mask, reduce)`` and added
up; see :func:`hfdsl.rl.masked.token_weights`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hfdsl.rl.kl import FAR, Estimator, kl_divergence, kl_estimate
from hfdsl.rl.masked import Aggregation, masked, masked_mean, no_reduce, token_weights

if TYPE_CHECKING:
    import torch

    from hfdsl.rl.masked import Reduce


class PolicyTerms(NamedTuple):
    """What a policy's loss is at every token, all f32[B, R] and 0 outside of the mask; only ``loss`` has a gradient."""

    loss: torch.Tensor
    clipped: torch.Tensor  # 1 where the clip holds the ratio, so that the gradient is 0
    kl: torch.Tensor  # an estimate of KL(policy that generated || policy), in nats
    reference_kl: torch.Tensor  # an estimate of KL(policy || reference), in nats; 0 where no reference is given


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss(ABC):
    """What all losses of a policy have: how tokens are weighted, a KL term to a reference, a bonus for entropy.

    loss = surrogate + kl * KL(policy || reference) - entropy * H(policy). ``constant`` is the length that the
    aggregation ``sequence-mean-token-sum`` divides by.
    """

    aggregation: Aggregation = "token-mean"
    constant: float = 1.0
    kl: float = 0.0
    estimator: Estimator = "k3"
    entropy: float = 0.0

    def __call__(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
        *,
        reference_log_probs: torch.Tensor | None = None,
        entropy: torch.Tensor | None = None,
    ) -> PolicyTerms:
        """The loss at every token of the responses, all f32[B, R]; ``advantages`` may be f32[B, 1].

        ``reference_log_probs`` are needed where ``kl`` is not 0, and ``entropy`` where ``entropy`` is not 0.
        """
        import torch

        log_probs, old = masked(log_probs, mask), masked(old_log_probs, mask)
        loss, clipped = self.surrogate(log_probs, old, masked(advantages.expand(mask.shape), mask), mask)
        reference_kl = torch.zeros_like(log_probs)
        if reference_log_probs is not None:
            reference_kl = kl_estimate(log_probs, masked(reference_log_probs, mask), self.estimator)
        if self.kl:
            loss = loss + self.kl * reference_kl
        if self.entropy and entropy is not None:
            loss = loss - self.entropy * entropy
        gone = kl_estimate(old, log_probs, "k3").detach()  # the samples are those of the policy that generated
        return PolicyTerms(masked(loss, mask), masked(clipped, mask), gone, reference_kl.detach())

    @abstractmethod
    def surrogate(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The negated surrogate at every token, and 1 where it is clipped; all are 0 outside of the mask."""
        ...

    def weights(self, mask: torch.Tensor, reduce: Reduce = no_reduce) -> torch.Tensor:
        """What every token counts: :func:`hfdsl.rl.masked.token_weights` of this loss's aggregation."""
        return token_weights(mask, self.aggregation, reduce, constant=self.constant)


@dataclass(frozen=True, slots=True)
class Clip(PolicyLoss):
    """The clipped surrogate of PPO: -min(ratio * A, clip(ratio, 1 - low, 1 + high) * A).

    ratio = policy / policy that generated (Schulman et al., 2017, Proximal Policy Optimization Algorithms, equation 7).
    A ``high`` above ``low`` is the clip-higher of DAPO (Yu et al., 2025, section 3.1, equation 10). ``dual`` bounds the
    loss where A < 0: max(that, -dual * A) (Ye et al., 2020, Mastering Complex Control in MOBA Games, dual-clip PPO).

    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> terms = Clip(0.2, 0.28)(one.log() + 0.5, one.log(), one, one)  # the ratio e**0.5 is held at 1.28
    >>> round(terms.loss.item(), 4), terms.clipped.item()
    (-1.28, 1.0)
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None

    def surrogate(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As the class says."""
        import torch

        loss, clipped = _clipped(log_probs - old_log_probs, advantages, self.low, self.high)
        if self.dual is None:
            return loss, clipped
        bound = -self.dual * advantages
        held = (advantages < 0) & (loss > bound)
        return torch.where(held, bound, loss), torch.where(held, torch.ones_like(clipped), clipped)


@dataclass(frozen=True, slots=True)
class SequenceClip(PolicyLoss):
    """The clipped surrogate of GSPO, where a response has one ratio: the geometric mean of its tokens' ratios.

    -min(s * A, clip(s, 1 - low, 1 + high) * A), s = exp(mean over tokens of log(policy / policy that generated)) (Zheng
    et al., 2025, Group Sequence Policy Optimization, equations 5 and 7). The advantages are those of responses, so the
    same at every token.

    >>> import torch
    >>> old, mask = torch.zeros(1, 2), torch.ones(1, 2)
    >>> SequenceClip(0.5, 0.5)(torch.tensor([[0.3, -0.1]]), old, torch.ones(1, 2), mask).loss.tolist()  # e**0.1
    [[-1.105..., -1.105...]]
    """

    low: float = 3e-4
    high: float = 4e-4
    aggregation: Aggregation = field(default="sequence-mean-token-mean", kw_only=True)

    def surrogate(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As the class says."""
        gap = masked_mean(log_probs - old_log_probs, mask, dim=-1)
        return _clipped(gap[:, None].expand(mask.shape), advantages, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Reinforce(PolicyLoss):
    """The policy gradient without a ratio: -A * log policy (Williams, 1992, REINFORCE).

    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> Reinforce()(-one, -one, 2 * one, one).loss.item()
    2.0
    """

    def surrogate(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As the class says."""
        import torch

        return -advantages * log_probs, torch.zeros_like(log_probs)


def _clipped(gap: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    """-min(ratio * A, clip(ratio) * A), and 1 where the second is the smaller."""
    import torch

    ratio = gap.clamp(-FAR, FAR).exp()
    free, held = -ratio * advantages, -ratio.clamp(1 - low, 1 + high) * advantages
    return torch.maximum(free, held), (held > free).to(gap.dtype)


class ValueTerms(NamedTuple):
    """What a critic's loss is at every token, f32[B, R] and 0 outside of the mask; only ``loss`` has a gradient."""

    loss: torch.Tensor
    clipped: torch.Tensor  # 1 where the clip holds the value


@dataclass(frozen=True, slots=True)
class ClippedValue:
    """Half the squared error of a critic, the larger of that of the value and of the value held near the old one.

    max((V - G)**2, (V_old + clip(V - V_old, -clip, clip) - G)**2) / 2; no clip with ``None`` (Engstrom et al., 2020,
    Implementation Matters in Deep Policy Gradients, section 3).

    >>> import torch
    >>> zero = torch.zeros(1, 1)
    >>> ClippedValue(0.2)(zero + 1.0, zero, zero + 1.0, zero == 0).loss.item()  # held at 0.2: 0.8**2 / 2
    0.32...
    """

    clip: float | None = 0.2
    aggregation: Aggregation = field(default="token-mean", kw_only=True)
    constant: float = field(default=1.0, kw_only=True)

    def __call__(
        self, values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor
    ) -> ValueTerms:
        """The loss at every token of the responses, all f32[B, R]."""
        import torch

        values, old, returns = masked(values, mask), masked(old_values, mask), masked(returns, mask)
        loss = (values - returns) ** 2 / 2
        if self.clip is None:
            return ValueTerms(loss, torch.zeros_like(loss))
        held = (old + (values - old).clamp(-self.clip, self.clip) - returns) ** 2 / 2
        return ValueTerms(torch.maximum(loss, held), (held > loss).to(loss.dtype))

    def weights(self, mask: torch.Tensor, reduce: Reduce = no_reduce) -> torch.Tensor:
        """What every token counts: :func:`hfdsl.rl.masked.token_weights` of this loss's aggregation."""
        return token_weights(mask, self.aggregation, reduce, constant=self.constant)


class PreferenceTerms(NamedTuple):
    """What a loss of preferences is for every pair, all f32[B]; only ``loss`` has a gradient."""

    loss: torch.Tensor
    margin: torch.Tensor  # how much more reward the chosen response implies, in nats times beta
    correct: torch.Tensor  # 1 where the margin is positive


@dataclass(frozen=True, slots=True)
class DPO:
    """Direct preference optimization: -log sigmoid(margin), from the log-probs of whole responses.

    margin = beta * (log(policy / reference) of the chosen response - that of the rejected one) (Rafailov et al., 2023,
    Direct Preference Optimization, equation 7). ``smoothing`` is the chance that a label is wrong (Mitchell, 2023, A
    Note on DPO with Noisy Preferences).

    >>> import torch
    >>> zero = torch.zeros(1)
    >>> DPO()(zero, zero, zero, zero).loss.item()  # log 2
    0.693147...
    """

    beta: float = 0.1
    smoothing: float = 0.0

    def __call__(
        self,
        chosen: torch.Tensor,
        rejected: torch.Tensor,
        reference_chosen: torch.Tensor,
        reference_rejected: torch.Tensor,
    ) -> PreferenceTerms:
        """The loss of every pair, all f32[B]: sums of the log-probs of a response's tokens."""
        from torch.nn.functional import logsigmoid

        margin = self.beta * ((chosen - reference_chosen) - (rejected - reference_rejected))
        loss = -(1 - self.smoothing) * logsigmoid(margin) - self.smoothing * logsigmoid(-margin)
        return PreferenceTerms(loss, margin.detach(), (margin > 0).to(margin.dtype))


def imitation(log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The cross entropy of given tokens, -log policy, f32[B, R] -> f32[B, R], in nats.

    The loss of supervised stages; beside a policy's loss the ptx of InstructGPT (Ouyang et al., 2022, section 3.4,
    equation 2).

    >>> import torch
    >>> imitation(torch.tensor([[-0.5, float("nan")]]), torch.tensor([[True, False]])).tolist()
    [[0.5, 0.0]]
    """
    return masked(-log_probs, mask)


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """The entropy of the next token, f32[..., V] -> f32[...], in nats; tokens with a logit of -inf count for 0.

    >>> import torch
    >>> round(entropy(torch.zeros(4)).item(), 4)  # log 4
    1.3863
    """
    log_policy = logits.log_softmax(-1)
    return -(log_policy.exp() * log_policy.masked_fill(log_policy.isneginf(), 0.0)).sum(-1)


def distillation(
    logits: torch.Tensor, teacher_logits: torch.Tensor, mask: torch.Tensor, *, forward: bool = False
) -> torch.Tensor:
    """The KL between student and teacher at every token, f32[B, R, V] twice -> f32[B, R], in nats.

    Reverse, KL(student || teacher), makes the student choose (Gu et al., 2024, MiniLLM, equation 1); ``forward``,
    KL(teacher || student), makes it cover all that the teacher does (Hinton et al., 2015, Distilling the Knowledge in a
    Neural Network). Agarwal et al., 2024, On-Policy Distillation of Language Models, have both on its own samples.

    >>> import torch
    >>> distillation(torch.zeros(1, 1, 3), torch.ones(1, 1, 3), torch.ones(1, 1)).abs().item() < 1e-6
    True
    """
    student, teacher = masked(logits, mask[..., None]), masked(teacher_logits, mask[..., None])
    return kl_divergence(teacher, student) if forward else kl_divergence(student, teacher)
