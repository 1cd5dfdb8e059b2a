"""The tables of roles and the options that ready-made algorithms share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from hfdsl.rl.fields import Count, check_fields
from hfdsl.rl.training.run_config import RunConfig
from hfdsl.rl.workers.config import (
    ActorConfig,
    CriticConfig,
    JudgeConfig,
    ReferenceConfig,
    RewardConfig,
    SamplerConfig,
    VerifierConfig,
)

AnyReward: TypeAlias = RewardConfig | VerifierConfig | JudgeConfig
"""The table of a reward, by the class that ``roles.reward`` names."""


@dataclass(frozen=True, kw_only=True)
class ActorRun(RunConfig):
    """A run of a policy that generates and learns."""

    actor: ActorConfig
    """The policy that generates and learns."""


@dataclass(frozen=True, kw_only=True)
class SampledRun(ActorRun):
    """A run of a policy that learns from its own responses."""

    sampler: SamplerConfig | None = None
    """The role that samples instead of the actor, with a copy of its weights; left out, the actor samples."""


@dataclass(frozen=True, kw_only=True)
class RewardRun(SampledRun):
    """A run that scores responses."""

    reward: AnyReward
    """The role that scores responses; ``roles.reward`` names its class."""


@dataclass(frozen=True, kw_only=True)
class ReferenceRun(RewardRun):
    """A run whose policy is held near a frozen one."""

    reference: ReferenceConfig
    """The frozen policy that the actor is held near."""


@dataclass(frozen=True, kw_only=True)
class CriticRun(ReferenceRun):
    """A run with a critic."""

    critic: CriticConfig
    """The model that estimates values."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The base of all options, which checks the bounds of values."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class GroupOptions(Options):
    """The options of algorithms that compare the responses to a prompt with each other."""

    group: Count = 8
    """The number of sampled responses to a prompt."""
    updates: Count = 2
    """The number of updates in a step, each on an equal part of its rows."""
