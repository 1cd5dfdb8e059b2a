"""Swapped values: two ports of one call, each wired to the record or column that the other one takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.offers import Offer, mended
from hfdsl.check.sources import argument_span
from hfdsl.check.subject import Subject, signature_of
from hfdsl.graph.infer import Mismatch, MismatchKind, RecordValue
from hfdsl.graph.program import Node
from hfdsl.graph.signatures import RecordType
from hfdsl.types.columns import ColumnSpec


def partner(mismatch: Mismatch, wrong: Sequence[Mismatch]) -> Mismatch | None:
    """The one of a call's wrong values that is mended too when both change places; None where another would do."""

    def fitting(one: Mismatch) -> list[Mismatch]:
        return [other for other in wrong if _fits(one, other) and _fits(other, one)]

    match fitting(mismatch):
        case [other] if fitting(other) == [mismatch]:
            return other
    return None


def _fits(value: Mismatch, port: Mismatch) -> bool:
    """Whether the value of one mismatch is a record or column that the port of another takes."""
    match value.kind, value.actual, port.formal:
        case MismatchKind.RECORD, RecordValue(given), RecordType(record):
            return issubclass(given.record, record)
        case ((MismatchKind.DTYPE | MismatchKind.RANK | MismatchKind.DIM | MismatchKind.RAGGED), ColumnSpec(), _):
            return value.actual == port.formal
    return False


def told_once(subject: Subject, finding: Finding, mismatch: Mismatch, other: Mismatch) -> Finding:
    """The finding on one of two swapped values, made one on both."""
    node = subject.graph.nodes[mismatch.node]
    there = argument_span(node.span, signature_of(node), other.port)
    told = replace(
        finding,
        message=f"'{node.label}' takes {mismatch.formal} as '{mismatch.port}' and {other.formal} as '{other.port}', "
        "and is wired to them the other way round",
        related=(Label(there, f"this is {other.actual}"), *finding.related),
        notes=(),
    )
    return mended(subject, told, _offers(node, mismatch.port, other.port), "swap the two")


def _offers(node: Node, one: str, other: str) -> Iterator[Offer]:
    from hfdsl.check.repair.fixes import exchanged  # late: most programs need none

    yield from exchanged(node, one, other)
