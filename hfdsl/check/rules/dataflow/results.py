"""Results: does a dataflow return what it is annotated to return?"""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.sources import return_span
from hfdsl.errors import DefinitionError
from hfdsl.graph.fits import fits_static, fits_type, is_subclass
from hfdsl.graph.program import Constant, Output, Ref
from hfdsl.graph.signatures import ListType, PortType, StaticType, port_type
from hfdsl.graph.values import ListValue, RecordValue, Value


def results(context: Context) -> Iterator[Finding]:
    """The dataflow returns what it is annotated to return; after a misuse another value was meant."""
    differs = (
        None
        if context.program.graph.misuses
        else _differs(context, context.program.graph.returns, context.program.graph.output)
    )
    if differs is not None:
        yield Finding(
            "HF603",
            f"'{context.program.graph.name}' is annotated to return {differs}",
            Label(return_span(context.program.graph.span)),
            notes=("return what the annotation says, or change the annotation",),
        )


def _differs(context: Context, annotation: Any, output: Output) -> str | None:
    """Describe how a result differs from its annotation; None if it does not, or if that cannot be decided."""
    value, origin, inner = output.value, get_origin(annotation), get_args(annotation)
    container = dict if isinstance(value, dict) else output.container
    if origin in (Union, UnionType):
        fits = any(_differs(context, kind, output) is None for kind in inner)
        either = " or ".join(str(StaticType(kind)) for kind in inner)
        return None if fits else f"{either} and returns {_in_words(context, output)}"
    if origin is tuple and inner[1:] != (...,):
        if not isinstance(value, tuple) or len(value) != len(inner):
            return f"a tuple of {len(inner)} and returns {_in_words(context, output)}"
        return next((d for kind, part in zip(inner, value, strict=True) if (d := _differs(context, kind, part))), None)
    if isinstance(value, (tuple, dict)) and isinstance(origin, type) and issubclass(container, origin):
        kind = inner[0] if origin is tuple else inner[-1]  # tuple[T, ...], list[T], dict[K, T]
        parts = value.items() if isinstance(value, dict) else ((None, part) for part in value)
        differing = ((key, d) for key, part in parts if (d := _differs(context, kind, part)))
        return next((d if key is None else f"{d} at key {key!r}" for key, d in differing), None)
    try:
        wanted = port_type(annotation, "the result")
    except DefinitionError:  # none, Any, or one that a check does not read
        return None
    if isinstance(value, (tuple, dict)):
        fits = isinstance(wanted, StaticType) and _is_class_of(container, annotation)
    else:
        actual = value if isinstance(value, Constant) else context.program.inference.operand(value)
        fits = (isinstance(value, Ref) and actual is None) or _fits(wanted, actual)
    return None if fits else f"{wanted} and returns {_in_words(context, output)}"


def _fits(declared: PortType, actual: Value | Constant) -> bool:
    """Whether a value is of an annotated type, rows aside."""
    if isinstance(actual, Constant):
        return isinstance(declared, StaticType) and fits_static(actual, declared.annotation)
    return fits_type(declared, _type(actual))


def _type(value: Value) -> PortType:
    """The type of a value, without its rows."""
    match value:
        case RecordValue(kind):
            return kind
        case ListValue(kind, inner):
            return ListType(kind, StaticType(Any) if inner is None else _type(inner))
        case None:
            return StaticType(Any)
        case port_type:
            return port_type


def _is_class_of(value_class: type, annotation: Any) -> bool:
    """Whether a value of this class fits a plain annotation; True for one that is not understood."""
    return annotation is not None and is_subclass(value_class, get_origin(annotation) or annotation)


def _in_words(context: Context, output: Output) -> str:
    match output.value:
        case tuple(parts):
            return f"a {output.container.__name__} of {len(parts)}"
        case dict():
            return "a dict"
        case Constant(value):
            return repr(value)
        case operand:
            return str(context.program.inference.operand(operand))
