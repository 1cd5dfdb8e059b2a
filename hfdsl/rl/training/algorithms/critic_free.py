"""Algorithms without a critic: the baseline of a response is other responses, or the mean of the batch."""

from __future__ import annotations

from dataclasses import dataclass

from hfdsl.rl.fields import Count, NonNegative
from hfdsl.rl.losses import Clip, Reinforce, SequenceClip
from hfdsl.rl.training.algorithms.base import GroupOptions, Options, ReferenceRun, RewardRun


@dataclass(frozen=True, kw_only=True)
class GRPOOptions(GroupOptions):
    """The options of GRPO."""

    loss: Clip = Clip(0.2, kl=0.04, aggregation="sequence-mean-token-mean")
    """The loss of the policy, with its KL term to the reference."""


@dataclass(frozen=True, kw_only=True)
class GRPOWithoutReferenceOptions(GroupOptions):
    """The options of GRPO without a reference."""

    loss: Clip = Clip(0.2, aggregation="sequence-mean-token-mean")
    """The loss of the policy, which has no KL term."""


@dataclass(frozen=True, kw_only=True)
class DrGRPOOptions(GroupOptions):
    """The options of Dr. GRPO."""

    loss: Clip = Clip(0.2, aggregation="sequence-mean-token-sum", constant=None)
    """The loss of the policy; without a ``constant`` it divides by R, the length of the longest response."""


@dataclass(frozen=True, kw_only=True)
class GSPOOptions(GroupOptions):
    """The options of GSPO."""

    updates: Count = 4
    loss: SequenceClip = SequenceClip(3e-4, 4e-4)
    """The loss of the policy, which clips the ratio of a whole response."""


@dataclass(frozen=True, kw_only=True)
class RLOOOptions(Options):
    """The options of RLOO."""

    group: Count = 4
    """The number of sampled responses to a prompt."""
    kl: NonNegative = 0.03
    """The weight of the KL to the reference in the rewards."""
    loss: Reinforce = Reinforce(aggregation="sequence-mean-token-sum")
    """The loss of the policy."""


@dataclass(frozen=True, kw_only=True)
class ReMaxOptions(Options):
    """The options of ReMax."""

    kl: NonNegative = 0.1
    """The weight of the KL to the reference in the rewards."""
    loss: Reinforce = Reinforce(aggregation="sequence-mean-token-sum")
    """The loss of the policy."""


@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlusOptions(Options):
    """The options of REINFORCE++."""

    updates: Count = 2
    """The number of updates in a step, each on an equal part of its rows."""
    kl: NonNegative = 0.01
    """The weight of the KL to the reference in the rewards."""
    loss: Clip = Clip(0.2)
    """The loss of the policy."""


@dataclass(frozen=True, kw_only=True)
class GRPO(ReferenceRun):
    """GRPO: no critic; each response is compared with the others to its prompt."""

    algorithm: str = "hfdsl.rl.dataflows.grpo:grpo"
    options: GRPOOptions = GRPOOptions()


@dataclass(frozen=True, kw_only=True)
class GRPOWithoutReference(RewardRun):
    """GRPO whose loss has no KL term, and so needs no reference."""

    algorithm: str = "hfdsl.rl.dataflows.grpo:grpo_without_reference"
    options: GRPOWithoutReferenceOptions = GRPOWithoutReferenceOptions()


@dataclass(frozen=True, kw_only=True)
class DrGRPO(RewardRun):
    """Dr. GRPO: GRPO without the divisions that favor long wrong responses and easy or hard questions."""

    algorithm: str = "hfdsl.rl.dataflows.dr_grpo:dr_grpo"
    options: DrGRPOOptions = DrGRPOOptions()


@dataclass(frozen=True, kw_only=True)
class GSPO(RewardRun):
    """GSPO: the ratio and its clip are per response, not per token."""

    algorithm: str = "hfdsl.rl.dataflows.gspo:gspo"
    options: GSPOOptions = GSPOOptions()


@dataclass(frozen=True, kw_only=True)
class RLOO(ReferenceRun):
    """RLOO: REINFORCE with the other responses to a prompt as the baseline of each."""

    algorithm: str = "hfdsl.rl.dataflows.rloo:rloo"
    options: RLOOOptions = RLOOOptions()


@dataclass(frozen=True, kw_only=True)
class ReMax(ReferenceRun):
    """ReMax: the greedy response to a prompt is the baseline of a sampled one."""

    algorithm: str = "hfdsl.rl.dataflows.remax:remax"
    options: ReMaxOptions = ReMaxOptions()


@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlus(ReferenceRun):
    """REINFORCE++: one response per prompt, and advantages normalized over the whole batch."""

    algorithm: str = "hfdsl.rl.dataflows.reinforce_plus_plus:reinforce_plus_plus"
    options: ReinforcePlusPlusOptions = ReinforcePlusPlusOptions()
