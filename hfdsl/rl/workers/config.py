"""The configurations of the ready-made roles: frozen dataclasses of plain values, which print, compare and pickle.

The text below a field describes it, with its unit and usual values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from hfdsl.protocols.role_facts import Learning
from hfdsl.rl.data.tokenizers import Tokenizer
from hfdsl.rl.fields import Count, Temperature, check_fields
from hfdsl.rl.workers.lora import Lora
from hfdsl.rl.workers.model_config import (
    BatchingConfig,
    FloatDType,
    GenerationConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
)
from hfdsl.rl.workers.server_config import Decoder, JudgeConfig, ServedConfig, ServerConfig, without_credentials

__all__ = [
    "ActorConfig",
    "BatchingConfig",
    "CriticConfig",
    "GenerationConfig",
    "JudgeConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ReferenceConfig",
    "RewardConfig",
    "SamplerConfig",
    "ServedConfig",
    "ServerConfig",
    "TrainingConfig",
    "VerifierConfig",
    "cached_tokens",
    "computes",
    "concurrent_calls",
    "kept_dtype",
    "learning",
    "policy_temperature",
    "repeats_responses",
    "result_sizes",
    "samples_with",
    "truncates",
    "without_credentials",
]

ScoreFunction: TypeAlias = Callable[[Any, dict[str, Any]], float]


@dataclass(frozen=True, slots=True)
class ActorConfig:
    """A policy that generates and learns."""

    model: ModelConfig
    """The policy's model."""

    generation: GenerationConfig
    """How it samples."""

    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How it learns; its ``autocast`` holds for generation too."""

    batching: BatchingConfig = field(default_factory=BatchingConfig)
    """The micro-batches of updates and log-probs."""

    lora: Lora | None = None
    """The adapter that learns instead of the model's own weights; None trains all of them."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """A policy that only generates, with weights that ``hf.sync`` sends from the actor."""

    model: ModelConfig
    """The model; the first ``hf.sync`` replaces its weights."""

    generation: GenerationConfig
    """How it samples."""

    autocast: FloatDType | None = None
    """The dtype of matrix products, which should be the actor's; None computes in the dtype of the parameters."""

    batching: BatchingConfig = field(default_factory=BatchingConfig)
    """The micro-batches of log-probs."""

    lora: Lora | None = None
    """The actor's ``lora``, if it sends only its adapter (``exports = "adapter"``); ``model`` is then the one that the
    actor starts from."""

    concurrent_calls: Count = 1
    """For an ``InFlightSampler`` with ``engine="vllm"`` before a queue: how many calls of ``generate`` may be in
    progress on a rank at a time. The engine samples their rows in one batch, so that the last rows of a call share its
    time with those of the next ones. Usually the lag of the queue + 1; more gain nothing. Other engines run calls one
    after another."""

    def __post_init__(self) -> None:
        check_fields(self)


def concurrent_calls(config: SamplerConfig) -> dict[str, int]:
    """How many calls of a sampler's methods may be in progress on a rank, for checks and for a run.

    >>> vllm = GenerationConfig(8, engine="vllm")
    >>> concurrent_calls(SamplerConfig(ModelConfig(path="model"), vllm, concurrent_calls=5))
    {'generate': 5}
    """
    return {"generate": config.concurrent_calls if config.generation.engine == "vllm" else 1}


def computes(config: ActorConfig | SamplerConfig | ReferenceConfig) -> FloatDType:
    """The dtype in which a policy samples and computes log-probs, and an actor learns.

    >>> model = ModelConfig(path="model", dtype="bfloat16")
    >>> [computes(SamplerConfig(model, GenerationConfig(8), autocast)) for autocast in (None, "float32")]
    ['bfloat16', 'float32']
    """
    autocast = config.training.autocast if isinstance(config, ActorConfig) else config.autocast
    return autocast or config.model.dtype


def cached_tokens(config: ActorConfig | SamplerConfig) -> dict[str, int]:
    """The tokens for which the engine of a policy has room, for checks; other engines than vLLM take what they need.

    >>> cached_tokens(SamplerConfig(ModelConfig(path="model"), GenerationConfig(8, engine="vllm", cache_tokens=4096)))
    {'generate': 4096}
    """
    return {"generate": config.generation.cache_tokens} if config.generation.engine == "vllm" else {}


TRAINER_ENGINES: Final = frozenset({"auto", "builtin", "plain", "captured"})
"""The engines that pass tokens through the model that learns, so that their log-probs are the trainer's."""


def samples_with(config: ActorConfig | SamplerConfig) -> str | None:
    """The engine that samples instead of the trainer's model, for checks; None if that model samples.

    >>> samples_with(SamplerConfig(ModelConfig(path="model"), GenerationConfig(8, engine="plain"))) is None
    True
    """
    engine: str = config.generation.engine
    return None if engine in TRAINER_ENGINES else engine


def kept_dtype(config: SamplerConfig) -> FloatDType:
    """The dtype in which a sampler keeps the actor's weights, and receives them.

    A model keeps its parameters in ``model.dtype``, since autocast rounds only some of them. An engine in a process of
    its own rounds all of them to the dtype that it computes in, so the copy beside it has that dtype, too.

    >>> engines = GenerationConfig(8, engine="vllm"), GenerationConfig(8, engine="plain")
    >>> [kept_dtype(SamplerConfig(ModelConfig(path="model"), engine, "bfloat16")) for engine in engines]
    ['bfloat16', 'float32']
    """
    return config.model.dtype if samples_with(config) is None else computes(config)


def in_flight_obstacle(config: SamplerConfig) -> str | None:
    """Why a sampler cannot take weights between tokens, for checks.

    >>> in_flight_obstacle(SamplerConfig(ModelConfig(path="model"), GenerationConfig(8, engine="captured")))
    'engine="captured" samples whole responses; the engines "plain" and "vllm" take weights between tokens'
    """
    engine, engine_tp = config.generation.engine, config.generation.engine_tp
    if engine == "vllm" and (engine_tp or 1) > 1:
        return f"engine_tp={engine_tp} makes ranks share an engine, and they would take weights at different tokens"
    if engine == "vllm" and config.lora is not None and config.generation.adapter != "merged":
        return 'an engine continues with the adapter that a row began with; adapter="merged" sends all weights'
    if engine in ("auto", "plain", "vllm"):  # "auto" is "plain" where no run's configuration has decided
        return None
    return f'engine="{engine}" samples whole responses; the engines "plain" and "vllm" take weights between tokens'


@dataclass(frozen=True, slots=True)
class ReferenceConfig:
    """A frozen policy: the reference of a KL term, or a teacher."""

    model: ModelConfig
    """The model, usually the one that the actor starts from."""

    temperature: Temperature = 1.0
    """The logits are divided by it; it should be the actor's, so that their log-probs can be compared."""

    autocast: FloatDType | None = None
    """The dtype of matrix products, which should be the actor's; None computes in the dtype of the parameters."""

    batching: BatchingConfig = field(default_factory=BatchingConfig)
    """The micro-batches of log-probs."""

    def __post_init__(self) -> None:
        check_fields(self)


def policy_temperature(config: ActorConfig | SamplerConfig | ReferenceConfig) -> float:
    """The temperature of a policy's samples and log-probs, for checks.

    >>> policy_temperature(ReferenceConfig(ModelConfig(path="model"), temperature=0.7))
    0.7
    """
    return config.temperature if isinstance(config, ReferenceConfig) else config.generation.temperature


def repeats_responses(config: ActorConfig | SamplerConfig) -> str | None:
    """Why all responses to a prompt are the same, for checks; None if they differ.

    >>> repeats_responses(SamplerConfig(ModelConfig(path="model"), GenerationConfig(8, top_k=1)))
    'top_k = 1'
    """
    return "top_k = 1" if config.generation.top_k == 1 else None


def truncates(config: ActorConfig | SamplerConfig) -> str | None:
    """How a policy samples from a part of the distribution, for checks; None from all of it.

    >>> truncates(SamplerConfig(ModelConfig(path="model"), GenerationConfig(8, top_p=0.9, top_k=50)))
    'top_p = 0.9, top_k = 50'
    """
    generation = config.generation
    limits = {"top_p": generation.top_p if generation.top_p < 1 else 0, "top_k": generation.top_k}
    return ", ".join(f"{name} = {limit:g}" for name, limit in limits.items() if limit) or None


def result_sizes(config: ActorConfig | SamplerConfig) -> dict[str, dict[str, int]]:
    """The width of the columns that a policy generates, for checks.

    >>> result_sizes(SamplerConfig(ModelConfig(path="model"), GenerationConfig(max_tokens=8)))
    {'generate': {'R': 8}}
    """
    return {"generate": {"R": config.generation.max_tokens}}


@dataclass(frozen=True, slots=True)
class CriticConfig:
    """A model with a linear head for values, which starts at 0."""

    model: ModelConfig
    """The model; its output layer is not used."""

    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How it learns; a critic usually takes a learning rate ten times the actor's."""

    batching: BatchingConfig = field(default_factory=BatchingConfig)
    """The micro-batches of updates and values."""

    lora: Lora | None = None
    """The adapter that learns, with the head, instead of the model's own weights; None trains all of them."""

    def __post_init__(self) -> None:
        check_fields(self)


def learning(config: ActorConfig | CriticConfig) -> Learning:
    """The learning rate and the dtype of the parameters that learn, for checks.

    >>> learning(CriticConfig(ModelConfig(path="model", dtype="bfloat16"))).dtype
    'bfloat16'
    >>> learning(CriticConfig(ModelConfig(path="model", dtype="bfloat16"), lora=Lora(rank=8))).dtype
    'float32'
    """
    training, optimizer = config.training, config.training.optimizer
    has_copies = config.lora is not None or training.master_weights  # an adapter and master weights are float32
    return Learning(
        optimizer.learning_rate,
        "float32" if has_copies else config.model.dtype,
        optimizer.warmup_steps,
        None if optimizer.schedule == "constant" else optimizer.total_steps,
        optimizer.min_lr_ratio * optimizer.learning_rate,
        pretrained=config.model.path is not None and config.lora is None,
        epsilon=optimizer.epsilon,
    )


def call_obstacles(config: ActorConfig) -> dict[str, str]:
    """The methods that an actor cannot run, for checks: without an adapter there is none to leave out.

    >>> call_obstacles(ActorConfig(ModelConfig(path="model"), GenerationConfig(8)))
    {'base_log_probs': 'leaves out an adapter, and lora is not set; set it, or place a Reference'}
    >>> call_obstacles(ActorConfig(ModelConfig(path="model"), GenerationConfig(8), lora=Lora(rank=8)))
    {}
    """
    no_adapter = "leaves out an adapter, and lora is not set; set it, or place a Reference"
    return {} if config.lora is not None else {"base_log_probs": no_adapter}


@dataclass(frozen=True, slots=True)
class RewardConfig:
    """A model with a linear head for the score of a whole response, a weight ``score.weight`` beside its backbone."""

    model: ModelConfig
    """The saved reward model."""

    autocast: FloatDType | None = None
    """The dtype of matrix products; None computes in the dtype of the parameters."""

    batching: BatchingConfig = field(default_factory=BatchingConfig)
    """The micro-batches of scores."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class VerifierConfig:
    """A reward by rule: either the scorer of a reasoning-gym data set, or a function of a response and its task."""

    dataset: str | None = None
    """The name of a reasoning-gym data set, whose entries are the tasks."""

    function: ScoreFunction | str | None = None
    """A function of a response and its ``task``, or its name as ``"module:name"`` or ``"file.py:name"``."""

    tokenizer: Decoder | Tokenizer | str | None = None
    """The decoder of a response's tokens: a tokenizer as the data has it, the folder of a saved one, or a function or
    its name. None passes the list of tokens to the scorer."""

    def __post_init__(self) -> None:
        check_fields(self)
