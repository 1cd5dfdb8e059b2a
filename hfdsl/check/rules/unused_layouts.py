"""Layouts of which nothing comes: no role states the parameters, or the layout itself is not known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hfdsl.check.findings import Finding, Label
from hfdsl.deploy.weight_syncs import SyncSide, WeightSync
from hfdsl.protocols.layouts import ByName, Composed, Generation, Layout, Replicas, StandardLayout, Tied
from hfdsl.types.batches import nearest

MOST_NAMES = 3
"""How many parameters a message names."""


def unused_layouts(sync: WeightSync, layouts: Mapping[str, Layout]) -> Iterator[Finding]:
    """HF738: a layout of parameters that neither role states, so that nothing comes of it."""
    sides = sync.source, sync.target
    if any(hasattr(side.placement.role, "state_parameters") for side in sides):
        yield from _unstated(sync)
        return
    for side in sides:
        layout = layouts.get(side.effect.kind)
        if side.effect.layout is not None and layout is not None and layout != Replicas():
            yield Finding(
                "HF738",
                f"'{side.node.label}' declares a layout of '{sync.state}', but neither '{sync.source.role}' nor "
                f"'{sync.target.role}' states the parameters of '{sync.state}': the check proves nothing, and each "
                "loading rank gets what the method returns",
                Label(side.node.op.signature.span, f"declares a layout of '{sync.state}'"),  # type: ignore[union-attr]  # a call
                (Label(side.placement.span, f"'{side.role}' is placed here"),),
                notes=(_stating(side),),
            )
            return


def _unstated(sync: WeightSync) -> Iterator[Finding]:
    """HF738: parameters that a base class states, and a role with another method of its own does not state again."""
    sides = sync.source, sync.target
    if not sync.declared:
        return
    if any(side.parameters for side in sides):
        yield from _of_another_constructor(sync)
        return
    for side in sides:
        method, role = side.overridden, side.placement.role
        if method is None:
            continue
        base = next(base for base in role.__mro__ if "state_parameters" in vars(base))
        again = f"state_parameters = staticmethod({base.__name__}.state_parameters)"
        yield Finding(
            "HF738",
            f"'{side.role}' has its own {method}, below {base.__name__}, which states the parameters of "
            f"'{sync.state}': they may be others, so the sync from '{sync.source.role}' to '{sync.target.role}' is not "
            "proved, and whole weights travel at once",
            Label(side.placement.span, f"{role.__name__} does not state its parameters"),
            notes=(f"if they are the same, state them again in {role.__name__}: {again}",),
        )
        return


def _of_another_constructor(sync: WeightSync) -> Iterator[Finding]:
    """HF738: a layout from the arguments of a base class's constructor, below which a class has another one."""
    for side in (sync.source, sync.target):
        if not side.has_other_arguments:
            continue
        role, method = side.placement.role.__name__, side.method
        yield Finding(
            "HF738",
            f"the layout of '{side.node.label}' takes the arguments of another constructor than that of {role}, so it "
            f"is not known: the sync from '{sync.source.role}' to '{sync.target.role}' is not proved, and whole "
            "weights travel at once",
            Label(side.placement.span, f"{role} takes other arguments"),
            (Label(side.node.op.signature.span, f"declares the layout of '{sync.state}'"),),  # type: ignore[union-attr]  # a call
            notes=(f"override '{method}' in {role}, and declare a layout that takes {role}'s arguments",),
        )
        return


def unmatched_patterns(sync: WeightSync, *layouts: Layout) -> Iterator[Finding]:
    """HF738: a pattern of a layout by name that no parameter has, so that the parameter meant by it is not cut."""
    for side, layout in zip((sync.source, sync.target), layouts, strict=True):
        names = [parameter.name for parameter in side.parameters or ()]
        for pattern in _unmatched(layout, names) if names else ():
            near = nearest(pattern, names)
            yield Finding(
                "HF738",
                f"the layout of '{side.node.label}' has a part for {pattern!r}, but '{side.role}' states no parameter "
                "of that name",
                Label(side.node.op.signature.span, f"declares the layout of '{sync.state}'"),  # type: ignore[union-attr]  # a call
                (Label(side.placement.span, f"'{side.role}' is placed here"),),
                notes=(f"it states {near!r}" if near else f"it states {', '.join(map(repr, names[:MOST_NAMES]))}",),
            )
            return


def _unmatched(layout: object, names: Sequence[str]) -> Iterator[str]:
    """The plain names of layouts by name, here or in parts, that are not among these.

    A pattern such as ``*.k_proj.weight`` may be meant for several models, of which one has no such parameter.
    """
    parts: tuple[StandardLayout, ...] = ()
    match layout:
        case ByName():
            yield from (pattern for pattern in layout.layouts if pattern not in names and not set(pattern) & set("*?["))
            parts = (*layout.layouts.values(), layout.otherwise)
        case Composed():
            parts = layout.layouts
        case Tied() | Generation():
            parts = (layout.layout,)
    for part in parts:
        yield from _unmatched(part, names)


def _stating(side: SyncSide) -> str:
    returned = f'{{"{side.effect.state}": [Parameter(name, shape), ...]}}'
    role = side.placement.role.__name__
    method = f"a static method state_parameters of {role}, which takes the constructor's arguments"
    return f"state them with {method} and returns {returned}"
