"""The arguments of a call on a rank, read from a store."""

from __future__ import annotations

from typing import Any

from hfdsl.graph.program import Constant, Ref
from hfdsl.plan.plan import Step
from hfdsl.plan.reading import Reader
from hfdsl.plan.rows import argument_rows
from hfdsl.protocols.kinds import PerRank
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
