"""Renamed columns: does a record take a column under another's name, where its source has one of that name?

A worked example, a record with columns 'advantage' and 'returns'::

    estimates = generalized_advantages(rollout, rewards, values)         # has both
    Experience(advantage=estimates.advantage, returns=estimates.advantage)

Both have the same dtype and dims, and the critic learns advantages. Often another name is intended: the log-probs of a
reference become those of a rollout, a mask of the loss becomes the mask. So the rule requires three things. The source
has a column of the requested name, which goes into no column of the new record. Both are of one type and never absent.
And the names mean the same on both sides: the new record has the column in its own place, too, or both names are of
``hfdsl.rl.batches``.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import get_annotations

from hfdsl.check.bodies.padded_columns import VOCABULARY
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.sources import argument_span
from hfdsl.graph.program import Node, Pack, Ref
from hfdsl.graph.values import RecordValue
from hfdsl.types.batches import Batch, schema


def columns_keep_their_names(context: Context) -> Iterator[Finding]:
    """HF232: a column of a record is the one of its name, where its source has that too."""
    reported = set[object]()
    for node in context.program.graph.nodes:
        if not isinstance(node.op, Pack) or all(_keeps_its_name(port, operand) for port, operand in node.arguments):
            continue  # quick: most records are put together from columns of the same names
        for port, operand in node.arguments:
            if not isinstance(operand, Ref) or _keeps_its_name(port, operand):
                continue
            source = context.program.inference.values[operand.node]
            if isinstance(source, RecordValue) and _is_mistaken(node, node.op.record, port, operand, source):
                place = argument_span(node.span, None, port)
                if place not in reported:
                    reported.add(place)
                    yield _finding(context, node, port, operand)


def _keeps_its_name(port: str, operand: object) -> bool:
    return not isinstance(operand, Ref) or operand.column in (port, None)


def _is_mistaken(node: Node, record: type[Batch], port: str, operand: Ref, source: RecordValue) -> bool:
    column_name, have = operand.column or "", schema(source.type.record)
    if port not in have.fields or have.fields[port] != have.fields[column_name] or have.spare & {port, column_name}:
        return False
    if any(argument == Ref(operand.node, port) for _, argument in node.arguments):
        return False  # exchanged columns: HF230, or meant
    if column_name in schema(record).fields:
        return (column_name, operand) in node.arguments  # in its own place, too; others may be moved on by one
    both_known = all(_declares(VOCABULARY, kind, port) for kind in (record, source.type.record))
    return both_known and _declares(VOCABULARY, source.type.record, column_name)


def _declares(module: str, record: type[Batch], column: str) -> bool:
    """Whether a record has a column from a class of a module."""
    return any(base.__module__ == module and column in get_annotations(base) for base in record.__mro__)


def _finding(context: Context, node: Node, port: str, operand: Ref) -> Finding:
    source, column = context.program.graph.nodes[operand.node].label, operand.column or ""
    finding = Finding(
        "HF232",
        f"'{node.label}' gets '{column}' of '{source}' as its column '{port}', and '{source}' has a column "
        f"'{port}' of its own",
        Label(argument_span(node.span, None, port), f"becomes '{port}'"),
        (context.program.producer_label(operand.node),),
        notes=("if this is intended, add at the end of the line: # hf: ignore[HF232]",),
    )
    return with_suggestions(context, finding, _own_column(node, port, column), f"write .{port} here")


def _own_column(node: Node, port: str, column: str) -> Iterator[Suggestion]:
    from hfdsl.check.repair.fixes import own_column  # late: most programs need none

    yield from own_column(node.span, port, column)
