"""The arguments of a call on a rank, read from a store."""

from __future__ import annotations

from typing import Any

from hfdsl.errors import ResourceError
from hfdsl.graph.program import Constant, Ref
from hfdsl.graph.signatures import VALUE
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.reading import Reader
from hfdsl.plan.rows import argument_rows
from hfdsl.protocols.kinds import PerRank
from hfdsl.runtime.rank.store import DELIVERIES, UndeliveredError
from hfdsl.runtime.weights.syncs import loaded_weights


def call_arguments(step: Step, index: int, reader: Reader) -> dict[str, Any]:
    """The arguments of the rank ``step.ranks[index]``, by name."""
    if step.sync is not None:
        [(name, _)] = step.arguments
        return {name: loaded_weights(step, step.ranks[index], reader)}
    chunk = step.chunk_of[index]
    arguments: dict[str, Any] = {}
    for name, operand in step.arguments:
        port = step.signature.port(name)
        if isinstance(operand, Constant) or port is None:
            value = operand.value if isinstance(operand, Constant) else None
            arguments[name] = value[index] if step.per_rank and isinstance(value, (list, tuple, PerRank)) else value
        elif step.per_rank and isinstance(operand, Ref):
            arguments[name] = reader.entry(operand.node, index, port.type)
        elif isinstance(operand, Ref):
            arguments[name] = reader.value(operand, port.type, argument_rows(reader.table, step, operand, chunk))
    return arguments


def undelivered(plan: Plan, step: Step, rank: int, missing: UndeliveredError) -> ResourceError:
    """The error for a value that a call reads on a rank to which the backend has not brought it."""
    value = plan.node(missing.node)
    column = "" if missing.column == VALUE else f"column '{missing.column}' of "
    queues = [node.span for node, _ in plan.split.queues if plan.split.of[node.id] == plan.split.of[step.node]]
    is_queued = plan.split.of[missing.node] != plan.split.of[step.node]
    through = f" through the queue at {', '.join(map(str, queues))}" if is_queued else ""
    reads = f"'{step.label}' on rank {rank} reads {column}'{value.label}' ({value.span}){through}"
    return ResourceError("HF518", f"{reads}, and {DELIVERIES}")
