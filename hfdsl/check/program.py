"""The program under check: the traced dataflow, its inferred sizes and its deployment.

>>> import hfdsl as hf
>>> from hfdsl.graph.infer import infer
>>> class B(hf.Dim): ...
>>> class Prompts(hf.Batch):
...     ids: hf.i64[B]
>>> class Actor(hf.Worker):
...     @hf.register(hf.Dispatch.DP_PROTO)
...     def generate(self, prompts: Prompts) -> Prompts: ...
>>> @hf.dataflow
... def flow(prompts: Prompts, actor: Actor) -> Prompts:
...     return actor.generate(hf.repeat(prompts, 8))
>>> graph, deployment = flow.trace(), hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([3])))
>>> program = Program(graph, infer(graph), deployment)
>>> [(node.label, method.chunks, str(program.inference.rows(node.id))) for node, method in program.placed_calls]
[('actor.generate', 3, 'B*8')]

From this call the rules derive the demand that 3 divides B*8, and only then substitute sizes. A program itself has no
sizes, so every fact derived from it holds for all of them. Therefore it is frozen and caches its facts: a check of many
sizes derives them once, and a repair that changes the dataflow or the deployment makes a new program.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, wraps
from inspect import getattr_static
from itertools import chain
from types import FunctionType, MappingProxyType
from typing import Any, TypeVar

from hfdsl.check.findings import Label
from hfdsl.check.sizes.requirements import config_fields
from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.errors import DefinitionError, HfError
from hfdsl.graph.infer import Inference
from hfdsl.graph.lags import Versions, lags
from hfdsl.graph.origins import Origins, origins
from hfdsl.graph.program import Constant, FunctionCall, Graph, Input, MiniBatch, Node, Pack, Queue, Ref, RoleCall
from hfdsl.graph.signatures import (
    RecordType,
    Signature,
    StaticType,
    method_signature,
    role_signature,
)
from hfdsl.graph.stages import HeldState, Split, Sync, split, syncs
from hfdsl.graph.type_sizes import dims_in, dims_of
from hfdsl.graph.values import LOST, RecordValue
from hfdsl.protocols.conditions import requirements_of
from hfdsl.protocols.placement import faults
from hfdsl.protocols.protocol import Protocol
from hfdsl.protocols.register import Registration, registered_methods
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, MetricSpec, ObjSpec
from hfdsl.types.dims import Dim, Size

T = TypeVar("T")


@dataclass(frozen=True)
class PlacedMethod:
    """A method that a protocol dispatches, on the placement of its role; shared by all of its calls."""

    signature: Signature
    registration: Registration
    placement: Placement[Any]
    protocol: Protocol

    @cached_property
    def chunks(self) -> int:
        """The number of chunks into which the protocol splits arguments on this mesh."""
        return self.protocol.chunk_count(self.placement.mesh)

    @cached_property
    def misfit(self) -> HfError | None:
        """The error of the protocol on this mesh; None if it works."""
        try:
            self.protocol.chunk_count(self.placement.mesh)
            self.protocol.collected_count(self.placement.mesh)
        except HfError as error:
            return error
        return None

    @cached_property
    def collect_faults(self) -> Mapping[str, str]:
        """By axis the code of the fault that the collect would cause in the bodies' outputs."""
        return faults(self.protocol, self.placement.mesh, dict(self.registration.leaves))


@dataclass(frozen=True)
class Program:
    """A traced dataflow with its inferred sizes; without a deployment only its types are checked."""

    graph: Graph
    inference: Inference
    deployment: Deployment | None = None
    body: Callable[..., Any] | None = None  # the dataflow itself

    @property
    def placements(self) -> Mapping[str, Placement[Any]]:
        """The placements by their roles; none without a deployment."""
        return self.deployment.placements if self.deployment is not None else {}

    def placement(self, node: Node) -> Placement[Any] | None:
        """The placement of a role call."""
        return self.placements.get(node.op.role) if isinstance(node.op, RoleCall) else None

    def role_class(self, role: str) -> type:
        """The class of a role: the placed one, or else the one that the dataflow takes."""
        return self.placements[role].role if role in self.placements else self.graph.roles[role]

    def config(self, node: Node) -> Mapping[str, Any] | None:
        """The constructor arguments of a call's role, by name; None if the constructor refuses them (HF516)."""
        if self.placement(node) is None or not isinstance(node.op, RoleCall):
            return MappingProxyType({})
        return self._configs[node.op.role]

    @cached_property
    def _configs(self) -> Mapping[str, Mapping[str, Any] | None]:
        return {role: config_fields(place) for role, place in self.placements.items() if role in self.graph.roles}

    @cached_property
    def placed_calls(self) -> tuple[tuple[Node, PlacedMethod], ...]:
        """The role calls that a protocol dispatches, where their role has a place."""
        methods: dict[tuple[str, int], PlacedMethod | None] = {}
        calls: list[tuple[Node, PlacedMethod]] = []
        for node in self.graph.calls:
            if isinstance(node.op, RoleCall):
                key = node.op.role, id(node.op.signature)
                method = methods[key] if key in methods else methods.setdefault(key, self._placed_method(node, node.op))
                if method is not None:
                    calls.append((node, method))
        return tuple(calls)

    def _placed_method(self, node: Node, call: RoleCall) -> PlacedMethod | None:
        placement, signature = self.placement(node), call.signature
        if placement is None or signature.registration is None or signature.protocol is None:
            return None
        return PlacedMethod(signature, signature.registration, placement, signature.protocol)

    @cached_property
    def origins(self) -> Origins:
        """The origin of every value's rows."""
        return origins(self.graph, self.inference)

    @cached_property
    def split(self) -> Split:
        """The stages of the dataflow."""
        return split(self.graph)

    @cached_property
    def syncs(self) -> tuple[Sync, ...]:
        """The loads of weights, each with an export that it reads."""
        return syncs(self.graph)

    @cached_property
    def lags(self) -> tuple[Mapping[HeldState, Versions], ...]:
        """By node the trained states that its value was made under, with the worst lag of each."""
        return lags(self.graph)

    @cached_property
    def argument_rows(self) -> tuple[Mapping[str, Size], ...]:
        """For every node the rows of its arguments that have rows and fit their ports, by port."""
        rows: list[Mapping[str, Size]] = []
        for node, first in zip(self.graph.nodes, self.inference.alike, strict=True):
            rows.append(rows[first] if first < node.id else _argument_rows(self.inference, node))
        return tuple(rows)

    def call_rows(self, node: Node) -> Size | None:
        """The rows of a call: those of its first argument with rows."""
        return next(iter(self.argument_rows[node.id].values()), None)

    @cached_property
    def kinds(self) -> tuple[tuple[Node, ...], ...]:
        """The nodes in groups, each in the order of the program, which demand the same of every size.

        They run the same operation on the same rows and bind the same dims; their lines and other arguments differ. A
        loop over mini-batches or epochs unrolls into hundreds of nodes of a handful of kinds, so that what a kind
        demands is found once. A node with a misfit is a kind of its own: its rows are not what they look like.
        """
        groups: dict[object, list[Node]] = {}
        misfits = {node for node, _ in self.inference.misfits}
        kinds: dict[tuple[int, object], object] = {}  # what is alike is of one kind, if it is the same operation
        for node, first in zip(self.graph.nodes, self.inference.alike, strict=True):
            differs = node.op.role if isinstance(node.op, RoleCall) else None
            key = first, node.op if isinstance(node.op, MiniBatch) else differs
            if key not in kinds:
                kinds[key] = node.id if node.id in misfits else self._kind(node)
            groups.setdefault(kinds[key], []).append(node)
        return tuple(map(tuple, groups.values()))

    def _kind(self, node: Node) -> object:
        operation: object = node.op
        if isinstance(node.op, RoleCall):
            operation = node.op.role, node.op.signature, *self._required_numbers(node)
        elif isinstance(node.op, FunctionCall):
            operation = node.op.signature, *self._required_numbers(node)
        bindings = tuple(self.inference.bindings[node.id].items())
        return operation, tuple(self.argument_rows[node.id].items()), bindings, self.rows(node)

    def _required_numbers(self, node: Node) -> tuple[tuple[str, object], ...]:
        """The numbers that a call with requirements is given, each by its name."""
        signature, override = signature_of(node), self.override(node)
        bodies = [declaration.body for declaration in (signature, override) if declaration is not None]
        return tuple(call_numbers(node).items()) if any(map(requirements_of, bodies)) else ()

    def override(self, node: Node) -> Signature | None:
        """The method that the placed class of a call runs instead of the called one; None if it is that one."""
        placement, signature = self.placement(node), signature_of(node)
        if placement is None or signature is None or not isinstance(node.op, RoleCall):
            return None
        key = node.op.role, id(signature)
        if key not in self._overrides:
            derived = issubclass(placement.role, self.graph.roles[node.op.role])
            self._overrides[key] = override_of(signature, placement.role) if derived else None
        return self._overrides[key]

    @cached_property
    def _overrides(self) -> dict[tuple[str, int], Signature | None]:
        return {}

    @cached_property
    def facts(self) -> dict[tuple[object, int], Any]:
        """The facts about nodes that ``derived_once`` keeps, by the function that derives them and the node."""
        return {}

    def rows(self, node: Node) -> Size | None:
        """The rows of what a node makes: of a record or a column."""
        value = self.inference.values[node.id]
        if isinstance(value, RecordValue):
            return value.rows
        return value.dims[0] if isinstance(value, (ColumnSpec, ObjSpec)) else None

    @cached_property
    def dims(self) -> tuple[type[Dim], ...]:
        """The dims of the inputs and of everything that the dataflow calls."""
        signatures = (signature_of(first) for first, *_ in self.kinds)
        called = (dims_of(signature) for signature in signatures if signature is not None)
        return tuple(dict.fromkeys(chain(self.input_dims, *called)))

    @property
    def input_dims(self) -> tuple[type[Dim], ...]:
        """The dims of the records that are inputs, or that the dataflow builds of columns, and of queues' batches."""
        ops = [node.op for node in self.graph.nodes]
        records = dims_in(RecordType(op.record) for op in ops if isinstance(op, (Input, Pack)))
        batches = [op.rows for op in ops if isinstance(op, Queue) and isinstance(op.rows, type)]
        return tuple(dict.fromkeys([*records, *batches]))

    def signatures(self) -> Iterator[Signature]:
        """The signatures that the program calls, and those of all other methods of its roles."""
        yield from (signature for first, *_ in self.kinds if (signature := signature_of(first)) is not None)
        placed = (placement.role for placement in self.placements.values())
        for role in dict.fromkeys([*self.graph.roles.values(), *placed]):
            for method in registered_methods(role):
                with suppress(DefinitionError):  # of a method that is not called
                    yield role_signature(role, method)

    @cached_property
    def record_producers(self) -> tuple[tuple[Node, RecordType], ...]:
        """The first node that makes each record type, for each operation: loops and epochs unroll."""
        producers: dict[tuple[type, str, RecordType], Node] = {}
        for node, value in zip(self.graph.nodes, self.inference.values, strict=True):
            if isinstance(value, RecordValue):
                producers.setdefault((type(node.op), node.label, value.type), node)
        return tuple((node, record) for (_, _, record), node in producers.items())

    def producer_label(self, node: int) -> Label:
        """The label of the place that a value comes from."""
        producer = self.graph.nodes[node]
        verb = "is" if isinstance(producer.op, Input) else "returns"
        return Label(producer.span, f"'{producer.label}' {verb} {self.inference.values[node]}")

    def chunk_count(self, node: Node) -> int | None:
        """The number of chunks of a call that splits its arguments."""
        if not isinstance(node.op, RoleCall):
            return None
        return _chunk_count(self.placement(node), node.op.signature.protocol)


def derived_once(derive: Callable[[Program, Node], T]) -> Callable[[Program, Node], T]:
    """Keep what a function derives of a node of a program: several rules ask for it."""

    @wraps(derive)
    def fact(program: Program, node: Node) -> T:
        key = derive, node.id
        if key not in program.facts:
            program.facts[key] = derive(program, node)
        result: T = program.facts[key]
        return result

    return fact


def _argument_rows(inference: Inference, node: Node) -> Mapping[str, Size]:
    rows_by_port: dict[str, Size] = {}
    values, misfits = inference.values, inference.misfits
    for port, operand in node.arguments:
        if not isinstance(operand, Ref) or (misfits and (node.id, port) in misfits):
            continue  # of a misfit: another value is meant
        value: Any = values[operand.node]
        rows = None
        if isinstance(value, RecordValue):
            spec = schema(value.type.record).fields.get(operand.column or "")
            rows = None if isinstance(spec, MetricSpec) else value.rows
        elif isinstance(value, (ColumnSpec, ObjSpec)) and operand.column is None:
            rows = value.dims[0]
        if rows is not None and LOST not in rows.atoms:
            rows_by_port[port] = rows
    return rows_by_port


def _chunk_count(placement: Placement[Any] | None, protocol: Protocol | None) -> int | None:
    if placement is None or protocol is None or not protocol.splits:
        return None
    if placement.mesh.world_size != placement.pool.world_size:
        return None  # HF501 reports it: what repairs it is another mesh, with other chunks
    chunks = protocol.chunk_count(placement.mesh)
    return chunks if chunks > 1 else None


def signature_of(node: Node) -> Signature | None:
    """The signature of a node that runs a body."""
    return node.op.signature if isinstance(node.op, (RoleCall, FunctionCall)) else None


def override_of(called: Signature, placed: type) -> Signature | None:
    """The method that a placed class runs instead of the called one; None if it is that one, or not readable.

    One without ``register`` runs as the called one is registered.
    """
    body = getattr_static(placed, called.name, None)
    if body is called.body or not isinstance(body, FunctionType):
        return None
    try:
        if called.name in registered_methods(placed):
            override = role_signature(placed, called.name)
        else:
            override = method_signature(body, called.name, called.registration)
    except DefinitionError:
        return None
    return None if override.body is called.body else override


def call_numbers(node: Node) -> Mapping[str, object]:
    """The numbers that a call gives to ports of its method or function, or that they have by default."""
    return {name: value for name, value in call_constants(node).items() if isinstance(value, (int, float))}


def call_constants(node: Node) -> Mapping[str, object]:
    """The constants that a call gives to ports of its method or function, or that they have by default."""
    signature = signature_of(node)
    if signature is None:
        return {}
    plain = [port.name for port in signature.ports if isinstance(port.type, StaticType)]
    parameters = inspect.signature(signature.body).parameters if plain else {}
    values = {name: parameters[name].default for name in plain if name in parameters}
    values |= {name: operand.value for name, operand in node.arguments if isinstance(operand, Constant)}
    return {name: value for name, value in values.items() if name in plain}


def pads(node: Node) -> bool:
    """Whether a call's method is registered with padding."""
    registration = node.op.signature.registration if isinstance(node.op, RoleCall) else None
    return registration is not None and registration.pad is not None
