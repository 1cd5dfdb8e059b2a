"""What a check looks at: the traced program with its inferred sizes, and where it is to be deployed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hfdsl.check.findings import Label
from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.graph.infer import Inference
from hfdsl.graph.program import FunctionCall, Graph, Node, RoleCall
from hfdsl.graph.signatures import ListType, PortType, RecordType, Signature, StaticType
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.types.batches import schema
from hfdsl.types.dims import Dim, Size, constant


@dataclass(frozen=True, slots=True)
class Subject:
    """A program under check: ``dims`` are the sizes that are known; without a deployment only types are checked."""

    graph: Graph
    inference: Inference
    deployment: Deployment | None
    dims: Mapping[type[Dim], int]
    odd: Mapping[Any, Any] = field(default_factory=dict)  # what was given for sizes and is none
    asked: Span = NOWHERE  # the call that asks for the check

    def placement(self, node: Node) -> Placement[Any] | None:
        """Where a role call runs."""
        if self.deployment is None or not isinstance(node.op, RoleCall):
            return None
        return self.deployment.placements.get(node.op.role)

    def known(self, size: Size) -> Size:
        """``size`` with the known dims put in."""
        return size.substitute({dim: constant(number) for dim, number in self.dims.items()})

    def produced(self, node: int) -> Label:
        """The label of the place where a value is made."""
        maker = self.graph.nodes[node]
        return Label(maker.span, f"'{maker.label}' makes {self.inference.values[node]}")


def _sizes(kind: PortType) -> Iterator[Size]:
    if isinstance(kind, RecordType):
        for spec in schema(kind.record).fields.values():
            yield from spec.dims
    elif isinstance(kind, ListType):
        yield from _sizes(kind.inner)
    elif not isinstance(kind, StaticType):
        yield from kind.dims


def dims_of(signature: Signature) -> tuple[type[Dim], ...]:
    """The dims that a signature names, in its ports and its result."""
    found: dict[type[Dim], None] = {}
    for kind in (*(port.type for port in signature.ports), signature.returns):
        found |= {atom: None for size in _sizes(kind) for atom in size.atoms if isinstance(atom, type)}
    return tuple(found)


def signature_of(node: Node) -> Signature | None:
    """The signature of a node that runs a body."""
    return node.op.signature if isinstance(node.op, (RoleCall, FunctionCall)) else None
