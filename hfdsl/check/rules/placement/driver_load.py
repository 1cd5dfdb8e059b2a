"""Driver load: does a step send much data through the driver?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.rules.dataflow.presence import provided
from hfdsl.check.sources import return_span
from hfdsl.deploy.value_bytes import value_bytes
from hfdsl.graph.columns import columns_read, result_origins, row_bytes, stored_spec
from hfdsl.graph.program import Input, RoleCall
from hfdsl.graph.signatures import Signature
from hfdsl.graph.values import RecordValue
from hfdsl.protocols.dispatch import Functions
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dims import at_most
from hfdsl.types.numbers import byte_amount

LIMIT_BYTES = 1 << 30
"""Bytes per step from which there is a warning: they take the driver about a second, and every step waits for it."""


def little_through_driver(context: Context) -> Iterator[Finding]:
    """The driver reads the arguments of protocols that are pairs of functions, and what the dataflow returns.

    Whole values count, once each, filters as if they kept all rows; what has no known size does not count.
    """
    program, graph = context.program, context.program.graph
    if program.deployment is None or graph.misuses or program.inference.mismatches:
        return
    for node in graph.calls:
        if isinstance(node.op, RoleCall) and _is_pair_of_functions(node.op.signature):
            amount = _bytes(context, columns_read(graph, node.id))
            if amount > LIMIT_BYTES:
                yield Finding(
                    "HF804",
                    f"'{node.label}' reads {byte_amount(amount)} per step through the driver: its protocol is a pair "
                    "of functions, which get whole values there",
                    Label(node.span),
                    (Label(node.op.signature.span, "registered with a pair of functions"),),
                    notes=("declare the protocol, hf.Protocol(...): what it sends goes from worker to worker",),
                )
    returned = _bytes(context, (pair for ref in graph.output.refs() for pair in result_origins(graph, ref)))
    if returned > LIMIT_BYTES:
        yield Finding(
            "HF804",
            f"'{graph.name}' returns {byte_amount(returned)} per step, all of which the driver fetches",
            Label(return_span(graph.span)),
            notes=("return metrics, or a record of fewer columns",),
        )


def _is_pair_of_functions(signature: Signature) -> bool:
    registration = signature.registration
    is_pair = registration is not None and isinstance(registration.meaning, Functions)
    return is_pair and not signature.runs_on_rank_zero


def _bytes(context: Context, columns: Iterable[tuple[int, str]]) -> int:
    """Bytes of whole columns that the driver fetches; it has the inputs already."""
    if not (unique := dict.fromkeys(columns)):
        return 0
    graph, present = context.program.graph, provided(context)
    total = 0
    for node, column in unique:
        if isinstance(graph.nodes[node].op, Input) or not present.get(node, {}).get(column, True):
            continue
        if stored_spec(graph.nodes[node].result, column) is None:
            total += value_bytes(graph.nodes[node], context.program.deployment) or 0
        else:
            total += (row_bytes(graph, node, column, context.sizes) or 0) * _most_rows(context, node)
    return total


def _most_rows(context: Context, node: int) -> int:
    """The most rows of a value; 0 if that is unknown."""
    value = context.program.inference.values[node]
    rows = value.rows if isinstance(value, RecordValue) else value.dims[0] if isinstance(value, ColumnSpec) else None
    most = context.known(at_most(rows)).value if rows is not None else None
    return int(most) if most is not None else 0
