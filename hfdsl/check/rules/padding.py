"""Padding: pad rows never come back, but what a body makes of all of its rows counts them."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.constraints import call_rows, chunks_of, refuted
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.sizes import in_words, repairs, resized
from hfdsl.check.repair.suggestions import with_suggestions
from hfdsl.check.subject import Subject, signature_of
from hfdsl.graph.signatures import PortType, RecordType, StaticType
from hfdsl.types.batches import schema
from hfdsl.types.columns import MetricSpec

BLIND = ("max", "min", "first")
"""Reductions that copies of the last rows need not change."""


def pad_rows_count_for_nothing(subject: Subject) -> Iterator[Finding]:
    """Where rows are padded, a method gives rows, whose pad rows are cut off again, and nothing else."""
    for node in subject.graph.nodes:
        signature, chunks, rows = signature_of(node), chunks_of(subject, node), call_rows(subject, node)
        registration = signature.registration if signature else None
        if not (signature and registration and registration.pad and chunks and rows):
            continue
        number, counted = subject.known(rows).value, _counted(signature.returns)
        if number is None or number.denominator != 1 or not counted:
            continue
        share = chunks * registration.group
        added = -int(number) % share
        if added and node.id not in {wrong for wrong, _ in refuted(subject)}:  # else that is told
            sizes = repairs(subject, rows.atoms, set(), rows, share)
            finding = Finding(
                "HF317",
                f"'{node.label}' gets {added} pad row{'s' if added > 1 else ''} beside its {number}, and {counted}",
                Label(node.span, f"{number} % {share} = {int(number) % share}"),
                (Label(signature.span, f"registered with pad={registration.pad!r}"),),
            )
            advice = f"with {in_words(subject, sizes)} no row is padded" if sizes else ""
            yield with_suggestions(subject, finding, resized(subject, sizes, "no row is padded then"), advice)


def _counted(returns: PortType) -> str:
    """What pad rows get into, if anything."""
    if isinstance(returns, RecordType):
        fields = schema(returns.record).fields.items()
        metrics = [name for name, spec in fields if isinstance(spec, MetricSpec) and spec.reduction not in BLIND]
        return f"counts them in its metrics {', '.join(metrics)}" if metrics else ""
    if isinstance(returns, StaticType) and returns.annotation in (None, type(None)):
        return "counts them in what it does: it gives no rows that they could be cut off"
    return ""
