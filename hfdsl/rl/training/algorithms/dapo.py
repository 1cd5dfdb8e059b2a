"""DAPO: in steps of one round, or of as many rounds of sampling as fill a batch."""

from __future__ import annotations

from dataclasses import dataclass

from hfdsl.rl.fields import Count
from hfdsl.rl.losses import Clip
from hfdsl.rl.training.algorithms.base import Options, RewardRun
from hfdsl.rl.training.run_config import UpdateConfig


@dataclass(frozen=True, kw_only=True)
class DAPORoundOptions(Options):
    """The options of a round of DAPO's sampling."""

    group: Count = 16
    """The number of sampled responses to a prompt."""
    longest: Count = 20480
    """The length in tokens from which the penalty of a response is 1."""
    buffer: Count = 4096
    """The tokens before ``longest`` over which the penalty grows from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class DAPOUpdateOptions(Options):
    """The options of the updates of DAPO."""

    updates: Count = 16
    """The number of updates in a step, each on an equal part of its rows."""
    loss: Clip = Clip(0.2, 0.28, aggregation="token-mean")
    """The loss of the policy, whose clip range is wider above than below."""


@dataclass(frozen=True, kw_only=True)
class DAPOOptions(DAPORoundOptions, DAPOUpdateOptions):
    """The options of DAPO in steps of one round."""

    rows: Count = 8192
    """The rows of an update; if fewer are kept, they repeat from the first."""


@dataclass(frozen=True, kw_only=True)
class DAPO(RewardRun):
    """DAPO in steps of one round, without the groups that are all right or all wrong."""

    algorithm: str = "hfdsl.rl.dataflows.dapo:dapo"
    options: DAPOOptions = DAPOOptions()


@dataclass(frozen=True, kw_only=True)
class DAPOUpdate(UpdateConfig):
    """The updates of DAPO, on a batch that rounds have filled."""

    algorithm: str = "hfdsl.rl.dataflows.dapo:dapo_update"
    options: DAPOUpdateOptions = DAPOUpdateOptions()


@dataclass(frozen=True, kw_only=True)
class DAPORounds(RewardRun):
    """DAPO as in the paper: as many rounds of sampling as fill a batch, and updates on exactly that batch."""

    algorithm: str = "hfdsl.rl.dataflows.dapo:dapo_round"
    options: DAPORoundOptions = DAPORoundOptions()
    update: DAPOUpdate | None = None
