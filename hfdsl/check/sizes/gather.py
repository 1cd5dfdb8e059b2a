"""The pass that gathers the demands of a program, one handler for each kind of node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from hfdsl.check.findings import Label
from hfdsl.check.program import Program, call_numbers, pads, signature_of
from hfdsl.check.sizes.arithmetic import CallScope, limit
from hfdsl.check.sizes.constraints import Constraint
from hfdsl.check.sizes.demands import (
    AlignedRows,
    Bound,
    Demand,
    Divisible,
    EnoughRows,
    EqualRows,
    Requirement,
    dims_of_sizes,
    divisible_by_requirement,
)
from hfdsl.check.sizes.requirements import MESH_SIZES, Scope, names, numbers
from hfdsl.errors import DefinitionError
from hfdsl.graph.program import Filter, FunctionCall, Input, MiniBatch, Node, RoleCall, Take
from hfdsl.graph.signatures import Signature, StaticType
from hfdsl.graph.type_sizes import dims_of, quotients_of, row_dims
from hfdsl.graph.values import LOST
from hfdsl.protocols.conditions import provisions_of, requirements_of
from hfdsl.protocols.placement import faults
from hfdsl.types.dims import Answer, Atom, Dim, Size, at_most, atom_size, constant
from hfdsl.types.rows import Grouped


class _Wording(NamedTuple):
    """The texts of a demand on rows: the code of its finding, the reason in a label, and the message."""

    code: str
    why: str
    message: str


MINI_BATCHES = _Wording(
    "HF310", "{divisor} mini-batches", "minibatches: {rows} rows do not make {divisor} equal mini-batches"
)
FILTERED_GROUPS = _Wording(
    "HF313", "whole groups of {divisor}", "filter: {rows} rows do not make whole groups of {divisor}"
)
GROUPS = _Wording("HF313", "whole groups of {divisor}", "'{call}': {rows} rows do not make whole groups of {divisor}")
EVEN_SPLIT = _Wording("HF310", "an even split {over}", "'{call}': {rows} rows do not split evenly {over}")
GROUPS_IN_CHUNKS = _Wording(
    "HF313",
    "whole groups of {group} {over}",
    "'{call}': {rows} rows, split {over}, do not give every chunk whole groups of {group}",
)
EQUAL_PARTS = _Wording(
    "HF310",
    "{divisor} equal parts",
    "'{call}': {rows} rows do not make {divisor} equal parts, one for each collected rank",
)
WHOLE_ROWS = _Wording(
    "HF303", "a whole number of rows", "'{call}' would have {rows} rows, which is not a whole number of at least 1"
)
WHOLE_DIM = _Wording(
    "HF303",
    "a whole number for {dim}",
    "'{call}' would have {dim} = {rows}, which is not a whole number of at least 1",
)
WHOLE_QUOTIENT = _Wording("HF303", "an exact quotient", "'{call}': Div is exact, but {rows} is not a whole number")


def gather(program: Program, sized: Iterable[type[Dim]] = ()) -> tuple[Demand, ...]:
    """Everything that a program demands of sizes.

    ``sized`` are the dims that a check is given a size for: a requirement may name one that nothing else names.
    """
    return tuple(_demands(program, tuple(sized)))


def _demands(program: Program, sized: tuple[type[Dim], ...]) -> Iterator[Demand]:
    for nodes in program.kinds:
        yield from _of_kind(program, nodes, sized)
    for mismatch in program.inference.mismatches:
        if mismatch.sizes:
            node = program.graph.nodes[mismatch.node]
            want, have = mismatch.sizes
            yield EqualRows(
                nodes=(node,),
                why=f"equal rows for '{mismatch.port}'",
                port=mismatch.port,
                sizes=(want, have),
            )


def _of_kind(program: Program, nodes: tuple[Node, ...], sized: tuple[type[Dim], ...]) -> Iterator[Demand]:
    rows = program.call_rows(nodes[0])
    match nodes[0].op:
        case MiniBatch(0, count) if rows is not None:
            yield _divisible(MINI_BATCHES, nodes, rows, count)
        case MiniBatch():
            return  # the first mini-batch speaks for all
        case Filter(group) if group > 1 and rows is not None:
            yield _divisible(FILTERED_GROUPS, nodes, rows, group)
        case Take(count, fill=False) if rows is not None:
            yield from _enough(nodes, rows, count)
        case RoleCall(_, signature):
            yield from _grouped(nodes, rows, signature)
            yield from _split(program, nodes, signature)
            yield from _collected(program, nodes, signature)
            yield from _required(program, nodes, signature, sized)
            yield from _aligned(program, nodes)
        case FunctionCall(signature):
            yield from _grouped(nodes, rows, signature)
            yield from _required(program, nodes, signature, sized)
    yield from _whole(program, nodes)


# -- rows


def _divisible(
    wording: _Wording, nodes: tuple[Node, ...], size: Size, divisor: int, *labels: Label, **words: object
) -> Divisible:
    """The demand that ``divisor`` divides ``size``, with its wording filled in."""
    words |= {"call": nodes[0].label, "divisor": divisor, "rows": "{rows}"}
    return Divisible(
        nodes=nodes,
        why=wording.why.format(**words),
        size=size,
        divisor=divisor,
        code=wording.code,
        message=wording.message.format(**words),
        labels=labels,
        of_rows=wording not in (WHOLE_DIM, WHOLE_QUOTIENT),
    )


def _enough(nodes: tuple[Node, ...], rows: Size, count: int) -> Iterator[Demand]:
    why, most = f"{count} rows to take", at_most(rows)
    yield EnoughRows(nodes, why, rows, count)
    if most.atoms:
        yield Bound(nodes, why, Constraint(most - constant(count)), f"{most} >= {count}")


def _grouped(nodes: tuple[Node, ...], rows: Size | None, signature: Signature) -> Iterator[Demand]:
    if isinstance(signature.rows, Grouped) and rows is not None:
        group = signature.rows.n
        yield _divisible(GROUPS, nodes, rows, group, Label(signature.span, f"declared rows=Grouped({group})"))


def _split(program: Program, nodes: tuple[Node, ...], signature: Signature) -> Iterator[Demand]:
    node = nodes[0]
    placement, protocol, chunks = program.placement(node), signature.protocol, program.chunk_count(node)
    if chunks is None or placement is None or protocol is None:
        return
    if signature.registration is None or signature.registration.pad is not None:
        return
    mesh = str(placement.mesh)
    over, placed = f"over the {chunks} chunks of {protocol.name} on {mesh}", Label(placement.span, f"placed on {mesh}")
    rows, *others = [*dict.fromkeys(program.argument_rows[node.id].values())] or [constant(0)]
    for size in others:
        yield _divisible(EVEN_SPLIT, nodes, size, chunks, placed, over=over)
    if isinstance(signature.rows, Grouped):
        group = signature.rows.n
        yield _divisible(GROUPS_IN_CHUNKS, nodes, rows, chunks * group, placed, over=over, group=group)
    else:
        yield _divisible(EVEN_SPLIT, nodes, rows, chunks, placed, over=over)


def _collected(program: Program, nodes: tuple[Node, ...], signature: Signature) -> Iterator[Demand]:
    """A body that says that it leaves its rows split leaves equal parts."""
    node = nodes[0]
    placement, protocol, rows = program.placement(node), signature.protocol, program.inference.rows(node.id)
    if signature.registration is None or not signature.registration.cuts or placement is None or protocol is None:
        return
    if rows is None or LOST in rows.atoms or faults(protocol, placement.mesh, dict(signature.registration.leaves)):
        return
    parts = protocol.collected_count(placement.mesh)
    if parts > (program.chunk_count(node) or 1):
        yield _divisible(EQUAL_PARTS, nodes, rows, parts, Label(placement.span, f"placed on {placement.mesh}"))


def _aligned(program: Program, nodes: tuple[Node, ...]) -> Iterator[Demand]:
    chunks, rows_by_port = program.chunk_count(nodes[0]), program.argument_rows[nodes[0].id]
    if chunks is None or not rows_by_port:
        return
    (first_port, first_size), *others = rows_by_port.items()
    for port, size in others:
        if size != first_size:
            yield AlignedRows(
                nodes=nodes,
                why=f"the same split of '{port}' and '{first_port}'",
                port=port,
                size=size,
                first_port=first_port,
                first_size=first_size,
                chunks=chunks,
            )


def _whole(program: Program, nodes: tuple[Node, ...]) -> Iterator[Demand]:
    """Demand whole numbers of rows and of bound dims, since ``Div`` and ``Add`` may solve to fractions."""
    node, inference = nodes[0], program.inference
    rows = None if isinstance(node.op, MiniBatch) else inference.rows(node.id)
    called = isinstance(node.op, (RoleCall, FunctionCall))
    arguments = program.argument_rows[node.id].values() if called else ()
    for dim, bound in inference.bindings[node.id].items() if arguments else ():
        if bound not in arguments and bound != rows:
            yield _divisible(WHOLE_DIM, nodes, bound, 1, dim=dim.__name__)
    # Of rows with one quotient both demands are the same; of a sum of several, each must be exact by itself.
    quotients = [q for q in dict.fromkeys(_quotients(program, node)) if LOST not in q.atoms and not _is_whole(q)]
    alone = [q for q in quotients if rows is None or not _is_whole(rows - q)]
    for quotient in alone:
        yield _divisible(WHOLE_QUOTIENT, nodes, quotient, 1)
    in_sum = rows is not None and len(alone) > 1 and _is_whole(rows - sum(alone, constant(0)))
    if rows is not None and LOST not in rows.atoms and not in_sum:
        yield _divisible(WHOLE_ROWS, nodes, rows, 1)


def _is_whole(size: Size) -> bool:
    """Whether a size is whole for all dims."""
    return size.divisible_by(1) is Answer.PROVED


def _quotients(program: Program, node: Node) -> Iterator[Size]:
    """Every ``Div`` in the columns of an input or a call; each must be exact, even where a sum of them is whole."""
    signature = signature_of(node)
    inputs = [node.result] if isinstance(node.op, Input) else []
    types = [*(port.type for port in signature.ports), signature.returns] if signature else inputs
    for quotient in chain.from_iterable(map(quotients_of, types)):
        yield quotient.substitute(program.inference.bindings[node.id])


# -- requirements


def _required(
    program: Program, nodes: tuple[Node, ...], called: Signature, sized: tuple[type[Dim], ...]
) -> Iterator[Demand]:
    """The requirements of a method, and of the one of a derived class that is placed, less what a mistake hides.

    They ask for the config of a role which cannot be built (HF516) or is placed as another (HF515), for the sizes of a
    mesh that does not fill its pool (HF501), or for rows that the call is not given.
    """
    node, override = nodes[0], program.override(nodes[0])
    texts = dict.fromkeys(requirements_of(called.body), called)
    texts = dict.fromkeys(requirements_of(override.body), override) | texts if override is not None else texts
    if not texts or (isinstance(node.op, RoleCall) and _is_misplaced(program, node.op.role)):
        return
    placement, bindings = program.placement(node), program.inference.bindings[node.id]
    unfilled = placement is not None and placement.mesh.world_size != placement.pool.world_size
    built = program.config(node) is not None
    chunks = None if pads(node) else program.chunk_count(node)
    for text, signature in texts.items():
        dims = dims_of_call(program, node, signature, sized)
        scope = CallScope(dims, scope_of_call(program, node, signature, sized), program.call_rows(node), chunks or 1)
        named, number_names = set(names(text)), {*dims, *numbers(scope.numbers.fields)}
        hidden = {atom.__name__ for port in signature.ports for atom in row_dims(port.type) if atom not in bindings}
        static = {port.name for port in signature.ports if isinstance(port.type, StaticType)}
        hidden |= static - number_names
        if unfilled and not named.isdisjoint(("dp", "micro_dp", "world_size")):
            continue
        if (built or named <= {*dims, *call_numbers(node)}) and named.isdisjoint(hidden):
            yield from _as_demands(
                Requirement(nodes, text, signature, scope, _imposed(program, node, signature, text, dims))
            )


def _as_demands(requirement: Requirement) -> Iterator[Demand]:
    yield divisible_by_requirement(requirement, {}) or requirement
    text, scope = requirement.text, requirement.scope
    bound = limit(text, scope)
    if bound is not None:
        size, strict = bound
        named = names(text)
        values = {name: scope.sizes[name] if name in scope.sizes else scope.numbers.lookup(name) for name in named}
        where = " and ".join(f"{name} = {value}" for name, value in values.items() if name != str(value))
        yield Bound(requirement.nodes, f"the requirement {text}", Constraint(size, strict=strict), text, where)


def _is_misplaced(program: Program, role: str) -> bool:
    """Whether a role is placed as a class that is not the one which the dataflow takes."""
    return not issubclass(program.role_class(role), program.graph.roles[role])


def _imposed(program: Program, node: Node, signature: Signature, text: str, dims: dict[str, Size]) -> tuple[Label, ...]:
    """The labels of a requirement: its declaration, and the placement with the numbers that it names."""
    placement = program.placement(node)
    declared = Label(signature.span, f"declared with requires({text!r})")
    numbers = Scope({}, placement, fields={**(program.config(node) or {}), **call_numbers(node)})
    settings: list[str] = []
    for name in names(text):
        if name not in dims:
            with suppress(DefinitionError):  # a part that is not evaluated may name what does not exist
                settings.append(f"{name} = {numbers.lookup(name)}")
    if placement is None or not settings:
        return (declared,)
    return declared, Label(placement.span, f"placed with {', '.join(settings)}")


def dims_of_call(
    program: Program, node: Node, signature: Signature, sized: Iterable[type[Dim]] = ()
) -> dict[str, Size]:
    """The dims that a requirement may name: those that the call binds, all others of its signature, and of the program.

    Those of the program stand behind the numbers of a role's own config and mesh: another role may have named them.
    """
    bound = {atom.__name__: size for atom, size in program.inference.bindings[node.id].items()}
    reserved = {*MESH_SIZES, *numbers(program.config(node) or {})} if isinstance(node.op, RoleCall) else set()
    reserved |= call_numbers(node).keys()
    others = [dim for dim in (*program.dims, *sized) if dim.__name__ not in reserved]
    return {dim.__name__: atom_size(dim) for dim in (*others, *dims_of(signature))} | bound


def scope_of_call(program: Program, node: Node, signature: Signature, sized: Iterable[type[Dim]] = ()) -> Scope:
    """The names of a requirement at a call: dims as the call binds them, and the role's config."""
    sizes = dims_of_call(program, node, signature, sized)
    fields = {**(program.config(node) or {}), **call_numbers(node)}
    return Scope(sizes, program.placement(node), isinstance(node.op, RoleCall), fields)


def read_together(program: Program, demands: Iterable[Demand], sized: Iterable[type[Dim]]) -> Iterator[set[Atom]]:
    """The sets of dims whose sizes decide a finding together: those of a demand, of rows, of a presence condition."""
    for demand in demands:
        yield demand.dims
    for node, *_ in program.kinds:
        yield dims_of_sizes(program.argument_rows[node.id].values())
        signature = signature_of(node)
        conditions = (
            [provision.when for provision in provisions_of(signature.body) if provision.when] if signature else []
        )
        if signature and conditions:
            sizes = scope_of_call(program, node, signature, sized).sizes
            for condition in conditions:
                yield dims_of_sizes(sizes[name] for name in names(condition) if name in sizes)
