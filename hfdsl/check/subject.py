"""What a check looks at: the traced program with its inferred sizes, and where it is to be deployed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hfdsl.check.findings import Label
from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.graph.infer import Inference
from hfdsl.graph.program import FunctionCall, Graph, Node, RoleCall
from hfdsl.graph.signatures import Signature
from hfdsl.types.dims import Dim, Size, constant


@dataclass(frozen=True, slots=True)
class Subject:
    """A program under check: ``dims`` are the sizes that are known; without a deployment only types are checked."""

    graph: Graph
    inference: Inference
    deployment: Deployment | None
    dims: Mapping[type[Dim], int]

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


def signature_of(node: Node) -> Signature | None:
    """The signature of a node that runs a body."""
    return node.op.signature if isinstance(node.op, (RoleCall, FunctionCall)) else None
