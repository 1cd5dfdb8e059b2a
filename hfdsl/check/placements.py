"""Placements: has every role a place, does its mesh fit its pool, does its protocol go with its mesh?"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from hfdsl.check.findings import Finding, Label
from hfdsl.check.sizes import call_rows
from hfdsl.check.subject import Subject
from hfdsl.errors import HfError
from hfdsl.graph.program import RoleCall
from hfdsl.types.batches import closest
from hfdsl.types.rows import WholeRows


def roles_have_places(subject: Subject) -> Iterator[Finding]:
    """Every role parameter has a placement of its class, and every placement a role."""
    if subject.deployment is None:
        return
    placements, roles = subject.deployment.placements, subject.graph.roles
    for name, role in roles.items():
        if name not in placements:
            yield Finding(
                "HF507",
                f"role '{name}' of '{subject.graph.name}' has no place in the deployment",
                Label(subject.deployment.span),
                (Label(subject.graph.span, f"takes '{name}: {role.__name__}'"),),
                help=(f"add {name}=hf.place({role.__name__}, ..., pool=...) ({closest(name, list(placements))})",),
            )
        elif not issubclass(placements[name].role, role):
            yield Finding(
                "HF515",
                f"role '{name}' takes {role.__name__} but {placements[name].role.__name__} is placed there",
                Label(placements[name].span),
                (Label(subject.graph.span, f"takes '{name}: {role.__name__}'"),),
            )
    for name, placement in placements.items():
        if name not in roles:
            yield Finding(
                "HF508",
                f"'{name}' is placed but '{subject.graph.name}' has no such role",
                Label(placement.span),
                help=(closest(name, list(roles)),),
            )


def meshes_fill_pools(subject: Subject) -> Iterator[Finding]:
    """A mesh has as many ranks as its pool has slots."""
    for name, placement in subject.deployment.placements.items() if subject.deployment else ():
        ranks, slots = placement.mesh.world_size, placement.pool.world_size
        if ranks != slots:
            rest = placement.mesh.pp * placement.mesh.tp
            fixes = []
            if slots % rest == 0:
                fixes.append(f"mesh=hf.Mesh(pp={placement.mesh.pp}, dp={slots // rest}, tp={placement.mesh.tp})")
            if ranks < slots:
                fixes.append(f"split the pool: pool.split([{ranks}, {slots - ranks}])")
            yield Finding(
                "HF501",
                f"role '{name}': {placement.mesh} has {ranks} ranks, pool {placement.pool} has {slots} slots",
                Label(placement.span),
                help=tuple(fixes),
            )


def constructors_take_arguments(subject: Subject) -> Iterator[Finding]:
    """The arguments given to ``hf.place`` fit the role's constructor."""
    for name, placement in subject.deployment.placements.items() if subject.deployment else ():
        if placement.role.__init__ is object.__init__ and not (placement.args or placement.kwargs):
            continue
        try:
            inspect.signature(placement.role.__init__).bind(None, *placement.args, **placement.kwargs)
        except TypeError as error:
            shown = inspect.signature(placement.role)
            yield Finding(
                "HF516",
                f"role '{name}': {placement.role.__name__}{shown} cannot be built: {error}",
                Label(placement.span),
            )


def protocols_fit_meshes(subject: Subject) -> Iterator[Finding]:
    """A protocol's axes are on the role's mesh, and a method that needs all rows is not given a part of them."""
    for node in subject.graph.nodes:
        placement = subject.placement(node)
        if not isinstance(node.op, RoleCall) or placement is None or (protocol := node.op.signature.protocol) is None:
            continue
        where = (Label(placement.span, f"placed on {placement.mesh}"),)
        try:
            chunks = protocol.chunk_count(placement.mesh)
            protocol.collected(placement.mesh)
        except HfError as error:
            yield Finding(error.code, f"'{node.label}': {error.message}", Label(node.span), where)
            continue
        split = protocol.splits and chunks > 1 and call_rows(subject, node) is not None
        if split and isinstance(node.op.signature.rows, WholeRows):
            yield Finding(
                "HF421",
                f"'{node.label}' needs all rows (rows=Whole) but {protocol.name} gives each of {chunks} chunks a part",
                Label(node.span),
                (*where, Label(node.op.signature.span, "declared rows=Whole")),
                help=(
                    "make it an @hf.function(rows=hf.Whole), which runs where all rows are, or place it on one rank",
                ),
            )
