"""Equal values: which nodes of a graph are certain to have the value of an earlier node.

A function is stateless, so two calls of it with equal arguments give equal results. A role's method that returns no
tokens, and so samples none, does as well, until another method of the role is called, which may change its weights::

    scores = reward.score(rollout)                    # node 2
    best = hf.filter(rollout, passed(scores).keep)    # nodes 3 and 4
    again = passed(reward.score(rollout))             # nodes 5 and 6: equal to 2 and 3
"""

from __future__ import annotations

from collections.abc import Sequence

from hfdsl.graph.program import Constant, Derived, FunctionCall, Graph, Input, Node, Operand, Queue, Ref, RoleCall
from hfdsl.graph.signatures import VALUE, RecordType, Signature
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dtypes import FLOATS, Bool


def equal_values(graph: Graph) -> tuple[int, ...]:
    """The first node with an equal value, by node; the node itself if there is none."""
    first: dict[object, int] = {}
    equal: list[int] = []
    latest: dict[str, Node] = {}
    for node in graph.nodes:
        operation: object = node.op
        match node.op:
            case Input() | Queue():
                operation = node.id
            case FunctionCall(signature):
                operation = signature
            case RoleCall(role, signature):
                before = latest.get(role)
                if before is None or before.label != node.label:
                    latest[role] = before = node  # the first of a row of calls of one method
                operation = (signature, before.id) if _repeats(signature) else node.id
        key = operation, *[(port, _same(operand, equal)) for port, operand in node.arguments]
        equal.append(first.setdefault(key, node.id))
    return tuple(equal)


def equal_column(graph: Graph, equal: Sequence[int], operand: Operand) -> Operand:
    """The first column with equal rows, through records and ``hf.present``."""
    while isinstance(operand, Ref):
        node = graph.nodes[operand.node]
        source = node.source(operand.column or VALUE) if isinstance(node.op, Derived) and node.op.same_rows else None
        if source is None:
            return Ref(equal[operand.node], operand.column)
        operand = source
    return operand


def _repeats(signature: Signature) -> bool:
    """Whether a method returns floats and truth values of rows only, which it computes."""
    returns = signature.returns
    if isinstance(returns, RecordType):
        return all(map(_is_computed, schema(returns.record).fields.values()))
    return _is_computed(returns)


def _is_computed(spec: object) -> bool:
    return isinstance(spec, ColumnSpec) and issubclass(spec.dtype, (*FLOATS, Bool))


def _same(operand: Operand, equal: Sequence[int]) -> object:
    if isinstance(operand, Ref):
        return equal[operand.node], operand.column
    if isinstance(operand, Constant):
        try:
            hash(operand.value)
        except TypeError:
            return id(operand.value)
        return type(operand.value), operand.value
    return operand
