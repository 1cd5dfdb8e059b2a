"""Drifting replicas: do the replicas of a role that learns add up their gradients, or does each learn by itself?

A worked example on ``Mesh(dp=2)``, where ``DP_PROTO`` gives each replica half of the rows::

    loss.backward()                    the gradient of the rows of this rank
    self.optimizer.step()              HF782: rank 0 and rank 1 have other weights now

Nothing fails. The two policies sample from then on, each a half of the batch, and drift further apart in every step;
the weights that rank 0 exports have learned from half of the rows. With gradients averaged over ``self.axis("dp")``
before the step, both ranks take the same one.

The rule reports what a role does not do, so it reads all code of its class (``role_code.py``). It does not report a
role that mentions its peers or ``torch.distributed`` in any code that its calls may reach, wraps its model in a class
for that, loads weights that others export, takes a model from its constructor's arguments, or calls what the rule
cannot read. A number that is reduced after the step, such as the loss for a metric, is no gradient.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from typing import Any, Final

from hfdsl.check.bodies.kept_attributes import mentioned
from hfdsl.check.bodies.optimizers import steps_of
from hfdsl.check.bodies.role_code import ReadFunction, RoleCode, code_of, is_plain
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import PlacedMethod
from hfdsl.check.sources import span_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.deploy.deployment import Placement
from hfdsl.graph.program import Graph, Node
from hfdsl.graph.signatures import ListType
from hfdsl.graph.spans import definition_span
from hfdsl.protocols.state import methods_with

PEERS: Final = frozenset(
    {"axis", "coordinates", "distributed", "get_master_addr_port", "local_rank", "mesh", "nccl", "rank", "world_size"}
)
"""Parts of names by which a role reaches its peers, or does on purpose what they do not do."""


def replicas_learn_together(context: Context) -> Iterator[Finding]:
    """HF782: ranks that learn from different rows reduce their gradients before an optimizer step."""
    seen = set[tuple[str, str]]()
    for node, method in context.program.placed_calls:
        key = node.role, method.signature.name
        if key in seen or method.misfit is not None or not _differ(method):
            continue
        seen.add(key)
        place = method.placement
        role: type = place.role
        code = code_of(role) if _is_data(place) else None
        if code is None or not code.is_whole or methods_with(place.role, "loads"):
            continue
        step = next(steps_of(code, method.signature.name), None)
        if step is None or _averages(context.program.graph, node.role):
            continue
        calls = context.program.graph.calls
        called = {call.method for call in calls if call.role == node.role}
        if not _reach_peers(code, called, *step):
            yield _finding(node, method, *step)


def _reach_peers(role: RoleCode, called: Set[str], function: ReadFunction, step: ast.Call) -> bool:
    """Whether code that calls of a role reach mentions its peers, other than to reduce a number after the step."""
    for reached in role.reached("__init__", *sorted(called)):
        if PEERS.isdisjoint(reached.names):
            continue
        if reached.definition is not function.definition:
            return True
        mentions = [statement for statement in function.definition.body if _mentions_peers(statement)]
        if not mentions or any(_is_before(code, step) or set(mentioned(code)) - PEERS for code in mentions):
            return True
    return False


def _is_before(statement: ast.stmt, step: ast.Call) -> bool:
    """Whether a statement begins before a step."""
    return (statement.lineno, statement.col_offset) <= (step.lineno, step.col_offset)


def _mentions_peers(statement: ast.stmt) -> bool:
    attributes = {node.attr for node in nodes_of(statement) if isinstance(node, ast.Attribute)}
    return not PEERS.isdisjoint(attributes)


def _differ(method: PlacedMethod) -> bool:
    """Whether replicas get different rows."""
    return method.placement.mesh.dp > 1 and method.protocol.splits and method.chunks > 1


def _is_data(place: Placement[Any]) -> bool:
    return all(map(is_plain, (*place.args, *place.kwargs.values())))


def _averages(graph: Graph, role: str) -> bool:
    """Whether a role gets what a list of values of its ranks was made into, as where a function averages weights."""
    lists = {
        node.id
        for node in graph.calls
        if node.role == role and isinstance(node.op.signature.result, ListType)  # type: ignore[union-attr]
    }
    for node in graph.nodes if lists else ():
        if any(ref.node in lists for ref in node.refs):
            if node.role == role:
                return True
            lists.add(node.id)
    return False


def _finding(node: Node, method: PlacedMethod, function: ReadFunction, step: ast.Call) -> Finding:
    replicas = method.placement.mesh.dp
    return Finding(
        "HF782",
        f"'{node.label}' takes an optimizer step on each of {replicas} replicas with the gradients of its own rows, "
        f"and nothing in {method.placement.role.__name__} reduces them: the replicas drift apart",
        Label(span_of(definition_span(function.body).file, step), "other weights on every replica from here on"),
        (Label(node.span, "called here"), Label(method.placement.span, f"{replicas} replicas")),
        notes=('average each gradient before the step: p.grad = self.axis("dp").all_reduce(p.grad, "mean")',),
    )
