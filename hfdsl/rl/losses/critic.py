"""The loss of a critic: the squared error of its values, clipped near the old ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hfdsl.rl.fields import ClipRange, Positive, check_fields
from hfdsl.rl.masked import Aggregation, masked, no_reduce, token_weights

if TYPE_CHECKING:
    import torch

    from hfdsl.rl.masked import Reduce


class ValueTerms(NamedTuple):
    """A critic's loss and its metric at every token, f32[B, R], 0 outside of the mask; only ``loss`` has a gradient."""

    loss: torch.Tensor
    clipped: torch.Tensor  # 1 where the clip holds the value


@dataclass(frozen=True, slots=True)
class ClippedValue:
    """Half the squared error of a critic: that of the value or of the value clipped near the old one, if larger.

    max((V - G)**2, (V_old + clip(V - V_old, -clip, clip) - G)**2) / 2; with ``clip=None`` the first alone (Engstrom
    et al., 2020, Implementation Matters in Deep Policy Gradients, section 3).

    >>> import torch
    >>> zero = torch.zeros(1, 1)
    >>> ClippedValue(0.2)(zero + 1.0, zero, zero + 1.0, zero == 0).loss.item()  # held at 0.2: 0.8**2 / 2
    0.32...
    """

    clip: ClipRange | None = 0.2
    """How far a value may move from the old one before it is clipped, in units of the returns; None: any distance."""

    aggregation: Aggregation = field(default="token-mean", kw_only=True)
    """How tokens are weighted: see :func:`hfdsl.rl.masked.token_weights`."""

    constant: Positive = field(default=1.0, kw_only=True)
    """The length that ``sequence-mean-token-sum`` divides by."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(
        self, values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor
    ) -> ValueTerms:
        """The loss at every token of the responses, all f32[B, R]."""
        import torch

        values, old, returns = masked(values, mask), masked(old_values, mask), masked(returns, mask)
        loss = (values - returns) ** 2 / 2
        if self.clip is None:
            return ValueTerms(loss, torch.zeros_like(loss))
        clipped = (old + (values - old).clamp(-self.clip, self.clip) - returns) ** 2 / 2
        return ValueTerms(torch.maximum(loss, clipped), (clipped > loss).to(loss.dtype))

    def weights(self, mask: torch.Tensor, reduce: Reduce = no_reduce) -> torch.Tensor:
        """Every token's weight: :func:`hfdsl.rl.masked.token_weights` with this loss's aggregation."""
        return token_weights(mask, self.aggregation, reduce, constant=self.constant)
