"""Inner dataflows: when one dataflow calls another, the inner steps are inlined and its annotations are enforced.

Caller and body see the annotated types, as a type checker does. If ``score`` takes a ``Sequences``, its body sees only
the columns of a ``Sequences`` in ``score(rollout, actor)``, although ``rollout`` is a ``Rollout``, a derived class; a
call with real values behaves the same. An argument of another type is
reported at the call, and the body continues with a value that fits everywhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import UnionType
from typing import Any, Protocol, Union, get_args, get_origin

from hfdsl.errors import DefinitionError
from hfdsl.graph.active import Tracing
from hfdsl.graph.annotations import annotation_text, bounds_of_parameters, type_hints
from hfdsl.graph.binding import bind
from hfdsl.graph.fits import fits_static, fits_type, is_subclass
from hfdsl.graph.misuses import Misuse, MisuseKind
from hfdsl.graph.parameters import present_role
from hfdsl.graph.program import Constant, ErrorValue
from hfdsl.graph.pythonic import uncalled
from hfdsl.graph.signatures import ListType, Port, PortType, RecordType, Signature, StaticType, port_type
from hfdsl.graph.symbolic import Symbolic, SymbolicRole, is_error
from hfdsl.protocols.worker import Worker
from hfdsl.types.batches import Batch, schema
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.numbers import brief
from hfdsl.types.rows import Independent


class InnerTracing(Tracing, Protocol):
    """The interface to the trace that a call of an inner dataflow needs, beyond that of symbolic values."""

    misuses: list[Misuse]

    def record_inner_call(self, signature: Signature, values: Mapping[str, Any]) -> None:
        """Another dataflow is called with these values."""
        ...

    def is_known_container(self, value: Any) -> bool:
        """Whether several values were used as one before."""
        ...

    def record_wrong_return(self, signature: Signature, expected: str, shown: str) -> None:
        """An inner dataflow returns something else than its annotation says."""
        ...


@lru_cache(maxsize=256)
def annotated_types(body: Callable[..., Any]) -> Mapping[str, Any]:
    """The annotations of a dataflow; none if they cannot be evaluated, which its own check reports."""
    try:
        return type_hints(body, f"'{body.__name__}'")
    except DefinitionError:
        return {}


@lru_cache(maxsize=256)
def dataflow_signature(body: Callable[..., Any]) -> Signature | None:
    """The parameters of a dataflow as ports; None if it takes any number of them."""
    parameters = inspect.signature(body).parameters.values()
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters):
        return None
    types = annotated_types(body)
    bounds = bounds_of_parameters(body) if types else {}
    ports = tuple(
        Port(
            name=parameter.name,
            type=annotated_type(types.get(parameter.name, Any)) or StaticType(Any),
            required=parameter.default is parameter.empty
            or present_role(parameter, types.get(parameter.name)) is not None,
            keyword_only=parameter.kind is parameter.KEYWORD_ONLY,
            bounds=bounds.get(parameter.name),
        )
        for parameter in parameters
    )
    returns = annotated_type(types.get("return", Any)) or StaticType(Any)
    return Signature(name=body.__name__, ports=ports, returns=returns, rows=Independent, body=body)


def annotated_type(annotation: Any) -> PortType | None:
    """The type that an annotation stands for; None if it says nothing that can be decided here."""
    try:
        return port_type(annotation, "it")
    except DefinitionError:
        return None


def call_inner(tracer: InnerTracing, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a dataflow within the one that is traced."""
    signature = dataflow_signature(body)
    if signature is None:
        return body(*args, **kwargs)
    misuse_count = len(tracer.misuses)
    values = bind(tracer, signature, signature.name, args, kwargs)
    tracer.record_inner_call(signature, values)
    parameters, hints = inspect.signature(body).parameters, annotated_types(body)
    for port in signature.ports:
        if port.name in values:
            annotation, value = hints.get(port.name, Any), values[port.name]
            if not accepts(annotation, value):
                facts = _code(port.type, value), _expected(annotation), _value_in_words(value)
                producer = value if isinstance(value, Symbolic) else None
                if not tracer.is_known_container(value):
                    tracer.record_misuse(MisuseKind.ARGUMENT, signature.name, port.name, facts, producer, signature)
                values[port.name] = parameters[port.name].default if not port.required else _broken(tracer, port.name)
            else:
                values[port.name] = as_annotated(annotation, value, _narrow)
        elif port.required:
            values[port.name] = _broken(tracer, port.name)
    leading = [name for name, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_ONLY]
    leading = [name for name in leading if name in values]
    named = {name: value for name, value in values.items() if name not in leading}
    result = body(*(values[name] for name in leading), **named)
    returns = hints.get("return", Any)
    if not accepts(returns, result):
        if len(tracer.misuses) == misuse_count:  # after a misuse another value was meant
            tracer.record_wrong_return(signature, _expected(returns), _value_in_words(result))
        return _broken(tracer, signature.name)
    return as_annotated(returns, result, _narrow)


def accepts(annotation: Any, value: Any) -> bool:
    """Whether a value or a container of values is of an annotated type, rows aside; True if that is not certain."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation is Any or is_error(value):
        return True
    if origin in (Union, UnionType):
        return any(accepts(option, value) for option in inner)
    if isinstance(value, SymbolicRole):
        return is_subclass(value._role, origin or annotation)
    if isinstance(value, Symbolic):
        port_type = annotated_type(annotation)
        return port_type is None or value._type is None or fits_type(port_type, value._type)
    if isinstance(value, (tuple, list, dict)):
        entries = tuple(value.values() if isinstance(value, dict) else value)
        if origin is tuple and inner[1:] != (...,) and isinstance(value, tuple):
            return len(inner) == len(value) and all(map(accepts, inner, value))
        if isinstance(origin, type) and is_subclass(type(value), origin):
            return all(accepts(inner[0] if origin is tuple else inner[-1], entry) for entry in entries)
    port_type = annotated_type(annotation)
    if port_type is None or isinstance(value, (Batch, Worker)):  # a real one, which is reported where it is used
        return True
    return isinstance(port_type, StaticType) and fits_static(Constant(value), port_type.annotation)


def as_annotated(annotation: Any, value: Any, narrow: Callable[[type, Any], Any]) -> Any:
    """``value`` with every record and role in it as the class of the annotation sees it: ``narrow(class, value)``."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and origin is None:
        return narrow(annotation, value)
    if origin in (Union, UnionType):
        options = [kind for kind in inner if kind is not type(None)]
        return as_annotated(options[0], value, narrow) if len(options) == 1 and value is not None else value
    if origin is tuple and type(value) is tuple:
        options = [inner[0]] * len(value) if inner[1:] == (...,) else [*inner]
        if len(options) == len(value):
            return tuple(as_annotated(kind, entry, narrow) for kind, entry in zip(options, value, strict=True))
    if origin is list and type(value) is list:
        return [as_annotated(inner[0], entry, narrow) for entry in value]
    if origin is dict and type(value) is dict:
        return {key: as_annotated(inner[1], entry, narrow) for key, entry in value.items()}
    return value


def _narrow(kind: type, value: Any) -> Any:
    """A symbolic record with the columns of a base class alone, a symbolic role with its methods alone."""
    if type(value) is SymbolicRole and issubclass(kind, Worker) and kind is not value._declared:
        return SymbolicRole(value._tracer, value._name, value._role, kind)
    if not isinstance(value, Symbolic) or not issubclass(kind, Batch):
        return value
    if not isinstance(value._type, RecordType) or value._type.record is kind:
        return value
    return value._tracer.pack(kind, {name: getattr(value, name) for name in schema(kind).fields})


def _broken(tracer: Tracing, name: str) -> Symbolic:
    """A value that fits everywhere, in the place of one that a mistake hides."""
    return Symbolic(tracer, ErrorValue(), None, name)


def _code(expected: PortType, value: Any) -> str:
    """The code of an argument of another type."""
    actual = value._type if isinstance(value, Symbolic) else None
    match expected, actual:
        case RecordType(), RecordType():
            return "HF204"
        case ColumnSpec(dtype, _, _, ragged), ColumnSpec(other_dtype, _, _, other_ragged):
            return "HF220" if dtype is not other_dtype else "HF214" if ragged is not other_ragged else "HF210"
        case (ListType(), ListType() | RecordType() | ColumnSpec()) | (RecordType() | ColumnSpec(), ListType()):
            return "HF401"
        case StaticType(kind), None if isinstance(value, SymbolicRole) and is_role(kind):
            return "HF240"
    return "HF206"


def is_role(kind: Any) -> bool:
    """Whether an annotation is a role class."""
    return isinstance(kind, type) and issubclass(kind, Worker)


def _expected(annotation: Any) -> str:
    kind = annotated_type(annotation)
    return annotation_text(annotation) if kind is None or isinstance(kind, StaticType) else str(kind)


def _value_in_words(value: Any) -> str:
    if isinstance(value, SymbolicRole):
        return f"the role '{value._name}' of class {value._role.__name__}"
    if isinstance(value, Symbolic):
        return str(value._type)
    if isinstance(value, (tuple, list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    return uncalled(value) or (f"the {type(value).__name__} {brief(value)}" if value is not None else "None")
