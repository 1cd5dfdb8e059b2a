"""The plain values that an annotation accepts: a type, one of several strings, or numbers within bounds.

>>> Temperature = Annotated[float, Within(above=0)]
>>> misfit(Temperature, 0.7), misfit(Temperature, 0), misfit(Temperature, "hot")
(None, 'must be above 0, got 0', "takes float, got 'hot'")
>>> misfit(Literal["mean", "sum"], "meen")
"takes 'mean' or 'sum', got 'meen'; did you mean 'mean'?"
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import lru_cache
from math import inf, isnan
from numbers import Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hfdsl.types.numbers import brief, is_number

T = TypeVar("T")

PLAIN = (bool, int, float, str, list, tuple, dict, NoneType)
"""The types of values in TOML or JSON. A value of another type is not judged here."""

LISTS = (tuple, list, Sequence)
"""The annotations of a list in TOML or JSON; Python's ``Sequence`` is a string, too."""

TABLES = (dict, Mapping)
"""The annotations of a table in TOML or JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """The numbers that an annotation takes: ``top_p: Annotated[float, Within(above=0, at_most=1)]``.

    >>> str(Within(above=0, at_most=1)), str(Within()), str(Within(above=0))
    ('above 0 and at most 1', 'finite', 'above 0')
    >>> [Within(above=0).hold(inf), Within(above=0, infinite=True).hold(inf)]
    [False, True]
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    infinite: bool = False
    """Whether infinity is within the bounds, as of a limit that limits nothing."""
    help: str = ""
    """The advice at the end of the message."""

    def hold(self, value: Any) -> bool:
        """Whether a number is within the bounds; NaN never is."""
        return (
            (_is_finite(value) or (self.infinite and not isnan(value)))
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def refuses(self, value: object) -> bool:
        """Whether a value is a number, and outside of the bounds."""
        return is_number(value) and not self.hold(value)

    def __str__(self) -> str:
        limits = {"at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        return " and ".join(f"{name} {limit}" for name, limit in limits.items() if limit is not None) or "finite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """The numbers that make sense in practice, in an annotation that takes others too: a check warns of those (HF947).

    >>> [Usual(at_most=1.0).doubts(kl) for kl in (0.05, 20.0, float("inf"))]  # infinity is written on purpose
    [False, True, False]
    """

    at_most: float
    effect: str = ""
    """What larger numbers do, as a clause of a message."""

    def doubts(self, value: object) -> bool:
        """Whether a value is a number that is hardly meant."""
        return is_number(value) and self.at_most < value < inf


@dataclass(frozen=True, slots=True)
class Removed:
    """A text that an annotation took in an earlier version: ``Annotated[Literal["new"], Removed("old", "use 'new'")]``.

    >>> misfit(Annotated[Literal["new"], Removed("old", "use 'new'")], "old")
    "takes no 'old' any more; use 'new'"
    """

    text: str
    help: str
    """The replacement, at the end of the message."""


def bounds_of(annotation: Any) -> Within | None:
    """The bounds that an annotation has, if any; those of its one other member if it may be None.

    >>> bounds_of(Annotated[int, Within(at_least=1)] | None), bounds_of(int)
    (Within(at_least=1, above=None, at_most=None, below=None, infinite=False, help=''), None)
    """
    return _extra(annotation, Within)


def usual_of(annotation: Any) -> Usual | None:
    """The numbers that an annotation says are usual, if any; as for ``bounds_of``."""
    return _extra(annotation, Usual)


def _extra(annotation: Any, kind: type[T]) -> T | None:
    """The object of a class that an annotation has beside its type."""
    if is_union(annotation):
        members = [member for member in get_args(annotation) if member is not NoneType]
        return _extra(members[0], kind) if len(members) == 1 else None
    return next((extra for extra in getattr(annotation, "__metadata__", ()) if isinstance(extra, kind)), None)


def misfit(annotation: Any, value: Any) -> str | None:
    """Why a value does not fit an annotation, as the end of a message; None if it does, or if that is unknown."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return removed(annotation, value) or misfit(arguments[0], value) or _out_of_bounds(bounds_of(annotation), value)
    if is_union(annotation):
        problems = [misfit(member, value) for member in arguments]
        if None in problems:
            return None
        of_bounds = (problem for problem in problems if problem and not problem.startswith("takes"))
        return next(of_bounds, _wrong_type(annotation, value))
    if origin is Literal:
        is_option = any(value == option and type(value) is type(option) for option in arguments)
        return None if is_option or type(value) not in PLAIN else _wrong_type(annotation, value)
    if origin in LISTS and isinstance(value, (list, tuple)):
        return _misfit_item(annotation, value)
    if origin in TABLES and isinstance(value, dict):
        of_values = ((key, misfit(arguments[1], inner)) for key, inner in value.items())
        return next((f"[{key!r}] {problem}" for key, problem in of_values if problem is not None), None)
    if origin in (*LISTS, *TABLES) and type(value) in PLAIN and not (origin is Sequence and isinstance(value, str)):
        return _wrong_type(annotation, value)
    if is_dataclass(annotation) and type(value) in PLAIN:
        return _wrong_type(annotation, value)
    if annotation in (bool, int, float, str, None, NoneType) and type(value) in PLAIN:
        fits = type(value) is (annotation or NoneType) or (annotation is float and type(value) is int)
        return None if fits else _wrong_type(annotation, value)
    return None


def removed(annotation: Any, value: Any) -> str | None:
    """Why an annotation does not take a text that it once took, as the end of a message; None for other values."""
    extras = (extra for extra in getattr(annotation, "__metadata__", ()) if isinstance(extra, Removed))
    return next((f"takes no {value!r} any more; {extra.help}" for extra in extras if extra.text == value), None)


def _misfit_item(annotation: Any, values: list[Any] | tuple[Any, ...]) -> str | None:
    """The first item of a list that does not fit."""
    items = item_annotations(annotation, len(values))
    if len(items) != len(values):
        return _wrong_type(annotation, values)
    problems = (misfit(item, value) for item, value in zip(items, values, strict=True))
    return next((f"[{i}] {problem}" for i, problem in enumerate(problems) if problem is not None), None)


def item_annotations(annotation: Any, count: int) -> tuple[Any, ...]:
    """The annotations of the ``count`` items of a list.

    >>> item_annotations(tuple[int, ...], 3), item_annotations(tuple[int, str], 3), item_annotations(list, 1)
    ((<class 'int'>, <class 'int'>, <class 'int'>), (<class 'int'>, <class 'str'>), (typing.Any,))
    >>> item_annotations(list[str], 2)
    (<class 'str'>, <class 'str'>)
    """
    items = get_args(annotation)
    if items[1:] == (...,) or (items and get_origin(annotation) is not tuple):
        return items[:1] * count
    return items or (Any,) * count


def _out_of_bounds(bounds: Within | None, value: Any) -> str | None:
    if bounds is None or not isinstance(value, Real) or bounds.hold(value):
        return None
    finite = "finite and " if str(bounds) != "finite" and replace(bounds, infinite=True).hold(value) else ""
    return f"must be {finite}{bounds}, got {brief(value)}" + (f"; {bounds.help}" if bounds.help else "")


def _is_finite(value: Any) -> bool:
    """Whether a number is neither infinite nor NaN, also one that no float can hold."""
    return bool(value - value == 0)


def _wrong_type(annotation: Any, value: Any) -> str:
    near = difflib.get_close_matches(value, _texts(annotation), n=1) if isinstance(value, str) else []
    return f"takes {annotation_text(annotation)}, got {brief(value)}" + (f"; did you mean '{near[0]}'?" if near else "")


def _texts(annotation: Any) -> list[str]:
    """The texts that an annotation lists."""
    members = get_args(annotation) if is_union(annotation) else (annotation,)
    return [text for m in members if get_origin(m) is Literal for text in get_args(m) if isinstance(text, str)]


def is_union(annotation: Any) -> bool:
    """Whether an annotation is of several types."""
    return get_origin(annotation) in (Union, UnionType)


def annotation_text(annotation: Any) -> str:
    """An annotation for a message.

    >>> annotation_text(int | None), annotation_text(Literal["a", "b"]), annotation_text(tuple[float, ...])
    ('int or None', "'a' or 'b'", 'a list of float')
    >>> annotation_text(list[str]), annotation_text(dict[str, float])
    ('a list of str', 'a table')
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if is_union(annotation):
        return " or ".join(map(annotation_text, arguments))
    if origin is Annotated:
        return annotation_text(arguments[0])
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in LISTS:
        listed = arguments[:1] if arguments[1:] == (...,) else arguments
        return f"a list of {', '.join(map(annotation_text, listed))}"
    if annotation in LISTS:
        return "a list"
    if origin in TABLES or annotation in TABLES:
        return "a table"
    if is_dataclass(annotation):
        return f"a table of {getattr(annotation, '__name__', annotation)}"
    return "None" if annotation in (None, NoneType) else str(getattr(annotation, "__name__", annotation))


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
