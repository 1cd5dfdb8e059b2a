"""The graph of a dataflow for networkx: names of its nodes, and their attributes as plain values.

Attributes are texts and numbers, so that every format of networkx can hold them (GraphML has no lists). A list, such
as the columns of a node, is one text joined by ``"; "``, which no column, dtype or dim contains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from hfdsl.errors import PackageError
from hfdsl.graph.columns import columns_of, result_type
from hfdsl.graph.infer import infer
from hfdsl.graph.program import Constant, Derived, ErrorValue, FunctionCall, Graph, Input, Node, Output, Ref, RoleCall
from hfdsl.graph.signatures import VALUE, ListType, PortType, RecordType
from hfdsl.graph.spans import NOWHERE
from hfdsl.graph.values import ListValue, RecordValue, Value
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, FieldSpec, MetricSpec, ObjSpec
from hfdsl.types.dims import Size
from hfdsl.types.numbers import brief

if TYPE_CHECKING:
    import networkx as nx

Plain: TypeAlias = "str | int | float | bool"
Attributes: TypeAlias = "dict[str, Plain]"

SEPARATOR = "; "

NO_SIZES: Mapping[Any, Size] = MappingProxyType({})


def library() -> Any:
    """The package networkx.

    Raises:
        PackageError: HF990 if it is not installed.
    """
    try:
        import networkx as nx
    except ImportError:
        raise PackageError("HF990", "to_networkx needs the package networkx: pip install 'hfdsl[graph]'") from None
    return nx


def to_networkx(graph: Graph) -> nx.MultiDiGraph:
    """The view of a graph that ``Graph.to_networkx`` returns."""
    nodes, values = node_names(graph), infer(graph).values
    network = library().MultiDiGraph(name=graph.name, **place_of(graph.span.file, graph.span.line))
    for node in graph.nodes:
        network.add_node(nodes[node.id], **described_node(node), **described(node.result, values[node.id]))
        for port, operand in node.arguments:
            if isinstance(operand, Ref):
                kind = _port_type(graph, node, port, operand)
                edge = described_columns(_specs(kind, operand), rows_of(values[operand.node]))
                network.add_edge(nodes[operand.node], nodes[node.id], key=port, **edge)
    for name, value in named_results(graph, frozenset(nodes.values())).items():
        network.add_node(name, kind="result", label=name)
        edge = described_columns(_specs(result_type(graph, value), value), rows_of(values[value.node]))
        network.add_edge(nodes[value.node], name, key="returned", **edge)
    return network


def node_names(graph: Graph) -> dict[int, str]:
    """A name for every node: its label, with a number where several have the same one.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Rows(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> class Role(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def work(self, rows: Rows) -> Rows: ...
    >>> @hf.dataflow
    ... def twice(rows: Rows, role: Role) -> Rows:
    ...     return role.work(role.work(rows))
    >>> node_names(twice.trace())
    {0: 'rows', 1: 'role.work#1', 2: 'role.work#2'}
    """
    total, numbers, names = Counter(node.label for node in graph.nodes), Counter[str](), dict[int, str]()
    for node in graph.nodes:
        numbers[node.label] += 1
        names[node.id] = f"{node.label}#{numbers[node.label]}" if total[node.label] > 1 else node.label
    return names


def named_results(graph: Graph, reserved: frozenset[str] = frozenset()) -> dict[str, Ref]:
    """The values that a dataflow returns, by names that no node has: ``result`` or, of several, ``result 1``."""
    results = dict[str, Ref]()
    for name, value in leaves(graph.output, ""):
        if isinstance(value, Ref):
            unique = name or "result"
            while unique in reserved or unique in results:
                unique += "'"
            results[unique] = value
    return results


def leaves(output: Output, name: str) -> Iterator[tuple[str, Ref | ErrorValue]]:
    """The values of an output with their places in it, such as ``result 2`` or ``metrics[0]``."""
    match output.value:
        case tuple() as entries:
            for i, inner in enumerate(entries):
                yield from leaves(inner, f"{name}[{i}]" if name else f"result {i + 1}")
        case dict() as entries:
            for key, inner in entries.items():
                yield from leaves(inner, f"{name}.{key}" if name else str(key))
        case Constant():
            return
        case value:
            yield name, value


def place_of(file: str, line: int) -> Attributes:
    """The attributes of a source position; empty if unknown."""
    return {} if file == NOWHERE.file else {"file": file, "line": line}


def described_node(node: Node) -> Attributes:
    """The attributes of a node: its operation, and the plain values among its arguments as ``constant_NAME``."""
    attributes: Attributes = {"label": node.label, "number": node.id}  # not "id": in JSON of networkx that is the name
    match node.op:
        case Input():
            attributes["kind"] = "input"
        case RoleCall(role=role, signature=signature):
            attributes |= {"kind": "call", "role": role, "method": signature.name}
            if signature.registration is not None:
                attributes["protocol"] = signature.registration.name
        case FunctionCall():
            attributes["kind"] = "function"
        case Derived():
            operation = type(node.op).__name__.lower()
            values = {field.name: getattr(node.op, field.name) for field in fields(node.op)}
            attributes |= {"kind": "operation", "operation": operation}
            attributes |= {f"{operation}_{name}": plain(value) for name, value in values.items() if value is not None}
    constants = {name: operand.value for name, operand in node.arguments if isinstance(operand, Constant)}
    attributes |= {f"constant_{name}": plain(value) for name, value in constants.items()}
    return attributes | place_of(node.span.file, node.span.line)


def plain(value: object) -> Plain:
    r"""Convert a value for all formats: numbers and truth values unchanged, a class by name, others printed.

    >>> plain(2), plain(None), plain("a\0b"), plain(int)
    (2, 'None', "'a\\x00b'", 'int')
    """
    if isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    if isinstance(value, str) and value.isprintable():
        return value
    return value.__name__ if isinstance(value, type) else brief(value)


def described(kind: PortType, value: Value, sizes: Mapping[Any, Size] = NO_SIZES) -> Attributes:
    """The type of a value and its columns with their shapes, in which the rows are those that it has here.

    Dims with a size in ``sizes`` are numbers.
    """
    inner = kind.inner if isinstance(kind, ListType) else kind
    specs = schema(inner.record).fields if isinstance(inner, RecordType) else {VALUE: inner}
    attributes: Attributes = {"type": str(kind)}
    rows = rows_of(value)
    if rows is not None:
        attributes["rows"] = str(rows.substitute(sizes))
    return attributes | described_columns(_fields(specs), rows, sizes)


def described_columns(
    specs: Mapping[str, FieldSpec], rows: Size | None, sizes: Mapping[Any, Size] = NO_SIZES
) -> Attributes:
    """Columns, their dtypes and shapes as texts with as many entries as there are columns; optional ones by name."""
    if not specs:
        return {}
    attributes: Attributes = {
        "columns": SEPARATOR.join(specs),
        "dtypes": SEPARATOR.join(map(dtype_of, specs.values())),
        "shapes": SEPARATOR.join(shape_of(spec, rows, sizes) for spec in specs.values()),
    }
    optional = [name for name, spec in specs.items() if spec.optional]
    return {**attributes, "optional": SEPARATOR.join(optional)} if optional else attributes


def dtype_of(spec: FieldSpec) -> str:
    """The type of a column's entries: ``f32``, ``Obj[str]``, ``Metric[float, "mean"]``."""
    if isinstance(spec, ColumnSpec):
        return spec.dtype.name
    return f"Obj[{getattr(spec.type, '__name__', spec.type)}]" if isinstance(spec, ObjSpec) else str(spec)


def shape_of(spec: FieldSpec, rows: Size | None, sizes: Mapping[Any, Size] = NO_SIZES) -> str:
    """The dims of a column, with these rows if known; ``~R`` for rows of at most R each.

    >>> from hfdsl import f32
    >>> from hfdsl.rl.batches import B, R
    >>> from hfdsl.types.column_annotations import field_spec
    >>> from hfdsl.types.dims import constant, size
    >>> shape_of(field_spec(f32[B, R], "x"), None), shape_of(field_spec(f32[B, R], "x"), size(B) * constant(4))
    ('B, R', 'B*4, R')
    """
    if not spec.dims:
        return ""
    first, *others = spec.dims
    dims = [str(dim.substitute(sizes)) for dim in (first if rows is None else rows, *others)]
    if isinstance(spec, ColumnSpec) and spec.ragged:
        dims[1] = f"~{dims[1]}"
    return ", ".join(dims)


def _port_type(graph: Graph, node: Node, port: str, operand: Ref) -> PortType:
    """The type that a node reads of an operand: for a call that of its port, for an operation the whole value."""
    if isinstance(node.op, (RoleCall, FunctionCall)):
        declared = node.op.signature.port(port)
        if declared is not None:
            return declared.type
    return result_type(graph, operand)


def _specs(kind: PortType, operand: Ref) -> dict[str, FieldSpec]:
    inner = kind.inner if isinstance(kind, ListType) else kind
    specs = schema(inner.record).fields if isinstance(inner, RecordType) else {operand.column or VALUE: inner}
    return _fields({name: specs[name] for name in columns_of(kind, operand) if name in specs})


def _fields(specs: Mapping[str, PortType]) -> dict[str, FieldSpec]:
    """Select the columns and metrics."""
    return {name: spec for name, spec in specs.items() if isinstance(spec, (ColumnSpec, ObjSpec, MetricSpec))}


def rows_of(value: Value) -> Size | None:
    """The rows of a value; for a list, those of each entry."""
    inner = value.inner if isinstance(value, ListValue) else value
    if isinstance(inner, RecordValue):
        return inner.rows
    return inner.dims[0] if isinstance(inner, (ColumnSpec, ObjSpec)) and inner.dims else None
