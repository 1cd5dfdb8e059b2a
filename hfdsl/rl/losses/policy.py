"""Losses of a policy on its own responses: REINFORCE, and clipped surrogates that weight tokens by a ratio.

ratio = policy / policy that generated. A ``surrogate`` is the part that differs from loss to loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeAlias

from hfdsl.errors import ConfigError
from hfdsl.protocols.state import corrects
from hfdsl.rl.corrections import Correction, no_correction
from hfdsl.rl.fields import ClipRange, Coefficient, Positive, check_fields, check_overrides
from hfdsl.rl.kl import MAX_LOG_RATIO, Estimator, kl_estimate
from hfdsl.rl.masked import Aggregation, masked, masked_mean, no_reduce, token_weights
from hfdsl.types.bounds import Usual, Within

if TYPE_CHECKING:
    import torch

    from hfdsl.rl.masked import Reduce


UpperClip: TypeAlias = Annotated[
    float,
    Within(at_least=0, infinite=True),
    Usual(at_most=1.0, effect="so wide a clip hardly ever acts; math.inf is no clip"),
]


class PolicyTerms(NamedTuple):
    """A policy's loss and its metrics at each token, f32[B, R], 0 outside of the mask; only ``loss`` has a gradient."""

    loss: torch.Tensor
    clipped: torch.Tensor  # 1 where the clip holds the ratio
    kl: torch.Tensor  # an estimate of KL(policy that generated || policy), in nats
    reference_kl: torch.Tensor  # an estimate of KL(policy || reference), in nats; 0 without a reference
    engine_kl: torch.Tensor  # an estimate of KL(engine || trainer), in nats; 0 where the trainer itself generated
    engine_gap: torch.Tensor  # |log(trainer / engine)|, in nats; 0 likewise
    engine_outside: torch.Tensor  # 1 where the correction truncates or masks; 0 likewise, and without a correction


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss(ABC):
    """The base of a policy's losses: loss = surrogate + kl * KL(policy || reference) - entropy * H(policy)."""

    uses_ratio: ClassVar[bool] = True
    """Whether the loss divides by the old log-probs; a check asks it, see ``hf.writes``."""

    aggregation: Aggregation = "token-mean"
    """How tokens are weighted: see :func:`hfdsl.rl.masked.token_weights`."""

    constant: Positive | None = 1.0
    """The divisor of ``sequence-mean-token-sum``: 1 for the sum over a response, or None for R, the width of the
    columns of a response, which is the longest one that generation allows."""

    kl: Coefficient = 0.0
    """The coefficient of the KL to the reference, per nat; usually 0 to 0.05. Other than 0 needs a reference."""

    estimator: Estimator = "k3"
    """The estimator of that KL: see :func:`hfdsl.rl.kl.kl_estimate`."""

    entropy: Annotated[float, Within(), Usual(at_most=0.1, effect="random tokens pay more than good ones")] = 0.0
    """The coefficient of the entropy bonus, per nat; usually 0 to 0.01."""

    correction: Correction | None = Correction()
    """How the loss corrects for tokens that an engine with other log-probs than the trainer's sampled; None leaves it
    out. It has no effect on responses that come without ``engine_log_probs``."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_overrides(self, PolicyLoss)

    @property
    def corrects_engine(self) -> bool:
        """Whether it corrects for another engine's samples, which a check asks (HF943)."""
        return self.correction is not None

    @property
    def divisor(self) -> float | None:
        """The divisor of the sum over a response, which a check compares with R (HF721); None if it is R."""
        return self.constant if self.aggregation == "sequence-mean-token-sum" else None

    @property
    def needs_reference(self) -> bool:
        """Whether it needs the log-probs of a reference, which a check asks (HF713)."""
        return self.kl != 0

    def __call__(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
        *,
        reference_log_probs: torch.Tensor | None = None,
        entropy: torch.Tensor | None = None,
        engine_log_probs: torch.Tensor | None = None,
        staleness: torch.Tensor | None = None,
    ) -> PolicyTerms:
        """The loss at every token of the responses, all f32[B, R]; ``advantages`` may be f32[B, 1].

        ``old_log_probs`` are the trainer's, before the update; ``engine_log_probs`` those that the tokens were sampled
        with, where these are others. ``staleness``, i64[B, 1], is how many updates ago the policy sampled the rows, or
        i64[B, R] each of their tokens.

        Raises:
            ConfigError: HF941 without ``reference_log_probs`` where ``kl`` is not 0, or without ``entropy`` where the
                coefficient of entropy is not 0; HF940 for a surrogate that is not two tensors f32[B, R].
        """
        import torch

        self._check_inputs(reference_log_probs, entropy)
        log_probs, old = masked(log_probs, mask), masked(old_log_probs, mask)
        engine = old if engine_log_probs is None else masked(engine_log_probs, mask)
        corrected = self.correction(old, engine, mask) if self.correction else no_correction(mask)
        surrogate = self.surrogate(log_probs, old, masked(advantages.expand(mask.shape), mask), corrected.kept)
        loss, clipped = _of_each_token(self, surrogate, mask)
        loss = loss * corrected.weight.to(loss.dtype)
        if staleness is not None:
            loss = loss * self.staleness_weights(staleness).to(loss.dtype)
        reference_kl = torch.zeros_like(log_probs)
        if reference_log_probs is not None:
            reference_kl = kl_estimate(log_probs, masked(reference_log_probs, mask), self.estimator)
        if self.kl:
            loss = loss + self.kl * reference_kl
        if self.entropy and entropy is not None:
            loss = loss - self.entropy * entropy
        # KL(old || policy), in this order: the samples are those of the policy that generated.
        kl = kl_estimate(old, log_probs, "k3").detach()
        return PolicyTerms(
            loss=masked(loss, corrected.kept),
            clipped=masked(clipped, corrected.kept),
            kl=kl,
            reference_kl=reference_kl.detach(),
            engine_kl=kl_estimate(engine, old, "k3").detach(),
            engine_gap=(old - engine).abs().detach(),
            engine_outside=corrected.outside.to(loss.dtype),
        )

    def _check_inputs(self, reference_log_probs: torch.Tensor | None, entropy: torch.Tensor | None) -> None:
        if self.kl and reference_log_probs is None:
            raise _missing(self, "kl", self.kl, "the log-probs of a reference: merge them into the experience")
        if self.entropy and entropy is None:
            raise _missing(self, "entropy", self.entropy, "the entropy of every token")

    def staleness_weights(self, staleness: torch.Tensor) -> torch.Tensor:
        """The weight of the surrogate by how many updates ago a row or token was sampled, i64 -> f32: here 1."""
        import torch

        return torch.ones_like(staleness, dtype=torch.float32)

    @abstractmethod
    def surrogate(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The negated surrogate at every token, and 1 for clipped tokens, both f32[B, R].

        Inputs are 0 outside of ``mask``, which leaves out the tokens that a correction masks.
        """
        ...

    def weights(self, mask: torch.Tensor, reduce: Reduce = no_reduce) -> torch.Tensor:
        """Every token's weight: :func:`hfdsl.rl.masked.token_weights` with this loss's aggregation."""
        return token_weights(mask, self.aggregation, reduce, constant=self.constant)


def _of_each_token(loss: PolicyLoss, surrogate: Any, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two tensors of a surrogate; one of f32[B, 1] would broadcast to f32[B, R] and train on other weights.

    Raises:
        ConfigError: HF940 if they are not of the mask's shape.
    """
    tensors: tuple[Any, ...] = surrogate if isinstance(surrogate, tuple) else (surrogate,)
    shapes = [tuple(tensor.shape) if hasattr(tensor, "shape") else type(tensor).__name__ for tensor in tensors]
    if shapes != [tuple(mask.shape)] * 2:
        returned = " and ".join(map(str, shapes)) or "nothing"
        raise ConfigError(
            "HF940",
            f"{type(loss).__name__}.surrogate must return the loss and where it is clipped, both of the mask's shape "
            f"{tuple(mask.shape)}, but returned {returned}",
        )
    return tensors[0], tensors[1]


def _missing(loss: PolicyLoss, term: str, coefficient: float, needed: str) -> ConfigError:
    return ConfigError("HF941", f"{type(loss).__name__}({term}={coefficient}) needs {needed}, or leave out {term}=")


@corrects("policy", lag=8)
@dataclass(frozen=True, slots=True)
class Clip(PolicyLoss):
    """The clipped surrogate of PPO: -min(ratio * A, clip(ratio, 1 - low, 1 + high) * A).

    ratio = policy / policy that generated (Schulman et al., 2017, Proximal Policy Optimization Algorithms, equation 7).
    A ``high`` above ``low`` is the clip-higher of DAPO (Yu et al., 2025, section 3.1, equation 10). ``dual`` bounds the
    loss from above where A < 0, at -dual * A (Ye et al., 2020, Mastering Complex Control in MOBA Games, dual-clip PPO).

    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> terms = Clip(0.2, 0.28)(one.log() + 0.5, one.log(), one, one)  # the ratio e**0.5 is held at 1.28
    >>> round(terms.loss.item(), 4), terms.clipped.item()
    (-1.28, 1.0)
    """

    low: ClipRange = 0.2
    """The clip range below 1; usually 0.2."""

    high: UpperClip = 0.2
    """The clip range above 1; usually 0.2 to 0.28."""

    dual: Annotated[float, Within(above=1, infinite=True)] | None = None
    """The bound of dual-clip PPO, above 1, usually 3; None sets no bound."""

    def surrogate(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The surrogate in the class's docstring."""
        import torch

        loss, clipped = _clipped(log_probs - old_log_probs, advantages, self.low, self.high)
        if self.dual is None:
            return loss, clipped
        bound = -self.dual * advantages
        bounded = (advantages < 0) & (loss > bound)
        return torch.where(bounded, bound, loss), torch.where(bounded, torch.ones_like(clipped), clipped)


@corrects("policy", lag=8)
@dataclass(frozen=True, slots=True)
class SequenceClip(PolicyLoss):
    """The clipped surrogate of GSPO, where a response has one ratio: the geometric mean of its tokens' ratios.

    -min(s * A, clip(s, 1 - low, 1 + high) * A), s = exp(mean over tokens of log(policy / policy that generated)) (Zheng
    et al., 2025, Group Sequence Policy Optimization, equations 5 and 7). Advantages are those of whole responses: the
    same at every token.

    >>> import torch
    >>> old, mask = torch.zeros(1, 2), torch.ones(1, 2)
    >>> SequenceClip(0.5, 0.5)(torch.tensor([[0.3, -0.1]]), old, torch.ones(1, 2), mask).loss.tolist()  # e**0.1
    [[-1.105..., -1.105...]]
    """

    low: ClipRange = 3e-4
    """The clip range below 1. It is so narrow because the geometric mean over many tokens stays close to 1."""

    high: UpperClip = 4e-4
    """The clip range above 1."""

    aggregation: Aggregation = field(default="sequence-mean-token-mean", kw_only=True)
    """How tokens are weighted; the paper takes the mean over responses."""

    def surrogate(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The surrogate in the class's docstring."""
        gap = masked_mean(log_probs - old_log_probs, mask, dim=-1)
        return _clipped(gap[:, None].expand(mask.shape), advantages, self.low, self.high)


@corrects("policy", lag=8)
@dataclass(frozen=True, slots=True)
class CISPO(PolicyLoss):
    """The policy gradient with a clipped importance weight: -sg(clip(ratio, 1 - low, 1 + high)) * A * log policy.

    ratio = policy / policy that generated, and sg stops its gradient, so that a clipped token keeps one (MiniMax, 2025,
    MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention, equations 4 and 5).

    >>> import torch
    >>> log_probs = torch.tensor([[-0.5]], requires_grad=True)
    >>> terms = CISPO(high=1.0)(log_probs, log_probs.detach() - 2.0, torch.ones(1, 1), torch.ones(1, 1))
    >>> terms.loss.backward()  # the ratio e**2 is held at 2
    >>> terms.loss.item(), log_probs.grad.item(), terms.clipped.item()
    (1.0, -2.0, 1.0)
    """

    low: ClipRange = 1.0
    """How far below 1 the weight may be; 1 is no bound, as in the paper."""

    high: ClipRange = 4.0
    """How far above 1 the weight may be."""

    def surrogate(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The surrogate in the class's docstring."""
        ratio = (log_probs - old_log_probs).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        weight = ratio.clamp(1 - self.low, 1 + self.high)
        return -weight * advantages * log_probs, (weight != ratio).to(ratio.dtype)


@dataclass(frozen=True, slots=True)
class Reinforce(PolicyLoss):
    """The policy gradient without a ratio: -A * log policy (Williams, 1992, REINFORCE).

    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> Reinforce()(-one, -one, 2 * one, one).loss.item()
    2.0
    """

    uses_ratio: ClassVar[bool] = False

    def surrogate(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The surrogate in the class's docstring."""
        import torch

        return -advantages * log_probs, torch.zeros_like(log_probs)


def _clipped(gap: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    """-min(ratio * A, clip(ratio) * A), and 1 where the clipped product is the smaller."""
    import torch

    ratio = gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    unclipped, clipped = -ratio * advantages, -ratio.clamp(1 - low, 1 + high) * advantages
    return torch.maximum(unclipped, clipped), (clipped > unclipped).to(gap.dtype)
