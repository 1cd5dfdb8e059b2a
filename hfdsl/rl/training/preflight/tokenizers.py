"""The agreement of a tokenizer and the models of a run, checked before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hfdsl.errors import DataError
from hfdsl.rl.training.run_config import RunConfig
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.slicing import model_config


@dataclass(frozen=True, slots=True)
class ModelMismatch:
    """A number of a model that contradicts others of the run: its field, and the others with what they say."""

    code: str
    message: str
    field: str
    against: Mapping[str, str]
    value: int | None
    """The value that the field would need, if the model is a new one."""


def check_models(config: RunConfig, roles: Iterable[str], tokenizer: Any) -> None:
    """Check vocabulary, end of sequence and length of every model against the tokenizer and the sizes.

    Raises:
        DataError: HF903 if P + R is more than a model takes, HF904 if a model has no embedding for a token or ends a
            response with another token than the tokenizer.
    """
    for mismatch in mismatches(config, roles, len(tokenizer), tokenizer.eos_token_id):
        raise DataError(mismatch.code, mismatch.message)


def mismatches(config: RunConfig, roles: Iterable[str], tokens: int | None, end: int | None) -> Iterator[ModelMismatch]:
    """The mismatches with a tokenizer of ``tokens`` tokens that ends responses with ``end``; None is unknown."""
    length = config.dims.get("P", 0) + config.dims.get("R", 0)
    for role, model in _models(config, roles):
        values, field = model_config(model), f"{role}.model"
        words, longest = (_size(values.get(name)) for name in ("vocab_size", "max_position_embeddings"))
        ends = values.get("eos_token_id")
        if words is not None and tokens is not None and words < tokens:
            yield ModelMismatch(
                code="HF904",
                message=f"the tokenizer has {tokens} tokens, and the model of '{role}' has vocab_size = {words}",
                field=f"{field}.config.vocab_size",
                against={"data.tokenizer": f"it has {tokens} tokens"},
                value=tokens if model.path is None else None,
            )
        if longest is not None and length > longest:
            yield ModelMismatch(
                code="HF903",
                message=f"P + R = {length} tokens are more than the {longest} that the model of '{role}' takes",
                field=f"{field}.config.max_position_embeddings",
                against={f"dims.{dim}": f"{dim} = {config.dims[dim]}" for dim in ("P", "R") if dim in config.dims},
                value=length if model.path is None else None,
            )
        end_tokens = ends if isinstance(ends, list) else [ends]
        if model.path is None and ends is not None and end is not None and end not in end_tokens:
            yield ModelMismatch(
                code="HF904",
                message=(
                    f"the tokenizer ends a response with token {end}, and the model of '{role}' with "
                    f"eos_token_id = {ends}"
                ),
                field=f"{field}.config.eos_token_id",
                against={"data.tokenizer": f"it ends a response with {end}"},
                value=end,
            )


def _size(value: object) -> int | None:
    """A size of a model; None for anything else."""
    return value if isinstance(value, int) and value > 0 else None


def _models(config: RunConfig, roles: Iterable[str]) -> Iterator[tuple[str, ModelConfig]]:
    for role in roles:
        model = getattr(getattr(config, role, None), "model", None)
        if isinstance(model, ModelConfig):
            yield role, model
