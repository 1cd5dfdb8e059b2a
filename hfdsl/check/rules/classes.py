"""Classes: do a role's config and its mesh go together as its class requires?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any

from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.alternatives import known_of, moved, unmet, works
from hfdsl.check.repair.offers import Offer, Option, mended
from hfdsl.check.requirements import MESH_SIZES, config_fields, holds, names, remainder
from hfdsl.check.subject import Subject
from hfdsl.deploy.deployment import Placement
from hfdsl.errors import DefinitionError, HfError
from hfdsl.graph.spans import definition_span
from hfdsl.protocols.conditions import REQUIREMENTS, requirements_of
from hfdsl.protocols.mesh import AXES, Mesh
from hfdsl.types.batches import closest


def classes_fit_meshes(subject: Subject) -> Iterator[Finding]:
    """``hf.requires`` of role classes, with the numbers of the config and the sizes of the mesh."""
    for name, placement in subject.deployment.placements.items() if subject.deployment else ():
        texts = requirements_of(placement.role)
        config = config_fields(placement) if texts else None
        for text in texts:
            if config is None and not set(names(text)) <= set(MESH_SIZES):
                continue  # the role cannot be built, which is told (HF516)
            declared = _declared(placement.role, text)
            try:
                holds(text, known_of(placement))
            except DefinitionError as error:
                message = _unknown(text, placement) if error.code == "HF323" else error.message
                where = f"'{placement.role.__name__}' requires {text}"  # however often it is placed
                yield Finding(error.code, f"{where}: {message}", declared, (Label(placement.span, "placed here"),))
        filled = placement.mesh.world_size == placement.pool.world_size  # else what mends HF501 gives another mesh
        for text, shown in unmet(placement).items():
            if not filled and not {"dp", "world_size"}.isdisjoint(names(text)):
                continue
            rest = remainder(text, known_of(placement))
            finding = Finding(
                "HF512",
                f"role '{name}' requires {text}, but {shown}{f': {rest}' if rest else ''}",
                Label(placement.span, f"placed on {placement.mesh}"),
                (_declared(placement.role, text),),
            )
            yield mended(subject, finding, _meshes(subject, name, placement, text), most=1)


def _declared(role: type, text: str) -> Label:
    """The class, of a role and its bases, that brings a requirement in."""
    bringing = [cls for cls in role.__mro__ if text in vars(cls).get(REQUIREMENTS, ())]
    return Label(definition_span(bringing[-1] if bringing else role), f"declared with requires({text!r})")


def _unknown(text: str, placement: Placement[Any]) -> str:
    fields = config_fields(placement) or {}
    numbers = [field for field, value in fields.items() if isinstance(value, (int, float)) and isfinite(value)]
    [name, *_] = [name for name in names(text) if name not in numbers and name not in MESH_SIZES]
    return f"'{name}' is neither a number of the role's config nor a size of its mesh; " + closest(
        name, [*numbers, *MESH_SIZES]
    )


def _meshes(subject: Subject, role: str, placement: Placement[Any], text: str) -> Iterator[Offer]:
    """Other sizes of a model axis that the requirement names, for which everything works; dp fills the pool."""
    for axis in ("tp", "pp", "gen_tp", "gen_pp"):
        if axis in names(text):
            found = [
                mesh for mesh in _variants(placement, axis) if _mends(subject, role, replace(placement, mesh=mesh))
            ]
            now = getattr(placement.mesh, axis) or 1
            nearest = sorted(found, key=lambda mesh: abs((getattr(mesh, axis) or 1) - now))[:3]
            places = [{role: replace(placement, mesh=mesh)} for mesh in nearest]
            options = (Option(spelled(place[role].mesh), partial(moved, place)) for place in places)
            yield Offer(tuple(options), "use ", f": {text} then holds and the pool is filled")


def _variants(placement: Placement[Any], axis: str) -> Iterator[Mesh]:
    mesh, slots = placement.mesh, placement.pool.world_size
    for size in (n for n in range(1, slots + 1) if slots % n == 0):
        sizes: dict[str, Any] = {axis: size}
        try:
            other = replace(mesh, **sizes)
            rest = other.pp * other.tp
            if slots % rest == 0:
                yield replace(other, dp=slots // rest)
        except HfError:
            continue  # a generation size that does not divide


def _mends(subject: Subject, role: str, placement: Placement[Any]) -> bool:
    return not unmet(placement) and works(subject, {role: placement})


def spelled(mesh: Mesh) -> str:
    """A mesh as a user writes it.

    >>> spelled(Mesh(dp=4, tp=2, gen_tp=1))
    'hf.Mesh(dp=4, tp=2, gen_tp=1)'
    """
    sizes = [f"{axis}={size}" for axis in AXES if (size := getattr(mesh, axis)) > 1]
    sizes += [f"{axis}={size}" for axis in ("gen_pp", "gen_tp") if (size := getattr(mesh, axis)) is not None]
    return f"hf.Mesh({', '.join([*sizes, *([f'order={mesh.order}'] if mesh.order != AXES else [])])})"
