"""Losses on pairs of responses: DPO for a policy, Bradley-Terry for a reward model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

from hfdsl.protocols.state import corrects
from hfdsl.rl.fields import NonNegative, Positive, check_fields
from hfdsl.types.bounds import Within

if TYPE_CHECKING:
    import torch


class PreferenceTerms(NamedTuple):
    """A loss of preferences and its metrics for every pair, f32[B]; only ``loss`` has a gradient."""

    loss: torch.Tensor
    margin: torch.Tensor  # by how much the better response's reward is higher; a policy's is in nats, times beta
    correct: torch.Tensor  # 1 where the margin is positive


@corrects("policy", lag=8)
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

    beta: Positive = 0.1
    """How strongly the loss holds the policy to the reference; usually 0.01 to 0.5, where a smaller one holds less."""

    smoothing: Annotated[float, Within(at_least=0, at_most=0.5)] = 0.0
    """The chance that a label is wrong, 0 to 0.5."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(
        self,
        chosen: torch.Tensor,
        rejected: torch.Tensor,
        reference_chosen: torch.Tensor,
        reference_rejected: torch.Tensor,
    ) -> PreferenceTerms:
        """The loss of every pair, f32[B], from the sums of the log-probs of the responses' tokens, f32[B]."""
        from torch.nn.functional import logsigmoid

        margin = self.beta * ((chosen - reference_chosen) - (rejected - reference_rejected))
        loss = -(1 - self.smoothing) * logsigmoid(margin) - self.smoothing * logsigmoid(-margin)
        return PreferenceTerms(loss, margin.detach(), (margin > 0).to(margin.dtype))


@dataclass(frozen=True, slots=True)
class BradleyTerry:
    """The loss of a reward model: -log sigmoid(margin), where margin = better score - worse score.

    Ouyang et al., 2022, Training Language Models to Follow Instructions with Human Feedback, equation 1. ``center``
    weighs the square of the sum of both scores, which nothing else determines (Eisenstein et al., 2023, Helping or
    Herding?, section 2).

    >>> import torch
    >>> BradleyTerry()(torch.zeros(1), torch.zeros(1)).loss.item()  # log 2
    0.693147...
    """

    center: NonNegative = 0.0
    """The weight of the term that centers scores at 0; usually 0 or 0.01."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, better: torch.Tensor, worse: torch.Tensor) -> PreferenceTerms:
        """The loss of every pair from its scores, all f32[B]."""
        from torch.nn.functional import logsigmoid

        margin = better - worse
        loss = self.center * (better + worse).square() - logsigmoid(margin)
        return PreferenceTerms(loss, margin.detach(), (margin > 0).to(margin.dtype))
