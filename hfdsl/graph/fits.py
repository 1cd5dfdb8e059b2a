"""Does a plain Python value fit an annotation? Columns and records are matched where sizes are inferred."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import chain, islice
from numbers import Complex, Integral, Real
from types import UnionType
from typing import Annotated, Any, Literal, NewType, TypeVar, Union, get_args, get_origin

from hfdsl.graph.program import Constant
from hfdsl.graph.signatures import ListType, PortType, RecordType, StaticType
from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.types.bounds import annotations_of
from hfdsl.types.columns import COLUMNS, ColumnSpec, Metric, MetricSpec, Obj, ObjSpec
from hfdsl.types.dims import Answer

TESTED_ENTRIES = 4096
"""The most container entries that are checked, for each column that a body returns."""


def fits_static(actual: object, annotation: Any) -> bool:
    """Whether a Python value fits a plain annotation; one that is not a plain class is the type checker's business."""
    if get_origin(annotation) in (Union, UnionType):
        return any(fits_static(actual, option) for option in get_args(annotation))
    if get_origin(annotation) is Literal and isinstance(actual, Constant):
        return any(type(actual.value) is type(option) and actual.value == option for option in get_args(annotation))
    if isinstance(actual, StaticType):  # what a role or function gives
        kind = actual.annotation
        if get_args(kind):
            return _may_be(kind, annotation)
    elif isinstance(actual, Constant):
        kind = type(actual.value)
    else:
        return False
    declared, kind = get_origin(annotation) or annotation or type(None), kind or type(None)
    if kind is bool or declared is bool:
        return kind is declared or not isinstance(declared, type) or declared is object
    if isinstance(actual, Constant) and field_misfit(actual.value) is not None:
        return False
    if isinstance(actual, Constant) and get_args(annotation) and is_subclass(kind, declared):
        return fits_value(actual.value, annotation)  # what a container has in it
    return is_subclass(kind, declared) or (declared is float and kind is int)


def _may_be(given: Any, annotation: Any) -> bool:
    """Whether a value of an annotation with parameters, such as ``dict[str, int]``, may be of another annotation.

    Either class may derive from the other one: a ``Mapping`` may be the ``dict`` that a port takes.
    """
    if annotation is Any:
        return True
    if get_origin(given) in (Union, UnionType, Annotated):
        return get_origin(given) is not Annotated or fits_static(StaticType(get_args(given)[0]), annotation)
    kind, declared = get_origin(given), get_origin(annotation) or annotation or type(None)
    if kind is declared:
        return all(
            Any in (inner, outer) or fits_static(StaticType(inner), outer)
            for inner, outer in zip(get_args(given), get_args(annotation), strict=False)
        )
    return is_subclass(kind, declared) or is_subclass(declared, kind)


def fits_value(value: object, annotation: Any) -> bool:
    """Whether a Python value is of an annotation, containers with all that is in them; True if it is not certain.

    Numbers count as Python's own: an ``int`` is a ``float``, and so are those of numpy.

    >>> fits_value([1, 2.5], list[float]), fits_value({"a": 1}, dict[str, str]), fits_value(None, int | None)
    (True, False, True)
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, NewType):
        return fits_value(value, annotation.__supertype__)
    if origin is Annotated:
        return fits_value(value, inner[0])
    if origin in (Union, UnionType):
        return any(fits_value(value, option) for option in inner)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in inner)
    kind = origin or (type(None) if annotation is None else annotation)
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    number = next((number for exact, number in _NUMBERS.items() if kind is exact), None)
    if number is not None:
        return isinstance(value, number)
    try:
        if not isinstance(value, kind):
            return type(value).__qualname__ == kind.__qualname__  # one class that was imported twice
    except TypeError:
        return True
    return _entries_fit(value, kind, inner)


def surely_fit(values: Iterable[object], annotation: Any) -> bool:
    """Whether values are of an annotation, by their classes alone: fast, and False if that does not tell.

    Of what lists and dicts among them hold, it looks at the first ``TESTED_ENTRIES``.

    >>> surely_fit(["a", None], str | None), surely_fit([[1], ["x"]], list[int]), surely_fit([1], Literal[1, 2])
    (True, False, False)
    """
    values = list(islice(values, TESTED_ENTRIES)) if isinstance(values, chain) else values
    classes, origin, inner = set(map(type, values)), get_origin(annotation), get_args(annotation)
    if origin is list and classes <= {list}:
        return surely_fit(chain.from_iterable(values), inner[0])  # type: ignore[arg-type]  # all are lists
    if origin is dict and classes <= {dict}:
        pairs = chain.from_iterable(value.items() for value in values)  # type: ignore[attr-defined]  # all are dicts
        keys, entries = zip(*islice(pairs, TESTED_ENTRIES), strict=True) if any(values) else ((), ())
        return surely_fit(keys, inner[0]) and surely_fit(entries, inner[1])
    return all(_is_of(kind, annotation) for kind in classes)


@lru_cache(maxsize=4096)
def _is_of(kind: type, annotation: Any) -> bool:
    """Whether all objects of a class are certainly of an annotation: a plain class, or a union of some."""
    if get_origin(annotation) in (Union, UnionType):
        return any(_is_of(kind, option) for option in get_args(annotation))
    declared = type(None) if annotation is None else annotation
    if not isinstance(declared, type) or getattr(declared, "_is_protocol", False):
        return declared is Any
    try:
        return issubclass(kind, _NUMBERS.get(declared, declared))
    except TypeError:  # a TypedDict, for one
        return False


def field_misfit(value: object, within: tuple[object, ...] = ()) -> tuple[str, Any, object] | None:
    """The first field of a dataclass, or of one in it, that is not of its annotation: path, annotation and value.

    A field's default passes, whatever its annotation says. ``within`` are the dataclasses that ``value`` is a part of.

    >>> from dataclasses import make_dataclass
    >>> Sampling = make_dataclass("Sampling", [("top_p", float, 1.0)])
    >>> field_misfit(Sampling(0.9)), field_misfit(Sampling("high"))
    (None, ('top_p', <class 'float'>, 'high'))
    """
    if not is_dataclass(value) or isinstance(value, type) or any(value is outer for outer in within):
        return None
    annotations = annotations_of(type(value))
    for field in fields(value):
        entry = getattr(value, field.name, field.default)
        if entry is field.default or field.name not in annotations:
            continue
        if not fits_value(entry, annotations[field.name]):
            return field.name, annotations[field.name], entry
        if (inner := field_misfit(entry, (*within, value))) is not None:
            return f"{field.name}.{inner[0]}", *inner[1:]
    return None


def _entries_fit(value: object, kind: type, inner: tuple[Any, ...]) -> bool:
    """Whether what an instance of ``kind`` has in it is of the arguments of the annotation."""
    if kind is type:
        return not inner or is_subclass(value, inner[0])
    if kind is tuple and isinstance(value, tuple) and inner[1:] != (...,):
        return len(value) == len(inner) and all(map(fits_value, value, inner))
    if isinstance(value, dict) and len(inner) == 2:
        return all(fits_value(key, inner[0]) and fits_value(entry, inner[1]) for key, entry in value.items())
    if isinstance(value, (list, tuple, set, frozenset)) and inner:
        return all(fits_value(entry, inner[0]) for entry in value)
    return True


_NUMBERS: dict[type, type] = {int: Integral, float: Real, complex: Complex}


def value_text(value: object) -> str:
    """A plain value for a message.

    >>> value_text("24"), value_text(int), value_text(object())
    ("the str '24'", 'the class int', 'an object of class object')
    """
    if value is None or isinstance(value, type):
        return f"the class {value.__name__}" if isinstance(value, type) else "None"
    shown, kind = reprlib.repr(value), type(value).__name__
    return f"an object of class {kind}" if shown.startswith("<") else f"the {kind} {shown}"


def is_subclass(kind: Any, base: Any) -> bool:
    """As ``issubclass``, and True if one is no class, or a structural type that only a type checker reads."""
    try:
        return not isinstance(kind, type) or not isinstance(base, type) or issubclass(kind, base)
    except TypeError:
        return True


def fits_type(declared: PortType, actual: PortType) -> bool:
    """Whether a value of one type is of another, rows aside; dims of a type variable are equal to any."""
    match declared, actual:
        case _, StaticType(annotation) if annotation is Any:
            return True
        case RecordType(record), RecordType(value_record):
            return issubclass(value_record, record)
        case ListType(kind, inner), ListType(value_kind, value_inner):
            return kind == value_kind and fits_type(inner, value_inner)
        case ColumnSpec(dtype, dims, _, ragged), ColumnSpec(value_dtype, value_dims, _, value_ragged):
            dim_pairs = zip(dims[1:], value_dims[1:], strict=False)
            return (
                dtype is value_dtype
                and ragged is value_ragged
                and len(dims) == len(value_dims)
                and all(
                    want.equals(have) is Answer.PROVED
                    or any(isinstance(atom, TypeVar) for atom in want.atoms + have.atoms)
                    for want, have in dim_pairs
                )
            )
        case ObjSpec(kind), ObjSpec(value_kind):
            return fits_static(StaticType(value_kind), kind)
        case MetricSpec(), MetricSpec():
            return fits_metric(actual, declared)
        case StaticType(annotation), StaticType():
            return fits_static(actual, annotation)
        case StaticType(annotation), _:
            kind = python_class(actual)
            return annotation not in (None, type(None)) and is_subclass(kind, get_origin(annotation) or annotation)
    return False


def python_class(kind: PortType | None) -> type | None:
    """The class that a value of this type has when the dataflow runs eagerly."""
    match kind:
        case RecordType(record):
            return record
        case ColumnSpec(dtype):
            return COLUMNS[dtype]
        case ObjSpec():
            return Obj
        case MetricSpec():
            return Metric
        case ListType(name):
            return PerRank if name == PerRank.__name__ else PerStage
    return None


def fits_metric(actual: MetricSpec, formal: MetricSpec) -> bool:
    """Whether a metric is of a declared one: a mean is not a sum."""
    return actual.reduction == formal.reduction and fits_static(StaticType(actual.type), formal.type)
