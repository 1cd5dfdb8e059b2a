"""The plan for networkx: its inputs, steps and results, with places, protocols, bytes and seconds as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hfdsl.errors import WiringError
from hfdsl.graph.columns import result_origins, stored_spec
from hfdsl.graph.networks import (
    SEPARATOR,
    Attributes,
    described,
    described_columns,
    described_node,
    library,
    named_results,
    node_names,
    place_of,
    rows_of,
)
from hfdsl.graph.signatures import ListType
from hfdsl.plan.plan import DRIVER, Edge, Plan, Step
from hfdsl.plan.timeline import Timeline
from hfdsl.types.dims import Size, constant
from hfdsl.types.similar_names import closest

if TYPE_CHECKING:
    import networkx as nx


def to_networkx(plan: Plan, timeline: Timeline | None = None) -> nx.DiGraph:
    """The view of a plan that ``CompiledPlan.to_networkx`` returns."""
    names = node_names(plan.graph)
    seconds = _seconds(plan, timeline) if timeline else {}
    sizes = SEPARATOR.join(f"{dim.__name__}={size}" for dim, size in plan.dims.items())
    network = library().DiGraph(name=plan.name, sizes=sizes, **place_of(plan.graph.span.file, plan.graph.span.line))
    for node in plan.graph.inputs:
        network.add_node(names[node.id], **_node(plan, node.id), place="caller")
    for step in plan.steps:
        network.add_node(names[step.node], **_node(plan, step.node), **_step(plan, step), **seconds.get(step.label, {}))
    for edge in plan.edges:
        network.add_edge(names[edge.source], names[edge.target], **_edge(plan, edge))
    for name, value in named_results(plan.graph, frozenset(names.values())).items():
        network.add_node(name, kind="result", label=name, place="caller")
        columns: dict[int, list[str]] = {}
        for source, column in result_origins(plan.graph, value):
            columns.setdefault(source, []).append(column)
        for source, read_columns in columns.items():
            network.add_edge(names[source], name, transport="to caller", **_columns(plan, source, tuple(read_columns)))
    return network


def _node(plan: Plan, number: int) -> Attributes:
    node = plan.node(number)
    return described_node(node) | described(node.result, plan.inference.values[number], _sizes(plan))


def _step(plan: Plan, step: Step) -> Attributes:
    """The attributes of a step's place: the ranks of its process group, the pool and the stage."""
    attributes: Attributes = {
        "stage": step.level,
        "chunks": step.chunks,
        "ranks": SEPARATOR.join(map(str, step.ranks)),
        "processes": len(step.ranks),
        "place": "driver",
    }
    if step.group == DRIVER:
        return attributes
    pool = next(group.pool for group in plan.groups if group.name == step.group)
    nodes = SEPARATOR.join(map(str, pool.processes))
    attributes |= {"place": "pool", "group": step.group, "pool": pool.name, "pool_nodes": nodes, "gpu": pool.use_gpu}
    if step.role is not None:
        attributes |= {"role_class": plan.deployment[step.role].role.__name__, "mesh": str(plan.mesh(step.role))}
    if step.balance is not None and step.signature.registration is not None:
        attributes["balance"] = str(step.signature.registration.balance)
    return attributes


def _edge(plan: Plan, edge: Edge) -> Attributes:
    """The attributes of an edge: its columns, their bytes where sizes are known, and the bytes from other processes."""
    amounts = {"bytes": edge.bytes, "moved": edge.moved}
    late = plan.read_lags.get((edge.source, edge.target), {})
    lags: Attributes = {f"lag_{state.role}.{state.state}": lag for state, lag in late.items()}
    attributes: Attributes = {name: amount for name, amount in amounts.items() if amount is not None}
    return {"transport": edge.transport, **_columns(plan, edge.source, edge.columns), **attributes, **lags}


def _columns(plan: Plan, source: int, columns: tuple[str, ...]) -> Attributes:
    kind = plan.node(source).result
    inner = kind.inner if isinstance(kind, ListType) else kind
    specs = {name: stored_spec(inner, name) for name in columns}
    declared = {name: spec for name, spec in specs.items() if spec is not None}
    return described_columns(declared, rows_of(plan.inference.values[source]), _sizes(plan))


def _sizes(plan: Plan) -> Mapping[Any, Size]:
    return {dim: constant(size) for dim, size in plan.dims.items()}


def _seconds(plan: Plan, timeline: Timeline) -> dict[str, Attributes]:
    """The start and duration of each step, from its first rank's start to its last rank's end.

    Raises:
        WiringError: HF991 for a timeline with a step that the plan does not have.
    """
    labels = [step.label for step in plan.steps]
    for name in timeline.nodes:
        if name not in labels:
            raise WiringError(
                "HF991",
                f"the timeline of '{timeline.plan}' has a step '{name}', which the plan of '{plan.name}' does not; "
                f"{closest(name, labels)}",
            )
    return {name: {"start": start, "seconds": stop - start} for name, (start, stop) in timeline.nodes.items()}
