"""References: does a loss with a KL to a reference get the log-probs of one?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.dependences import trains
from hfdsl.check.findings import Finding, Label
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Constant, Graph, Input, Node, Operand, Ref

REFERENCE_COLUMN = "ref_log_probs"
"""The column of the log-probs of a reference."""


def losses_have_their_reference(context: Context) -> Iterator[Finding]:
    """HF713: a loss whose ``kl`` is not 0 gets the log-probs of a reference."""
    graph = context.program.graph
    for update in updates_without_reference(graph):
        yield Finding(
            "HF713",
            message(update, graph),
            Label(update.span),
            notes=(f"merge the log_probs of a reference into what '{update.label}' gets, or set kl to 0",),
        )


def message(update: Node, graph: Graph) -> str:
    """The message of the finding on an update."""
    return (
        f"the loss of '{update.label}' has kl = {kl(update):g}, and '{graph.name}' gives it no log-probs of a reference"
    )


def kl(update: Node) -> float:
    """The coefficient of the KL to a reference in the loss of an update; 0 where it has no such loss."""
    values: list[Any] = [operand.value for _, operand in update.arguments if isinstance(operand, Constant)]
    return next((value.kl for value in values if getattr(value, "needs_reference", False) is True), 0.0)


def updates_without_reference(graph: Graph, *, of_inputs: bool = False) -> Iterator[Node]:
    """The updates with such a loss whose record certainly lacks the log-probs; ``of_inputs``: as do inputs."""
    for update in filter(trains, graph.calls):
        columns = (stored_column(graph, Ref(ref.node, REFERENCE_COLUMN)) for ref in update.refs if ref.column is None)
        if kl(update) and any(col == Constant(None) or (of_inputs and _is_input(graph, col)) for col in columns):
            yield update


def _is_input(graph: Graph, column: Operand) -> bool:
    return isinstance(column, Ref) and isinstance(graph.nodes[column.node].op, Input)
