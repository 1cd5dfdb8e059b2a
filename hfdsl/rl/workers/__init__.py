"""The ready-made roles, on models of Hugging Face transformers. Importing them loads no torch."""

from hfdsl.rl.workers.actor import Actor
from hfdsl.rl.workers.config import (
    ActorConfig,
    BatchingConfig,
    CriticConfig,
    GenerationConfig,
    JudgeConfig,
    ModelConfig,
    OptimizerConfig,
    ReferenceConfig,
    RewardConfig,
    SamplerConfig,
    ServedConfig,
    ServerConfig,
    TrainingConfig,
    VerifierConfig,
)
from hfdsl.rl.workers.critic import Critic
from hfdsl.rl.workers.kl_penalty import KLPenalty
from hfdsl.rl.workers.lora import Lora
from hfdsl.rl.workers.multiplier import LagrangeMultiplier
from hfdsl.rl.workers.reference import Reference
from hfdsl.rl.workers.reward import Reward, RewardLearner, RewardModel
from hfdsl.rl.workers.sampler import InFlightSampler, Sampler
from hfdsl.rl.workers.served import Judge, ServedPolicy
from hfdsl.rl.workers.verifier import Verifier

__all__ = [
    "Actor",
    "ActorConfig",
    "BatchingConfig",
    "Critic",
    "CriticConfig",
    "GenerationConfig",
    "InFlightSampler",
    "Judge",
    "JudgeConfig",
    "KLPenalty",
    "LagrangeMultiplier",
    "Lora",
    "ModelConfig",
    "OptimizerConfig",
    "Reference",
    "ReferenceConfig",
    "Reward",
    "RewardConfig",
    "RewardLearner",
    "RewardModel",
    "Sampler",
    "SamplerConfig",
    "ServedConfig",
    "ServedPolicy",
    "ServerConfig",
    "TrainingConfig",
    "Verifier",
    "VerifierConfig",
]
