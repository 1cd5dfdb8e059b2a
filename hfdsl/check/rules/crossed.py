"""Crossed names: two values of one type, each wired to the port that has the other's name."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.offers import Offer, mended
from hfdsl.check.sources import argument_name, argument_span, port_span
from hfdsl.check.subject import Subject, signature_of
from hfdsl.graph.program import Node, Operand, Ref
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import Span


def names_are_not_crossed(subject: Subject) -> Iterator[Finding]:
    """A value called as another port of its call, whose own value is called as this port, is at the wrong one.

    A line that a loop or a helper runs with other names too is written for both orders.
    """
    lines: dict[Span, list[tuple[Node, Signature]]] = {}
    for node in subject.graph.nodes:
        if signature := signature_of(node):
            lines.setdefault(node.span, []).append((node, signature))
    for call, *turns in lines.values():
        for one, other in _crossed(*call):
            if all((one, other) in _crossed(*turn) for turn in turns):
                yield _finding(subject, *call, one, other)


def _crossed(node: Node, signature: Signature) -> list[tuple[str, str]]:
    """The pairs of ports of one type, which tells nothing apart, each with a value that has the other's name."""
    types = {port.name: port.type for port in signature.ports}
    names = {port: _name(node, signature, port, operand) for port, operand in node.arguments}
    crossed = [(one, other) for one, other in combinations(names, 2) if (names[one], names[other]) == (other, one)]
    return [(one, other) for one, other in crossed if types[one] == types[other]]


def _name(node: Node, signature: Signature, port: str, operand: Operand) -> str | None:
    """What a value is called: a column by its own name, a constant or another value as it is written."""
    column = operand.column if isinstance(operand, Ref) else None
    return column or argument_name(node.span, signature, port)


def _finding(subject: Subject, node: Node, signature: Signature, one: str, other: str) -> Finding:
    finding = Finding(
        "HF230",
        f"'{node.label}' gets '{other}' at its port '{one}' and '{one}' at its port '{other}'",
        Label(argument_span(node.span, signature, one), f"goes to '{one}'"),
        (
            Label(argument_span(node.span, signature, other), f"goes to '{other}'"),
            Label(port_span(signature, one), f"port '{one}' and port '{other}' take the same type"),
        ),
        notes=("if this is meant, say so at the end of the line: # hf: ignore[HF230]",),
    )
    return mended(subject, finding, _offers(node, one, other), "else wire them the other way round")


def _offers(node: Node, one: str, other: str) -> Iterator[Offer]:
    from hfdsl.check.repair.fixes import exchanged  # late: most programs need none

    yield from exchanged(node, one, other, certain=False)
