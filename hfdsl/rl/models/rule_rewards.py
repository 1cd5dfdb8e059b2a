"""Rewards by rule, for the text of a response."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from reprlib import Repr
from types import ModuleType
from typing import Any

from hfdsl.errors import ResourceError
from hfdsl.graph.spans import traceback_span
from hfdsl.rl.data.tokenizers import Pretrained, Tokenizer, load_tokenizer
from hfdsl.rl.models.row_errors import bad_row
from hfdsl.rl.workers.config import VerifierConfig
from hfdsl.rl.workers.server_config import Decoder

TASK_REPR = Repr()
TASK_REPR.maxstring = TASK_REPR.maxother = 120
"""The short form of a task in errors."""


class RuleReward:
    """The scorer of a configuration: from the tokens of a response and its task to a number.

    Raises:
        ResourceError: HF812 if the configuration names a scorer that does not exist.
    """

    def __init__(self, config: VerifierConfig) -> None:
        self._decode = decoder(config.tokenizer)
        self._score = _dataset(config.dataset) if config.function is None else imported(config.function)

    def __call__(self, row: int, tokens: list[int], task: dict[str, Any]) -> float:
        """The score of row ``row`` of this rank.

        Raises:
            HfError: HF811 if the scorer raises, or returns anything but a finite number.
        """
        response = self._decode(tokens)
        context = f"the response is {response!r}, its task {TASK_REPR.repr(task)}"
        try:
            score = self._score(response, task)
        except Exception as error:  # a rule may raise anything
            problem = f"its rule raised {type(error).__name__}: {error} ({traceback_span(error)})"
            raise bad_row(row, f"{problem}; {context}") from error
        try:
            if isinstance(score, str | bytes):  # float("1") would be 1.0
                raise TypeError
            reward = float(score)
        except (TypeError, ValueError):
            raise bad_row(row, f"its reward is {score!r}, expected a number; {context}") from None
        if not math.isfinite(reward):
            raise bad_row(row, f"its reward is {reward}, expected a finite number; {context}")
        return reward


def decoder(tokenizer: Decoder | Tokenizer | str | None) -> Callable[[list[int]], Any]:
    """The function from the tokens of a response to its text; without a tokenizer, it returns the tokens."""
    if tokenizer is None:
        return lambda tokens: tokens
    if callable(tokenizer) or (isinstance(tokenizer, str) and ":" in tokenizer):
        return imported(tokenizer)
    loaded = load_tokenizer(Pretrained(tokenizer) if isinstance(tokenizer, str) else tokenizer)
    return lambda tokens: loaded.decode(tokens, skip_special_tokens=True)


def imported(name: Callable[..., Any] | str) -> Callable[..., Any]:
    """The function that ``"module:name"`` or ``"file.py:name"`` names; a function is returned unchanged.

    Raises:
        ResourceError: HF812 if there is no such function.

    >>> imported("math:sqrt")(4.0)
    2.0
    """
    if not isinstance(name, str):
        return name
    place, _, function = name.partition(":")
    try:
        module = module_of(Path(place)) if place.endswith(".py") else import_module(place)
        value: Callable[..., Any] = getattr(module, function)
    except (ImportError, AttributeError, ValueError) as error:
        form = "file.py:name" if place.endswith(".py") else "module:name"
        raise ResourceError("HF812", f'no function {name!r}, which is read as "{form}": {error}') from None
    return value


def module_of(place: Path) -> ModuleType:
    """The module of a Python file, relative to the current folder; in a package, by its dotted name.

    The current folder of the driver is in the ``sys.path`` of a worker on Ray.

    Raises:
        ImportError: if there is no such file.
    """
    files = [path for folder in ("", *sys.path) if (path := Path(folder, place)).is_file()]
    if not files:
        raise ImportError(f"there is no file '{place}'")
    file = files[0].resolve()
    loaded = (module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == str(file))
    if (module := next(loaded, None)) is not None:
        return module
    root, parts = file.parent, [file.stem]
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.append(str(root))  # for imports of files beside it
    if len(parts) > 1:
        return import_module(".".join(parts))
    name = file.stem
    while name in sys.modules:
        name += "_"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"'{place}' cannot be read as a Python module")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is executed
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _dataset(name: str | None) -> Callable[[str, dict[str, Any]], float]:
    from reasoning_gym.factory import DATASETS, get_score_answer_fn

    if name not in DATASETS:
        raise ResourceError("HF812", f"reasoning-gym has no data set {name!r}")
    score: Callable[..., float] = get_score_answer_fn(name)
    return lambda response, task: score(answer=response, entry=task)
