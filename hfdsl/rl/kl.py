"""The KL between two policies, token by token, and how strongly it is penalized."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from hfdsl.rl.fields import NonNegative, Positive, check_argument, check_fields

if TYPE_CHECKING:
    import torch

Estimator: TypeAlias = Literal["k1", "k2", "k3", "abs"]
"""An estimate of KL(policy || reference) from a token that the policy drew: see :func:`kl_estimate`."""

MAX_LOG_RATIO = 20.0
"""The largest absolute log-ratio that is exponentiated: e**20 is finite, and beyond all clipping."""


def kl_estimate(log_probs: torch.Tensor, reference_log_probs: torch.Tensor, kind: Estimator = "k3") -> torch.Tensor:
    """An estimate of KL(policy || reference) at every token, all f32[B, R], in nats.

    With r = reference - policy (Schulman, 2020, Approximating KL Divergence): k1 is -r, unbiased, of either sign;
    k2 is r**2 / 2, biased, with the gradient of the KL; k3 is exp(r) - r - 1, unbiased and never negative; abs is |r|.
    As a term of a loss, k1 has a gradient of 0 on average. k3 clamps r to 20 in its exponential but is itself not
    clamped; verl clamps it to 10 nats, beyond which it has no gradient.

    Raises:
        ConfigError: HF940 for another kind.

    >>> import torch
    >>> policy, reference = torch.tensor([[-1.0]]), torch.tensor([[-3.0]])
    >>> [round(kl_estimate(policy, reference, kind).item(), 4) for kind in ("k1", "k2", "k3", "abs")]
    [2.0, 2.0, 1.1353, 2.0]
    """
    import torch

    check_argument("kl_estimate", "kind", Estimator, kind)
    gap = reference_log_probs - log_probs
    match kind:
        case "k1":
            return -gap
        case "k2":
            return gap * gap / 2
        case "k3":
            return torch.expm1(gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)) - gap
        case "abs":
            return gap.abs()


@dataclass(frozen=True, slots=True)
class FixedKL:
    """A penalty of the same weight throughout (Ziegler et al., 2019, section 2.2, equation 2).

    >>> FixedKL(0.05).after(observed=3.0).coefficient
    0.05
    """

    coefficient: NonNegative = 0.05
    """The weight of the KL in the rewards, per nat; usually 0.001 to 0.1."""

    def __post_init__(self) -> None:
        check_fields(self)

    def after(self, observed: float) -> FixedKL:
        """The controller after a batch whose responses have this KL on average, in nats: itself."""
        return self


@dataclass(frozen=True, slots=True)
class AdaptiveKL:
    """A penalty that grows while the KL is above its target and falls while it is below.

    coefficient * (1 + gain * clip(observed / target - 1, -0.2, 0.2)); ``target`` is the KL of a whole response in nats
    (Ziegler et al., 2019, Fine-Tuning Language Models from Human Preferences, section 2.2, with a gain of 0.1).

    >>> AdaptiveKL(0.05, target=6.0).after(observed=12.0).coefficient  # 2% more
    0.051000000000000004
    """

    coefficient: Positive = 0.05
    """The first weight of the KL in the rewards, per nat."""

    target: Positive = 6.0
    """The KL of a whole response to aim at, in nats."""

    gain: NonNegative = 0.1
    """How fast the coefficient adapts: a KL of 20% or more above the target multiplies it by 1 + gain / 5."""

    def __post_init__(self) -> None:
        check_fields(self)

    def after(self, observed: float) -> AdaptiveKL:
        """The controller after a batch whose responses have this KL on average, in nats."""
        error = min(max(observed / self.target - 1, -0.2), 0.2)
        return replace(self, coefficient=self.coefficient * (1 + self.gain * error))
