"""Policies that imitate: demonstrations, a teacher, or each other."""

from __future__ import annotations

from dataclasses import dataclass

from hfdsl.rl.fields import Count
from hfdsl.rl.losses import Clip
from hfdsl.rl.training.algorithms.base import ActorRun, AnyReward, Options, SampledRun
from hfdsl.rl.training.run_config import RunConfig
from hfdsl.rl.workers.config import ActorConfig, ReferenceConfig, SamplerConfig


@dataclass(frozen=True, kw_only=True)
class DistillationOptions(Options):
    """The options of on-policy distillation."""

    updates: Count = 1
    """How many updates a step takes, each on an equal part of its rows."""
    loss: Clip = Clip(0.2)
    """The loss of the policy."""


@dataclass(frozen=True, kw_only=True)
class MutualOptions(Options):
    """The options of mutual learning."""

    group: Count = 8
    """The number of responses to a prompt that each policy samples."""
    loss: Clip = Clip(0.2, kl=0.04, aggregation="sequence-mean-token-mean")
    """The loss of both policies, with its KL term to the other one."""


@dataclass(frozen=True, kw_only=True)
class Distillation(SampledRun):
    """On-policy distillation: a teacher grades every token of a student's responses."""

    algorithm: str = "hfdsl.rl.dataflows.distillation:distillation"
    options: DistillationOptions = DistillationOptions()
    teacher: ReferenceConfig
    """The frozen policy that grades."""


@dataclass(frozen=True, kw_only=True)
class Mutual(RunConfig):
    """Mutual learning: GRPO trains two policies at once, each the reference of the other."""

    algorithm: str = "hfdsl.rl.dataflows.mutual:mutual"
    options: MutualOptions = MutualOptions()
    left: ActorConfig
    """One policy."""
    right: ActorConfig
    """The other policy."""
    left_sampler: SamplerConfig | None = None
    """The role that samples instead of ``left``, with a copy of its weights; left out, ``left`` samples."""
    right_sampler: SamplerConfig | None = None
    """The role that samples instead of ``right``; left out, ``right`` samples."""
    reward: AnyReward
    """The role that scores responses; ``roles.reward`` names its class."""


@dataclass(frozen=True, kw_only=True)
class Supervised(ActorRun):
    """The supervised stage: the policy imitates demonstrations."""

    algorithm: str = "hfdsl.rl.dataflows.supervised:supervised"
