"""Swapped values: two ports of a call, or two columns of a record, wired to each other's values, by type or name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, combinations
from typing import Any, TypeAlias

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import signature_of
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.sources import argument_name, argument_record, argument_span, port_span
from hfdsl.graph.program import Arguments, Operand, Pack, Ref
from hfdsl.graph.signatures import RecordType, Signature, StaticType
from hfdsl.graph.spans import Span, definition_span
from hfdsl.graph.values import Mismatch, MismatchKind, RecordValue
from hfdsl.types.batches import Batch, schema
from hfdsl.types.columns import ColumnSpec

Owner: TypeAlias = "Signature | type[Batch]"
"""The owner of the names that values are wired to: a call or an inner dataflow with its ports, or a record."""


def partner(mismatch: Mismatch, wrong: Sequence[Mismatch]) -> Mismatch | None:
    """The wrong value of a call that is right too once both are swapped; None if there are several."""

    def fitting(wanted: Mismatch) -> list[Mismatch]:
        return [candidate for candidate in wrong if _fits(wanted, candidate) and _fits(candidate, wanted)]

    match fitting(mismatch):
        case [opposite] if fitting(opposite) == [mismatch]:
            return opposite
    return None


def _fits(value: Mismatch, port: Mismatch) -> bool:
    """Whether the value of one mismatch is a record or column that the port of another takes."""
    match value.kind, value.actual, port.formal:
        case MismatchKind.RECORD, RecordValue(value_type), RecordType(record):
            return issubclass(value_type.record, record)
        case ((MismatchKind.DTYPE | MismatchKind.RANK | MismatchKind.DIM | MismatchKind.RAGGED), ColumnSpec(), _):
            return value.actual == port.formal
    return False


def as_one_finding(context: Context, finding: Finding, mismatch: Mismatch, opposite: Mismatch) -> Finding:
    """One finding on both of two swapped values."""
    node = context.program.graph.nodes[mismatch.node]
    argument = argument_span(node.span, signature_of(node), opposite.port)
    combined = replace(
        finding,
        message=f"'{node.label}' takes {mismatch.formal} as '{mismatch.port}' and {opposite.formal} as "
        f"'{opposite.port}', but gets the two swapped",
        related=(Label(argument, f"this is {opposite.actual}"), *finding.related),
        notes=(),
    )
    swaps = _exchanged(node.span, signature_of(node), mismatch.port, opposite.port)
    return with_suggestions(context, combined, swaps, "swap the two")


# -- by name


@dataclass(frozen=True, slots=True)
class Wiring:
    """The values that a call, an inner dataflow or a record gets, by port or column."""

    label: str
    span: Span
    owner: Owner
    arguments: Arguments

    @property
    def signature(self) -> Signature | None:
        """The signature of a call or an inner dataflow; None for a record."""
        return self.owner if isinstance(self.owner, Signature) else None

    @property
    def place(self) -> str:
        """The kind of place: a port, or a column of a record."""
        return "port" if isinstance(self.owner, Signature) else "column"

    def name(self, port: str) -> str | None:
        """The name of the value at a port: a column's own name, otherwise the name in the source."""
        operand = dict(self.arguments)[port]
        column = operand.column if isinstance(operand, Ref) else None
        return column or argument_name(self.span, self.signature, port)

    def record(self, port: str) -> str | None:
        """The name in the source of the record whose column is at a port."""
        return argument_record(self.span, self.signature, port)


def names_are_not_crossed(context: Context) -> Iterator[Finding]:
    """Two values of a call or a record are not each named like the port or column of the other.

    Columns of one name are known by their records: ``Pair(chosen=rejected.ids, rejected=chosen.ids)``.

    A line that a loop or a helper also runs with other names is meant for both orders, and so are two values that
    another call takes the other way round, as a judge compares a pair twice. A record of the columns of one record of
    its class is that record with columns exchanged: nothing else could be meant.
    """
    wirings = list(_wirings(context))
    lines: dict[tuple[Span, Owner], list[Wiring]] = {}
    for wiring in wirings:
        lines.setdefault((wiring.span, wiring.owner), []).append(wiring)
    blamed = set[Span]()
    for first_turn, *turns in lines.values():
        if any(site.span in blamed for site in first_turn.span.calls):
            continue  # its own names are right, and those that its caller gave are not
        for pair in _crossed(first_turn):
            if all(pair in _crossed(turn) for turn in turns) and not _is_intended(context, wirings, first_turn, pair):
                blamed.add(first_turn.span)
                yield _crossed_names(context, first_turn, *pair)


def _wirings(context: Context) -> Iterator[Wiring]:
    """Everything in the program that gets two values of one type by name, inner dataflows before their steps."""
    graph = context.program.graph
    for call in graph.inner_calls:
        if _has_ports_of_one_type(call.signature):
            yield Wiring(call.signature.name, call.span, call.signature, call.arguments)
    for node in graph.nodes:
        signature = signature_of(node)
        if signature is not None and _has_ports_of_one_type(signature):
            yield Wiring(node.label, node.span, signature, node.arguments)
        elif isinstance(node.op, Pack):
            yield Wiring(node.label, node.span, node.op.record, node.arguments)


def _is_intended(context: Context, wirings: Sequence[Wiring], wiring: Wiring, pair: tuple[str, str]) -> bool:
    """Whether the two values are also wired the other way round, or are one record with columns exchanged."""
    first, second = (dict(wiring.arguments)[port] for port in pair)
    if any(
        _operands(other_wiring, pair) == (second, first)
        for other_wiring in wirings
        if other_wiring.owner is wiring.owner
    ):
        return True
    if isinstance(wiring.owner, Signature) or not isinstance(first, Ref) or not isinstance(second, Ref):
        return False
    value = context.program.inference.values[first.node]
    return first.node == second.node and isinstance(value, RecordValue) and issubclass(value.type.record, wiring.owner)


def _operands(wiring: Wiring, pair: tuple[str, str]) -> tuple[Operand | None, Operand | None]:
    operands = dict(wiring.arguments)
    return operands.get(pair[0]), operands.get(pair[1])


def _crossed(wiring: Wiring) -> list[tuple[str, str]]:
    """The pairs of ports or columns of one type, each with a value that has the other's name."""
    if all(isinstance(operand, Ref) and operand.column == port for port, operand in wiring.arguments):
        return []  # quick: most records are put together from columns of the same names
    types, operands = _types(wiring.owner), dict(wiring.arguments)
    # Types first: they are at hand, while names are read from the user's text.
    pairs = [(first, second) for first, second in combinations(operands, 2) if types[first] == types[second]]
    names = {port: wiring.name(port) for port in chain.from_iterable(pairs)}
    return [
        (first, second)
        for first, second in pairs
        if (names[first], names[second]) == (second, first)
        or (names[first] == names[second] and (wiring.record(first), wiring.record(second)) == (second, first))
    ]


def _types(owner: Owner) -> Mapping[str, object]:
    """By port or column its type."""
    return _port_types(owner) if isinstance(owner, Signature) else schema(owner).fields


@lru_cache(maxsize=1024)
def _port_types(signature: Signature) -> Mapping[str, object]:
    return {port.name: port.type for port in signature.ports}


@lru_cache(maxsize=1024)
def _has_ports_of_one_type(signature: Signature) -> bool:
    """Whether two ports take one type that is declared; most signatures have no such pair."""
    types = [kind for kind in _port_types(signature).values() if kind != StaticType(Any)]
    return any(first == second for first, second in combinations(types, 2))


def _crossed_names(context: Context, wiring: Wiring, first: str, second: str) -> Finding:
    owner, signature, place = wiring.owner, wiring.signature, wiring.place
    declared = port_span(owner, first) if isinstance(owner, Signature) else definition_span(owner)
    alike = f"{place} '{first}' and {place} '{second}' {'take' if signature else 'have'} the same type"
    finding = Finding(
        "HF230",
        f"'{wiring.label}' gets '{second}' at its {place} '{first}' and '{first}' at its {place} '{second}'",
        Label(argument_span(wiring.span, signature, first), f"goes to '{first}'"),
        (
            Label(argument_span(wiring.span, signature, second), f"goes to '{second}'"),
            Label(declared, alike),
        ),
        notes=("if this is intended, add at the end of the line: # hf: ignore[HF230]",),
    )
    swaps = _exchanged(wiring.span, signature, first, second, certain=False)
    return with_suggestions(context, finding, swaps, "otherwise swap them")


def _exchanged(
    call: Span, signature: Signature | None, first: str, second: str, *, certain: bool = True
) -> Iterator[Suggestion]:
    from hfdsl.check.repair.fixes import exchanged  # late: most programs need none

    yield from exchanged(call, signature, first, second, certain=certain)
