"""Sizes: do the rows work out everywhere? All constraints are collected first and solved together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, lcm

from hfdsl.check.findings import Finding, Label
from hfdsl.check.requirements import Known, divisibility, holds
from hfdsl.check.subject import Subject
from hfdsl.errors import DefinitionError, ProtocolError
from hfdsl.graph.infer import RecordValue
from hfdsl.graph.program import FunctionCall, MiniBatch, Node, RoleCall
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import NOWHERE
from hfdsl.protocols.register import requirements_of
from hfdsl.types.columns import ColumnSpec, ObjSpec
from hfdsl.types.dims import Answer, Dim, Size, atom_size, evaluate
from hfdsl.types.rows import Grouped

SEARCH = 4096  # how far a fix is looked for on both sides of a size, where it is not simply a multiple

VERBS = {"whole": "does not make", "requires": "breaks what the method"}


@dataclass(frozen=True, slots=True)
class Divides:
    """``divisor`` must divide ``size``, because of what stands at ``node``."""

    size: Size
    divisor: int
    node: Node
    code: str
    why: str


def call_rows(subject: Subject, node: Node) -> Size | None:
    """The rows that a call is given: those of its first record with rows."""
    for _, operand in node.arguments:
        value = subject.inference.operand(operand)
        if isinstance(value, RecordValue) and value.rows is not None:
            return value.rows
        if isinstance(value, (ColumnSpec, ObjSpec)):
            return value.dims[0]
    return None


def constraints(subject: Subject) -> Iterator[Divides]:
    """What every node demands of its rows."""
    for node in subject.graph.nodes:
        match node.op:
            case MiniBatch(0, count):
                value = subject.inference.operand(node.arguments[0][1])
                if isinstance(value, RecordValue) and value.rows is not None:
                    yield Divides(value.rows, count, node, "HF310", f"{count} mini-batches")
            case RoleCall(_, signature):
                yield from _split(subject, node, signature)
                yield from _required(subject, node, signature)
            case FunctionCall(signature):
                rows = call_rows(subject, node)
                if isinstance(signature.rows, Grouped) and rows is not None:
                    yield Divides(rows, signature.rows.n, node, "HF313", f"whole groups of {signature.rows.n}")


def _split(subject: Subject, node: Node, signature: Signature) -> Iterator[Divides]:
    placement, rows, protocol = subject.placement(node), call_rows(subject, node), signature.protocol
    group = signature.rows.n if isinstance(signature.rows, Grouped) else 1
    if rows is None:
        return
    if group > 1:
        yield Divides(rows, group, node, "HF313", f"whole groups of {group}")
    if placement is None or protocol is None or not protocol.splits or signature.registration is None:
        return
    try:
        chunks = protocol.chunk_count(placement.mesh)
    except ProtocolError:
        return  # told by the pass on placements
    if signature.registration.pad is None and chunks > 1:
        where = f"{protocol.name} over {chunks} chunks of {placement.mesh}"
        if group > 1:
            yield Divides(rows, chunks * group, node, "HF313", f"{where}, in whole groups of {group}")
        else:
            yield Divides(rows, chunks, node, "HF310", where)


def _required(subject: Subject, node: Node, signature: Signature) -> Iterator[Divides]:
    """Requirements of the form ``rows % number == 0`` are constraints like any other split."""
    bound = {atom.__name__: size for atom, size in subject.inference.bindings[node.id].items()}
    for text in requirements_of(signature.body):
        found = divisibility(text, known_names(subject, node))
        if found is not None and found[0] in bound:
            yield Divides(bound[found[0]], found[1], node, "HF322", f"requires {text}")


def known_names(subject: Subject, node: Node) -> Known:
    """What the names in a requirement mean at a call: dims as the call binds them, and the role's config."""
    bound = {atom.__name__: subject.known(size) for atom, size in subject.inference.bindings[node.id].items()}
    rest = {dim.__name__: subject.known(atom_size(dim)) for dim in subject.dims}
    return Known({**rest, **bound}, subject.placement(node))


def row_arithmetic(subject: Subject) -> Iterator[Finding]:
    """One finding for all splits that the same sizes upset, with sizes that satisfy every constraint of the program."""
    demands = list(constraints(subject))
    refuted = [d for d in demands if subject.known(d.size).divisible_by(d.divisor) is Answer.REFUTED]
    unknown = [d for d in demands if subject.known(d.size).divisible_by(d.divisor) is Answer.UNKNOWN]
    for _, broken in _by_dims(refuted):
        yield _uneven(subject, broken, demands)
    for atoms, open_ in _by_dims(unknown):
        needs = ", ".join(dict.fromkeys(f"{d.divisor} | {d.size}" for d in open_))
        yield Finding(
            "HF319",
            f"cannot decide before launch whether the rows split evenly: {needs} (N | X: N divides X)",
            Label(open_[0].node.span, open_[0].why),
            tuple(Label(d.node.span, d.why) for d in open_[1:]),
            help=(f"give the size: dims={{{', '.join(f'{a}: ...' for a in atoms)}}}",),
        )


def _by_dims(demands: list[Divides]) -> Iterator[tuple[tuple[str, ...], list[Divides]]]:
    groups: dict[tuple[str, ...], list[Divides]] = {}
    for demand in demands:
        groups.setdefault(tuple(atom.__name__ for atom in demand.size.atoms), []).append(demand)
    yield from groups.items()


def _uneven(subject: Subject, broken: list[Divides], demands: list[Divides]) -> Finding:
    first = broken[0]
    rows = subject.known(first.size).value
    given = ", ".join(f"{d} = {n}" for d, n in subject.dims.items() if d in first.size.atoms)
    shown = f"{first.size} = {rows}" if first.size.atoms else f"{rows}"
    rest = f"{rows} % {first.divisor} = {rows % first.divisor}" if rows is not None else ""
    what = VERBS.get(first.why.split()[0], "does not split evenly:")
    repairs = [fix for atom in first.size.atoms if (fix := _repair(subject, atom, demands))]
    related = tuple(Label(d.node.span, f"{d.why}: needs {d.divisor} | {d.size}") for d in broken[1:])
    return Finding(
        first.code,
        f"'{first.node.label}': {shown} {what} {first.why} ({rest})",
        Label(first.node.span, f"needs {first.divisor} | {first.size}"),
        related,
        notes=(f"with {given}",) if given else (),
        help=tuple(repairs),
    )


def _repair(subject: Subject, atom: object, demands: list[Divides]) -> str | None:
    """The nearest sizes of one dim for which every constraint of the program holds; other dims stay as they are."""
    if not isinstance(atom, type) or not issubclass(atom, Dim) or atom not in subject.dims:
        return None
    now, dims = subject.dims[atom], dict(subject.dims)
    concerned = [d for d in demands if atom in d.size.atoms and all(a in dims for a in d.size.atoms)]

    def works(number: int) -> bool:
        dims[atom] = number
        return all((evaluate(d.size, dims) / d.divisor).denominator == 1 for d in concerned)

    step = _step(atom, concerned)
    if step is not None:
        candidates = [now // step * step, (now // step + 1) * step]
        found = [n for n in candidates if n >= 1 and works(n)]
    else:
        below = next((n for n in range(now - 1, max(0, now - SEARCH), -1) if works(n)), None)
        above = next((n for n in range(now + 1, now + SEARCH) if works(n)), None)
        found = [n for n in (below, above) if n is not None]
    if not found:
        return None
    return f"set {atom.__name__} to {' or '.join(map(str, found))}: every split in this dataflow is then even"


def _step(atom: type[Dim], concerned: list[Divides]) -> int | None:
    """The number that the dim must be a multiple of, where every size is a plain multiple or fraction of it."""
    step = 1
    for demand in concerned:
        if len(demand.size.terms) != 1 or demand.size.terms[0][0] != ((atom, 1),):
            return None
        factor = demand.size.terms[0][1]
        whole = demand.divisor * factor.denominator
        step = lcm(step, whole // gcd(whole, factor.numerator))
    return step


def whole_rows(subject: Subject) -> Iterator[Finding]:
    """No value may have a fraction of a row (``Div`` is exact), and no size may be below 1."""
    for dim, number in subject.dims.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            yield Finding("HF302", f"size {dim} = {number!r} is not a whole number of at least 1", Label(NOWHERE))
    seen: set[Size] = set()
    for node, value in zip(subject.graph.nodes, subject.inference.values, strict=True):
        if (
            not isinstance(value, RecordValue)
            or value.rows is None
            or value.rows in seen
            or isinstance(node.op, MiniBatch)
        ):
            continue
        seen.add(value.rows)
        rows = subject.known(value.rows).value
        if rows is not None and rows.denominator != 1:
            yield Finding("HF303", f"'{node.label}' would have {value.rows} = {rows} rows", Label(node.span))


def requirements(subject: Subject) -> Iterator[Finding]:
    """``hf.requires`` of every role method, with the rows of the call and the fields of the role's config."""
    for node in subject.graph.nodes:
        if not isinstance(node.op, RoleCall):
            continue
        signature, placement = node.op.signature, subject.placement(node)
        for text in requirements_of(signature.body):
            known = known_names(subject, node)
            if divisibility(text, known) is not None:
                continue  # solved together with all other splits
            try:
                answer, shown = holds(text, known)
            except DefinitionError as error:
                yield Finding(
                    error.code,
                    f"'{node.label}' requires {text}: {error.message}",
                    Label(node.span),
                    (Label(signature.span),),
                )
                continue
            if answer is not Answer.PROVED and (placement is not None or answer is Answer.REFUTED):
                code, verdict = ("HF322", "it does not hold") if answer is Answer.REFUTED else ("HF319", "undecided")
                yield Finding(
                    code,
                    f"'{node.label}' requires {text}: {verdict} ({shown})",
                    Label(node.span, shown),
                    (Label(signature.span, f"requires {text}"),),
                )
