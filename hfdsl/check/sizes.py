"""Sizes: do the rows work out everywhere? All constraints are collected first and solved together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from math import lcm
from typing import TypeAlias

from hfdsl.check.filtered import filtered, unknown_rows
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repairs import Search
from hfdsl.check.requirements import Known, divisibility, holds, names
from hfdsl.check.subject import EVERYTHING, Subject, dims_of, input_dims, program_signatures, signature_of
from hfdsl.errors import DefinitionError, ProtocolError
from hfdsl.graph.infer import LOST, RecordValue
from hfdsl.graph.program import Filter, FunctionCall, MiniBatch, Node, RoleCall
from hfdsl.graph.signatures import Signature
from hfdsl.protocols.register import requirements_of
from hfdsl.types.columns import ColumnSpec, ObjSpec
from hfdsl.types.dims import Answer, Dim, Size, atom_size, constant
from hfdsl.types.rows import Grouped


@dataclass(frozen=True, slots=True)
class Divides:
    """``divisor`` must divide ``size`` (1: it must be whole), because of what stands at ``node``.

    ``why`` says it in a label, ``complaint`` in a message, with ``{rows}`` for the size; ``others`` are the places that
    impose it.
    """

    size: Size
    divisor: int
    node: Node
    code: str
    why: str
    complaint: str
    others: tuple[Label, ...] = ()

    @property
    def need(self) -> str:
        """The constraint in words."""
        parts = lcm(*(factor.denominator for _, factor in self.size.terms))  # B/3 is whole where 3 divides B
        return f"{self.divisor * parts} must divide {self.size * constant(parts)}"


def argument_rows(subject: Subject, node: Node) -> dict[str, Size]:
    """The rows of every argument that has rows and fits its port, by port."""
    found: dict[str, Size] = {}
    for port, operand in node.arguments:
        if (node.id, port) in subject.inference.misfits:
            continue  # another value is meant
        value = subject.inference.operand(operand)
        rows = value.rows if isinstance(value, RecordValue) else None
        if isinstance(value, (ColumnSpec, ObjSpec)):
            rows = value.dims[0]
        if rows is not None and LOST not in rows.atoms:
            found[port] = rows
    return found


def call_rows(subject: Subject, node: Node) -> Size | None:
    """The rows of a call: those of its first argument with rows."""
    return next(iter(argument_rows(subject, node).values()), None)


def row_ratio(rows: Size, first: Size) -> Fraction | None:
    """How many rows there are for each row of ``first``; None where that is not the same number for all sizes.

    >>> class B(Dim): ...
    >>> row_ratio(atom_size(B) * constant(2), atom_size(B))
    Fraction(2, 1)
    """
    if rows == first:
        return Fraction(1)
    return (rows / first).value if len(first.terms) == 1 else None


def rows_split_alike(subject: Subject) -> Iterator[Finding]:
    """Arguments of one call are cut alike: a row of one must go with the same rows of the others."""
    for node in subject.graph.nodes:
        chunks = _chunks(subject, node)
        if chunks is None:
            continue
        (first, rows), *others = argument_rows(subject, node).items() or [("", constant(1))]
        for port, size in others:
            ratio = row_ratio(size, rows)
            if ratio is None or (ratio != 1 and _pads(node)):
                why = "padding keeps no such pairs" if ratio is not None else "which rows belong together is unknown"
                yield Finding(
                    "HF420",
                    f"'{node.label}' splits its arguments over {chunks} chunks, but port '{port}' has {size} rows and "
                    f"port '{first}' has {rows}: {why}",
                    Label(node.span),
                    help=("give both the same row dim, or place the role on one rank",),
                )


def _pads(node: Node) -> bool:
    registration = node.op.signature.registration if isinstance(node.op, RoleCall) else None
    return registration is not None and registration.pad is not None


def _chunks(subject: Subject, node: Node) -> int | None:
    """How many chunks a call splits its arguments into, where it does."""
    placement = subject.placement(node)
    protocol = node.op.signature.protocol if isinstance(node.op, RoleCall) else None
    if placement is None or protocol is None or not protocol.splits:
        return None
    if placement.mesh.world_size != placement.pool.world_size:
        return None  # told by the pass on placements: what mends it gives another mesh, with other chunks
    try:
        chunks = protocol.chunk_count(placement.mesh)
    except ProtocolError:
        return None  # told by the pass on placements
    return chunks if chunks > 1 else None


def constraints(subject: Subject) -> Iterator[Divides]:
    """What every node demands of its rows."""
    for node, value in zip(subject.graph.nodes, subject.inference.values, strict=True):
        match node.op:
            case MiniBatch(0, count):
                rows = call_rows(subject, node)
                if rows is not None:
                    told = f"minibatches: {{rows}} rows do not make {count} equal mini-batches"
                    yield Divides(rows, count, node, "HF310", f"{count} mini-batches", told)
            case MiniBatch():
                pass
            case Filter(group) if group > 1:
                rows = call_rows(subject, node)
                if rows is not None:
                    told = f"filter: {{rows}} rows do not make whole groups of {group}"
                    yield Divides(rows, group, node, "HF313", f"whole groups of {group}", told)
            case RoleCall(_, signature):
                yield from _split(subject, node, signature)
                yield from _required(subject, node, signature)
            case FunctionCall(signature):
                yield from _grouped(subject, node, signature)
                yield from _required(subject, node, signature)
        made = value.rows if isinstance(value, RecordValue) and not isinstance(node.op, MiniBatch) else None
        if made is not None and LOST not in made.atoms:
            told = f"'{node.label}' would have {{rows}} rows, which is no whole number"
            yield Divides(made, 1, node, "HF303", "a whole number of rows", told)


def _grouped(subject: Subject, node: Node, signature: Signature) -> Iterator[Divides]:
    rows = call_rows(subject, node)
    if isinstance(signature.rows, Grouped) and rows is not None:
        group = signature.rows.n
        declared = Label(signature.span, f"declared rows=Grouped({group})")
        told = f"'{node.label}': {{rows}} rows do not make whole groups of {group}"
        yield Divides(rows, group, node, "HF313", f"whole groups of {group}", told, (declared,))


def _split(subject: Subject, node: Node, signature: Signature) -> Iterator[Divides]:
    placement, protocol, chunks = subject.placement(node), signature.protocol, _chunks(subject, node)
    yield from _grouped(subject, node, signature)
    if chunks is None or placement is None or protocol is None:
        return
    if signature.registration is None or signature.registration.pad is not None:
        return
    mesh = str(placement.mesh)
    over, placed = f"over the {chunks} chunks of {protocol.name} on {mesh}", Label(placement.span, f"placed on {mesh}")
    rows, *others = [*dict.fromkeys(argument_rows(subject, node).values())] or [constant(0)]
    for size in others:
        told = f"'{node.label}': {{rows}} rows do not split evenly {over}"
        yield Divides(size, chunks, node, "HF310", f"an even split {over}", told, (placed,))
    if isinstance(signature.rows, Grouped):
        group = signature.rows.n
        told = f"'{node.label}': {{rows}} rows, split {over}, do not give every chunk whole groups of {group}"
        yield Divides(rows, chunks * group, node, "HF313", f"whole groups of {group} {over}", told, (placed,))
    else:
        told = f"'{node.label}': {{rows}} rows do not split evenly {over}"
        yield Divides(rows, chunks, node, "HF310", f"an even split {over}", told, (placed,))


def _required(subject: Subject, node: Node, signature: Signature) -> Iterator[Divides]:
    """Requirements of the form ``size % number == 0`` are constraints like any split."""
    for text in _decidable(subject, node, signature):
        found = divisibility(text, known_names(subject, node))
        if found is not None:
            size = _sizes(subject, node)[found[0]]
            told = f"'{node.label}' requires {text}, but {{rows}}"
            others = _imposed(subject, node, signature, text)
            yield Divides(size, found[1], node, "HF322", f"the requirement {text}", told, others)


def _decidable(subject: Subject, node: Node, signature: Signature) -> Iterator[str]:
    """The requirements of a method, less those that ask for the config of a role which cannot be built (HF516)."""
    if not requirements_of(signature.body):
        return
    built, dims = subject.config(node) is not None, _sizes(subject, node)
    yield from (text for text in requirements_of(signature.body) if built or set(names(text)) <= set(dims))


def _imposed(subject: Subject, node: Node, signature: Signature, text: str) -> tuple[Label, ...]:
    """Where a requirement is declared, and where the config that it names is given."""
    placement, dims = subject.placement(node), _sizes(subject, node)
    declared = Label(signature.span, f"declared with requires({text!r})")
    fields = [name for name in names(text) if name not in dims]
    if placement is None or not fields:
        return (declared,)
    known = Known({}, placement, fields=subject.config(node) or {})
    return declared, Label(
        placement.span, f"placed with {', '.join(f'{name} = {known.lookup(name)}' for name in fields)}"
    )


def _sizes(subject: Subject, node: Node) -> dict[str, Size]:
    """The dims that a requirement may name: those that the call binds, and all others of its signature."""
    bound = {atom.__name__: size for atom, size in subject.inference.bindings[node.id].items()}
    signature = signature_of(node)
    others = [*subject.dims, *(dims_of(signature) if signature else ())]
    return {dim.__name__: atom_size(dim) for dim in others} | bound


def known_names(subject: Subject, node: Node) -> Known:
    """What the names in a requirement mean at a call: dims as the call binds them, and the role's config."""
    sizes = {name: subject.known(size) for name, size in _sizes(subject, node).items()}
    return Known(sizes, subject.placement(node), isinstance(node.op, RoleCall), subject.config(node) or {})


def row_arithmetic(subject: Subject) -> Iterator[Finding]:
    """One finding for all splits that the same sizes upset, with sizes that satisfy every constraint of the program."""
    demands = list({(d.size, d.divisor, d.why, d.node.span): d for d in constraints(subject)}.values())
    answers = [(d, subject.known(d.size).divisible_by(d.divisor)) for d in demands]
    for _, broken in _by_dims([d for d, answer in answers if answer is Answer.REFUTED]):
        yield _uneven(subject, broken, demands)
    unknown = [d for d, answer in answers if answer is Answer.UNKNOWN and not filtered(d.size)]
    for atoms, open_ in _by_dims(unknown):
        if _misgiven(subject, atoms):
            continue
        needs = ", ".join(dict.fromkeys(d.need for d in open_))
        yield Finding(
            "HF319",
            f"cannot decide before launch whether the rows work out: {needs}",
            Label(open_[0].node.span, f"for {open_[0].why}"),
            tuple(Label(d.node.span, f"for {d.why}") for d in open_[1:]),
            help=(f"give the size: dims={{{', '.join(f'{a}: ...' for a in atoms)}}}",),
        )


def filtered_rows(subject: Subject) -> Iterator[Finding]:
    """What a filter keeps goes into a split, mini-batches or groups only by a policy: take, fill, or padding."""
    if any(isinstance(node.op, Filter) for node in subject.graph.nodes):
        yield from unknown_rows(subject, constraints(subject))


def _misgiven(subject: Subject, names: Iterable[str]) -> bool:
    """Whether the size of one of these dims was given and is none: that is told, and that it lacks is no news."""
    odd = {getattr(dim, "__name__", str(dim)) for dim in subject.odd}
    return EVERYTHING in odd or not odd.isdisjoint(names)


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
    rest = f"{rows} % {first.divisor} = {rows % first.divisor}" if rows is not None and first.divisor > 1 else ""
    message = first.complaint.replace("{rows}", rest if first.code == "HF322" else shown)
    related = [Label(d.node.span, f"for {d.why}: {d.need}") for d in broken[1:]]
    return Finding(
        first.code,
        f"{message}: {rest}" if rest and first.code != "HF322" else message,
        Label(first.node.span, first.need),
        (*first.others, *related),
        notes=(f"with {given}",) if given and shown != given else (),
        help=tuple(fix for dim in first.size.atoms if (fix := _repair(subject, dim, demands, broken))),
    )


Key: TypeAlias = tuple[object, ...]


def refuted(subject: Subject) -> set[Key]:
    """Everything that the sizes of a program refute."""
    keys: set[Key] = {
        (d.node.id, d.why)
        for d in constraints(subject)
        if subject.known(d.size).divisible_by(d.divisor) is Answer.REFUTED
    }
    keys |= {(node.id, text) for node, _, text, answer, _ in _undivided(subject) if answer is Answer.REFUTED}
    pairs = [(m, m.expected, m.found) for m in subject.inference.mismatches]
    return keys | {
        (m.node, m.port) for m, want, have in pairs if want and have and subject.known(want) != subject.known(have)
    }


def _repair(subject: Subject, dim: object, demands: list[Divides], broken: list[Divides]) -> str | None:
    """The nearest sizes of one dim for which every constraint of the program holds; other dims stay as they are."""
    if not isinstance(dim, type) or not issubclass(dim, Dim) or dim not in subject.dims:
        return None
    before, mine = refuted(subject), {(d.node.id, d.why) for d in broken}
    rest = {other: constant(number) for other, number in subject.dims.items() if other is not dim}
    partly = [(d.size.substitute(rest), d.divisor) for d in demands if dim in d.size.atoms]

    def tried(number: int) -> bool:
        after = refuted(replace(subject, dims={**subject.dims, dim: number}))
        return after <= before and not after & mine

    decided = [(size, divisor) for size, divisor in partly if size.atoms == (dim,)]
    found = Search(dim, subject.dims[dim], decided, tried).nearest()
    return f"set {dim} to {' or '.join(map(str, found))}: every split and requirement then works out" if found else None


def whole_sizes(subject: Subject) -> Iterator[Finding]:
    """A size is a whole number of at least 1, given for a dim."""
    for dim, number in subject.odd.items():
        if dim == EVERYTHING:
            message = f"dims= takes a dict of dim classes with their sizes, got {number!r}"
        elif isinstance(dim, type) and issubclass(dim, Dim):
            message = f"size {dim} = {number!r} is not a whole number of at least 1"
        else:
            message = f"dims= takes dim classes with their sizes, got {dim!r}: {number!r}"
        yield Finding("HF302", message, Label(subject.asked))


def dims_are_known(subject: Subject) -> Iterator[Finding]:
    """A size is given for a dim that the program names: in a record, or in a signature or requirement of its roles."""
    if not subject.dims or subject.graph.misuses:
        return
    signatures = list(program_signatures(subject))
    there = dict.fromkeys(chain(input_dims(subject), *map(dims_of, signatures)))
    required = {name for s in signatures for text in requirements_of(s.body) for name in names(text)}
    required -= {dim.__name__ for dim in there}  # another class of the same name is the mistake that is looked for
    for dim, number in subject.dims.items():
        if dim not in there and dim.__name__ not in required:
            same = any(other.__name__ == dim.__name__ for other in there)
            listed = ", ".join(other.__name__ for other in there) or "none"
            yield Finding(
                "HF305",
                f"size {dim} = {number} is given, but '{subject.graph.name}' does not have "
                + (f"this dim: its '{dim}' is another class of that name" if same else "a dim of that name"),
                Label(subject.asked),
                help=(f"its dims: {listed}",),
            )


def _undivided(subject: Subject) -> Iterator[tuple[Node, Signature, str, Answer | DefinitionError, str]]:
    """The requirements that are not solved together with all splits, each with the answer and the numbers behind it."""
    for node in subject.graph.nodes:
        signature = signature_of(node)
        for text in _decidable(subject, node, signature) if signature else ():
            known = known_names(subject, node)
            if signature and divisibility(text, known) is None:
                try:
                    yield node, signature, text, *holds(text, known)
                except DefinitionError as error:
                    yield node, signature, text, error, ""


def requirements(subject: Subject) -> Iterator[Finding]:
    """``hf.requires`` of role methods and functions, with the rows of the call and the fields of the role's config."""
    for node, signature, text, answer, shown in _undivided(subject):
        placement, where = subject.placement(node), f"'{node.label}' requires {text}"
        if isinstance(answer, DefinitionError):
            placed = (Label(placement.span, "placed here"),) if placement and answer.code == "HF323" else ()
            yield Finding(answer.code, f"{where}: {answer.message}", Label(signature.span), placed)
        elif answer is Answer.REFUTED:
            others = _imposed(subject, node, signature, text)
            yield Finding("HF322", f"{where}, but {shown}", Label(node.span, "calls it"), others)
        elif _misgiven(subject, names(text)):
            continue
        elif answer is Answer.UNKNOWN and (placement or (subject.deployment and isinstance(node.op, FunctionCall))):
            message = f"cannot decide before launch whether {text} holds for '{node.label}' ({shown})"
            yield Finding("HF319", message, Label(node.span, "calls it"), (Label(signature.span, f"requires {text}"),))
