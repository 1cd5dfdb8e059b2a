"""``requires`` and ``provides``: when a role works, and when its optional columns are present."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from hfdsl.errors import DefinitionError

F = TypeVar("F", bound=Callable[..., Any])


REQUIREMENTS = "__hf_requires__"
"""The attribute under which ``requires`` leaves its constraints on a function."""


PROVISIONS = "__hf_provides__"
"""The attribute in which ``provides`` stores its declaration on a function."""


def requires(*constraints: str) -> Callable[[F], F]:
    """Say what must hold for a method or a role to work, as Python expressions over names.

    The names are dims, numbers that the method or function is called with, numbers of the role's config, and sizes of
    its mesh: ``pp dp tp gen_pp gen_tp micro_dp world_size``. On a role class, a requirement is about config and mesh
    alone and is tested where the role is placed.

    Raises ``DefinitionError`` (HF114) for text that is not an expression.

    >>> @requires("B % mini_batch == 0")
    ... def update(rows: list[int]) -> None: ...
    >>> requirements_of(update)
    ('B % mini_batch == 0',)
    """
    for constraint in constraints:
        _expression("requires", constraint)
    if not constraints:
        raise DefinitionError("HF114", 'requires needs at least one expression, such as requires("B % 8 == 0")')

    def declare(fn: F) -> F:
        setattr(fn, REQUIREMENTS, constraints + requirements_of(fn))
        return fn

    return declare


def requirements_of(fn: Callable[..., Any]) -> tuple[str, ...]:
    """The constraints that ``requires`` left on a function, or on a class and all its bases."""
    owners = fn.__mro__ if isinstance(fn, type) else (fn,)
    return tuple(dict.fromkeys(text for owner in owners for text in getattr(owner, REQUIREMENTS, ())))


def _expression(decorator: str, text: object) -> None:
    """Raise HF114 for a text that is not an expression."""
    import ast  # not at the top: `import hfdsl` is kept fast

    if not isinstance(text, str):
        raise DefinitionError("HF114", f"{decorator} takes expressions as strings, got {text!r}")
    try:
        ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise DefinitionError("HF114", f"{decorator} cannot read {text!r}: {error.msg}") from None


@dataclass(frozen=True, slots=True)
class Provision:
    """A declaration of ``provides``: these columns are present exactly where ``when`` holds (None: always)."""

    columns: tuple[str, ...]
    when: str | None

    def __str__(self) -> str:
        when = [f"when={self.when!r}"] if self.when is not None else []
        return f"provides({', '.join([*map(repr, self.columns), *when])})"


def provides(*columns: str, when: str | None = None) -> Callable[[F], F]:
    """Declare when optional columns of a result are present: ``when`` is an expression like those of ``requires``.

    The columns are there exactly where it holds, and always without it. Without columns it is said of a result that is
    a loose column.

    Raises ``DefinitionError`` (HF114) for text that is not an expression.

    >>> @provides("values", when="with_values")
    ... def generate(rows: list[int]) -> None: ...
    >>> provisions_of(generate)[0].when
    'with_values'
    """
    if when is not None:
        _expression("provides", when)
    if not all(isinstance(column, str) for column in columns):
        raise DefinitionError("HF114", f"provides takes names of columns, got {', '.join(map(repr, columns))}")

    def declare(fn: F) -> F:
        setattr(fn, PROVISIONS, (Provision(columns, when), *provisions_of(fn)))
        return fn

    return declare


def provisions_of(fn: Callable[..., Any]) -> tuple[Provision, ...]:
    """The declarations of ``provides`` on a function."""
    provisions: tuple[Provision, ...] = getattr(fn, PROVISIONS, ())
    return provisions
