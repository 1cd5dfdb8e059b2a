"""Wiring: does every value fit where it is used?"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label, in_words
from hfdsl.check.program import signature_of
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.rules.dataflow import presence, shapes, swapped
from hfdsl.check.sizes.demands import filtered
from hfdsl.check.sources import argument_span, port_span
from hfdsl.graph.annotations import annotation_text
from hfdsl.graph.fits import field_misfit, value_text
from hfdsl.graph.program import Constant, Input, Pack
from hfdsl.graph.pythonic import uncalled
from hfdsl.graph.signatures import ListType, RecordType
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.graph.stages import syncs
from hfdsl.graph.symbolic import SymbolicRole
from hfdsl.graph.values import Mismatch, RecordValue
from hfdsl.graph.values import MismatchKind as Kind
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dims import Answer


def mismatches(context: Context) -> Iterator[Finding]:
    """Every value that does not fit its port."""
    seen: set[tuple[Span, str, Kind]] = set()
    of_node: dict[int, list[Mismatch]] = {}
    for mismatch in context.program.inference.mismatches:
        of_node.setdefault(mismatch.node, []).append(mismatch)
    for mismatch in context.program.inference.mismatches:
        # A value that grows in a loop differs in every turn, each time by other numbers: one finding is enough.
        place = context.program.graph.nodes[mismatch.node].span, mismatch.port, mismatch.kind
        alike = [mismatch, *_of_the_same_rows(mismatch, of_node[mismatch.node])]
        finding = _mismatch(context, alike) if place not in seen else None
        if finding is not None:
            seen |= {(place[0], same.port, same.kind) for same in alike}
            opposite = swapped.partner(mismatch, of_node[mismatch.node])
            if opposite is not None:  # two wrong values are one mistake
                seen.add((place[0], opposite.port, opposite.kind))
                finding = swapped.as_one_finding(context, finding, mismatch, opposite)
            yield finding


def _of_the_same_rows(m: Mismatch, beside: Sequence[Mismatch]) -> Iterator[Mismatch]:
    """The other values of a call that come from the same place and have as many rows: one cause is one finding."""
    if m.kind in (Kind.ROWS, Kind.ROWS_UNKNOWN) and m.source is not None:
        for candidate in beside:
            from_there = candidate.source is not None and candidate.source.node == m.source.node
            if candidate is not m and from_there and (candidate.kind, candidate.sizes) == (m.kind, m.sizes):
                yield candidate


Explanation: TypeAlias = tuple[str, str, tuple[str, ...]]
"""The code, the message and the advice of a finding."""


def _mismatch(context: Context, alike: Sequence[Mismatch]) -> Finding | None:
    """The finding on a value, or on several of one cause."""
    m, *others = alike
    node = context.program.graph.nodes[m.node]
    signature = signature_of(node)
    place_kind = "column" if isinstance(node.op, Pack) else "port"
    primary = argument_span(node.span, signature, m.port)
    ports = in_words([mismatch.port for mismatch in alike])
    named = f"{place_kind}{'s' * bool(others)} {ports} of '{node.label}'"
    if m.kind is Kind.ABSENT:
        explanation: Explanation | None = presence.absent(
            context, m, f"{named} takes {m.formal} but is wired to {_actual(m)}", primary
        )
    else:
        explanation = _explain(context, m, named, several=bool(others))
    if explanation is None:
        return None
    code, message, advice = explanation
    related = [context.program.producer_label(m.source.node)] if m.source else []
    related = [label for label in related if label.span != primary]  # written inline: one place is enough
    places = ((mismatch, argument_span(node.span, signature, mismatch.port)) for mismatch in others)
    related = [
        *(Label(place, f"this is {_actual(mismatch)}") for mismatch, place in places if place != primary),
        *related,
    ]
    producer = signature_of(context.program.graph.nodes[m.source.node]) if m.source and m.kind is Kind.LIST else None
    if producer is not None and producer.registration is not None:
        related.append(Label(producer.span, f"registered with {producer.registration.name}"))
    if m.kind is Kind.ABSENT and m.source is not None:
        related += presence.presence(context, m.source).places
    if signature is not None and signature.span != NOWHERE:
        related.append(Label(port_span(signature, m.port), f"declared {m.formal}"))
    notes = (*shapes.notes(m), *advice)
    finding = Finding(code, message, Label(primary, f"this is {_actual(m)}"), tuple(related), notes)
    if code == "HF212":
        return with_suggestions(context, finding, _repeats(context, alike))
    return with_suggestions(context, finding, _rewired(context, m)) if m.kind is Kind.RECORD and not others else finding


def _actual(m: Mismatch) -> str:
    if not isinstance(m.actual, Constant):
        return str(m.actual)
    value = m.actual.value
    if isinstance(value, SymbolicRole):
        return f"the role '{value._name}'"
    text = "" if value is None else reprlib.repr(value)
    if text.startswith("<"):  # an object that has no text of its own
        if isinstance(value, type):
            return f"the class {value.__name__}, of which {value.__name__}(...) is an object"
        return uncalled(value) or f"an object of class {type(value).__name__}"
    return f"the {type(value).__name__} {text}" if text else "None"


def _explain(context: Context, m: Mismatch, port: str, *, several: bool) -> Explanation | None:
    """Describe a mismatch of types or sizes; None if the known sizes resolve it. ``port`` may name several."""
    facts = dict(m.detail)
    wired = f"{port} takes {m.formal} but is wired to {_actual(m)}"
    match m.kind:
        case Kind.RECORD:
            return "HF204", wired, _producers(context, m)
        case Kind.VALUE if isinstance(m.actual, Constant) and (wrong := field_misfit(m.actual.value)) is not None:
            path, annotation, value = wrong
            problem = f"'{path}' is annotated {annotation_text(annotation)} and is {value_text(value)}"
            return "HF206", f"{port} is wired to {_actual(m)}, whose {problem}", ()
        case Kind.VALUE:
            return "HF206", wired, _producers(context, m)
        case Kind.LIST if isinstance(m.formal, ListType) and _takes_entries(context, m):
            message = (
                f"{port} is declared {m.formal}, but each rank is given its own entry of the list: {m.formal.inner}"
            )
            return "HF401", message, (f"declare the port {m.formal.inner}",)
        case Kind.LIST:
            return "HF401", wired, _to_list(context, m)
        case Kind.DTYPE:
            return shapes.dtypes(wired, m)
        case Kind.RAGGED:
            return "HF214", wired, _ragged(m)
        case Kind.RANK:
            return shapes.ranks(wired, m)
        case Kind.DIM:
            why = f" ({facts['want']} was bound by port '{facts['origin']}')" if facts["origin"] else ""
            differs = f"dim {facts['position']} is {facts['have']} where {facts['want']} is needed"
            return "HF210", f"{wired}: {differs}{why}", ()
        case Kind.UNSOLVED:
            unsolved = f"'{facts['want']}' cannot be solved for from '{facts['have']}'"
            return (
                "HF213",
                f"{port} takes {m.formal}: {unsolved}",
                ("leave one name open in it, as x in Mul[x, Literal[2]]",),
            )
        case _:
            return _rows(context, m, port, facts, several=several)


def _ragged(m: Mismatch) -> tuple[str, ...]:
    if isinstance(m.formal, ColumnSpec) and m.formal.ragged:
        return ("cut its rows where it is produced, and declare Ragged[...] there: a list with one tensor per row",)
    return (
        "pad its rows to one length on all ranks, and declare that dim where it is produced; or take it as Ragged[...]",
    )


def _takes_entries(context: Context, m: Mismatch) -> bool:
    """Whether a port is declared as a list although its protocol already passes one entry to every rank."""
    signature = signature_of(context.program.graph.nodes[m.node])
    port = signature.port(m.port) if signature is not None and signature.per_rank else None
    return port is not None and port.type == m.formal


def _to_list(context: Context, m: Mismatch) -> tuple[str, ...]:
    if isinstance(m.formal, ListType):
        return ("produce it with a protocol that returns one value per rank, such as ONE_TO_ALL",)
    for sync in syncs(context.program.graph):
        if m.source is not None and (sync.export, sync.load) == (m.source.node, m.node):
            label = context.program.graph.nodes[sync.export].label
            return (f"one rank exports for all: register '{label}' with (Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)",)
    return ("take one entry or reduce it in an @hf.function; or collect with a protocol that joins rows",)


def _rows(context: Context, m: Mismatch, ports: str, facts: dict[str, str], *, several: bool) -> Explanation | None:
    want, have = map(context.known, m.sizes)
    if want == have:
        return None  # the sizes that were given make them equal
    get, need, them = ("get", "they need", "them") if several else ("gets", "it needs", "it")
    if want.equals(have) is Answer.UNKNOWN and not (filtered(want) or filtered(have)):
        unknown_sizes = ", ".join(f"{atom.__name__}: ..." for atom in (want - have).atoms)
        message = f"cannot decide before launch whether {ports} {get} as many rows as {need}"
        reason = f"'{facts['origin']}' beside {them} has {want}" if facts["origin"] else f"{want} are needed"
        return (
            "HF319",
            f"{message}: {need.split()[0]} {get} {have}, {reason}",
            (f"give the sizes: dims={{{unknown_sizes}}}",),
        )
    have_numbers = (str(want), str(have)) != (facts["want"], facts["have"])
    numbers = f" ({have} and {want} with the given sizes)" if have_numbers else ""
    beside = f"'{facts['origin']}' beside {them} has {facts['want']}"
    needed = beside if facts["origin"] else f"{facts['want']} are needed"
    return "HF212", f"{ports} {get} {facts['have']} rows where {needed}{numbers}", ()


def _repeats(context: Context, alike: Sequence[Mismatch]) -> Iterator[Suggestion]:
    """If one side has a multiple of the rows of the other, the other can be repeated."""
    from hfdsl.check.repair.fixes import repeated  # late: most programs need none

    m = alike[0]
    want, have = map(context.known, m.sizes)
    factor = (have / want).value if len(want.terms) == 1 else None
    if factor is not None and factor.denominator == 1:
        yield from repeated(context, m.node, [dict(m.detail)["origin"]], factor.numerator)
    elif factor is not None and factor.numerator == 1:
        yield from repeated(context, m.node, [mismatch.port for mismatch in alike], factor.denominator)


def _rewired(context: Context, m: Mismatch) -> Iterator[Suggestion]:
    """The input of the dataflow that alone is a record of the type that a port takes."""
    nodes = [
        node
        for node, kind in context.program.record_producers
        if isinstance(m.formal, RecordType) and issubclass(kind.record, m.formal.record) and node.id < m.node
    ]
    if len(nodes) == 1 and isinstance(nodes[0].op, Input):
        from hfdsl.check.repair.fixes import rewired  # late: most programs need none

        node = context.program.graph.nodes[m.node]
        yield from rewired(node.span, signature_of(node), m.port, nodes[0].op.name)


def _producers(context: Context, m: Mismatch) -> tuple[str, ...]:
    """The nodes that produce the missing record."""
    if not isinstance(m.formal, RecordType):
        return ()
    wanted = m.formal.record
    producers = [
        node.label
        for node, record in context.program.record_producers
        if issubclass(record.record, wanted) and node.id < m.node
    ]
    if producers:
        return (f"values of type {wanted.__name__}: {', '.join(dict.fromkeys(producers))}",)
    if not isinstance(m.actual, RecordValue):
        return ()
    fields, present = schema(wanted).fields, schema(m.actual.type.record).fields
    lacking = [name for name in fields if name not in present and name not in schema(wanted).spare]
    if lacking:
        return (f"it lacks {', '.join(lacking)}",)
    uncertain = [
        f"{n}=hf.present(...)" for n in fields if n in present and present[n].optional and not fields[n].optional
    ]
    if uncertain:
        return (f"records are nominal: build {wanted.__name__}({', '.join([*uncertain, '...'])}) from its columns",)
    return (f"records are nominal: convert with hf.merge({wanted.__name__}, ...)",)
