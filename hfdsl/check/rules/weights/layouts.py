"""Layouts: does every rank that loads weights get what its layout says, from a rank that exports it?

A worked example, a key projection of 8 heads on ``tp=3``::

    class Engine(hf.Worker):
        @staticmethod
        def state_parameters() -> dict[str, list[Parameter]]:
            return {"policy": [Parameter("k_proj.weight", (1024, 4096))]}

        @register(Dispatch.ONE_TO_ALL)
        @hf.loads("policy", layout=Slices(0, units=8))
        def load(self, weights: ...) -> None: ...

The rule compares the parameters of both sides (``synced_parameters.py``), then cuts each on both sides (HF734). Where
the parts tile the parameter on both sides, every rank can get what it needs (``protocols/tilings.py``). Elsewhere it
proves the routes between them rank by rank (HF735, HF736; ``protocols/resharding.py``). If neither side states its
parameters, or a layout is not known, there is nothing to prove. HF738 says so if a role declares a layout and no class
has the method that states the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from hfdsl.check.constructor_types import parameters as constructor_parameters
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.raised import raised_at
from hfdsl.check.repair.suggestions import with_suggestions
from hfdsl.check.rules.placement.slices import narrower
from hfdsl.check.rules.weights.exported_parts import parts_of_unknown
from hfdsl.check.rules.weights.stated_parameters import parameters_are_stated_once
from hfdsl.check.rules.weights.sync_findings import other_count, side_labels, sync_finding
from hfdsl.check.rules.weights.synced_parameters import dtypes_agree, names_agree, shapes_agree
from hfdsl.check.rules.weights.ties import separate, tied_shapes_agree, ties_are_names
from hfdsl.check.rules.weights.unused_layouts import unmatched_parts, unused_layouts
from hfdsl.deploy.weight_syncs import SyncSide, WeightSync, weight_syncs
from hfdsl.errors import HfError
from hfdsl.protocols import role_facts
from hfdsl.protocols.cuts import CANNOT_BE_CUT, Cut
from hfdsl.protocols.layouts import Layout, Parameter, Slices, StandardLayout, holdings
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.resharding import Flaw, alike, flaws, routes_of
from hfdsl.protocols.tilings import independent, tiles
from hfdsl.types.numbers import divisors

TENSOR_AXES: Final = frozenset({"tp", "gen_tp"})
"""The axes whose ranks compute with the slices that they hold."""

CALLED_WITH: Final = "it is called with the mesh, and then with the arguments of the constructor, as these are placed"

MOST_REASONS: Final = 4
"""For how many reasons, at most, a finding says that parameters cannot be cut."""


def weights_reach_every_rank(context: Context) -> Iterator[Finding]:
    """HF730 to HF739: the parameters and layouts of both sides of each sync fit each other."""
    for sync in weight_syncs(context.program.graph, context.program.deployment):
        if misstated := list(parameters_are_stated_once(sync)):
            yield from misstated
            continue
        layouts = dict[str, Layout]()
        for side in (sync.source, sync.target):
            layout = _layout(side)
            if isinstance(layout, Finding):
                yield layout
            elif layout is not None:
                layouts[side.effect.kind] = layout
        if misstored := list(ties_are_names(sync, layouts)):
            yield from misstored
            continue
        if not parts_of_unknown(sync):
            yield from unused_layouts(sync, layouts)
        if len(layouts) == 2:
            yield from _sync(context, sync, layouts["exports"], layouts["loads"])


def _layout(side: SyncSide) -> Layout | Finding | None:
    """The layout of a side, or HF739 if its function raises for arguments that its constructor takes."""
    try:
        role: type = side.placement.role
        constructor_parameters(role).bind(*side.placement.args, **side.placement.kwargs)
    except TypeError:
        return None  # HF516
    notes: tuple[str, ...] = ()
    raised: tuple[Label, ...] = ()
    try:
        return side.layout()
    except HfError as error:
        problem, code = error.message, error.code if error.code == "HF734" else "HF739"
        raised = raised_at(error)
    except Exception as error:  # noqa: BLE001  # a user's function
        problem, code = f"the layout of '{side.node.label}' raises {type(error).__name__}: {error}", "HF739"
        notes, raised = (CALLED_WITH,) if isinstance(error, TypeError) else (), raised_at(error)
    return Finding(
        code,
        problem,
        Label(side.node.op.signature.span, f"declares it on {side.placement.mesh}"),  # type: ignore[union-attr]  # a call
        (*raised, Label(side.placement.span, f"'{side.role}' is placed here")),
        notes=notes,
    )


def _sync(context: Context, sync: WeightSync, source: Layout, target: Layout) -> Iterator[Finding]:
    pairs = list(sync.pairs(source, target))
    unequal = list(tied_shapes_agree(sync, source, target))
    if sync.source.parameters and sync.target.parameters:
        yield from names_agree(sync, pairs, source, target)
        yield from () if unequal else separate(sync, source, target)
        unequal += [*shapes_agree(sync, pairs), *dtypes_agree(sync, pairs)]
    yield from unequal
    if unequal:
        return
    parameters = [parameter for _, parameter in pairs]
    groups = _alike(sync, parameters, source, target)
    representatives = [group[0] for group in groups] if groups else parameters
    layouts = {"exports": source, "loads": target}
    uncut: dict[str, list[_Problem]] = {
        side.effect.kind: problems
        for side in (sync.source, sync.target)
        if (problems := _problems(layouts[side.effect.kind], representatives, side.placement.mesh))
    }
    yield from _uncut(context, sync, uncut)
    if not uncut:
        yield from unmatched_parts(sync, source, target)
    if groups and not uncut and sync.declared:
        yield from _fused(sync, representatives, source, target)
        yield from _cut_heads(sync, representatives, source, target)
        yield from _unproved(sync, groups, source, target)


# -- cuts --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why a parameter cannot be cut, with the user's line that raised it, if one did."""

    code: str
    message: str
    raised: tuple[Label, ...] = ()


def _uncut(context: Context, sync: WeightSync, problems: Mapping[str, list[_Problem]]) -> Iterator[Finding]:
    """HF734: parameters that a side cannot cut so on its mesh; the problems of each side that has some."""
    for side in (sync.source, sync.target):
        place = side.placement
        if side.effect.kind not in problems or _reported(side):
            continue
        first, *others = problems[side.effect.kind]
        also = [other.message for other in others if first.code == other.code == "HF734"]
        finding = Finding(
            first.code,
            f"'{side.node.label}' on {place.mesh}: {first.message}",
            Label(place.span, f"'{side.role}' has {place.mesh}"),
            (*first.raised, *side_labels(sync)),
            notes=tuple(f"nor can {_without_verb(message)}" for message in also),
        )
        nearby = sorted(divisors(place.pool.world_size), key=lambda size: abs(size - place.mesh.tp))
        yield with_suggestions(context, finding, narrower(context, {side.role: place}, nearby))


def _without_verb(problem: str) -> str:
    return problem.replace(CANNOT_BE_CUT, ": ", 1)


def _reported(side: SyncSide) -> bool:
    """Whether HF813 says it."""
    sizes = role_facts.sliced.of(side.placement)
    return any(size % side.placement.mesh.tp for size in sizes.values())


def _problems(layout: Layout, parameters: Sequence[Parameter], mesh: Mesh) -> list[_Problem]:
    """The problems of the first parameters that cannot be cut, one for each reason."""
    problems = dict[str, _Problem]()
    for parameter in parameters:
        try:
            if not tiles(layout, parameter, mesh):
                holdings(layout, parameter, mesh)
        except HfError as error:
            reason = error.message.rpartition(CANNOT_BE_CUT)[2]
            problems.setdefault(reason, _Problem(error.code, error.message))
        except Exception as error:  # noqa: BLE001  # a user's layout
            name, where = type(error).__name__, f"{parameter.name!r} {parameter.shape}"
            place = _raising_rank(layout, parameter, mesh)
            problem = _Problem("HF739", f"its layout raises {name} for {where}{place}: {error}", raised_at(error))
            problems.setdefault(name, problem)
        if len(problems) == MOST_REASONS:
            break
    return list(problems.values())


def _raising_rank(layout: Layout, parameter: Parameter, mesh: Mesh) -> str:
    """The first rank for which a layout raises, in words; nothing if it raises for none by itself."""
    for rank in range(mesh.world_size):
        try:
            layout.boxes(parameter, mesh, rank)
        except Exception:  # noqa: BLE001  # as above
            return f", rank {rank} ({mesh.coordinates(rank)})"
    return ""


def _fused(sync: WeightSync, parameters: Sequence[Parameter], source: Layout, target: Layout) -> Iterator[Finding]:
    """HF737: one side declares the matrices fused in a parameter, and the other cuts it differently."""
    if not isinstance(source, StandardLayout) or not isinstance(target, StandardLayout):
        return
    for parameter in parameters:
        sides = [
            {cut.dim: cut for cut in reversed(layout.cuts(parameter, mesh)) if _knows_matrices(cut, mesh)}
            for layout, mesh in ((source, sync.source.placement.mesh), (target, sync.target.placement.mesh))
        ]
        for dim in sides[0].keys() & sides[1].keys():
            first, second = sides[0][dim], sides[1][dim]
            if _matrices(first) != _matrices(second):
                yield sync_finding(
                    sync,
                    "HF737",
                    f"dim {dim} of {parameter.name!r} {parameter.shape} is {_matrices(first)} where "
                    f"'{sync.source.role}' exports it, and {_matrices(second)} where '{sync.target.role}' loads it",
                    notes=tuple(_same_matrices(first, second)),
                )
                return


def _cut_heads(sync: WeightSync, parameters: Sequence[Parameter], source: Layout, target: Layout) -> Iterator[Finding]:
    """HF737: one side states the heads of a parameter, and the other one slices it without, within a head."""
    if not isinstance(source, StandardLayout) or not isinstance(target, StandardLayout):
        return
    sides = (sync.source, source), (sync.target, target)
    for parameter in parameters:
        for (stating, layout), (cutting, other_layout) in (sides, sides[::-1]):
            heads = {cut.dim: cut for cut in layout.cuts(parameter, stating.placement.mesh) if isinstance(cut, Slices)}
            for cut in other_layout.cuts(parameter, cutting.placement.mesh):
                if not isinstance(cut, Slices) or cut.units is not None or cut.dim not in heads or cut.padding > 1:
                    continue
                if not TENSOR_AXES.issuperset(cut.axes):
                    continue  # it stores a slice, and computes with all of them
                width = _head_width(heads[cut.dim], parameter)
                share = parameter.shape[cut.dim] // cut.parts(cutting.placement.mesh)
                if not cut.blocks and width and share % width:
                    count = parameter.shape[cut.dim] // width
                    yield sync_finding(
                        sync,
                        "HF737",
                        f"dim {cut.dim} of {parameter.name!r} {parameter.shape} has {count} heads of {width} where "
                        f"'{stating.role}' has it, and '{cutting.role}' slices it into parts of {share}",
                        notes=(f"state the heads on both sides, as Slices({cut.dim}, units={count}) does",),
                    )
                    return


def _head_width(cut: Slices, parameter: Parameter) -> int | None:
    """The elements of a head, if a layout states the heads of a whole dim."""
    size, heads = parameter.shape[cut.dim], cut.units
    return size // heads if isinstance(heads, int) and not cut.blocks and size % heads == 0 else None


def _knows_matrices(cut: Cut, mesh: Mesh) -> TypeGuard[Slices]:
    """Whether a cut says what is fused, or gives ranks parts with which they compute: these cannot be of a mixture."""
    computes = isinstance(cut, Slices) and cut.parts(mesh) > 1 and TENSOR_AXES.issuperset(cut.axes)
    return isinstance(cut, Slices) and bool(cut.blocks or cut.interleaved or computes)


def _matrices(cut: Slices) -> str:
    """The matrices of a dim, as a slice cuts them."""
    if cut.blocks:
        return f"fused from matrices of {cut.blocks}"
    return f"fused in groups of {cut.interleaved}" if cut.interleaved else "cut as one matrix"


def _same_matrices(*cuts: Slices) -> Iterator[str]:
    """Advice to state the same matrices on both sides."""
    stated = [cut for cut in cuts if cut.blocks]
    if stated:
        dim, blocks = stated[0].dim, stated[0].blocks
        yield f"state the same matrices on both sides, such as Slices({dim}, blocks={blocks}) on each"


def _alike(
    sync: WeightSync, parameters: Sequence[Parameter], source: Layout, target: Layout
) -> tuple[tuple[Parameter, ...], ...]:
    """The parameters in groups with equal cuts; none if a layout cannot cut one of them."""
    try:
        return alike(parameters, source, sync.source.placement.mesh, target, sync.target.placement.mesh)
    except Exception:  # noqa: BLE001  # ``_uncut`` finds which
        return ()


def _unproved(
    sync: WeightSync, groups: Sequence[tuple[Parameter, ...]], source: Layout, target: Layout
) -> Iterator[Finding]:
    """HF735, HF736: the proof of a route fails; one finding for each code and side."""
    meshes = sync.source.placement.mesh, sync.target.placement.mesh
    failures = dict[tuple[str, str], list[tuple[Flaw, int]]]()
    doubtful = [
        group for group in groups if not (tiles(source, group[0], meshes[0]) and tiles(target, group[0], meshes[1]))
    ]
    for route in routes_of(doubtful, source, meshes[0], target, meshes[1]):
        for kind, flaw in {(flaw.code, flaw.side): flaw for flaw in reversed(list(flaws(route)))}.items():
            failures.setdefault(kind, []).append((flaw, len(route.parameters)))
    for flawed in failures.values():
        flaw, _ = flawed[0]
        side, mesh = (sync.source, meshes[0]) if flaw.side == "source" else (sync.target, meshes[1])
        count = sum(count for _, count in flawed)
        sides = ((sync.source, source), (sync.target, target)) if flaw.code == "HF736" else ()
        twice = [
            f"the layout of '{cutting.node.label}' cuts it over {axes}: these share coordinates, so a rank holds what "
            "all of them leave it, and no rank has the rest"
            for cutting, layout in sides
            if (axes := _dependent_axes(layout, flaw.parameter, cutting.placement.mesh)) is not None
        ]
        message = f"'{side.role}'{_place(flaw, mesh)}: {flaw.message}{other_count(count)}"
        yield sync_finding(sync, flaw.code, message, notes=tuple(twice))


def _dependent_axes(layout: Layout, parameter: Parameter, mesh: Mesh) -> str | None:
    """The axes of a layout's cuts in words, if some share coordinates; else None."""
    cuts = layout.cuts(parameter, mesh) if isinstance(layout, StandardLayout) else ()
    cutting = [cut for cut in cuts if cut.parts(mesh) > 1]
    return None if independent(cutting) else ", then over ".join("*".join(cut.axes) for cut in cutting)


def _place(flaw: Flaw, mesh: Mesh) -> str:
    """The first rank of a flaw with its coordinates, and how many others there are."""
    first = next(iter(flaw.ranks), None)
    if first is None:
        return f" on {mesh}"
    more = f" and {len(flaw.ranks) - 1} more" if len(flaw.ranks) > 1 else ""
    return f", rank {first} ({mesh.coordinates(first)}){more}"
