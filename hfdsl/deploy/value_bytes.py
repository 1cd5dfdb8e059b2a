"""Bytes of values without rows: above all of the weights that ``hf.sync`` sends, often a step's largest transfer."""

from __future__ import annotations

from hfdsl.deploy.deployment import Deployment
from hfdsl.graph.program import Node, RoleCall
from hfdsl.graph.signatures import ListType, PortType, StaticType
from hfdsl.protocols import role_facts
from hfdsl.protocols.state import effects_of


def is_plain_number(result_type: PortType) -> bool:
    """Whether a value, or each entry of a list, is a number: too small to count."""
    entry_type = result_type.inner if isinstance(result_type, ListType) else result_type
    return isinstance(entry_type, StaticType) and entry_type.annotation in (bool, int, float)


def value_bytes(node: Node, deployment: Deployment | None) -> int | None:
    """Compute the bytes of a value that is not a record or column, or of each entry of a list of such values.

    They are known for numbers, which count as 0, and for states whose role declares their bytes; None otherwise.
    """
    if is_plain_number(node.result):
        return 0
    place = deployment.placements.get(node.op.role) if deployment and isinstance(node.op, RoleCall) else None
    if place is None or not isinstance(node.op, RoleCall):
        return None
    declared = role_facts.state_bytes.of(place)
    exported = [effect.state for effect in effects_of(node.op.signature.body) if effect.kind == "exports"]
    return sum(declared[state] for state in exported) if exported and declared.keys() >= set(exported) else None


def has_no_rows(result_type: PortType) -> bool:
    """Whether a value is a plain Python object, or a list with one per rank."""
    entry_type = result_type.inner if isinstance(result_type, ListType) else result_type
    return isinstance(entry_type, StaticType)
