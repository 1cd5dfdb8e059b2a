"""Crossed names: two values of one type, each wired to the port that has the other's name."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.offers import Offer, mended
from hfdsl.check.sources import argument_name, argument_span, port_span
from hfdsl.check.subject import Subject, signature_of
from hfdsl.graph.program import Node, Ref
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import Span


def names_are_not_crossed(subject: Subject) -> Iterator[Finding]:
    """A value called as another port of its call, whose own value is called as this port, is at the wrong one."""
    seen: set[Span] = set()
    for node in subject.graph.calls:
        signature = signature_of(node)
        if signature is None or node.span in seen:
            continue  # a loop comes by its line again
        seen.add(node.span)
        types = {port.name: port.type for port in signature.ports}
        wired = {name for name, operand in node.arguments if isinstance(operand, Ref)}
        for one, other in combinations(types, 2):
            if types[one] == types[other] and {one, other} <= wired:  # other types tell the ports apart
                names = _name(node, signature, one), _name(node, signature, other)
                if names == (other, one):
                    yield _crossed(subject, node, signature, one, other)


def _name(node: Node, signature: Signature, port: str) -> str | None:
    operand = dict(node.arguments)[port]
    column = operand.column if isinstance(operand, Ref) else None
    return column or argument_name(node.span, signature, port)


def _crossed(subject: Subject, node: Node, signature: Signature, one: str, other: str) -> Finding:
    finding = Finding(
        "HF230",
        f"'{node.label}' gets '{other}' at its port '{one}' and '{one}' at its port '{other}'",
        Label(argument_span(node.span, signature, one), f"goes to '{one}'"),
        (
            Label(argument_span(node.span, signature, other), f"goes to '{other}'"),
            Label(port_span(signature, one), f"port '{one}' and port '{other}' take the same type"),
        ),
        notes=("if this is meant, rename one of the values",),
    )
    return mended(subject, finding, _offers(node, one, other), "else wire them the other way round")


def _offers(node: Node, one: str, other: str) -> Iterator[Offer]:
    from hfdsl.check.repair.fixes import exchanged  # late: most programs need none

    yield from exchanged(node, one, other, certain=False)
