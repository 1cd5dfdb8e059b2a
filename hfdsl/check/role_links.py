"""Role links: which roles may share weights, because a value without rows passes from one to the other."""

from __future__ import annotations

from collections.abc import Mapping

from hfdsl.check.program import Program
from hfdsl.graph.program import FunctionCall, Graph, Ref, RoleCall
from hfdsl.graph.values import RecordValue
from hfdsl.types.columns import ColumnSpec, ObjSpec


def role_links(program: Program) -> dict[str, set[str]]:
    """The roles from which a role gets values without rows, by role, as ``hf.sync`` sends weights."""
    links: dict[str, set[str]] = {}
    for node in program.graph.calls:
        if not isinstance(node.op, RoleCall):
            continue
        for ref in node.refs:
            if not isinstance(program.inference.operand(ref), (RecordValue, ColumnSpec, ObjSpec)):
                links.setdefault(node.op.role, set()).update(_givers(program.graph, ref))
    return links


def both_ways(links: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The links in both directions."""
    linked = {role: set(givers) for role, givers in links.items()}
    for role, givers in links.items():
        for giver in givers:
            linked.setdefault(giver, set()).add(role)
    return linked


def linked_roles(links: Mapping[str, set[str]], role: str) -> set[str]:
    """The roles that a role is linked to, directly or through others, and itself."""
    linked, waiting = {role}, [role]
    while waiting:
        new = links.get(waiting.pop(), set()) - linked
        linked |= new
        waiting += new
    return linked


def _givers(graph: Graph, ref: Ref) -> set[str]:
    """The roles that produced a value, directly or through functions."""
    node = graph.nodes[ref.node]
    if isinstance(node.op, FunctionCall):
        return {role for inner in node.refs for role in _givers(graph, inner)}
    return {node.op.role} if isinstance(node.op, RoleCall) else set()
