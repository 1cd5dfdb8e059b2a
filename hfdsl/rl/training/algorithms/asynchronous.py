"""Algorithms with a queue between sampling and training."""

from __future__ import annotations

from dataclasses import dataclass, field

from hfdsl.protocols.queueing import Late
from hfdsl.rl.fields import Count, Lag
from hfdsl.rl.losses import CISPO
from hfdsl.rl.training.algorithms.base import CriticRun, GroupOptions, Options, ReferenceRun, RewardRun
from hfdsl.rl.training.algorithms.critic_free import GRPOOptions
from hfdsl.rl.training.algorithms.dapo import DAPOOptions, DAPORoundOptions, DAPOUpdateOptions
from hfdsl.rl.training.algorithms.ppo import PPOOptions
from hfdsl.rl.workers.config import SamplerConfig


@dataclass(frozen=True, kw_only=True)
class QueueOptions(Options):
    """The options of the queue between sampling and training."""

    lag: Count = 1
    """The most training steps that the weights that sampled a row may be behind those that learn from it."""
    late: Late = "wait"
    """The discipline for rows beyond ``lag``."""
    decoupled: bool = True
    """Whether the ratio is to the actor before the updates of a step, and tokens weigh that actor / the sampler."""


@dataclass(frozen=True, kw_only=True)
class AsyncGRPOOptions(QueueOptions, GRPOOptions):
    """The options of GRPO with a queue."""


@dataclass(frozen=True, kw_only=True)
class AsyncPPOOptions(QueueOptions, PPOOptions):
    """The options of PPO with a queue."""


@dataclass(frozen=True, kw_only=True)
class AsyncDAPOOptions(QueueOptions, DAPOOptions):
    """The options of DAPO with a queue."""


@dataclass(frozen=True, kw_only=True)
class AsyncDAPORoundsOptions(DAPORoundOptions, DAPOUpdateOptions):
    """The options of DAPO with dynamic sampling in front of a queue, whose late groups are sampled again."""

    rows: Count = 8192
    """The rows of an update: sampling continues until this many rows are kept."""
    lag: Lag = 1
    """The most training steps that the weights that sampled a row may be behind those that learn from it."""
    decoupled: bool = True
    """Whether the ratio is to the actor before the updates of a step, and tokens weigh that actor / the sampler."""


@dataclass(frozen=True, kw_only=True)
class AsyncCISPOOptions(QueueOptions, GroupOptions):
    """The options of CISPO with a queue."""

    group: Count = 16
    updates: Count = 16
    loss: CISPO = CISPO()
    """The loss of the policy, whose importance weight is clipped."""


@dataclass(frozen=True, kw_only=True)
class AsyncGRPO(ReferenceRun):
    """GRPO with a queue: a sampler works while the actor learns."""

    algorithm: str = "hfdsl.rl.dataflows.asynchronous:async_grpo"
    options: AsyncGRPOOptions = AsyncGRPOOptions()
    sampler: SamplerConfig = field()
    """The role that samples, with a copy of the actor's weights."""


@dataclass(frozen=True, kw_only=True)
class AsyncGRPOInFlight(AsyncGRPO):
    """GRPO with a queue, whose sampler takes new weights between two tokens."""

    algorithm: str = "hfdsl.rl.dataflows.asynchronous:async_grpo_in_flight"


@dataclass(frozen=True, kw_only=True)
class AsyncPPO(CriticRun):
    """PPO with a queue: a sampler works while the actor and the critic learn."""

    algorithm: str = "hfdsl.rl.dataflows.asynchronous:async_ppo"
    options: AsyncPPOOptions = AsyncPPOOptions()
    sampler: SamplerConfig = field()
    """The role that samples, with a copy of the actor's weights."""


@dataclass(frozen=True, kw_only=True)
class AsyncDAPO(RewardRun):
    """DAPO with a queue: a sampler works while the actor learns."""

    algorithm: str = "hfdsl.rl.dataflows.asynchronous:async_dapo"
    options: AsyncDAPOOptions = AsyncDAPOOptions()
    sampler: SamplerConfig = field()
    """The role that samples, with a copy of the actor's weights."""


@dataclass(frozen=True, kw_only=True)
class AsyncDAPORounds(RewardRun):
    """DAPO with dynamic sampling in front of a queue: a sampler fills batches while the actor learns."""

    algorithm: str = "hfdsl.rl.dataflows.asynchronous:async_dapo_rounds"
    options: AsyncDAPORoundsOptions = AsyncDAPORoundsOptions()
    sampler: SamplerConfig = field()
    """The role that samples, with a copy of the actor's weights."""


@dataclass(frozen=True, kw_only=True)
class AsyncCISPO(RewardRun):
    """CISPO with a queue: importance weights are clipped, so that every token has a gradient."""

    algorithm: str = "hfdsl.rl.dataflows.asynchronous:async_cispo"
    options: AsyncCISPOOptions = AsyncCISPOOptions()
    sampler: SamplerConfig = field()
    """The role that samples, with a copy of the actor's weights."""
