"""The value of every node of a dataflow in a step, eager and on a backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hfdsl.deploy.deployment import Deployment
from hfdsl.graph.dataflow import Dataflow
from hfdsl.graph.eager import observed_calls
from hfdsl.graph.program import Graph, Node, Output, Ref
from hfdsl.graph.signatures import StaticType
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.worker import RankContext
from hfdsl.runtime.rank.role_workers import build_worker, construction_call
from hfdsl.types.batches import Batch

__tracebackhide__ = True  # pytest shows the user's own lines

RESULT = -1
"""The key of the dataflow's result among the values of nodes."""


@dataclass(frozen=True, slots=True)
class NodeValues:
    """The values of a step, by node, and its result under ``RESULT``."""

    values: Mapping[int, Any]


def observed_nodes(graph: Graph) -> tuple[Node, ...]:
    """The nodes whose values are observed: calls with a result."""
    return tuple(node for node in graph.calls if not _returns_nothing(node))


def _returns_nothing(node: Node) -> bool:
    return isinstance(node.result, StaticType) and node.result.annotation in (None, type(None))


def observed(plan: CompiledPlan) -> CompiledPlan:
    """A plan of the same steps that also returns the value of every node."""
    nodes = {node.id: Output(Ref(node.id)) for node in observed_nodes(plan.graph)}
    return replace(plan, graph=replace(plan.graph, output=Output({**nodes, RESULT: plan.graph.output})))


def eager_steps(
    flow: Dataflow[..., Any], deployment: Deployment, batches: Sequence[tuple[Batch, ...]]
) -> Iterator[NodeValues]:
    """Steps of the dataflow as plain Python, each role a world of one rank, with the streams of a run with seed 0."""
    graph, fresh = flow.trace(), Dataflow(flow.body)
    context = RankContext(mesh=Mesh())
    workers = {
        role: build_worker(deployment[role], construction_call(role, deployment, 0), context) for role in graph.roles
    }
    numbers = {node.id: number for number, node in enumerate(graph.calls)}
    for inputs in batches:
        records = dict(zip((node.label for node in graph.inputs), inputs, strict=True))
        with observed_calls() as calls:
            result = fresh(**records, **workers)
        yield NodeValues({**{node.id: calls[numbers[node.id]] for node in observed_nodes(graph)}, RESULT: result})


def steps(running: Any, batches: Sequence[tuple[Batch, ...]]) -> Iterator[NodeValues]:
    """Steps of an observed plan."""
    for inputs in batches:
        yield NodeValues(running.step(*inputs))


def noting_place(place: str, values: Iterator[NodeValues]) -> Iterator[NodeValues]:
    """The steps of ``values``; an error in one names the place of the run."""
    try:
        yield from values
    except Exception as error:
        error.add_note(f"on {place}")
        raise
