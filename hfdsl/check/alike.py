"""Nodes that are alike: a loop unrolls, and what its calls ask of their rows is found out once."""

from __future__ import annotations

from typing import Any

from hfdsl.check.subject import Subject
from hfdsl.graph.infer import LOST, RecordValue
from hfdsl.graph.program import FunctionCall, Node, Ref, RoleCall
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, MetricSpec, ObjSpec
from hfdsl.types.dims import Size


def argument_rows(subject: Subject, node: Node) -> dict[str, Size]:
    """The rows of every argument that has rows and fits its port, by port."""
    key = argument_rows, node.id
    memo = subject.inference.memo
    if key not in memo:
        memo[key] = _argument_rows(subject, node)
    found: dict[str, Size] = memo[key]
    return found


def _argument_rows(subject: Subject, node: Node) -> dict[str, Size]:
    found: dict[str, Size] = {}
    values, misfits = subject.inference.values, subject.inference.misfits
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
            found[port] = rows
    return found


def alike(subject: Subject) -> tuple[Node, ...]:
    """For every node the first one that is like it in all that a size is asked for.

    They run the same operation on the same rows and bind the same dims; their lines and their other arguments differ.
    """
    memo = subject.inference.memo
    if alike not in memo:
        first: dict[object, Node] = {}
        wrong = {node for node, _ in subject.inference.misfits}
        memo[alike] = tuple(
            first.setdefault(node.id if node.id in wrong else _kind(subject, node), node)
            for node in subject.graph.nodes
        )
    found: tuple[Node, ...] = memo[alike]
    return found


def _kind(subject: Subject, node: Node) -> object:
    op = node.op
    called = (
        (op.role, op.signature) if isinstance(op, RoleCall) else op.signature if isinstance(op, FunctionCall) else op
    )
    given, bound = argument_rows(subject, node), subject.inference.bindings[node.id]
    return called, tuple(given.items()), tuple(bound.items()), subject.inference.rows(node.id)
