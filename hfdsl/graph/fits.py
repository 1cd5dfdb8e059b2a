"""Does a plain Python value fit an annotation? Columns and records are matched where sizes are inferred."""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from hfdsl.graph.program import Constant
from hfdsl.graph.signatures import StaticType
from hfdsl.types.columns import MetricSpec


def fits_static(actual: object, annotation: Any) -> bool:
    """Whether a Python value fits a plain annotation; one that is no plain class is the type checker's business."""
    if get_origin(annotation) in (Union, UnionType):
        return any(fits_static(actual, option) for option in get_args(annotation))
    if get_origin(annotation) is Literal and isinstance(actual, Constant):
        return any(type(actual.value) is type(option) and actual.value == option for option in get_args(annotation))
    if isinstance(actual, StaticType):  # what a role or function gives
        kind = actual.annotation
    elif isinstance(actual, Constant):
        kind = type(actual.value)
    else:
        return False
    wanted, kind = get_origin(annotation) or annotation or type(None), kind or type(None)
    if kind is bool or wanted is bool:
        return kind is wanted or not isinstance(wanted, type) or wanted is object
    return is_subclass(kind, wanted) or (wanted is float and kind is int)


def is_subclass(kind: Any, wanted: Any) -> bool:
    """As ``issubclass``, and True where one is no class, or a structural type that only a type checker reads."""
    try:
        return not isinstance(kind, type) or not isinstance(wanted, type) or issubclass(kind, wanted)
    except TypeError:
        return True


def fits_metric(actual: MetricSpec, formal: MetricSpec) -> bool:
    """Whether a metric is of a declared one: a mean is no sum."""
    return actual.reduction == formal.reduction and fits_static(StaticType(actual.type), formal.type)
