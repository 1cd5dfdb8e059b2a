"""What a tokenizer and the models of a run must agree on, looked at before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hfdsl.errors import DataError
from hfdsl.rl.training.run_config import RunConfig
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.slicing import model_config


def check_models(config: RunConfig, roles: Iterable[str], tokenizer: Any) -> None:
    """Hold vocabulary, end of sequence and length of every model against the tokenizer and the sizes.

    Raises:
        DataError: HF903 where P + R is more than a model takes, HF904 where a model has no embedding for a token, or
            ends a response with another token than the tokenizer does.
    """
    length = config.dims.get("P", 0) + config.dims.get("R", 0)
    for role, model in _models(config, roles):
        says = model_config(model)
        words, longest, end = (says.get(name) for name in ("vocab_size", "max_position_embeddings", "eos_token_id"))
        if words is not None and words < len(tokenizer):
            raise DataError(
                "HF904",
                f"the tokenizer has {len(tokenizer)} tokens, and the model of '{role}' has vocab_size = {words}",
            )
        if longest is not None and length > longest:
            raise DataError(
                "HF903", f"P + R = {length} tokens are more than the {longest} that the model of '{role}' takes"
            )
        if (
            model.path is None
            and end is not None
            and tokenizer.eos_token_id not in (end if isinstance(end, list) else [end])
        ):
            raise DataError(
                "HF904",
                f"the tokenizer ends a response with token {tokenizer.eos_token_id}, and the model of '{role}' with "
                f"eos_token_id = {end}",
            )


def _models(config: RunConfig, roles: Iterable[str]) -> Iterator[tuple[str, ModelConfig]]:
    for role in roles:
        model = getattr(getattr(config, role, None), "model", None)
        if isinstance(model, ModelConfig):
            yield role, model
