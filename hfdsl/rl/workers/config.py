"""What the ready roles are made with: frozen dataclasses of plain values, which print, compare and are sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from hfdsl.rl.data.tokenizers import Tokenizer

FloatDType: TypeAlias = Literal["float32", "bfloat16", "float16"]
ScoreFunction: TypeAlias = Callable[[Any, dict[str, Any]], float]
Decoder: TypeAlias = Callable[[list[int]], str]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model: the folder of a saved one, or a transformers configuration, from which it starts with random weights.

    ``config`` holds the arguments of the configuration class of its ``"model_type"``. With both, the weights are those
    of ``path`` and ``config`` overrides what its configuration says. ``dtype`` is that of the parameters. The pad and
    end-of-sequence tokens are those of the model's configuration where they are not given here. With ``compile``, its
    passes over whole sequences are compiled when they are first needed, which takes a minute or two and makes them
    faster on a GPU.
    """

    path: str | None = None
    config: dict[str, Any] | None = None
    dtype: FloatDType = "float32"
    seed: int = 0
    pad_token: int | None = None
    end_tokens: tuple[int, ...] | None = None
    attention: str | None = None
    compile: bool = False


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """AdamW, its learning rate over ``total_steps`` updates, and the norm that gradients are clipped to.

    The rate rises over ``warmup_steps`` and then stays, or falls to ``min_lr_ratio`` of its peak.
    """

    learning_rate: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    total_steps: int = 1
    min_lr_ratio: float = field(default=0.0, metadata={"formerly": "final"})


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """How responses are sampled; ``max_tokens`` is R, the width of every response.

    The engine ``"plain"`` samples micro-batch by micro-batch, each row from a random stream of its own. ``"captured"``
    does the same in steps of fixed shapes, which are CUDA graphs on a GPU, and keeps its cache between calls. Rows that
    have ended leave a micro-batch, many at a time. Both hold keys and values of ``cache_tokens`` at a time, unless
    micro-batches have a fixed number of rows. ``"auto"`` is the captured one on a GPU where the model allows it, and
    the plain one elsewhere.

    ``"continuous"`` is the continuous batching of transformers: rows come and go as they end, so that nothing waits for
    the longest, and what is sampled depends on the split. It computes in the dtype of the parameters, and takes
    ``cache_memory`` of a GPU's free memory while it runs.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    engine: Literal["auto", "plain", "captured", "continuous"] = "auto"
    cache_memory: float = 0.5
    cache_tokens: int = 131_072


@dataclass(frozen=True, slots=True)
class BatchingConfig:
    """How rows are cut into micro-batches.

    With ``tokens``, rows of like lengths go together, at most so many tokens with padding, and common padding is left
    out. With ``rows``, every micro-batch has so many rows of full width, in the order of the batch: a row's numbers
    then do not depend on the split, where ranks have a multiple of ``rows`` rows.
    """

    tokens: int = 16_384
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How a model learns: its optimizer, the dtype of its computation, and how memory is saved.

    With ``checkpointing``, activations are computed again for the gradient. Under ``sharding="fsdp"`` every rank of
    ``dp`` holds a part of the parameters, gradients and optimizer states (FSDP2); else each holds all of them. A mesh
    with ``tp`` slices the model, whatever this says.
    """

    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    autocast: FloatDType | None = None
    checkpointing: bool = False
    sharding: Literal["none", "fsdp"] = "none"


@dataclass(frozen=True, slots=True)
class ActorConfig:
    """A policy that generates and learns."""

    model: ModelConfig
    generation: GenerationConfig
    training: TrainingConfig = field(default_factory=TrainingConfig)
    batching: BatchingConfig = field(default_factory=BatchingConfig)


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """A policy that only generates, with weights that it is brought."""

    model: ModelConfig
    generation: GenerationConfig
    autocast: FloatDType | None = None
    batching: BatchingConfig = field(default_factory=BatchingConfig)


@dataclass(frozen=True, slots=True)
class ReferenceConfig:
    """A frozen policy; ``temperature`` is the actor's."""

    model: ModelConfig
    temperature: float = 1.0
    autocast: FloatDType | None = None
    batching: BatchingConfig = field(default_factory=BatchingConfig)


@dataclass(frozen=True, slots=True)
class CriticConfig:
    """A model with a head for values."""

    model: ModelConfig
    training: TrainingConfig = field(default_factory=TrainingConfig)
    batching: BatchingConfig = field(default_factory=BatchingConfig)


@dataclass(frozen=True, slots=True)
class RewardConfig:
    """A model with a head for the score of a whole response."""

    model: ModelConfig
    autocast: FloatDType | None = None
    batching: BatchingConfig = field(default_factory=BatchingConfig)


@dataclass(frozen=True, slots=True)
class VerifierConfig:
    """A rule: the scorer of a reasoning-gym data set, or a function, also by its name as ``"module:name"``.

    Either is called with a response and its ``task``, which for ``dataset`` is an entry of the data set. The response
    is a text where there is a ``tokenizer``: one as the data has it, the folder of a saved one, or a function from
    tokens to text, also by its name. Without one it is the list of tokens.
    """

    dataset: str | None = None
    function: ScoreFunction | str | None = None
    tokenizer: Decoder | Tokenizer | str | None = None


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A server that speaks the OpenAI API, such as vLLM's or SGLang's, and the model that it is asked for.

    A request takes ``timeout`` seconds at most. What may do better in a while is tried again until ``patience`` seconds
    have passed. Every rank has ``concurrency`` requests under way. ``api_key`` is the name of the environment variable
    with the key. ``extra`` goes into every request as it is.
    """

    url: str
    model: str
    timeout: float = 120.0
    patience: float = 300.0
    concurrency: int = 32
    api_key: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServedConfig:
    """A policy that a server has; prompts and responses are tokens, so its tokenizer is that of the others."""

    server: ServerConfig
    generation: GenerationConfig
    pad_token: int


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    """What a judge is asked, and where the number is in what it says.

    ``question`` is a template over ``{prompt}``, ``{response}`` and ``{task[...]}``. The last match of ``pattern`` is
    the score; of a pattern with groups, the last group.
    """

    server: ServerConfig
    question: str
    tokenizer: Decoder | Tokenizer | str
    system: str | None = None
    pattern: str = r"-?\d+(?:\.\d+)?"
    temperature: float = 0.0
    max_tokens: int = 512
