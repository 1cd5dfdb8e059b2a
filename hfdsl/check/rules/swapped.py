"""Swapped values: two ports of one call, each wired to the value that the other port means, by type or by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, combinations

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import signature_of
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.sources import argument_name, argument_span, port_span
from hfdsl.graph.infer import Mismatch, MismatchKind, RecordValue
from hfdsl.graph.program import Node, Operand, Ref
from hfdsl.graph.signatures import RecordType, Signature
from hfdsl.graph.spans import Span
from hfdsl.types.columns import ColumnSpec


def partner(mismatch: Mismatch, wrong: Sequence[Mismatch]) -> Mismatch | None:
    """The wrong value of a call that is right too once both are swapped; None if there are several."""

    def fitting(wanted: Mismatch) -> list[Mismatch]:
        return [other for other in wrong if _fits(wanted, other) and _fits(other, wanted)]

    match fitting(mismatch):
        case [other] if fitting(other) == [mismatch]:
            return other
    return None


def _fits(value: Mismatch, port: Mismatch) -> bool:
    """Whether the value of one mismatch is a record or column that the port of another takes."""
    match value.kind, value.actual, port.formal:
        case MismatchKind.RECORD, RecordValue(value_type), RecordType(record):
            return issubclass(value_type.record, record)
        case ((MismatchKind.DTYPE | MismatchKind.RANK | MismatchKind.DIM | MismatchKind.RAGGED), ColumnSpec(), _):
            return value.actual == port.formal
    return False


def as_one_finding(context: Context, finding: Finding, mismatch: Mismatch, other: Mismatch) -> Finding:
    """One finding on both of two swapped values."""
    node = context.program.graph.nodes[mismatch.node]
    argument = argument_span(node.span, signature_of(node), other.port)
    combined = replace(
        finding,
        message=f"'{node.label}' takes {mismatch.formal} as '{mismatch.port}' and {other.formal} as '{other.port}', "
        "and is wired to them the other way round",
        related=(Label(argument, f"this is {other.actual}"), *finding.related),
        notes=(),
    )
    return with_suggestions(context, combined, _exchanged(node, mismatch.port, other.port), "swap the two")


# -- by name


def names_are_not_crossed(context: Context) -> Iterator[Finding]:
    """Two values of a call are not each named like the port of the other.

    A line that a loop or a helper also runs with other names is meant for both orders, and so are two values that
    another call takes the other way round, as a judge compares a pair twice.
    """
    lines: dict[Span, list[tuple[Node, Signature]]] = {}
    for node in context.program.graph.nodes:
        if signature := signature_of(node):
            lines.setdefault(node.span, []).append((node, signature))
    for call, *turns in lines.values():
        for first, second in _crossed(*call):
            crossed = all((first, second) in _crossed(*turn) for turn in turns)
            if crossed and not _both_orders(context, *call, first, second):
                yield _crossed_names(context, *call, first, second)


def _both_orders(context: Context, node: Node, signature: Signature, first: str, second: str) -> bool:
    """Whether another call has the same two values at these ports the other way round."""
    operands = dict(node.arguments)
    return any(
        dict(other.arguments).get(first) == operands[second] and dict(other.arguments).get(second) == operands[first]
        for other in context.program.graph.calls
        if signature_of(other) is signature
    )


def _crossed(node: Node, signature: Signature) -> list[tuple[str, str]]:
    """The pairs of ports of one type, each with a value that has the other's name."""
    if not _has_ports_alike(signature):
        return []
    types = {port.name: port.type for port in signature.ports}
    operands = dict(node.arguments)
    # Types first: they are at hand, while names are read from the user's text.
    pairs = [(first, second) for first, second in combinations(operands, 2) if types[first] == types[second]]
    names = {port: _name(node, signature, port, operands[port]) for port in chain.from_iterable(pairs)}
    return [(first, second) for first, second in pairs if (names[first], names[second]) == (second, first)]


@lru_cache(maxsize=1024)
def _has_ports_alike(signature: Signature) -> bool:
    """Whether two ports take one type; most signatures have no such pair."""
    return any(first.type == second.type for first, second in combinations(signature.ports, 2))


def _name(node: Node, signature: Signature, port: str, operand: Operand) -> str | None:
    """The name of a value: a column's own name, otherwise the name in the source."""
    column = operand.column if isinstance(operand, Ref) else None
    return column or argument_name(node.span, signature, port)


def _crossed_names(context: Context, node: Node, signature: Signature, first: str, second: str) -> Finding:
    finding = Finding(
        "HF230",
        f"'{node.label}' gets '{second}' at its port '{first}' and '{first}' at its port '{second}'",
        Label(argument_span(node.span, signature, first), f"goes to '{first}'"),
        (
            Label(argument_span(node.span, signature, second), f"goes to '{second}'"),
            Label(port_span(signature, first), f"port '{first}' and port '{second}' take the same type"),
        ),
        notes=("if this is meant, say so at the end of the line: # hf: ignore[HF230]",),
    )
    return with_suggestions(
        context, finding, _exchanged(node, first, second, certain=False), "else wire them the other way round"
    )


def _exchanged(node: Node, first: str, second: str, *, certain: bool = True) -> Iterator[Suggestion]:
    from hfdsl.check.repair.fixes import exchanged  # late: most programs need none

    yield from exchanged(node, first, second, certain=certain)
