"""Classes: do a role's config and mesh satisfy the requirements of its class?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from typing import Any

from hfdsl.check.context import Change, Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.alternatives import MOVE, scope_of, unmet, with_moved_roles, works
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.sizes.requirements import MESH_SIZES, Scope, config_fields, holds, names, numbers, remainder
from hfdsl.deploy.deployment import Placement
from hfdsl.errors import DefinitionError, HfError
from hfdsl.graph.spans import definition_span
from hfdsl.protocols.conditions import REQUIREMENTS, requirements_of
from hfdsl.protocols.mesh import AXES, Mesh
from hfdsl.types.numbers import divisors
from hfdsl.types.similar_names import closest

MAX_CHANGES = 3
"""How many meshes a help line names."""


def classes_fit_meshes(context: Context) -> Iterator[Finding]:
    """``hf.requires`` of role classes, with the numbers of the config and the sizes of the mesh."""
    for name, placement in context.program.placements.items():
        scope, buildable = scope_of(placement), config_fields(placement) is not None
        for text in requirements_of(placement.role):
            try:
                holds(text, scope)
            except DefinitionError as error:
                unknown = error.code == "HF323"
                if unknown and not buildable:
                    continue  # reported as HF516
                where = f"'{placement.role.__name__}' requires {text}"  # however often it is placed
                message = f"{where}: {_unknown(text, scope) if unknown else error.message}"
                yield Finding(
                    error.code,
                    message,
                    _declaration_label(placement.role, text),
                    (Label(placement.span, "placed here"),),
                )
        filled = placement.mesh.world_size == placement.pool.world_size  # else what mends HF501 gives another mesh
        for text, values in unmet(placement).items():
            if not filled and not {"dp", "world_size"}.isdisjoint(names(text)):
                continue
            shown_remainder = remainder(text, scope)
            finding = Finding(
                "HF512",
                f"role '{name}' requires {text}, but {values}{f': {shown_remainder}' if shown_remainder else ''}",
                Label(placement.span, f"placed on {placement.mesh}"),
                (_declaration_label(placement.role, text),),
            )
            yield with_suggestions(context, finding, _meshes(context, name, placement, text), most=1)


def _declaration_label(role: type, text: str) -> Label:
    """The class, of a role and its bases, that brings a requirement in."""
    bringing = [cls for cls in role.__mro__ if text in vars(cls).get(REQUIREMENTS, ())]
    return Label(definition_span(bringing[-1]), f"declared with requires({text!r})")


def _unknown(text: str, scope: Scope) -> str:
    candidates = [*numbers(scope.fields), *MESH_SIZES]
    name = next(name for name in names(text) if name not in candidates)
    return f"'{name}' is neither a number of the role's config nor a size of its mesh; {closest(name, candidates)}"


def _meshes(context: Context, role: str, placement: Placement[Any], text: str) -> Iterator[Suggestion]:
    """Other sizes of a model axis that the requirement names, for which everything works; dp fills the pool."""
    for axis in ("tp", "pp", "gen_tp", "gen_pp"):
        if axis in names(text):
            affordable = takewhile(lambda _: context.budget.spend("moves", MOVE), _variants(placement, axis))
            variants = (replace(placement, mesh=mesh) for mesh in affordable)
            working = (variant for variant in variants if not unmet(variant) and works(context, {role: variant}))
            places = [{role: variant} for variant in islice(working, MAX_CHANGES)]
            changes = (Change(spelled(place[role].mesh), partial(with_moved_roles, place)) for place in places)
            yield Suggestion(tuple(changes), "use ", f": {text} then holds and the pool is filled")


def _variants(placement: Placement[Any], axis: str) -> Iterator[Mesh]:
    """Meshes with another size of an axis that fill the pool, the nearest size first."""
    mesh, slots = placement.mesh, placement.pool.world_size
    now = MESH_SIZES[axis](mesh)
    for size in sorted(divisors(slots), key=lambda size: abs(size - now)):
        sizes: dict[str, Any] = {axis: size}
        try:
            variant = replace(mesh, **sizes)
            model = variant.pp * variant.tp
            if slots % model == 0:
                yield replace(variant, dp=slots // model)
        except HfError:
            continue  # a generation size that does not divide


def spelled(mesh: Mesh) -> str:
    """A mesh as a user writes it.

    >>> spelled(Mesh(dp=4, tp=2, gen_tp=1))
    'hf.Mesh(dp=4, tp=2, gen_tp=1)'
    """
    sizes = [f"{axis}={size}" for axis in AXES if (size := getattr(mesh, axis)) > 1]
    sizes += [f"{axis}={size}" for axis in ("gen_pp", "gen_tp") if (size := getattr(mesh, axis)) is not None]
    return f"hf.Mesh({', '.join([*sizes, *([f'order={mesh.order}'] if mesh.order != AXES else [])])})"
