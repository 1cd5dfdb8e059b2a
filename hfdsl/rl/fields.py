"""The values that losses, configurations and formulas take: one rule for Python and for TOML.

A field's annotation is the rule: a type, a ``Literal``, or a number with its ``Within``. Dataclasses check their fields
when they are constructed, so a program gets the error that a table of a file would get:

>>> from hfdsl.rl.losses import Clip
>>> Clip(0.2, aggregation="token_mean")
Traceback (most recent call last):
...
hfdsl.errors.ConfigError: HF940: Clip: aggregation takes 'token-mean' or 'sequence-mean-token-mean' or \
'sequence-mean-token-sum', got 'token_mean'; did you mean 'token-mean'?
"""

from __future__ import annotations

from inspect import Parameter, signature
from types import FunctionType
from typing import Annotated, Any, TypeAlias

from hfdsl.errors import ConfigError
from hfdsl.types.bounds import Usual, Within, annotations_of, misfit

Count: TypeAlias = Annotated[int, Within(at_least=1)]
Coefficient: TypeAlias = Annotated[
    float,
    Within(at_least=0),
    Usual(at_most=1.0, effect="the KL outweighs advantages of about 1, and the policy stays at its reference"),
]
FiniteFloat: TypeAlias = Annotated[float, Within()]
GroupSize: TypeAlias = Annotated[
    int,
    Within(
        at_least=2,
        help="a response is compared with the other responses to its prompt: sample 2 or more, usually 4 to 16",
    ),
]
Lag: TypeAlias = Annotated[int, Within(at_least=0)]
Limit: TypeAlias = Annotated[float, Within(above=0, infinite=True)]
"""A limit; infinity is none."""
NonNegative: TypeAlias = Annotated[float, Within(at_least=0)]
ClipRange: TypeAlias = Annotated[float, Within(at_least=0, infinite=True)]
"""A range around a number; infinity is no bound."""
Positive: TypeAlias = Annotated[float, Within(above=0)]
Seed: TypeAlias = Annotated[int, Within(at_least=0)]
Share: TypeAlias = Annotated[float, Within(at_least=0, at_most=1)]
Temperature: TypeAlias = Annotated[
    float, Within(above=0, help="for the likeliest tokens call generate(prompts, greedy=True)")
]


def check_fields(config: object) -> None:
    """Check the fields of a dataclass against their annotations, for its ``__post_init__``.

    Raises:
        ConfigError: HF940 for a value of another type, a text that is not listed, or a number out of bounds.
    """
    kind: Any = type(config)
    for name, annotation in annotations_of(kind).items():
        problem = misfit(annotation, getattr(config, name, None))
        if problem is not None:
            raise ConfigError("HF940", f"{kind.__name__}: {name} {problem}")


def check_overrides(config: object, base: type) -> None:
    """Check that what a class overrides takes what the methods of its base are called with, for a ``__post_init__``.

    Raises:
        ConfigError: HF940 naming the method, what it takes and what it is given.
    """
    for name, declared in vars(base).items():
        method = getattr(type(config), name, None)
        if (name.startswith("_") and name != "__call__") or method is declared:
            continue
        if not isinstance(declared, FunctionType) or not isinstance(method, FunctionType):
            continue  # of a static method, or an object that is called, Python says what it takes
        declared_parameters, override = signature(declared).parameters.values(), signature(method)
        by_position = [
            parameter.name for parameter in declared_parameters if parameter.kind is not Parameter.KEYWORD_ONLY
        ]
        by_name = {
            parameter.name: None for parameter in declared_parameters if parameter.kind is Parameter.KEYWORD_ONLY
        }
        try:
            override.bind(*by_position, **by_name)
        except TypeError as error:
            wanted = ", ".join([*by_position[1:], *(f"{name}=" for name in by_name)])
            raise ConfigError(
                "HF940",
                f"{type(config).__name__}.{name}({', '.join(list(override.parameters)[1:])}) is called with "
                f"({wanted}): {error}",
            ) from None


def check_argument(function: str, name: str, annotation: Any, value: Any) -> None:
    """Check an argument of a formula against its annotation; errors as for ``check_fields``."""
    problem = misfit(annotation, value)
    if problem is not None:
        raise ConfigError("HF940", f"{function}: {name} {problem}")
