"""The pass from a program to its demands: one look at each kind of call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from hfdsl.check.arithmetic import Terms, limit
from hfdsl.check.constraints import Constraint
from hfdsl.check.demands import AlignedRows, Bound, Demand, Divisible, EqualRows, Requirement, divisible_by_requirement
from hfdsl.check.findings import Label
from hfdsl.check.program import Program, dims_of, pads, row_dims
from hfdsl.check.requirements import MESH_SIZES, Known, names, numbers
from hfdsl.errors import DefinitionError
from hfdsl.graph.infer import LOST
from hfdsl.graph.program import Filter, FunctionCall, MiniBatch, Node, RoleCall
from hfdsl.graph.signatures import Signature
from hfdsl.protocols.conditions import requirements_of
from hfdsl.protocols.placement import faults
from hfdsl.types.dims import Dim, Size, atom_size, constant
from hfdsl.types.rows import Grouped

NOT_WHOLE = "which is not a whole number of at least 1"


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
            want, have = mismatch.sizes
            yield EqualRows(
                nodes=(program.graph.nodes[mismatch.node],),
                why=f"equal rows for '{mismatch.port}'",
                port=mismatch.port,
                sizes=(want, have),
            )


def _of_kind(program: Program, nodes: tuple[Node, ...], sized: tuple[type[Dim], ...]) -> Iterator[Demand]:
    match nodes[0].op:
        case MiniBatch(0, count):
            rows = program.call_rows(nodes[0])
            if rows is not None:
                complaint = f"minibatches: {{rows}} rows do not make {count} equal mini-batches"
                yield Divisible(
                    nodes=nodes,
                    why=f"{count} mini-batches",
                    size=rows,
                    divisor=count,
                    code="HF310",
                    complaint=complaint,
                )
        case MiniBatch():
            return  # the first mini-batch speaks for all
        case Filter(group) if group > 1:
            rows = program.call_rows(nodes[0])
            if rows is not None:
                complaint = f"filter: {{rows}} rows do not make whole groups of {group}"
                yield Divisible(
                    nodes=nodes,
                    why=f"whole groups of {group}",
                    size=rows,
                    divisor=group,
                    code="HF313",
                    complaint=complaint,
                )
        case RoleCall(_, signature):
            yield from _grouped(program, nodes, signature)
            yield from _split(program, nodes, signature)
            yield from _collected(program, nodes, signature)
            yield from _required(program, nodes, signature, sized)
            yield from _aligned(program, nodes)
        case FunctionCall(signature):
            yield from _grouped(program, nodes, signature)
            yield from _required(program, nodes, signature, sized)
    yield from _whole(program, nodes)


# -- rows


def _grouped(program: Program, nodes: tuple[Node, ...], signature: Signature) -> Iterator[Demand]:
    rows = program.call_rows(nodes[0])
    if isinstance(signature.rows, Grouped) and rows is not None:
        group = signature.rows.n
        declared = Label(signature.span, f"declared rows=Grouped({group})")
        complaint = f"'{nodes[0].label}': {{rows}} rows do not make whole groups of {group}"
        yield Divisible(
            nodes=nodes,
            why=f"whole groups of {group}",
            size=rows,
            divisor=group,
            code="HF313",
            complaint=complaint,
            labels=(declared,),
        )


def _split(program: Program, nodes: tuple[Node, ...], signature: Signature) -> Iterator[Demand]:
    node = nodes[0]
    placement, protocol, chunks = program.placement(node), signature.protocol, program.chunk_count(node)
    if chunks is None or placement is None or protocol is None:
        return
    if signature.registration is None or signature.registration.pad is not None:
        return
    mesh = str(placement.mesh)
    over, placed = f"over the {chunks} chunks of {protocol.name} on {mesh}", Label(placement.span, f"placed on {mesh}")
    even = f"'{node.label}': {{rows}} rows do not split evenly {over}"
    rows, *others = [*dict.fromkeys(program.argument_rows[node.id].values())] or [constant(0)]
    for size in others:
        yield Divisible(
            nodes=nodes,
            why=f"an even split {over}",
            size=size,
            divisor=chunks,
            code="HF310",
            complaint=even,
            labels=(placed,),
        )
    if isinstance(signature.rows, Grouped):
        group = signature.rows.n
        complaint = f"'{node.label}': {{rows}} rows, split {over}, do not give every chunk whole groups of {group}"
        yield Divisible(
            nodes=nodes,
            why=f"whole groups of {group} {over}",
            size=rows,
            divisor=chunks * group,
            code="HF313",
            complaint=complaint,
            labels=(placed,),
        )
    else:
        yield Divisible(
            nodes=nodes,
            why=f"an even split {over}",
            size=rows,
            divisor=chunks,
            code="HF310",
            complaint=even,
            labels=(placed,),
        )


def _collected(program: Program, nodes: tuple[Node, ...], signature: Signature) -> Iterator[Demand]:
    """A body that says that it leaves its rows split leaves equal parts."""
    node = nodes[0]
    placement, protocol, rows = program.placement(node), signature.protocol, program.inference.rows(node.id)
    if signature.registration is None or not signature.registration.cuts or placement is None or protocol is None:
        return
    if rows is None or LOST in rows.atoms or faults(protocol, placement.mesh, dict(signature.registration.leaves)):
        return
    parts = len(protocol.collected(placement.mesh))
    if parts > (program.chunk_count(node) or 1):
        where = Label(placement.span, f"placed on {placement.mesh}")
        complaint = (
            f"'{node.label}': {{rows}} rows do not make {parts} equal parts, one for each rank that is collected"
        )
        yield Divisible(
            nodes=nodes,
            why=f"{parts} equal parts",
            size=rows,
            divisor=parts,
            code="HF310",
            complaint=complaint,
            labels=(where,),
        )


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
    """What a call makes, and what it binds dims to, is a whole number: ``Div`` and ``Add`` solve for fractions too."""
    node, inference = nodes[0], program.inference
    rows = None if isinstance(node.op, MiniBatch) else inference.rows(node.id)
    called = isinstance(node.op, (RoleCall, FunctionCall))
    arguments = program.argument_rows[node.id].values() if called else ()
    for dim, bound in inference.bindings[node.id].items() if arguments else ():
        if bound not in arguments and bound != rows:
            complaint = f"'{node.label}' would have {dim.__name__} = {{rows}}, {NOT_WHOLE}"
            why = f"a whole number for {dim.__name__}"
            yield Divisible(
                nodes=nodes, why=why, size=bound, divisor=1, code="HF303", complaint=complaint, of_rows=False
            )
    if rows is not None and LOST not in rows.atoms:
        complaint = f"'{node.label}' would have {{rows}} rows, {NOT_WHOLE}"
        yield Divisible(
            nodes=nodes, why="a whole number of rows", size=rows, divisor=1, code="HF303", complaint=complaint
        )


# -- requirements


def _required(
    program: Program, nodes: tuple[Node, ...], signature: Signature, sized: tuple[type[Dim], ...]
) -> Iterator[Demand]:
    """The requirements of a method, less those that another mistake hides.

    They ask for the config of a role which cannot be built (HF516) or is placed as another (HF515), for the sizes of a
    mesh that does not fill its pool (HF501), or for rows that the call is not given.
    """
    node, texts = nodes[0], requirements_of(signature.body)
    if not texts or (isinstance(node.op, RoleCall) and _is_another(program, node.op.role)):
        return
    placement, bindings = program.placement(node), program.inference.bindings[node.id]
    unfilled = placement is not None and placement.mesh.world_size != placement.pool.world_size
    built = program.config(node) is not None
    dims = dims_of_call(program, node, signature, sized)
    chunks = None if pads(node) else program.chunk_count(node)
    terms = Terms(dims, names_of_call(program, node, signature, sized), program.call_rows(node), chunks or 1)
    hidden = {atom.__name__ for port in signature.ports for atom in row_dims(port.type) if atom not in bindings}
    for text in texts:
        named = set(names(text))
        if unfilled and not named.isdisjoint(("dp", "micro_dp", "world_size")):
            continue
        if (built or named <= set(dims)) and named.isdisjoint(hidden):
            yield from _as_demands(
                Requirement(nodes, text, signature, terms, _imposed(program, node, signature, text, dims))
            )


def _as_demands(requirement: Requirement) -> Iterator[Demand]:
    yield divisible_by_requirement(requirement, {}) or requirement
    text, terms = requirement.text, requirement.terms
    bound = limit(text, terms)
    if bound is not None:
        size, strict = bound
        values = {name: terms.sizes[name] if name in terms.sizes else terms.known.lookup(name) for name in names(text)}
        where = " and ".join(f"{name} = {value}" for name, value in values.items() if name != str(value))
        yield Bound(requirement.nodes, f"the requirement {text}", Constraint(size, strict=strict), text, where)


def _is_another(program: Program, role: str) -> bool:
    """Whether a role is placed as a class that is not the one which the dataflow takes."""
    placements = program.deployment.placements if program.deployment else {}
    return role in placements and not issubclass(placements[role].role, program.graph.roles[role])


def _imposed(program: Program, node: Node, signature: Signature, text: str, dims: dict[str, Size]) -> tuple[Label, ...]:
    """Where a requirement is declared, and where the config that it names is given."""
    placement = program.placement(node)
    declared = Label(signature.span, f"declared with requires({text!r})")
    known = Known({}, placement, fields=program.config(node) or {})
    settings: list[str] = []
    for name in names(text):
        if name not in dims:
            with suppress(DefinitionError):  # a part that is not evaluated may name what does not exist
                settings.append(f"{name} = {known.lookup(name)}")
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
    others = [dim for dim in (*program.dims, *sized) if dim.__name__ not in reserved]
    return {dim.__name__: atom_size(dim) for dim in (*others, *dims_of(signature))} | bound


def names_of_call(program: Program, node: Node, signature: Signature, sized: Iterable[type[Dim]] = ()) -> Known:
    """What the names in a requirement mean at a call: dims as the call binds them, and the role's config."""
    sizes = dims_of_call(program, node, signature, sized)
    return Known(sizes, program.placement(node), isinstance(node.op, RoleCall), program.config(node) or {})
