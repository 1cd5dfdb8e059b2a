"""Padding: does a value that a body computes over all of its rows include pad rows?"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.sizes import in_words, resized, suggested_sizes
from hfdsl.check.repair.suggestions import with_suggestions
from hfdsl.check.sizes.constraints import Constraint
from hfdsl.check.sizes.demands import filtered
from hfdsl.graph.program import Node
from hfdsl.graph.signatures import PortType, RecordType, Signature, StaticType
from hfdsl.types.batches import schema
from hfdsl.types.columns import MetricSpec
from hfdsl.types.dims import Answer, Size

BLIND = ("max", "min", "first")
"""Reductions that copies of the last rows need not change."""


def pad_rows_count_for_nothing(context: Context) -> Iterator[Finding]:
    """A method that pads rows returns only rows, from which pad rows are cut off again."""
    program = context.program
    for node, signature in program.graph.bodies:
        registration = signature.registration
        if registration is None or not registration.pad:
            continue
        chunks, rows, counted = program.chunk_count(node), program.call_rows(node), counted_pad_rows(signature.returns)
        if chunks is None or rows is None or not counted:
            continue
        size, share = context.known(rows), chunks * registration.group_size
        if filtered(size) and size.divisible_by(share) is Answer.UNKNOWN:
            yield _after_a_filter(node, signature, size, share, counted)
        number = size.value
        if number is None or number.denominator != 1:
            continue
        added = -int(number) % share
        if added and not any(node in demand.nodes for demand in context.refuted):  # else it is reported
            sizes = suggested_sizes(context, rows.atoms, set(), Constraint(rows, share))
            finding = Finding(
                "HF317",
                f"'{node.label}' gets {added} pad row{'s' if added > 1 else ''} in addition to its {number}, and "
                f"{counted}",
                Label(node.span, f"{number} % {share} = {int(number) % share}"),
                (Label(signature.span, f"registered with pad={registration.pad!r}"),),
            )
            advice = f"with {in_words(context, sizes)} no row is padded" if sizes else ""
            yield with_suggestions(context, finding, resized(context, sizes, "no row is padded then"), advice)


def _after_a_filter(node: Node, signature: Signature, size: Size, share: int, counted: str) -> Finding:
    """The finding for pad rows after a filter, which only a run may need."""
    registration = signature.registration
    return Finding(
        "HF317",
        f"'{node.label}' gets pad rows whenever {share} does not divide what a filter keeps, and {counted}",
        Label(node.span, f"{size} rows, which only the run knows"),
        (Label(signature.span, f"registered with pad={registration.pad!r}"),) if registration else (),
        notes=("fix the number of rows: hf.take(x, n) or hf.fill(x, n)", "return one value per row and reduce it"),
    )


def counted_pad_rows(returns: PortType) -> str:
    """Describe the results of a call in which pad rows count; empty if there are none."""
    if isinstance(returns, RecordType):
        fields = schema(returns.record).fields.items()
        metrics = [name for name, spec in fields if isinstance(spec, MetricSpec) and spec.reduction not in BLIND]
        return f"counts them in its metrics {', '.join(metrics)}" if metrics else ""
    if isinstance(returns, StaticType) and returns.annotation in (None, type(None)):
        return "counts them in what it does, since it returns no rows to cut them from"
    return ""
