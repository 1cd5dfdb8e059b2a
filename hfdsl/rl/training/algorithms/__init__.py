"""The configuration of every ready-made algorithm: a ``RunConfig`` with its options and the tables of its roles.

``hfdsl.rl.training.config.from_config`` takes one; a TOML file with the same ``algorithm`` has the same fields. The
options repeat those of the dataflow with their defaults, since an editor completes only declared fields;
``tests/rl/training/test_algorithms.py`` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hfdsl.rl.training.algorithms.asynchronous import (
    AsyncCISPO,
    AsyncCISPOOptions,
    AsyncDAPO,
    AsyncDAPOOptions,
    AsyncDAPORounds,
    AsyncDAPORoundsOptions,
    AsyncGRPO,
    AsyncGRPOInFlight,
    AsyncGRPOOptions,
    AsyncPPO,
    AsyncPPOOptions,
    QueueOptions,
)
from hfdsl.rl.training.algorithms.base import (
    ActorRun,
    CriticRun,
    GroupOptions,
    Options,
    ReferenceRun,
    RewardRun,
    SampledRun,
)
from hfdsl.rl.training.algorithms.critic_free import (
    GRPO,
    GSPO,
    RLOO,
    DrGRPO,
    DrGRPOOptions,
    GRPOOptions,
    GRPOWithoutReference,
    GRPOWithoutReferenceOptions,
    GSPOOptions,
    ReinforcePlusPlus,
    ReinforcePlusPlusOptions,
    ReMax,
    ReMaxOptions,
    RLOOOptions,
)
from hfdsl.rl.training.algorithms.dapo import (
    DAPO,
    DAPOOptions,
    DAPORoundOptions,
    DAPORounds,
    DAPOUpdate,
    DAPOUpdateOptions,
)
from hfdsl.rl.training.algorithms.imitation import Distillation, DistillationOptions, Mutual, MutualOptions, Supervised
from hfdsl.rl.training.algorithms.ppo import PPO, AdaptivePPOOptions, KLPenaltyArguments, PPOAdaptiveKL, PPOOptions
from hfdsl.rl.training.algorithms.preferences import (
    OfflineDPO,
    OfflineDPOOptions,
    OnlineDPO,
    OnlineDPOOptions,
    RewardModeling,
    RewardModelingOptions,
)
from hfdsl.rl.training.run_config import RunConfig

__all__ = [
    "DAPO",
    "GRPO",
    "GSPO",
    "PPO",
    "RLOO",
    "ActorRun",
    "AdaptivePPOOptions",
    "AsyncCISPO",
    "AsyncCISPOOptions",
    "AsyncDAPO",
    "AsyncDAPOOptions",
    "AsyncDAPORounds",
    "AsyncDAPORoundsOptions",
    "AsyncGRPO",
    "AsyncGRPOInFlight",
    "AsyncGRPOOptions",
    "AsyncPPO",
    "AsyncPPOOptions",
    "CriticRun",
    "DAPOOptions",
    "DAPORoundOptions",
    "DAPORounds",
    "DAPOUpdate",
    "DAPOUpdateOptions",
    "Distillation",
    "DistillationOptions",
    "DrGRPO",
    "DrGRPOOptions",
    "GRPOOptions",
    "GRPOWithoutReference",
    "GRPOWithoutReferenceOptions",
    "GSPOOptions",
    "GroupOptions",
    "KLPenaltyArguments",
    "Mutual",
    "MutualOptions",
    "OfflineDPO",
    "OfflineDPOOptions",
    "OnlineDPO",
    "OnlineDPOOptions",
    "Options",
    "PPOAdaptiveKL",
    "PPOOptions",
    "QueueOptions",
    "RLOOOptions",
    "ReMax",
    "ReMaxOptions",
    "ReferenceRun",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusOptions",
    "RewardModeling",
    "RewardModelingOptions",
    "RewardRun",
    "SampledRun",
    "Supervised",
]

RUNS: tuple[type[RunConfig], ...] = (
    AsyncCISPO,
    AsyncDAPO,
    AsyncDAPORounds,
    AsyncGRPO,
    AsyncGRPOInFlight,
    AsyncPPO,
    DAPO,
    DAPORounds,
    Distillation,
    DrGRPO,
    GRPO,
    GRPOWithoutReference,
    GSPO,
    Mutual,
    OfflineDPO,
    OnlineDPO,
    PPO,
    PPOAdaptiveKL,
    ReMax,
    RewardModeling,
    ReinforcePlusPlus,
    RLOO,
    Supervised,
)


def _defaults(kind: type, name: str) -> Any:
    return next(field.default for field in fields(kind) if field.name == name)


READY: Mapping[str, type[RunConfig]] = {_defaults(kind, "algorithm"): kind for kind in RUNS}
"""The ready-made configurations, by what ``algorithm`` names."""

READY_OPTIONS: Mapping[str, type] = {
    _defaults(kind, "algorithm"): type(_defaults(kind, "options"))
    for kind in (*RUNS, DAPOUpdate)
    if _defaults(kind, "options") is not None
}
"""The option classes of the ready-made algorithms, by what ``algorithm`` or ``update.algorithm`` names."""
