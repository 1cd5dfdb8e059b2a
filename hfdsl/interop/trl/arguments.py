"""The values that TRL's parser takes for an argument.

Words of a command are read as argparse reads them. Values of a YAML file become the defaults of arguments: argparse
reads those that are texts, such as ``'8'``, and takes all others as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from hfdsl.interop.reporting import value_text
from hfdsl.interop.settings import is_integer

SWITCHED = {"yes": True, "true": True, "t": True, "y": True, "1": True,
            "no": False, "false": False, "f": False, "n": False, "0": False}  # fmt: skip  # a table
OF_OTHERS = ("optim", "lr_scheduler_type")
"""Choices of another library, which has too many to list."""


class RefusedError(ValueError):
    """A value that the parser refuses, and why."""


def parsed(key: str, value: Any, option: Mapping[str, Any], *, in_file: bool) -> Any:
    """The value that an argument gets.

    Raises:
        RefusedError: where the parser refuses it.

    >>> parsed("beta", "0.5", {"type": "float"}, in_file=True), parsed("bf16", "yes", {"type": "switch"}, in_file=False)
    (0.5, True)
    """
    if isinstance(value, list):
        return [parsed(key, item, option, in_file=in_file) for item in value] if option.get("values") else value
    if in_file and not isinstance(value, str):
        if isinstance(value, int | float) and not isinstance(value, bool):
            _check_choice(key, value, option.get("choices", []))
        return int(value) if isinstance(value, bool) and option.get("type") in ("int", "float") else value
    if option.get("none") and str(value).lower() == "none":
        return None
    match option.get("type"):
        case "int":
            return value if is_integer(value) else _number(key, value, int, "an integer")
        case "float":
            whole = isinstance(value, int | float) and not isinstance(value, bool)
            return value if whole else _number(key, value, float, "a number")
        case "switch":
            if (word := str(value).lower()) not in SWITCHED:
                raise RefusedError(f"{key} = {value_text(value)} is neither true nor false")
            return SWITCHED[word]
    _check_choice(key, value, option.get("choices", ()))
    return value


def _number(key: str, value: Any, kind: type[int] | type[float], noun: str) -> int | float:
    try:
        return kind(value if isinstance(value, str) else "")
    except ValueError:
        raise RefusedError(f"{key} = {value_text(value)} is not {noun}") from None


def _check_choice(key: str, value: Any, choices: list[str]) -> None:
    if not choices or str(value) in choices:
        return
    near = get_close_matches(str(value).lower(), choices, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    if key in OF_OTHERS:
        raise RefusedError(f"no {key} of transformers is called '{value}'{hint}")
    raise RefusedError(f"{key} = {value_text(value)} is not one of {', '.join(choices)}{hint}")
