"""The configuration of a model: its weights, optimizer, generation and micro-batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from hfdsl.errors import ConfigError
from hfdsl.rl.fields import Count, Limit, NonNegative, Positive, Seed, Share, Temperature, check_fields
from hfdsl.types.bounds import Removed, Within

FloatDType: TypeAlias = Literal["float32", "bfloat16", "float16"]
Token: TypeAlias = Annotated[int, Within(at_least=0)]
DecayRate: TypeAlias = Annotated[float, Within(at_least=0, below=1)]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model: a saved one, or a transformers configuration that starts with random weights.

    With both ``path`` and ``config``, the weights come from ``path``, and ``config`` overrides its configuration.
    """

    path: str | None = None
    """The folder that ``save_pretrained`` wrote, or a name on the Hugging Face hub such as ``"Qwen/Qwen3-0.6B@main"``,
    whose revision is optional. None is a new model, which needs ``config``."""

    config: dict[str, Any] | None = None
    """Arguments of the transformers configuration class that its ``"model_type"`` names, or changes to a saved one."""

    dtype: FloatDType = "float32"
    """The dtype of the parameters. Models that learn use float32 and compute in bfloat16 by ``autocast``, or use
    bfloat16 with float32 ``TrainingConfig.master_weights``; models that only score or generate can use bfloat16, which
    halves their memory."""

    seed: Seed = 0
    """The seed of random weights and of a new LoRA adapter; a saved model without an adapter ignores it."""

    pad_token: Token | None = None
    """The token that fills a response after its end; None takes the model's own, by its ``generation_config.json`` or,
    without one, its ``config.json``."""

    end_tokens: tuple[Token, ...] | None = None
    """The tokens that end a response; None takes the model's own, by the same files."""

    attention: str | None = None
    """The ``attn_implementation`` of transformers, such as ``"sdpa"``; None takes its default for the model."""

    compile: bool = False
    """Whether to compile passes over whole sequences at first use, in one or two minutes; faster on a GPU then."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """AdamW, the schedule of its learning rate, and the norm at which gradients are clipped."""

    learning_rate: NonNegative = 1e-6
    """The peak of the learning rate. RL usually takes 1e-7 to 5e-6, a supervised stage 1e-5 to 3e-4; the default suits
    RL on models of some billion parameters."""

    betas: tuple[DecayRate, DecayRate] = (0.9, 0.95)
    """The decay rates of AdamW's two moments. The second is usual for language models; AdamW's default is 0.999."""

    epsilon: Positive = 1e-8
    """AdamW's addend to the denominator, which bounds steps where gradients are tiny; usually 1e-8."""

    weight_decay: NonNegative = 0.0
    """The decoupled weight decay of a step, times the learning rate; usually 0 for RL, up to 0.1 for pretraining."""

    clip_norm: Limit = 1.0
    """The largest norm of the whole batch's gradient; a larger one is scaled down to it. Usually 0.5 to 1."""

    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The learning rate after its warmup: it stays, or falls to ``min_lr_ratio`` along a line or a cosine. RL usually
    keeps it constant."""

    warmup_steps: Annotated[int, Within(at_least=0)] = 0
    """The updates over which the learning rate rises linearly to its peak; usually 0 to 5% of ``total_steps``."""

    total_steps: Count | None = None
    """The update at which a falling learning rate reaches its minimum; a constant one ignores it. A step of a dataflow
    may have several updates (mini-batches times epochs), and each counts. In a configured run, None is all updates of
    the run: its ``steps`` times those of a step."""

    min_lr_ratio: Share = field(default=0.0, metadata={"formerly": "final"})
    """The lowest learning rate of a falling schedule, as a share of the peak: 0 to 1, usually 0 or 0.1."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """How responses are sampled.

    The engine ``"plain"`` samples micro-batch by micro-batch, each row from a random stream of its own. ``"captured"``
    does the same in steps of fixed shapes, which are CUDA graphs on a GPU, and keeps its cache between calls. Rows that
    have ended leave a micro-batch, many at a time. ``"builtin"`` is ``"captured"`` on a GPU if the model allows it, and
    ``"plain"`` elsewhere.

    ``"vllm"`` is vLLM in a process of its own beside each rank (``pip install 'hfdsl[vllm]'``). It has a copy of the
    weights, which follows every update, and its own arithmetic: its log-probs are ``engine_log_probs`` of a rollout.

    ``"auto"`` is decided when a run's configuration is read: ``"vllm"`` on a GPU if it is installed and was faster for
    such a model, rows and tokens (``hfdsl.rl.engines.measured``), and ``"builtin"`` otherwise, as in a deployment
    written in Python.
    """

    max_tokens: Count
    """The most tokens of a response, and the width R of every response column."""

    temperature: Temperature = 1.0
    """The divisor of the logits, for sampling and for log-probs, above 0. RL samples at 1, so that the policy that
    generates is the one that learns."""

    top_p: Annotated[float, Within(above=0, at_most=1)] = 1.0
    """Sample from the fewest tokens whose probabilities add up to this, 0 to 1; 1 keeps all, which unbiased gradients
    of RL need."""

    top_k: Annotated[int, Within(at_least=0)] = 0
    """Sample from this many of the likeliest tokens; 0 keeps all."""

    engine: Annotated[
        Literal["auto", "builtin", "plain", "captured", "vllm"],
        Removed("continuous", "'auto' and 'vllm' replace it"),
    ] = "auto"
    """The engine, as above."""

    cache_tokens: Count = 131_072
    """The most tokens in the key-value cache at a time, prompts and responses together. Fewer need less memory, more
    decode more rows at once; micro-batches of ``rows`` ignore it."""

    engine_deadline: Limit = 1800.0
    """For ``"vllm"``: the most seconds for the engine to start, and for a call. An engine that takes longer is
    terminated."""

    engine_tp: Count | None = None
    """For ``"vllm"``: the number of ranks that share an engine, each with a part of its weights and cache. None takes
    the ranks along the mesh's ``tp``; a role without ``tp``, such as one that FSDP shards, may have engines on 2 or
    more ranks of ``dp``."""

    adapter: Literal["auto", "apart", "merged"] = "auto"
    """For ``"vllm"`` and a role with ``lora``: with ``"apart"``, the engine computes with the adapter beside the base
    weights, and an update sends only the adapter; with ``"merged"``, an update sends all weights, which generate
    faster. ``"auto"`` is ``"apart"`` if vLLM supports adapters of all targets, up to rank 512."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class BatchingConfig:
    """The cut of rows into micro-batches: by tokens, or by rows."""

    tokens: Count = 16_384
    """The most tokens of a micro-batch, padding included. Rows of similar lengths go together, without the padding that
    they all have. Usually 8,192 to 65,536: as many as the memory for the activations of a pass allows."""

    rows: Count | None = None
    """If set, every micro-batch has this many rows of full width, in the order of the batch, and ``tokens`` is ignored.
    A row's numbers then have the same bits on any number of ranks that each have a multiple of ``rows`` rows."""

    packing: bool = False
    """Whether to pack the sequences of a micro-batch without padding, for log-probs, values, scores and updates;
    ``tokens`` then counts real tokens. Generation keeps its padding. Needs a model whose layers attend to all tokens or
    to a window, with the attention ``"sdpa"`` or one of transformers' ``"flash_attention"``."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.packing and self.rows is not None:
            raise ConfigError(
                "HF940", f"BatchingConfig: rows={self.rows} pads every row to full width, but packing=True pads none"
            )


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How a model learns. A mesh with ``tp`` slices the model with any ``sharding``."""

    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The optimizer and its schedule."""

    autocast: FloatDType | None = None
    """The dtype of matrix products; None computes in the dtype of the parameters. On a GPU usually ``"bfloat16"``."""

    master_weights: bool = False
    """Whether parameters of 16 bits (``model.dtype``) learn through float32 copies, which the optimizer updates and
    checkpoints hold. Passes need no casts, and activations half the memory of ``autocast``; copies take 4 bytes per
    parameter. With ``"fsdp"``, shards are float32 and are gathered in ``model.dtype``. Parameters in float32 ignore
    it."""

    checkpointing: bool = False
    """Whether the backward pass recomputes activations: takes about a third more time and much less memory."""

    sharding: Literal["none", "fsdp"] = "none"
    """With ``"fsdp"``, every rank of ``dp`` holds a part of the parameters, gradients and optimizer states (FSDP2);
    with ``"none"``, each holds all of them."""

    def __post_init__(self) -> None:
        check_fields(self)
