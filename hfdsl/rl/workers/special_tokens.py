"""The tokens that end and fill responses, read from a model's files before it is loaded."""

from __future__ import annotations

from typing import Any, Final

from hfdsl.rl.hub import local_folder
from hfdsl.rl.workers.config import ActorConfig, SamplerConfig
from hfdsl.rl.workers.model_config import ModelConfig
from hfdsl.rl.workers.slicing import model_config, read_object
from hfdsl.types.numbers import is_count

NO_PAD: Final = frozenset(
    (
        "bloom", "falcon", "gpt2", "gpt_neox", "granite", "llama", "ministral", "mistral", "mixtral", "nemotron", "phi",
        "qwen2", "qwen2_moe", "qwen3", "starcoder2",
    )
)  # fmt: skip  # a list of names
"""Model types whose transformers configuration has no pad token unless a model sets one."""

PAD_ADVICE: Final = "set pad_token of its ModelConfig, for example to its end-of-sequence token"


def own_token(model: ModelConfig, name: str) -> Any:
    """A special token of a model, as far as its files say: those of ``generation_config.json`` come first.

    What ``config`` overrides comes before both.

    >>> own_token(ModelConfig(config={"model_type": "llama", "eos_token_id": [2, 7]}), "eos_token_id")
    [2, 7]
    """
    if model.path is None or name in (model.config or {}):
        return (model.config or {}).get(name)
    own = read_object(local_folder(model.path) / "generation_config.json").get(name)
    return model_config(model).get(name) if own is None else own


def own_ends(model: ModelConfig) -> tuple[int, ...]:
    """The tokens that a model ends a text with, as far as its files say.

    >>> own_ends(ModelConfig(config={"model_type": "llama", "eos_token_id": 2}))
    (2,)
    """
    ends = own_token(model, "eos_token_id")
    return tuple(end for end in (ends if isinstance(ends, list) else [ends]) if is_count(end, least=0))


def misses_end(config: ActorConfig | SamplerConfig) -> int | None:
    """The token that the model ends a text with, where the policy samples on after it, for checks; None if it ends.

    >>> from hfdsl.rl.workers import GenerationConfig
    >>> model = {"model_type": "llama", "eos_token_id": 2}
    >>> misses_end(SamplerConfig(ModelConfig(config=model, end_tokens=(7,)), GenerationConfig(8)))
    2
    """
    own, ends = own_ends(config.model), config.model.end_tokens
    return own[0] if own and ends is not None and set(own).isdisjoint(ends) else None


def lacks_pad(model: ModelConfig) -> bool:
    """Whether a model is known to have no token that fills responses, so that loading a policy fails.

    >>> sizes = {"model_type": "llama", "vocab_size": 100}
    >>> lacks_pad(ModelConfig(config=sizes)), lacks_pad(ModelConfig(config=sizes, pad_token=0))
    (True, False)
    """
    named = model.pad_token is not None or own_token(model, "pad_token_id") is not None
    return not named and model_config(model).get("model_type") in NO_PAD


def no_pad_token(model: ModelConfig) -> str:
    """The message about a model without a token that fills responses."""
    name = model.path or (model.config or {}).get("model_type")
    return f"the model {name!r} has no pad token, and responses of different lengths need one"
