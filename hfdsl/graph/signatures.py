"""Signatures: what a role method or function takes and returns, read from its annotations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from hfdsl.errors import DefinitionError
from hfdsl.graph.annotations import annotation_text, bounds_of_parameters, type_hints
from hfdsl.graph.spans import Span, definition_span
from hfdsl.protocols.dispatch import Execute
from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.protocols.protocol import Gives, Protocol
from hfdsl.protocols.register import Registration, registered_methods
from hfdsl.protocols.state import effects_of
from hfdsl.types.batches import Batch, schema
from hfdsl.types.bounds import Within
from hfdsl.types.column_annotations import field_spec, is_marked_finite, optional_of
from hfdsl.types.columns import Column, ColumnSpec, Metric, MetricSpec, Obj, ObjSpec
from hfdsl.types.rows import Grouped, GroupedBy, Independent, RowDependence, group_size

VALUE = ""
"""The name under which a value that is no record is kept: a loose column, a metric, a Python object."""

LIST_KINDS: dict[str, type[PerRank[Any]] | type[PerStage[Any]]] = {"per_rank": PerRank, "per_stage": PerStage}


@dataclass(frozen=True, slots=True)
class RecordType:
    """A record class."""

    record: type[Batch]

    def __str__(self) -> str:
        return self.record.__name__


@dataclass(frozen=True, slots=True)
class ListType:
    """The type that a list protocol collects: ``PerRank[T]`` or ``PerStage[T]``."""

    kind: str
    inner: PortType

    def __str__(self) -> str:
        return f"{self.kind}[{self.inner}]"


@dataclass(frozen=True, slots=True)
class StaticType:
    """A plain Python value, the same on every rank: ``float``, ``str``, ``None``, ..."""

    annotation: Any

    def __str__(self) -> str:
        return "None" if self.annotation in (None, type(None)) else annotation_text(self.annotation)


PortType: TypeAlias = "RecordType | ListType | StaticType | ColumnSpec | ObjSpec | MetricSpec"


def optional_columns(kind: PortType) -> tuple[str, ...]:
    """The columns of a value that may be absent, by the names under which they are kept."""
    fields = schema(kind.record).fields if isinstance(kind, RecordType) else {VALUE: kind}
    return tuple(n for n, spec in fields.items() if isinstance(spec, (ColumnSpec, ObjSpec)) and spec.optional)


@dataclass(frozen=True, slots=True)
class Port:
    """A named input."""

    name: str
    type: PortType
    required: bool
    keyword_only: bool
    bounds: Within | None = None  # of a number, as its annotation declares them


@dataclass(frozen=True, slots=True)
class PortNames:
    """The names of a signature's ports, in order: all of them, and those that calls treat the same."""

    every: tuple[str, ...]
    positional: tuple[str, ...]
    keyword_only: tuple[str, ...]
    required: tuple[str, ...]
    bounded: tuple[Port, ...]  # the ports themselves, of numbers with bounds


@dataclass(frozen=True, slots=True, eq=False)  # one object a declaration, and many look things up by it
class Signature:
    """A callable of the program: its ports, what its body returns, how rows depend on rows, and where it is written."""

    name: str
    ports: tuple[Port, ...]
    returns: PortType
    rows: RowDependence | GroupedBy  # in a graph it is known how large groups are
    body: Callable[..., Any]
    registration: Registration | None = None
    group_parameter: str | None = None  # which parameter said how large the groups of this call are

    @property
    def span(self) -> Span:
        """The ``def`` statement."""
        return _definition(self)

    @property
    def result(self) -> PortType:
        """The type that the caller receives: the body's result, in a list if the protocol returns one."""
        return _result(self)

    @property
    def runs_on_rank_zero(self) -> bool:
        """Whether rank 0 alone runs it."""
        return self.registration is not None and self.registration.execute_mode is Execute.RANK_ZERO

    @property
    def protocol(self) -> Protocol | None:
        """The declared protocol; None for a function, for a pair of custom functions, and where rank 0 alone runs."""
        return None if self.registration is None or self.runs_on_rank_zero else self.registration.protocol

    @property
    def port_names(self) -> PortNames:
        """The names of its ports, by how they may be given."""
        return _port_names(self)

    @property
    def gives(self) -> Gives:
        """The kind of value that the caller receives: a whole value, or a list over ranks or stages.

        A state is one value, also where each rank exports its part of it.
        """
        exports_parts = any(effect.kind == "exports" and effect.layout for effect in effects_of(self.body))
        return self.registration.gives if self.registration and not exports_parts else "whole"

    @property
    def per_rank(self) -> bool:
        """Whether the caller passes one value per rank, already split."""
        return self.protocol is not None and self.protocol.takes == "per_rank"

    @property
    def is_ready_made(self) -> bool:
        """Whether the body is one of hfdsl's own."""
        return is_of_hfdsl(self.body)

    @property
    def group_size(self) -> int:
        """The number of consecutive rows that must stay in one chunk."""
        return group_size(self.rows)

    def takes(self, port: Port) -> PortType:
        """The type that the caller wires to a port: its own, or a list with one such value per rank."""
        return ListType(PerRank.__name__, port.type) if self.per_rank else port.type

    def port(self, name: str) -> Port | None:
        """The port of that name."""
        for port in self.ports:
            if port.name == name:
                return port
        return None


# A program has few signatures, and asks for them at every call.


@functools.lru_cache(maxsize=1024)
def _definition(signature: Signature) -> Span:
    return definition_span(signature.body)


@functools.lru_cache(maxsize=1024)
def _result(signature: Signature) -> PortType:
    kind = signature.gives
    return signature.returns if kind == "whole" else ListType(LIST_KINDS[kind].__name__, signature.returns)


@functools.lru_cache(maxsize=1024)
def _port_names(signature: Signature) -> PortNames:
    ports = signature.ports
    return PortNames(
        every=tuple(port.name for port in ports),
        positional=tuple(port.name for port in ports if not port.keyword_only),
        keyword_only=tuple(port.name for port in ports if port.keyword_only),
        required=tuple(port.name for port in ports if port.required),
        bounded=tuple(port for port in ports if port.bounds is not None),
    )


@functools.lru_cache(maxsize=1024)
def wired_ports(signature: Signature, positional: int, named: tuple[str, ...]) -> tuple[str, ...] | None:
    """The ports of a call's arguments, by position and by name; None if they do not fit."""
    ports = signature.port_names
    names = (*ports.positional[:positional], *named)
    fits = positional <= len(ports.positional) and len(names) == len(set(names)) and set(names) <= set(ports.every)
    return names if fits and set(ports.required) <= set(names) else None


def function_signature(body: Callable[..., Any], rows: RowDependence | GroupedBy) -> Signature:
    """The signature of a stateless function.

    Raises:
        DefinitionError: HF104, HF105, HF109, and HF113 if no parameter says how large groups are.
    """
    if body.__name__ == "<lambda>":
        error = DefinitionError(
            "HF104", "hf.function takes a def: a lambda cannot annotate its parameters and its result"
        )
        error.span = definition_span(body)
        raise error
    signature = _read(body, body.__name__, rows, None, skip_self=False)
    if isinstance(rows, GroupedBy):
        port = signature.port(rows.parameter)
        if port is None or port.type != StaticType(int):
            needed = f"rows=hf.GroupedBy({rows.parameter!r}) needs a parameter '{rows.parameter}: int'"
            error = DefinitionError("HF113", f"{needed}, which '{body.__name__}' does not have")
            error.span = definition_span(body)
            raise error
    return signature


@functools.lru_cache(maxsize=1024)
def in_groups(signature: Signature, n: int) -> Signature:
    """The signature of a function whose groups, in this call of it, have n rows."""
    parameter = signature.rows.parameter if isinstance(signature.rows, GroupedBy) else signature.group_parameter
    return replace(signature, rows=Grouped(n), group_parameter=parameter)


def is_of_hfdsl(body: Callable[..., Any]) -> bool:
    """Whether a function is one of hfdsl's own; one typed at a prompt has no module."""
    return (body.__module__ or "").startswith("hfdsl.")


@functools.cache
def role_signatures(role: type) -> dict[str, Signature]:
    """The signatures of a role's registered methods, by name.

    Raises:
        DefinitionError: HF104, HF105, HF109, and HF118 for a method without ``self``.
    """
    return {name: role_signature(role, name) for name in registered_methods(role)}


@functools.cache
def role_signature(role: type, name: str) -> Signature:
    """The signature of one registered method; errors as for ``role_signatures``."""
    return method_signature(getattr(role, name), name, registered_methods(role)[name])


def method_signature(body: Callable[..., Any], name: str, registration: Registration | None) -> Signature:
    """The signature of a method under a registration; errors as for ``role_signatures``."""
    rows = Independent if registration is None else registration.rows
    return _read(body, name, rows, registration, skip_self=True)


def _read(
    body: Callable[..., Any],
    name: str,
    rows: RowDependence | GroupedBy,
    registration: Registration | None,
    *,
    skip_self: bool,
) -> Signature:
    owner = body.__qualname__.rpartition(".")[0].rpartition("<locals>.")[2]
    where = f"'{owner}.{name}'" if owner else f"'{name}'"
    try:
        hints, bounds = type_hints(body, where), bounds_of_parameters(body)
        parameters = list(inspect.signature(body).parameters.values())
        if skip_self:
            if not parameters or _carries_rows(hints.get(parameters[0].name)):
                raise DefinitionError("HF118", f"{where} has no self: write def {name}(self, ...)")
            del parameters[0]
        ports = tuple(_port(p, hints, bounds, where) for p in parameters)
        returns = port_type(hints.get("return", inspect.Parameter.empty), f"the result of {where}")
    except DefinitionError as error:
        error.span = definition_span(body)
        raise
    return Signature(
        name=name, ports=ports, returns=returns, rows=rows or Independent, body=body, registration=registration
    )


def _carries_rows(annotation: Any) -> bool:
    """Whether an annotation is a record or a column: ``self`` has none of these."""
    origin = get_origin(annotation)
    return any(isinstance(kind, type) and issubclass(kind, (Batch, Column, Obj)) for kind in (annotation, origin))


def is_option(parameter: inspect.Parameter) -> bool:
    """Whether a dataflow's parameter is a plain value that ``Dataflow.given`` changes: by keyword, with a default."""
    return parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty


def _port(parameter: inspect.Parameter, hints: dict[str, Any], bounds: Mapping[str, Within], where: str) -> Port:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise DefinitionError("HF105", f"{where} takes *{parameter.name}: a role method needs named ports")
    annotation = hints.get(parameter.name, inspect.Parameter.empty)
    kind = port_type(annotation, f"port '{parameter.name}' of {where}")
    return Port(
        name=parameter.name,
        type=kind,
        required=parameter.default is parameter.empty,
        keyword_only=parameter.kind == parameter.KEYWORD_ONLY,
        bounds=bounds.get(parameter.name),
    )


def port_type(annotation: Any, where: str) -> PortType:
    """Read an annotation of a port or result.

    Raises:
        DefinitionError: HF104 if it is missing or untyped, and what reading a record's own columns raises.
    """
    if annotation is inspect.Parameter.empty or annotation is Any:
        raise DefinitionError("HF104", f"{where} has no type; annotate it with a record, a column or a Python type")
    if isinstance(annotation, type) and issubclass(annotation, Batch):
        schema(annotation)
        return RecordType(annotation)
    if is_marked_finite(annotation) or is_marked_finite(optional_of(annotation)):
        return field_spec(annotation, where)
    origin, certain = get_origin(annotation), get_origin(optional_of(annotation))
    if any(isinstance(kind, type) and issubclass(kind, (Column, Obj, Metric)) for kind in (origin, certain)):
        return field_spec(annotation, where)
    if origin in (PerRank, PerStage):
        return ListType(origin.__name__, port_type(get_args(annotation)[0], where))
    if getattr(annotation, "__module__", "").partition(".")[0] in ("torch", "numpy") and _is_array(annotation):
        raise DefinitionError(
            "HF104", f"{where} is a bare {annotation.__name__}: write its dtype and dims, as in f32[B, R]"
        )
    if isinstance(annotation, type) and any(map(_is_column, _own_hints(annotation).values())):
        name = annotation.__name__
        raise DefinitionError("HF104", f"{where} has columns and is no record: write class {name}(hf.Batch)")
    return StaticType(annotation)


def _is_column(annotation: Any) -> bool:
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, (Column, Obj, Metric))


def _own_hints(kind: type) -> dict[str, Any]:
    """The annotations of a user's plain class; none if they cannot be evaluated."""
    if not inspect.get_annotations(kind):
        return {}
    try:
        return get_type_hints(kind)
    except Exception:  # noqa: BLE001  # whatever they may name
        return {}


def _is_array(annotation: Any) -> bool:
    return getattr(annotation, "__name__", "") in ("Tensor", "ndarray", "Parameter")


@functools.lru_cache(maxsize=1024)
def deferred(body: Callable[..., Any]) -> str | None:
    """The kind of a function whose call returns no result yet; None for a plain one."""
    if inspect.isasyncgenfunction(body) or inspect.isgeneratorfunction(body):
        return "a generator (it has a yield)"
    return "a coroutine (async def)" if inspect.iscoroutinefunction(body) else None
