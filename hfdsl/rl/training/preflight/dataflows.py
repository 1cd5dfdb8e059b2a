"""Facts of a dataflow for preflight checks: the roles that learn, and the copies of weights."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.graph.program import Graph, Node, RoleCall
from hfdsl.protocols.state import effects_of
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.ready import calls, is_ready_made
from hfdsl.rl.workers.config import ActorConfig, SamplerConfig


def size_of(subject: Subject, table: str, dim: str) -> tuple[str, int | None]:
    """The field with the size of a dim in one of the dataflows, and the size."""
    evaluation = subject.config.evaluation
    if table == "evaluation" and evaluation is not None and dim in evaluation.dims:
        return f"evaluation.dims.{dim}", evaluation.dims[dim]
    return f"dims.{dim}", subject.config.dims.get(dim)


def is_trained(subject: Subject, role: str) -> bool:
    """Whether a role learns with a ready-made method."""
    graphs = subject.graphs.values()
    return any(op.role == role for graph in graphs for op, _ in calls(graph, "update", "prefer"))


def learners(subject: Subject) -> Iterator[tuple[str, ActorConfig]]:
    """The policy that learns, if there is only one; with several, only the dataflow knows which ones meet."""
    policies = [
        (role, config)
        for role in subject.loaded.roles
        if isinstance(config := getattr(subject.config, role, None), ActorConfig) and is_trained(subject, role)
    ]
    yield from policies if len(policies) == 1 else ()


def copies(graph: Graph) -> Iterator[tuple[str, str]]:
    """The pairs of a role that sends weights by ``hf.sync`` and one that loads them."""
    exporting = {node.id: role for node, role in _calls_with(graph, "exports")}
    for node, role in _calls_with(graph, "loads"):
        yield from ((exporting[ref.node], role) for ref in node.refs if ref.node in exporting)


def _calls_with(graph: Graph, kind: str) -> Iterator[tuple[Node, str]]:
    """The calls with an effect of this kind, and their roles."""
    for node in graph.calls:
        if isinstance(node.op, RoleCall) and any(e.kind == kind for e in effects_of(node.op.signature.body)):
            yield node, node.op.role


def ready_copies(subject: Subject, graph: Graph) -> Iterator[tuple[str, str]]:
    """The pairs of ``copies`` that are a ready-made actor and a ready-made sampler."""
    for actor, sampler in copies(graph):
        actor_config, sampler_config = getattr(subject.config, actor, None), getattr(subject.config, sampler, None)
        are_ready_made = all(is_ready_made(subject.loaded.roles[role]) for role in (actor, sampler))
        if are_ready_made and isinstance(actor_config, ActorConfig) and isinstance(sampler_config, SamplerConfig):
            yield actor, sampler
