"""What a check looks at: the traced program with its inferred sizes, and where it is to be deployed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, product
from typing import TYPE_CHECKING, Any

from hfdsl.check.findings import Finding, Label
from hfdsl.check.requirements import config_fields
from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.errors import DefinitionError
from hfdsl.graph.infer import Inference, RecordValue
from hfdsl.graph.program import FunctionCall, Graph, Input, Node, Pack, RoleCall
from hfdsl.graph.signatures import ListType, PortType, RecordType, Signature, StaticType, role_signature
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.protocols.register import registered_methods
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, ObjSpec
from hfdsl.types.dims import Dim, Size, constant

if TYPE_CHECKING:
    from hfdsl.check.repair.trials import Trials

EVERYTHING = "<dims>"
"""The key of what was given for ``dims`` where it is no mapping."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A program under check: ``dims`` are the sizes that are known; without a deployment only types are checked."""

    graph: Graph
    inference: Inference
    deployment: Deployment | None
    dims: Mapping[type[Dim], int]
    odd: Mapping[Any, Any] = field(default_factory=dict)  # what was given for sizes and is none
    asked: Span = NOWHERE  # the call that asks for the check
    cluster: Cluster | None = None
    body: Callable[..., Any] | None = None  # the dataflow itself
    several: Mapping[type[Dim], tuple[int, ...]] = field(default_factory=dict)  # dims with more sizes than one
    offload: bool = True  # whether idle roles may lie on the host
    trials: Callable[[Finding], Trials | None] | None = field(default=None, compare=False)  # None: none are asked for
    _configs: dict[str, Mapping[str, Any] | None] = field(init=False, repr=False, compare=False, default_factory=dict)
    _made: dict[tuple[type, str, RecordType], Node] = field(init=False, repr=False, compare=False, default_factory=dict)
    # Few sizes, asked for many times: the known dims as sizes, and what they make of a size.
    _numbers: dict[Any, Size] = field(init=False, repr=False, compare=False, default_factory=dict)
    _known: dict[Size, Size] = field(init=False, repr=False, compare=False, default_factory=dict)
    memo: dict[Any, Any] = field(init=False, repr=False, compare=False, default_factory=dict)  # answers given before

    def __post_init__(self) -> None:
        self._numbers.update({dim: constant(number) for dim, number in self.dims.items()})

    def repairs(self, finding: Finding) -> Trials | None:
        """What tries repairs of a finding; None where none are to be tried."""
        return self.trials(finding) if self.trials is not None else None

    def placement(self, node: Node) -> Placement[Any] | None:
        """Where a role call runs."""
        if self.deployment is None or not isinstance(node.op, RoleCall):
            return None
        return self.deployment.placements.get(node.op.role)

    def config(self, node: Node) -> Mapping[str, Any] | None:
        """What the role of a call is built with, by name; None where its constructor does not take it (HF516)."""
        placement = self.placement(node)
        if placement is None or not isinstance(node.op, RoleCall):
            return {}
        if node.op.role not in self._configs:
            self._configs[node.op.role] = config_fields(placement)
        return self._configs[node.op.role]

    def known(self, size: Size) -> Size:
        """``size`` with the known dims put in."""
        if size.bare is not None:
            return self._numbers.get(size.bare, size)
        found = self._known.get(size)
        if found is None:
            found = self._known[size] = size.substitute(self._numbers)
        return found

    def made(self) -> Iterable[tuple[Node, RecordType]]:
        """The records that are made: for each operation and class the first node, since loops and epochs unroll."""
        if not self._made:
            for node, value in zip(self.graph.nodes, self.inference.values, strict=True):
                if isinstance(value, RecordValue):
                    self._made.setdefault((type(node.op), node.label, value.type), node)
        return ((node, made) for (_, _, made), node in self._made.items())

    def named(self, dim: type[Dim]) -> str:
        """A dim, with its size where it has several."""
        return f"{dim} = {self.dims[dim]}" if dim in self.several else str(dim)

    def bindings(self) -> Iterator[Subject]:
        """The program with each combination of its sizes."""
        for sizes in product(*self.several.values()):
            yield replace(self, dims={**self.dims, **dict(zip(self.several, sizes, strict=True))})

    def with_this(self, dim: type[Dim]) -> list[Subject]:
        """The bindings that have the size of ``dim`` which this one has; this one first."""
        others = (each for each in self.bindings() if each.dims[dim] == self.dims[dim] and each.dims != self.dims)
        return [self, *others]

    def produced(self, node: int) -> Label:
        """The label of the place where a value is made."""
        maker = self.graph.nodes[node]
        return Label(maker.span, f"'{maker.label}' makes {self.inference.values[node]}")


def sizes_of(kind: PortType) -> Iterator[Size]:
    """The dims that stand in a type."""
    if isinstance(kind, RecordType):
        for spec in schema(kind.record).fields.values():
            yield from spec.dims
    elif isinstance(kind, ListType):
        yield from sizes_of(kind.inner)
    elif not isinstance(kind, StaticType):
        yield from kind.dims


def row_dims(kind: PortType) -> tuple[Any, ...]:
    """The dims and type variables in the rows of what a port takes."""
    if isinstance(kind, RecordType):
        row = schema(kind.record).row
        return row.atoms if row is not None else ()
    return kind.dims[0].atoms if isinstance(kind, (ColumnSpec, ObjSpec)) else ()


@lru_cache(maxsize=1024)
def dims_of(signature: Signature) -> tuple[type[Dim], ...]:
    """The dims that a signature names, in its ports and its result."""
    return _dims_in([*(port.type for port in signature.ports), signature.returns])


def input_dims(subject: Subject) -> tuple[type[Dim], ...]:
    """The dims of the records that the caller gives, or that the dataflow puts together."""
    return _dims_in(RecordType(node.op.record) for node in subject.graph.nodes if isinstance(node.op, (Input, Pack)))


def _dims_in(kinds: Iterable[PortType]) -> tuple[type[Dim], ...]:
    sizes = (size for kind in kinds for size in sizes_of(kind))
    return tuple(dict.fromkeys(atom for size in sizes for atom in size.atoms if isinstance(atom, type)))


def program_dims(subject: Subject) -> tuple[type[Dim], ...]:
    """Those dims, and the ones of all that the dataflow calls."""
    memo = subject.inference.memo
    if program_dims not in memo:
        called = (dims_of(signature) for node in subject.graph.calls if (signature := signature_of(node)) is not None)
        memo[program_dims] = tuple(dict.fromkeys(chain(input_dims(subject), *called)))
    found: tuple[type[Dim], ...] = memo[program_dims]
    return found


def program_signatures(subject: Subject) -> Iterator[Signature]:
    """What the program calls, and all other methods of its roles."""
    yield from (signature for node in subject.graph.calls if (signature := signature_of(node)) is not None)
    placed = subject.deployment.placements.values() if subject.deployment else ()
    for role in dict.fromkeys([*subject.graph.roles.values(), *(placement.role for placement in placed)]):
        for method in registered_methods(role):
            with suppress(DefinitionError):  # of a method that nobody calls
                yield role_signature(role, method)


def signature_of(node: Node) -> Signature | None:
    """The signature of a node that runs a body."""
    return node.op.signature if isinstance(node.op, (RoleCall, FunctionCall)) else None
