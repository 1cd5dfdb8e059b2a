"""Definitions: are the declarations of the called role methods and functions valid?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import signature_of
from hfdsl.graph.program import Input, Node
from hfdsl.graph.signatures import ListType, PortType, RecordType, Signature
from hfdsl.graph.spans import column_span, definition_span
from hfdsl.graph.type_sizes import sizes_of
from hfdsl.types.batches import schema
from hfdsl.types.dims import Size


def _first_calls(context: Context) -> dict[Signature, Node]:
    """Every signature that the program calls, with its first call."""
    first_calls: dict[Signature, Node] = {}
    for node, *_ in context.program.kinds:
        if signature := signature_of(node):
            first_calls.setdefault(signature, node)
    return first_calls


def _variables(sizes: Iterable[Size]) -> list[TypeVar]:
    variables = {atom for size in sizes for atom in size.atoms if isinstance(atom, TypeVar)}
    return sorted(variables, key=lambda variable: variable.__name__)


def _left_open(kind: PortType) -> Iterable[Size]:
    """The dims of a result that its call has to bind; of a record that is the row dim alone."""
    inner = _entry(kind)
    if isinstance(inner, RecordType):
        row = schema(inner.record).row
        return () if row is None else (row,)
    return sizes_of(inner)


def _entry(kind: PortType) -> PortType:
    """The element type of a list, and any other type itself."""
    return _entry(kind.inner) if isinstance(kind, ListType) else kind


def results_are_bound(context: Context) -> Iterator[Finding]:
    """A type variable in a result is bound by an input, since nothing else determines its size."""
    for signature, node in _first_calls(context).items():
        bound = {variable for port in signature.ports for variable in _variables(sizes_of(port.type))}
        for variable in (v for v in _variables(_left_open(signature.returns)) if v not in bound):
            ports = ", ".join(f"{port.name}: {port.type}" for port in signature.ports) or "none"
            yield Finding(
                "HF108",
                f"'{variable.__name__}' in the result of '{node.label}', {signature.returns}, is bound by no port",
                Label(signature.span, f"its ports: {ports}"),
                (Label(node.span, "called here"),),
                notes=(f"name it in a port too, or write a dim of the program in its place: class {_dim(variable)}",),
            )


def records_name_dims(context: Context) -> Iterator[Finding]:
    """The dims of a record are dims of the program: no call binds a type variable in one."""
    kinds = [_entry(port.type) for signature in _first_calls(context) for port in signature.ports]
    kinds += [_entry(node.result) for node, *_ in context.program.kinds]
    inputs = {node.op.record for node in context.program.graph.nodes if isinstance(node.op, Input)}
    for record in dict.fromkeys(kind.record for kind in kinds if isinstance(kind, RecordType)):
        for column, spec in schema(record).fields.items():
            for variable in _variables(spec.dims if record in inputs else spec.dims[1:]):
                yield Finding(
                    "HF108",
                    f"column '{column}' of '{record.__name__}' is {spec}, where the type variable "
                    f"'{variable.__name__}' is bound by nothing",
                    Label(column_span(definition_span(record), column)),
                    notes=(f"write a dim in its place: class {_dim(variable)}",),
                )


def _dim(variable: TypeVar) -> str:
    name = variable.__name__
    return f"{name[:1].upper()}{name[1:]}(hf.Dim): ..."
