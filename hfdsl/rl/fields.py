"""The values that losses, configurations and formulas take: one rule for Python and for TOML.

A field's annotation says it: a type, a ``Literal``, or a number with its ``Within``. Dataclasses hold their fields
against it when they are made, so a loss that a program builds is refused where a table of a file is:

>>> from hfdsl.rl.losses import Clip
>>> Clip(0.2, aggregation="token_mean")
Traceback (most recent call last):
...
hfdsl.errors.ConfigError: HF940: Clip: aggregation takes 'token-mean' or 'sequence-mean-token-mean' or \
'sequence-mean-token-sum', got 'token_mean'; did you mean 'token-mean'?
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, TypeAlias, get_type_hints

from hfdsl.errors import ConfigError
from hfdsl.types.bounds import Within, misfit

Count: TypeAlias = Annotated[int, Within(at_least=1)]
NonNegative: TypeAlias = Annotated[float, Within(at_least=0)]
Positive: TypeAlias = Annotated[float, Within(above=0)]
Share: TypeAlias = Annotated[float, Within(at_least=0, at_most=1)]
Temperature: TypeAlias = Annotated[
    float, Within(above=0, help="for the likeliest tokens call generate(prompts, greedy=True)")
]


def check_fields(config: object) -> None:
    """Hold the fields of a dataclass against their annotations, for its ``__post_init__``.

    Raises:
        ConfigError: HF940 for a value of another type, a text that is not listed, or a number out of bounds.
    """
    kind: Any = type(config)
    for name, annotation in annotations_of(kind).items():
        problem = misfit(annotation, getattr(config, name, None))
        if problem is not None:
            raise ConfigError("HF940", f"{kind.__name__}: {name} {problem}")


def check_argument(function: str, name: str, annotation: Any, value: Any) -> None:
    """Hold an argument of a formula against its annotation; errors as for ``check_fields``."""
    problem = misfit(annotation, value)
    if problem is not None:
        raise ConfigError("HF940", f"{function}: {name} {problem}")


@lru_cache(maxsize=256)
def annotations_of(kind: type) -> Mapping[str, Any]:
    """The annotations of a dataclass's fields, bounds included; of the nearest base where its own cannot be read."""
    fields = dict(getattr(kind, "__dataclass_fields__", {}))
    for base in kind.__mro__:
        try:
            hints = get_type_hints(base, include_extras=True)
        except Exception:  # noqa: BLE001  # an annotation is an expression, which may raise anything
            for name in vars(base).get("__annotations__", {}):
                fields.pop(name, None)  # what is unknown of it, the base does not know either
            continue
        return {name: hints[name] for name in hints if name in fields}
    return {}
