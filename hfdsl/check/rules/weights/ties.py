"""Ties: are parameters that a layout ties to each other one tensor, on both sides of a sync?

A worked example of an engine that ties its output layer to its embedding::

    the engine states                      the trainer states       finding
    embed (64, 8), head (64, 8)            the same, tied           none
    embed (64, 8), head (64, 8)            the same, not tied       HF731: the values of head do not arrive
    embed (64, 8), head (32, 8)            ...                      HF732: one tensor has one shape
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hfdsl.check.findings import Finding, Label
from hfdsl.check.raised import raised_at
from hfdsl.check.rules.weights.sync_findings import other_count, sync_finding
from hfdsl.deploy.weight_syncs import SyncSide, WeightSync
from hfdsl.protocols.layouts import Layout
from hfdsl.types.numbers import brief


def ties_are_names(sync: WeightSync, layouts: Mapping[str, Layout]) -> Iterator[Finding]:
    """HF739: a layout gives the name under which a parameter is stored."""
    names = dict.fromkeys(parameter.name for side in (sync.source, sync.target) for parameter in side.parameters)
    for side in (sync.source, sync.target):
        layout = layouts.get(side.effect.kind)
        problem, raised = ("", ()) if layout is None else _stored_problem(layout, names)
        if problem:
            yield Finding(
                "HF739",
                f"the layout of '{side.node.label}': {problem}",
                Label(side.node.op.signature.span, f"declares the layout of '{sync.state}'"),  # type: ignore[union-attr]  # a call
                (*raised, Label(side.placement.span, f"'{side.role}' is placed here")),
            )


def _stored_problem(layout: Layout, names: Mapping[str, None]) -> tuple[str, tuple[Label, ...]]:
    """The problem with a stored name in words, empty if there is none, and the user's line that raised it."""
    for name in names:
        method = f"{type(layout).__name__}.stored_as"
        try:
            stored: object = layout.stored_as(name)
        except Exception as error:  # noqa: BLE001  # a user's layout
            return f"{method} raises {type(error).__name__} for {name!r}: {error}", raised_at(error)
        if not isinstance(stored, str):
            return f"{method} gives {brief(stored)} for {name!r}, expected the name under which it is stored", ()
    return "", ()


def separate(sync: WeightSync, source: Layout, target: Layout) -> Iterator[Finding]:
    """HF731: two parameters of the exporting side that the loading side ties to each other."""
    first_of: dict[str, str] = {}
    for name in (names := dict.fromkeys(parameter.name for parameter in sync.source.parameters)):
        stored = target.stored_as(name)
        other = stored if stored in names else first_of.setdefault(stored, name)
        if other != name and source.stored_as(name) != source.stored_as(other):
            yield sync_finding(
                sync,
                "HF731",
                f"'{sync.source.role}' exports {name!r} and {other!r} as two parameters, and '{sync.target.role}' has "
                f"one of both names: the values of {name!r} do not arrive",
                notes=(f"if they are tied in '{sync.source.role}', too, say so: {tying(name, other)}",),
            )
            return


def tying(name: str, stored: str) -> str:
    """The layout that ties a parameter to another one."""
    return f'layout=Tied(..., {{"{name}": "{stored}"}})'


def tied_shapes_agree(sync: WeightSync, source: Layout, target: Layout) -> Iterator[Finding]:
    """HF732: parameters that a side ties to each other have one shape, since they are one tensor."""
    for side, layout in ((sync.source, source), (sync.target, target)):
        yield from _tied_shapes(sync, side, layout)


def _tied_shapes(sync: WeightSync, side: SyncSide, layout: Layout) -> Iterator[Finding]:
    stored_of = {parameter.name: parameter for parameter in side.parameters}
    for parameter in side.parameters:
        stored_of.setdefault(layout.stored_as(parameter.name), parameter)
    pairs = [(tied, stored_of[layout.stored_as(tied.name)]) for tied in side.parameters]
    different = [(tied, stored) for tied, stored in pairs if tied.shape != stored.shape]
    if different:
        tied, stored = different[0]
        yield sync_finding(
            sync,
            "HF732",
            f"'{side.role}' ties {tied.name!r} to {stored.name!r}, and states the shapes {tied.shape} and "
            f"{stored.shape}{other_count(len(different))}",
            notes=("tied parameters are one tensor, of one shape",),
        )
