"""Placements: is every role placed and called, and do its mesh, pool and protocols match?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from hfdsl.check.capacity import shape, words
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import PlacedMethod
from hfdsl.check.repair.suggestions import Suggestion, with_note, with_suggestions
from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.deploy.pools import ResourcePool, roots
from hfdsl.graph.misuses import MisuseKind
from hfdsl.graph.program import Constant, Node, Ref, RoleCall
from hfdsl.graph.signatures import ListType, PortType, RecordType, StaticType
from hfdsl.protocols.mesh import Mesh
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, ObjSpec
from hfdsl.types.rows import WholeRows


def _advice(role: type, placed: type) -> str:
    """How to place a class of the right type; another class of the same name looks like the right one."""
    if role.__name__ != placed.__name__:
        return f"place {role.__name__} or a class derived from it"
    if role.__module__ != placed.__module__:
        modules = f"that of {role.__module__} and that of {placed.__module__}"
        return f"these are two classes, {modules}, such as of one file under two names: import it from one place"
    return f"the file, or a cell, has defined {role.__name__} twice: define the dataflow and place the role after that"


def roles_have_places(context: Context) -> Iterator[Finding]:
    """Every role parameter has a placement of its class, and every placement a role."""
    if context.program.deployment is None:
        return
    placements, roles = context.program.deployment.placements, context.program.graph.roles
    without_role = [name for name in placements if name not in roles]
    for name, role in roles.items():
        if name not in placements:
            fitting = [candidate for candidate in without_role if issubclass(placements[candidate].role, role)]
            near = get_close_matches(name, fitting, n=1) or (fitting if len(fitting) == 1 else [])
            without_role = [
                candidate for candidate in without_role if candidate not in near
            ]  # a misspelled role is one mistake
            finding = Finding(
                "HF507",
                f"role '{name}' of '{context.program.graph.name}' is not placed in the deployment",
                Label(context.program.deployment.span, f"places {', '.join(placements) or 'nothing'}"),
                (Label(context.program.graph.span, f"takes '{name}: {role.__name__}'"),),
            )
            rename = "".join(f"rename '{old}' to '{name}'" for old in near)
            advice = rename or f"add {name}=hf.place({role.__name__}, ..., pool=...)"
            yield with_suggestions(context, finding, _renamed(context.program.deployment, near, name), advice)
        elif not issubclass(placements[name].role, role):
            yield Finding(
                "HF515",
                f"role '{name}' takes {role.__name__} but {placements[name].role.__name__} is placed there",
                Label(placements[name].span),
                (Label(context.program.graph.span, f"takes '{name}: {role.__name__}'"),),
                notes=(_advice(role, placements[name].role),),
            )
        elif abstract := _without_body(context, name, placements[name].role):
            yield Finding(
                "HF515",
                f"role '{name}' is placed as {placements[name].role.__name__}, which only declares '{abstract}'",
                Label(placements[name].span),
                (Label(context.program.graph.span, f"takes '{name}: {role.__name__}'"),),
                notes=(f"place a class derived from {placements[name].role.__name__} that has a '{abstract}'",),
            )
    lost = (MisuseKind.OUTSIDER, MisuseKind.VARIADIC)  # such a mistake leaves places without their roles
    misnamed = {misuse.name for misuse in context.program.graph.misuses if misuse.kind is MisuseKind.PARAMETER}
    for name in without_role if not any(misuse.kind in lost for misuse in context.program.graph.misuses) else ():
        if name in misnamed:
            continue
        yield Finding(
            "HF508",
            f"'{name}' is placed but '{context.program.graph.name}' has no such role",
            Label(placements[name].span),
            (Label(context.program.graph.span, f"its roles: {', '.join(roles) or 'none'}"),),
            notes=("remove it, or take it as a parameter of the dataflow",),
        )


def placed_roles_are_called(context: Context) -> Iterator[Finding]:
    """A role that the dataflow takes is called: its processes start and load their weights in any case.

    Another dataflow of the same deployment may call it, hence a warning.
    """
    deployment, graph = context.program.deployment, context.program.graph
    if deployment is None or graph.misuses:  # a call that was not understood may be the one
        return
    called = {node.op.role for node in graph.nodes if isinstance(node.op, RoleCall)}
    for name, role in graph.roles.items():
        if name in called or name not in deployment.placements:
            continue
        placement = deployment[name]
        pool, ranks = placement.pool, placement.mesh.world_size
        noun = "GPU" if pool.use_gpu else "slot"
        yield Finding(
            "HF509",
            f"role '{name}' is placed on {_counted(ranks, noun)} of pool '{pool.name}', but "
            f"'{graph.name}' never calls it: unless another dataflow of the deployment does, its processes "
            "start and load their weights for nothing",
            Label(placement.span),
            (Label(graph.span, f"takes '{name}: {role.__name__}'"),),
            notes=("call it, or remove the parameter and the placement",),
        )


def meshes_fill_pools(context: Context) -> Iterator[Finding]:
    """A mesh has as many ranks as its pool has slots."""
    places = dict(context.program.placements)
    wrong = {name: place for name, place in places.items() if place.mesh.world_size != place.pool.world_size}
    for roles in _with_one_mesh(wrong):
        placement = wrong[roles[0]]
        ranks, slots = placement.mesh.world_size, placement.pool.world_size
        others = dict.fromkeys(wrong[name].span for name in roles[1:] if wrong[name].span != placement.span)
        finding = Finding(
            "HF501",
            f"role{'s' * (len(roles) > 1)} {words(roles)}: {placement.mesh} lays out {_counted(ranks, 'rank')}, "
            f"but pool '{placement.pool.name}' {shape(placement.pool.processes)} has {_counted(slots, 'slot')}",
            Label(placement.span),
            tuple(Label(span, "placed so too") for span in others),
        )
        finding = with_suggestions(context, finding, _filled(context, places, roles))
        yield finding if finding.help and ranks < slots else with_note(finding, _fitting(placement.mesh))


def _fitting(mesh: Mesh) -> str:
    """The numbers of slots that certainly fit a mesh, or the same mesh with another dp."""
    fits, unit = f"this mesh fits a pool of {_counted(mesh.world_size, 'slot')}", mesh.pp * mesh.tp
    if unit == 1:
        return f"{fits}; without mesh=, a role fits any pool"
    return f"{fits}; with another dp, a pool whose slots are a multiple of pp * tp = {unit}"


def _with_one_mesh(places: Mapping[str, Placement[Any]]) -> list[list[str]]:
    """The roles in groups, each on one pool with one mesh: a variable, a default, or the argument of one function."""
    groups: list[list[str]] = []
    for name, place in places.items():
        for group in groups:
            first_place = places[group[0]]
            one_line = (place.mesh, place.span) == (first_place.mesh, first_place.span)
            if place.pool is first_place.pool and (place.mesh is first_place.mesh or one_line):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _filled(context: Context, places: dict[str, Placement[Any]], roles: list[str]) -> Iterator[Suggestion]:
    from hfdsl.check.repair.fixes import enlarged, filled  # late: most programs need none

    yield from filled(context, places, roles)
    yield from enlarged(context, places, roles)


def _renamed(deployment: Deployment, old: list[str], new: str) -> Iterator[Suggestion]:
    from hfdsl.check.repair.fixes import role_renamed  # as above

    for name in old:
        yield from role_renamed(deployment, name, new)


def pool_names_are_unique(context: Context) -> Iterator[Finding]:
    """A name stands for one pool: devices are identified by it."""
    first: dict[str, tuple[ResourcePool, str]] = {}
    reported: list[ResourcePool] = []  # once for all roles on a pool
    for name, placement in context.program.placements.items():
        for root in roots(placement.pool):
            first_pool, owner = first.setdefault(root.name, (root, name))
            if first_pool != root and root not in reported and context.program.deployment is not None:
                reported.append(root)
                yield Finding(
                    "HF514",
                    f"pools '{first_pool}' of role '{owner}' and '{root}' of role '{name}' have the same name",
                    Label(placement.span),
                    (Label(context.program.deployment[owner].span, f"places '{owner}' on the other"),),
                    notes=("give each pool its own name, or none",),
                )


def _without_body(context: Context, name: str, role: type) -> str | None:
    """A method that the dataflow calls and the class only declares."""
    called = (
        node.op.signature.name
        for node, *_ in context.program.kinds
        if isinstance(node.op, RoleCall) and node.op.role == name
    )
    return next((m for m in called if getattr(getattr(role, m, None), "__isabstractmethod__", False)), None)


def protocols_fit_meshes(context: Context) -> Iterator[Finding]:
    """A protocol's axes are on the role's mesh, and a method that needs all rows is not given a part of them."""
    for node, method in context.program.placed_calls:
        signature, placement = method.signature, method.placement
        if method.misfit is None and not isinstance(signature.rows, WholeRows):
            continue
        where = (Label(placement.span, f"placed on {placement.mesh}"),)
        if method.misfit is not None:
            yield Finding(method.misfit.code, f"'{node.label}': {method.misfit.message}", Label(node.span), where)
        elif method.protocol.splits and method.chunks > 1 and any(_has_rows(port.type) for port in signature.ports):
            yield Finding(
                "HF421",
                f"'{node.label}' needs all rows (rows=Whole) but {method.protocol.name} gives each of {method.chunks} "
                "chunks a part",
                Label(node.span),
                (*where, Label(signature.span, "declared rows=Whole")),
                notes=(
                    "make it an @hf.function(rows=hf.Whole), which runs where all rows are, or place it on one rank",
                ),
            )


def results_can_be_joined(context: Context) -> Iterator[Finding]:
    """Joined outputs have rows or are metrics, and split arguments have rows."""
    misfits = {mismatch.node for mismatch in context.program.inference.mismatches}
    for node, method in context.program.placed_calls:
        result, protocol = method.signature.returns, method.protocol
        if not (protocol.splits and protocol.joins) or (method.chunks == 1 and not isinstance(result, ListType)):
            continue
        nothing = isinstance(result, StaticType) and result.annotation in (None, type(None))
        if isinstance(result, (ListType, StaticType)) and not nothing:
            yield _unjoinable(node, result, method.chunks, protocol.name, (Label(node.span), _placement_labels(method)))
        if not _has_rows(result) or any(isinstance(operand, Ref) for _, operand in node.arguments):
            continue
        arguments = dict(node.arguments)
        all_wired = node.id not in misfits and all(p.name in arguments for p in method.signature.ports if p.required)
        if all_wired and all(isinstance(value, Constant) for value in arguments.values()):
            yield Finding(
                "HF413",
                f"'{node.label}' returns {result} from no rows: {protocol.name} has nothing to split over "
                f"{method.chunks} chunks",
                Label(node.span),
                _placement_labels(method),
                notes=("give it a record whose rows are to be split, or place it on one rank",),
            )


def _placement_labels(method: PlacedMethod) -> tuple[Label, ...]:
    return (Label(method.placement.span, f"placed on {method.placement.mesh}"),)


def _unjoinable(
    node: Node, result: StaticType | ListType, chunks: int, protocol: str, where: tuple[Label, tuple[Label, ...]]
) -> Finding:
    """A value without rows from every chunk: numbers can be reduced, anything else can only be listed."""
    if isinstance(result, StaticType) and result.annotation in (bool, int, float):
        return Finding(
            "HF417",
            f"'{node.label}' gives {result} from each of {chunks} chunks, but no reduction says which number is the "
            "result",
            *where,
            notes=(
                f'return hf.Metric(value), declared hf.Metric[{result}, Literal["mean"]]',
                "or give every rank all rows, and get a list: Dispatch.ONE_TO_ALL",
            ),
        )
    origin = f"each of {chunks} chunks" if chunks > 1 else "1 chunk"
    return Finding(
        "HF413",
        f"'{node.label}' gives {result} from {origin}, which {protocol} cannot join",
        *where,
        notes=(
            "return a record of rows and metrics",
            "or give every rank all rows, and get a list: Dispatch.ONE_TO_ALL",
        ),
    )


def _has_rows(kind: PortType) -> bool:
    if isinstance(kind, RecordType):
        return schema(kind.record).row is not None
    return isinstance(kind, (ColumnSpec, ObjSpec))
