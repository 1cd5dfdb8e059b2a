"""Swapped records: two ports of one call, each wired to the record that the other one takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hfdsl.check.findings import Finding, Label
from hfdsl.check.sources import argument_span
from hfdsl.check.subject import Subject, signature_of
from hfdsl.graph.infer import Mismatch, MismatchKind, RecordValue
from hfdsl.graph.signatures import RecordType


def partner(mismatch: Mismatch, others: Iterable[Mismatch]) -> Mismatch | None:
    """The one of the ``others`` of its call that is mended too when both values change places."""
    found = [m for m in others if _fits(mismatch, m) and _fits(m, mismatch)]
    return found[0] if len(found) == 1 else None


def _fits(value: Mismatch, port: Mismatch) -> bool:
    """Whether the value of one mismatch is a record that the port of another takes."""
    if value.kind is not MismatchKind.RECORD or not isinstance(value.actual, RecordValue):
        return False
    return isinstance(port.formal, RecordType) and issubclass(value.actual.type.record, port.formal.record)


def told_once(subject: Subject, finding: Finding, mismatch: Mismatch, other: Mismatch) -> Finding:
    """The finding on one of two swapped records, made one on both."""
    node = subject.graph.nodes[mismatch.node]
    there = argument_span(node.span, signature_of(node), other.port)
    return replace(
        finding,
        message=f"'{node.label}' takes {mismatch.formal} as '{mismatch.port}' and {other.formal} as '{other.port}', "
        "and is wired to them the other way round",
        related=(Label(there, f"this is {other.actual}"), *finding.related),
        help=("swap the two",),
    )
