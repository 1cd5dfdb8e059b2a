"""Constraints: what every node of a program demands of its rows, by a split, a group or a requirement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, TypeAlias

from hfdsl.check.alike import alike, argument_rows
from hfdsl.check.arithmetic import Terms, divisibility, limit
from hfdsl.check.findings import Label
from hfdsl.check.repair.search import Demand
from hfdsl.check.requirements import MESH_SIZES, Known, holds, names, numbers
from hfdsl.check.subject import Subject, dims_of, program_dims, row_dims, signature_of
from hfdsl.deploy.deployment import Placement
from hfdsl.errors import DefinitionError
from hfdsl.graph.infer import LOST
from hfdsl.graph.program import Filter, FunctionCall, MiniBatch, Node, RoleCall
from hfdsl.graph.signatures import Signature
from hfdsl.protocols.conditions import requirements_of
from hfdsl.protocols.placement import faults
from hfdsl.protocols.protocol import Protocol
from hfdsl.types.dims import Answer, KeptGroups, Size, atom_size, constant
from hfdsl.types.rows import Grouped


@dataclass(frozen=True, slots=True)
class Divides:
    """``divisor`` must divide ``size``, because of what stands at ``node``; HF303: it must be whole, and at least 1.

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
    of_rows: bool = True  # else of a dim that a call binds, whose size a launch need not know

    @property
    def demand(self) -> Demand:
        """The constraint alone."""
        return Demand(self.size, self.divisor)

    @property
    def need(self) -> str:
        """The constraint in words."""
        parts = lcm(*(factor.denominator for _, factor in self.size.terms))  # B/3 is whole where 3 divides B
        if self.divisor * parts == 1:
            return f"{self.size} must be whole and at least 1"
        return f"{self.divisor * parts} must divide {self.size * constant(parts)}"


@dataclass(frozen=True, slots=True)
class Limit:
    """What bounds a size from one side: a requirement, or that there is at least 1 of it."""

    demand: Demand
    node: Node
    text: str
    where: str
    why: str

    @property
    def need(self) -> str:
        """The constraint in words."""
        return f"{self.text} with {self.where}" if self.where else self.text


def call_rows(subject: Subject, node: Node) -> Size | None:
    """The rows of a call: those of its first argument with rows."""
    return next(iter(argument_rows(subject, node).values()), None)


def proportional(one: Size, other: Size) -> bool:
    """Whether there is the same number of the one rows for each of the other, whatever the sizes are.

    >>> from hfdsl.types.dims import Dim
    >>> class B(Dim): ...
    >>> proportional(atom_size(B) * constant(2), atom_size(B)), proportional(constant(2), atom_size(B))
    (True, False)
    """
    ratio = one.terms[0][1] / other.terms[0][1] if one.terms and other.terms else 0
    return one == other * constant(ratio)


def filtered(size: Size) -> bool:
    """Whether only a run tells this size."""
    return any(isinstance(atom, KeptGroups) for atom in size.atoms)


def rows_are_alike(subject: Subject, one: Size, other: Size) -> Answer:
    """Whether two numbers of rows are the same with the given sizes; what a filter keeps is as many as nothing else."""
    one, other = subject.known(one), subject.known(other)
    answer = one.equals(other)
    return Answer.REFUTED if answer is Answer.UNKNOWN and (filtered(one) or filtered(other)) else answer


def pads(node: Node) -> bool:
    """Whether a call's method is registered with padding."""
    registration = node.op.signature.registration if isinstance(node.op, RoleCall) else None
    return registration is not None and registration.pad is not None


def chunks_of(subject: Subject, node: Node) -> int | None:
    """How many chunks a call splits its arguments into, where it does."""
    if not isinstance(node.op, RoleCall):
        return None
    key = chunks_of, node.op.role, node.op.signature
    if key not in subject.memo:
        subject.memo[key] = _chunks(subject.placement(node), node.op.signature.protocol)
    chunks: int | None = subject.memo[key]
    return chunks


def _chunks(placement: Placement[Any] | None, protocol: Protocol | None) -> int | None:
    if placement is None or protocol is None or not protocol.splits:
        return None
    if placement.mesh.world_size != placement.pool.world_size:
        return None  # told by the pass on placements: what mends it gives another mesh, with other chunks
    chunks = protocol.chunk_count(placement.mesh)
    return chunks if chunks > 1 else None


def constraints(subject: Subject, nodes: Sequence[Node] | None = None) -> Iterator[Divides]:
    """What every node (or these ones) demands of its rows."""
    like = alike(subject)
    for node in subject.graph.nodes if nodes is None else nodes:
        for one in _constraints_of(subject, like[node.id]):
            yield replace(one, node=node)


def unproved(subject: Subject) -> Iterator[Divides]:
    """What the nodes demand of which the sizes do not prove all."""
    like = alike(subject)
    doubtful = {
        node.id
        for node in dict(zip(map(id, like), like, strict=True)).values()
        if any(divided(subject, one) is not Answer.PROVED for one in _constraints_of(subject, node))
    }
    return constraints(subject, [node for node in subject.graph.nodes if like[node.id].id in doubtful])


def _constraints_of(subject: Subject, node: Node) -> tuple[Divides, ...]:
    key = constraints, node.id
    if key not in subject.memo:
        subject.memo[key] = tuple(_demanded(subject, node))
    found: tuple[Divides, ...] = subject.memo[key]
    return found


def _demanded(subject: Subject, node: Node) -> Iterator[Divides]:
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
            yield from _cut(subject, node, signature)
            yield from _required(subject, node, signature)
        case FunctionCall(signature):
            yield from _grouped(subject, node, signature)
            yield from _required(subject, node, signature)
    given = argument_rows(subject, node).values() if isinstance(node.op, (RoleCall, FunctionCall)) else ()
    made = None if isinstance(node.op, MiniBatch) else subject.inference.rows(node.id)
    for dim, bound in subject.inference.bindings[node.id].items() if given else ():
        if bound not in given and bound != made:
            told = f"'{node.label}' would have {dim.__name__} = {{rows}}, which is no whole number of at least 1"
            yield Divides(bound, 1, node, "HF303", f"a whole number for {dim.__name__}", told, of_rows=False)
    if made is not None and LOST not in made.atoms:
        told = f"'{node.label}' would have {{rows}} rows, which is no whole number of at least 1"
        yield Divides(made, 1, node, "HF303", "a whole number of rows", told)


def _grouped(subject: Subject, node: Node, signature: Signature) -> Iterator[Divides]:
    rows = call_rows(subject, node)
    if isinstance(signature.rows, Grouped) and rows is not None:
        group = signature.rows.n
        declared = Label(signature.span, f"declared rows=Grouped({group})")
        told = f"'{node.label}': {{rows}} rows do not make whole groups of {group}"
        yield Divides(rows, group, node, "HF313", f"whole groups of {group}", told, (declared,))


def _split(subject: Subject, node: Node, signature: Signature) -> Iterator[Divides]:
    placement, protocol, chunks = subject.placement(node), signature.protocol, chunks_of(subject, node)
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


def _cut(subject: Subject, node: Node, signature: Signature) -> Iterator[Divides]:
    """A body that says that it leaves its rows split leaves equal parts."""
    placement, protocol, made = subject.placement(node), signature.protocol, subject.inference.rows(node.id)
    if signature.registration is None or not signature.registration.cuts or placement is None or protocol is None:
        return
    if made is None or LOST in made.atoms or faults(protocol, placement.mesh, dict(signature.registration.leaves)):
        return
    parts = len(protocol.collected(placement.mesh))
    if parts > (chunks_of(subject, node) or 1):
        where = Label(placement.span, f"placed on {placement.mesh}")
        told = f"'{node.label}': {{rows}} rows do not make {parts} equal parts, one for each rank that is collected"
        yield Divides(made, parts, node, "HF310", f"{parts} equal parts", told, (where,))


def _required(subject: Subject, node: Node, signature: Signature) -> Iterator[Divides]:
    """Requirements of the form ``size % number == 0`` are constraints like any split."""
    for text, terms in _decidable(subject, node, signature):
        found = divisibility(text, terms)
        if found is not None:
            told = f"'{node.label}' requires {text}, but {{rows}}"
            others = imposed(subject, node, signature, text)
            yield Divides(*found, node, "HF322", f"the requirement {text}", told, others)


def limits(subject: Subject) -> Iterator[Limit]:
    """The requirements that bound a size from one side."""
    for node in subject.graph.nodes:
        signature = signature_of(node)
        for text, terms in _decidable(subject, node, signature) if signature else ():
            found = limit(text, terms)
            if found is not None:
                told = {name: terms.sizes.get(name, terms.known.lookup(name)) for name in names(text)}
                where = " and ".join(f"{name} = {size}" for name, size in told.items() if name != str(size))
                yield Limit(Demand(found[0], strict=found[1]), node, text, where, f"the requirement {text}")


def arithmetic(subject: Subject) -> Iterator[Divides | Limit]:
    """All that is solved together: what must divide, and then what bounds a size."""
    rows = list(constraints(subject))
    yield from rows
    for one in rows:
        if one.code == "HF303" and any(factor < 0 for _, factor in one.size.terms):
            yield Limit(Demand(one.size, strict=True), one.node, f"{one.size} >= 1", "", one.why)
    yield from limits(subject)


def _decidable(subject: Subject, node: Node, signature: Signature) -> tuple[tuple[str, Terms], ...]:
    """The requirements of a method with what their names stand for, less those that another mistake hides.

    They ask for the config of a role which cannot be built (HF516) or is placed as another (HF515), for the sizes of a
    mesh that does not fill its pool (HF501), or for rows that the call is not given.
    """
    texts = requirements_of(signature.body)
    if not texts or (isinstance(node.op, RoleCall) and _is_another(subject, node.op.role)):
        return ()
    like = alike(subject)[node.id]
    key = _decidable, like.id
    if key not in subject.memo:
        subject.memo[key] = tuple(_with_terms(subject, like, signature))
    found: tuple[tuple[str, Terms], ...] = subject.memo[key]
    return found


def _with_terms(subject: Subject, node: Node, signature: Signature) -> Iterator[tuple[str, Terms]]:
    texts, placement = requirements_of(signature.body), subject.placement(node)
    unfilled = placement is not None and placement.mesh.world_size != placement.pool.world_size
    chunks = None if pads(node) else chunks_of(subject, node)
    dims = dims_of_call(subject, node, signature)
    terms = Terms(dims, known_names(subject, node, signature), call_rows(subject, node), chunks or 1)
    built = subject.config(node) is not None
    bound = subject.inference.bindings[node.id]
    hidden = {atom.__name__ for port in signature.ports for atom in row_dims(port.type) if atom not in bound}
    for text in texts:
        named = set(names(text))
        if unfilled and not named.isdisjoint(("dp", "micro_dp", "world_size")):
            continue
        if (built or named <= set(dims)) and named.isdisjoint(hidden):
            yield text, terms


def _is_another(subject: Subject, role: str) -> bool:
    """Whether a role is placed as a class that is not the one which the dataflow takes."""
    placements = subject.deployment.placements if subject.deployment else {}
    return role in placements and not issubclass(placements[role].role, subject.graph.roles[role])


def imposed(subject: Subject, node: Node, signature: Signature, text: str) -> tuple[Label, ...]:
    """Where a requirement is declared, and where the config that it names is given."""
    placement, dims = subject.placement(node), dims_of_call(subject, node, signature)
    declared = Label(signature.span, f"declared with requires({text!r})")
    known = Known({}, placement, fields=subject.config(node) or {})
    given: list[str] = []
    for name in names(text):
        if name not in dims:
            with suppress(DefinitionError):  # a part that is not evaluated may name what is not there
                given.append(f"{name} = {known.lookup(name)}")
    return (declared, Label(placement.span, f"placed with {', '.join(given)}")) if placement and given else (declared,)


def dims_of_call(subject: Subject, node: Node, signature: Signature) -> dict[str, Size]:
    """The dims that a requirement may name: those that the call binds, all others of its signature, and of the program.

    Those of the program stand behind the numbers of a role's own config and mesh: another role may have named them.
    """
    bound = {atom.__name__: size for atom, size in subject.inference.bindings[node.id].items()}
    own = {*MESH_SIZES, *numbers(subject.config(node) or {})} if isinstance(node.op, RoleCall) else set()
    others = [dim for dim in (*program_dims(subject), *subject.dims) if dim.__name__ not in own]
    return {dim.__name__: atom_size(dim) for dim in (*others, *dims_of(signature))} | bound


def known_names(subject: Subject, node: Node, signature: Signature) -> Known:
    """What the names in a requirement mean at a call: dims as the call binds them, and the role's config."""
    sizes = {name: subject.known(size) for name, size in dims_of_call(subject, node, signature).items()}
    return Known(sizes, subject.placement(node), isinstance(node.op, RoleCall), subject.config(node) or {})


Key: TypeAlias = tuple[int, str]


def divided(subject: Subject, one: Divides) -> Answer:
    """Whether a constraint holds with the given sizes."""
    key = divided, one.size, one.divisor, one.code
    if key not in subject.memo:
        size = subject.known(one.size)
        least = 0 if filtered(one.size) else 1  # a filter may keep no rows
        none = one.code == "HF303" and size.value is not None and size.value < least
        subject.memo[key] = Answer.REFUTED if none else size.divisible_by(one.divisor)
    answer: Answer = subject.memo[key]
    return answer


def refuted(subject: Subject, nodes: Sequence[Node] | None = None) -> set[Key]:
    """Everything that the sizes of a program refute, at all nodes or at these ones."""
    keys: set[Key] = {(d.node.id, d.why) for d in constraints(subject, nodes) if divided(subject, d) is Answer.REFUTED}
    keys |= {(node.id, text) for node, _, text, answer, _ in undivided(subject, nodes) if answer is Answer.REFUTED}
    for m in subject.inference.mismatches:
        if m.sizes and rows_are_alike(subject, *m.sizes) is Answer.REFUTED:
            keys.add((m.node, m.port))
    return keys


def undivided(
    subject: Subject, nodes: Sequence[Node] | None = None
) -> Iterator[tuple[Node, Signature, str, Answer | DefinitionError, str]]:
    """The requirements that are not solved together with all splits, each with the answer and the numbers behind it."""
    like = alike(subject)
    for node in subject.graph.nodes if nodes is None else nodes:
        signature = signature_of(node)
        if signature is not None and requirements_of(signature.body):
            key = undivided, like[node.id].id
            if key not in subject.memo:
                subject.memo[key] = tuple(_evaluated(subject, node, signature))
            for text, answer, shown in subject.memo[key]:
                yield node, signature, text, answer, shown


def _evaluated(
    subject: Subject, node: Node, signature: Signature
) -> Iterator[tuple[str, Answer | DefinitionError, str]]:
    for text, terms in _decidable(subject, node, signature):
        values = [size.value for name, size in terms.known.sizes.items() if name in names(text)]
        if any(value is not None and value.denominator != 1 for value in values):
            continue  # told where it is made: rows that are not whole
        if divisibility(text, terms) is None:
            try:
                yield text, *holds(text, terms.known)
            except DefinitionError as error:
                yield text, error, ""
