"""The configuration of every ready algorithm: a ``RunConfig`` with its options and the tables of its roles.

``hfdsl.rl.training.config.from_config`` takes one; a TOML file with the same ``algorithm`` has the same fields. Options
are those of the dataflow with their defaults again, since an editor completes only what is written down;
``tests/rl/training/test_algorithms.py`` holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from hfdsl.protocols.queueing import Late
from hfdsl.rl.fields import Count, NonNegative, Share, check_fields
from hfdsl.rl.kl import AdaptiveKL, FixedKL
from hfdsl.rl.losses import CISPO, DPO, BradleyTerry, Clip, ClippedValue, Reinforce, SequenceClip
from hfdsl.rl.training.run_config import RunConfig, UpdateConfig
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
"""The table of a reward, which is that of the class that ``roles.reward`` names."""

# -- roles


@dataclass(frozen=True, kw_only=True)
class ActorRun(RunConfig):
    """A run of a policy that generates and learns."""

    actor: ActorConfig
    """The policy that generates and learns."""


@dataclass(frozen=True, kw_only=True)
class SampledRun(ActorRun):
    """A run of a policy that learns from its own responses."""

    sampler: SamplerConfig | None = None
    """What samples in the place of the actor, with a copy of its weights; left out, the actor does."""


@dataclass(frozen=True, kw_only=True)
class RewardRun(SampledRun):
    """A run whose responses are scored."""

    reward: AnyReward
    """What scores responses; ``roles.reward`` names its class."""


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


# -- options


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all options share: values within their bounds."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class GroupOptions(Options):
    """The options of algorithms that compare the responses to a prompt with each other."""

    group: Count = 8
    """How many responses to a prompt are sampled."""
    updates: Count = 2
    """How many updates a step takes, each on an equal part of its rows."""


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
    """How many responses to a prompt are sampled."""
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
    """How many updates a step takes, each on an equal part of its rows."""
    kl: NonNegative = 0.01
    """The weight of the KL to the reference in the rewards."""
    loss: Clip = Clip(0.2)
    """The loss of the policy."""


@dataclass(frozen=True, kw_only=True)
class AdaptivePPOOptions(Options):
    """The options of PPO whose penalty is a role."""

    epochs: Count = 2
    """How often a step goes over its rows."""
    mini_batches: Count = 2
    """How many updates an epoch takes, each on an equal part of its rows."""
    gamma: Share = 1.0
    """The discount of later rewards."""
    lam: Share = 0.95
    """The lambda of generalized advantage estimation: 0 trusts the critic alone, 1 the rewards alone."""
    loss: Clip = Clip(0.2)
    """The loss of the policy."""
    value_loss: ClippedValue = ClippedValue(0.2)
    """The loss of the critic."""


@dataclass(frozen=True, kw_only=True)
class PPOOptions(AdaptivePPOOptions):
    """The options of PPO."""

    kl: NonNegative = 0.05
    """The weight of the KL to the reference in the rewards."""


@dataclass(frozen=True, kw_only=True)
class DAPORoundOptions(Options):
    """The options of a round of DAPO's sampling."""

    group: Count = 16
    """How many responses to a prompt are sampled."""
    longest: Count = 20480
    """From this length in tokens on, a response loses a score of 1."""
    buffer: Count = 4096
    """Over how many tokens before ``longest`` the loss of score grows from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class DAPOUpdateOptions(Options):
    """The options of the updates of DAPO."""

    updates: Count = 16
    """How many updates a step takes, each on an equal part of its rows."""
    loss: Clip = Clip(0.2, 0.28, aggregation="token-mean")
    """The loss of the policy, whose clip leaves more room upwards."""


@dataclass(frozen=True, kw_only=True)
class DAPOOptions(DAPORoundOptions, DAPOUpdateOptions):
    """The options of DAPO in steps of one round."""

    rows: Count = 8192
    """How many rows are trained on; they start over from the first where fewer are kept."""


@dataclass(frozen=True, kw_only=True)
class OnlineDPOOptions(Options):
    """The options of online DPO."""

    updates: Count = 1
    """How many updates a step takes, each on an equal part of its pairs."""
    loss: DPO = DPO(0.1)
    """The loss of the policy."""


@dataclass(frozen=True, kw_only=True)
class OfflineDPOOptions(Options):
    """The options of DPO."""

    loss: DPO = DPO(0.1)
    """The loss of the policy."""


@dataclass(frozen=True, kw_only=True)
class RewardModelingOptions(Options):
    """The options of reward modeling."""

    loss: BradleyTerry = BradleyTerry()
    """The loss of the reward model."""


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
    """How many responses to a prompt each policy samples."""
    loss: Clip = Clip(0.2, kl=0.04, aggregation="sequence-mean-token-mean")
    """The loss of both policies, with its KL term to the other one."""


@dataclass(frozen=True, kw_only=True)
class QueueOptions(Options):
    """The options of the queue between sampling and training."""

    lag: Count = 1
    """How many steps of training the weights that sampled a row may be behind those that it trains."""
    late: Late = "wait"
    """What happens to rows beyond ``lag``."""
    decoupled: bool = True
    """Whether the ratio is one to the actor before the updates of a step, and tokens weigh that / the sampler's."""


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
class AsyncCISPOOptions(QueueOptions, GroupOptions):
    """The options of CISPO with a queue."""

    group: Count = 16
    updates: Count = 16
    loss: CISPO = CISPO()
    """The loss of the policy, whose importance weight is clipped."""


# -- runs


@dataclass(frozen=True, kw_only=True)
class GRPO(ReferenceRun):
    """GRPO: no critic; a response is better or worse than the others to its prompt."""

    algorithm: str = "hfdsl.rl.dataflows.grpo:grpo"
    options: GRPOOptions = GRPOOptions()


@dataclass(frozen=True, kw_only=True)
class GRPOWithoutReference(RewardRun):
    """GRPO whose loss has no KL term, and which needs no reference for one."""

    algorithm: str = "hfdsl.rl.dataflows.grpo:grpo_without_reference"
    options: GRPOWithoutReferenceOptions = GRPOWithoutReferenceOptions()


@dataclass(frozen=True, kw_only=True)
class DrGRPO(RewardRun):
    """Dr. GRPO: GRPO without the divisions that favor long wrong responses and easy or hard questions."""

    algorithm: str = "hfdsl.rl.dataflows.dr_grpo:dr_grpo"
    options: DrGRPOOptions = DrGRPOOptions()


@dataclass(frozen=True, kw_only=True)
class GSPO(RewardRun):
    """GSPO: the ratio of a response as a whole is clipped."""

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
    """REINFORCE++: one response per prompt, and advantages that are normalized over the whole batch."""

    algorithm: str = "hfdsl.rl.dataflows.reinforce_plus_plus:reinforce_plus_plus"
    options: ReinforcePlusPlusOptions = ReinforcePlusPlusOptions()


@dataclass(frozen=True, kw_only=True)
class PPO(CriticRun):
    """PPO: a critic, generalized advantages, and a penalty for leaving the reference."""

    algorithm: str = "hfdsl.rl.dataflows.ppo:ppo"
    options: PPOOptions = PPOOptions()


@dataclass(frozen=True, kw_only=True)
class KLPenaltyArguments(Options):
    """The penalty for leaving the reference, as a role."""

    control: AdaptiveKL | FixedKL
    """How strong the penalty is: fixed, or adapted to a target."""


@dataclass(frozen=True, kw_only=True)
class PPOAdaptiveKL(CriticRun):
    """PPO whose penalty adapts itself, so that the KL of a response stays near a target."""

    algorithm: str = "hfdsl.rl.dataflows.ppo_adaptive_kl:ppo_adaptive_kl"
    options: AdaptivePPOOptions = AdaptivePPOOptions()
    penalty: KLPenaltyArguments
    """The penalty for leaving the reference."""


@dataclass(frozen=True, kw_only=True)
class DAPO(RewardRun):
    """DAPO in steps of one round: groups that are all right or all wrong are dropped."""

    algorithm: str = "hfdsl.rl.dataflows.dapo:dapo"
    options: DAPOOptions = DAPOOptions()


@dataclass(frozen=True, kw_only=True)
class DAPOUpdate(UpdateConfig):
    """The updates of DAPO on a batch that rounds have filled."""

    algorithm: str = "hfdsl.rl.dataflows.dapo:dapo_update"
    options: DAPOUpdateOptions = DAPOUpdateOptions()


@dataclass(frozen=True, kw_only=True)
class DAPORounds(RewardRun):
    """DAPO as in the paper: as many rounds of sampling as fill a batch, and updates on just that."""

    algorithm: str = "hfdsl.rl.dataflows.dapo:dapo_round"
    options: DAPORoundOptions = DAPORoundOptions()
    update: DAPOUpdate | None = None


@dataclass(frozen=True, kw_only=True)
class OnlineDPO(ReferenceRun):
    """Online DPO: the better of two responses is preferred to the other."""

    algorithm: str = "hfdsl.rl.dataflows.online_dpo:online_dpo"
    options: OnlineDPOOptions = OnlineDPOOptions()


@dataclass(frozen=True, kw_only=True)
class Distillation(SampledRun):
    """On-policy distillation: a teacher grades every token of a student's responses."""

    algorithm: str = "hfdsl.rl.dataflows.distillation:distillation"
    options: DistillationOptions = DistillationOptions()
    teacher: ReferenceConfig
    """The frozen policy that grades."""


@dataclass(frozen=True, kw_only=True)
class Mutual(RunConfig):
    """Mutual learning: two policies are trained at once by GRPO, and each is the reference of the other."""

    algorithm: str = "hfdsl.rl.dataflows.mutual:mutual"
    options: MutualOptions = MutualOptions()
    left: ActorConfig
    """One policy."""
    right: ActorConfig
    """The other policy."""
    left_sampler: SamplerConfig | None = None
    """What samples in the place of ``left``, with a copy of its weights; left out, ``left`` does."""
    right_sampler: SamplerConfig | None = None
    """The same for ``right``."""
    reward: AnyReward
    """What scores responses; ``roles.reward`` names its class."""


@dataclass(frozen=True, kw_only=True)
class AsyncGRPO(ReferenceRun):
    """GRPO with a queue: a sampler works while the actor learns."""

    algorithm: str = "hfdsl.rl.dataflows.asynchronous:async_grpo"
    options: AsyncGRPOOptions = AsyncGRPOOptions()
    sampler: SamplerConfig = field()
    """What samples, with a copy of the actor's weights."""


@dataclass(frozen=True, kw_only=True)
class AsyncPPO(CriticRun):
    """PPO with a queue: a sampler works while the actor and the critic learn."""

    algorithm: str = "hfdsl.rl.dataflows.asynchronous:async_ppo"
    options: AsyncPPOOptions = AsyncPPOOptions()
    sampler: SamplerConfig = field()
    """What samples, with a copy of the actor's weights."""


@dataclass(frozen=True, kw_only=True)
class AsyncDAPO(RewardRun):
    """DAPO with a queue: a sampler works while the actor learns."""

    algorithm: str = "hfdsl.rl.dataflows.asynchronous:async_dapo"
    options: AsyncDAPOOptions = AsyncDAPOOptions()
    sampler: SamplerConfig = field()
    """What samples, with a copy of the actor's weights."""


@dataclass(frozen=True, kw_only=True)
class AsyncCISPO(RewardRun):
    """CISPO with a queue: clipped importance weights, so that every token has a gradient."""

    algorithm: str = "hfdsl.rl.dataflows.asynchronous:async_cispo"
    options: AsyncCISPOOptions = AsyncCISPOOptions()
    sampler: SamplerConfig = field()
    """What samples, with a copy of the actor's weights."""


@dataclass(frozen=True, kw_only=True)
class OfflineDPO(ActorRun):
    """DPO: the policy prefers the better one of two responses of the data, and generates none."""

    algorithm: str = "hfdsl.rl.dataflows.dpo:dpo"
    options: OfflineDPOOptions = OfflineDPOOptions()
    reference: ReferenceConfig
    """The frozen policy that the actor is held near."""


@dataclass(frozen=True, kw_only=True)
class RewardModeling(RunConfig):
    """Reward modeling: a model learns to give the better one of two responses the higher score."""

    algorithm: str = "hfdsl.rl.dataflows.reward_modeling:reward_modeling"
    options: RewardModelingOptions = RewardModelingOptions()
    reward: CriticConfig
    """The model that learns."""


@dataclass(frozen=True, kw_only=True)
class Supervised(ActorRun):
    """The supervised stage: the policy imitates demonstrations."""

    algorithm: str = "hfdsl.rl.dataflows.supervised:supervised"


RUNS: tuple[type[RunConfig], ...] = (
    AsyncCISPO,
    AsyncDAPO,
    AsyncGRPO,
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
"""The ready configurations, by what ``algorithm`` names."""

READY_OPTIONS: Mapping[str, type] = {
    _defaults(kind, "algorithm"): type(_defaults(kind, "options"))
    for kind in (*RUNS, DAPOUpdate)
    if _defaults(kind, "options") is not None
}
"""The classes of their options, by what ``algorithm`` or ``update.algorithm`` names."""
