"""Rewards by rule, for the text of a response."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from reprlib import Repr
from typing import Any

from hfdsl.errors import ResourceError
from hfdsl.graph.spans import traceback_span
from hfdsl.rl.data.tokenizers import Pretrained, Tokenizer, load_tokenizer
from hfdsl.rl.models.row_errors import bad_row
from hfdsl.rl.workers.config import VerifierConfig
from hfdsl.rl.workers.server_config import Decoder

TASK_REPR = Repr()
TASK_REPR.maxstring = TASK_REPR.maxother = 120
"""The form in which errors show a task, which may be long."""


class RuleReward:
    """The scorer of a configuration: the tokens of a response and its task -> a number.

    Raises:
        ResourceError: HF812 where the configuration names no scorer, or one that does not exist.
    """

    def __init__(self, config: VerifierConfig) -> None:
        if (config.dataset is None) == (config.function is None):
            raise ResourceError(
                "HF812",
                "a VerifierConfig needs either dataset=, the name of a reasoning-gym data set, or function=, got "
                f"dataset={config.dataset!r} and function={config.function!r}",
            )
        self._decode = decoder(config.tokenizer)
        self._score = _dataset(config.dataset) if config.function is None else imported(config.function)

    def __call__(self, row: int, tokens: list[int], task: dict[str, Any]) -> float:
        """The score of row ``row`` of this rank.

        Raises:
            HfError: HF811 where the scorer raises, or returns anything but a finite number.
        """
        response = self._decode(tokens)
        context = f"the response is {response!r}, its task {TASK_REPR.repr(task)}"
        try:
            score = self._score(response, task)
        except Exception as error:  # a rule may raise anything
            problem = f"its rule raised {type(error).__name__}: {error} ({traceback_span(error)})"
            raise bad_row(row, f"{problem}; {context}") from error
        try:
            reward = float(score)
        except (TypeError, ValueError):
            raise bad_row(row, f"its reward is {score!r}, expected a number; {context}") from None
        if not math.isfinite(reward):
            raise bad_row(row, f"its reward is {reward}, expected a finite number; {context}")
        return reward


def decoder(tokenizer: Decoder | Tokenizer | str | None) -> Callable[[list[int]], Any]:
    """What turns the tokens of a response into its text; without a tokenizer, it returns the tokens."""
    if tokenizer is None:
        return lambda tokens: tokens
    if callable(tokenizer) or (isinstance(tokenizer, str) and ":" in tokenizer):
        return imported(tokenizer)
    loaded = load_tokenizer(Pretrained(tokenizer) if isinstance(tokenizer, str) else tokenizer)
    return lambda tokens: loaded.decode(tokens, skip_special_tokens=True)


def imported(name: Callable[..., Any] | str) -> Callable[..., Any]:
    """The function of a name ``"module:name"``; a function stays as it is.

    Raises:
        ResourceError: HF812 where there is none of the name.

    >>> imported("math:sqrt")(4.0)
    2.0
    """
    if not isinstance(name, str):
        return name
    module, _, function = name.partition(":")
    try:
        value: Callable[..., Any] = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ResourceError("HF812", f'no function {name!r}, which is read as "module:name": {error}') from None
    return value


def _dataset(name: str | None) -> Callable[[str, dict[str, Any]], float]:
    from reasoning_gym.factory import DATASETS, get_score_answer_fn

    if name not in DATASETS:
        raise ResourceError("HF812", f"reasoning-gym has no data set {name!r}")
    score: Callable[..., float] = get_score_answer_fn(name)
    return lambda response, task: score(answer=response, entry=task)
