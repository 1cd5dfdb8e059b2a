"""Sliced rows: do the ranks that hold slices of one model get the same rows?

A worked example, a model sliced over ``tp`` on ``Mesh(dp=2, tp=2)``, whose weights a method reads::

    rank   dp  tp   weights        rows by 3D_PROTO   rows by DP_PROTO
    0      0   0    left half      0 to 3             0 and 1
    1      0   1    right half     0 to 3             2 and 3
    2      1   0    left half      4 to 7             4 and 5
    3      1   1    right half     4 to 7             6 and 7

A layer of such a model adds up the results of the ranks of ``tp``. By ``DP_PROTO`` rank 0 adds its halves for row 0 to
those of rank 1 for row 2. The shapes agree, so every row gets the numbers of two rows.

The rule knows that a model is sliced if the role states ``sliced``, or if a layout cuts a parameter along the axis. A
method may get other rows and first gather those of its group, as some engines do, or have the whole weights by
``reshards``. So the rule does not report a method if its text, or that of a method of its class that it calls, names an
axis or gathers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from hfdsl.check.bodies.syntax import definition_of
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import PlacedMethod
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.deploy.deployment import Placement
from hfdsl.deploy.weight_syncs import SyncSide
from hfdsl.graph.program import Node
from hfdsl.protocols import role_facts
from hfdsl.protocols.cuts import StandardLayout
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.state import effects_of, methods_with

AXES = ("tp", "pp")
"""The axes along which ranks hold slices of one model."""


def slices_get_the_same_rows(context: Context) -> Iterator[Finding]:
    """HF426: a method that reads sliced weights gives the same rows to all ranks that hold slices of one model."""
    reported = set[object]()
    for node, method in context.program.placed_calls:
        signature, place = method.signature, method.placement
        called = place.span, signature.name
        if called in reported or method.misfit is not None or not method.protocol.splits:
            continue
        axes = [axis for axis in AXES if _splits(method, axis)]
        if not axes or _gathers(place, signature.name):
            continue
        axis = next((axis for axis in axes if _is_sliced(node, method, axis)), None)
        if axis is None:
            continue
        reported.add(called)
        size = getattr(place.mesh, axis)
        yield Finding(
            "HF426",
            f"'{node.label}' gets other rows on each of the {size} ranks along '{axis}', which hold slices of one "
            "model: their sums mix rows",
            Label(signature.span, f"registered with {method.protocol.name}, which splits rows over '{axis}' too"),
            (Label(node.span, "called here"), Label(place.span, f"{axis} = {size}")),
            notes=(
                "register it with Dispatch.THREE_D_PROTO, whose ranks of one group get the same rows",
                f"to gather the rows of its group, a method uses self.axis('{axis}')",
            ),
        )


def _splits(method: PlacedMethod, axis: str) -> bool:
    """Whether ranks that differ only along an axis get other rows."""
    return getattr(method.placement.mesh, axis) > 1 and not {"rank", axis}.isdisjoint(method.protocol.split)


def _is_sliced(node: Node, method: PlacedMethod, axis: str) -> bool:
    """Whether a method reads weights that are certainly sliced along an axis while it runs."""
    place, name = method.placement, method.signature.name
    states = {effect.state for effect in effects_of(method.signature.body) if effect.kind in ("reads", "writes")}
    if not states or name in role_facts.reshards.of(place):
        return False
    if axis == "tp" and callable(getattr(place.role, "sliced", None)):
        return True
    sides = (
        SyncSide(node, "", holder, place, effect)
        for kind in ("exports", "loads")
        for holder in methods_with(place.role, kind).values()
        for effect in effects_of(getattr(place.role, holder))
        if effect.kind == kind and effect.state in states
    )
    return any(_cuts(side, place.mesh, axis) for side in sides)


def _cuts(side: SyncSide, mesh: Mesh, axis: str) -> bool:
    """Whether a declared layout cuts one of its parameters along an axis."""
    try:
        layout = side.layout()
        cuts = (cut for parameter in side.parameters for cut in _cuts_of(layout, parameter, mesh))
        return any(axis in cut.axes for cut in cuts)
    except Exception:  # noqa: BLE001  # of a user's function, or of the layout: HF734 and HF739 report it
        return False


def _cuts_of(layout: Any, parameter: Any, mesh: Mesh) -> tuple[Any, ...]:
    return layout.cuts(parameter, mesh) if isinstance(layout, StandardLayout) else ()


def _gathers(place: Placement[Any], method: str) -> bool:
    """Whether a method, or one of its class that it calls, may gather rows: also if its text is a stub, or missing."""
    waiting, visited = [method], set[str]()
    while waiting:
        name = waiting.pop()
        body = getattr(place.role, name, None)
        if name in visited or not isinstance(body, FunctionType):
            continue
        visited.add(name)
        definition = definition_of(body)
        if definition is None or all(map(_is_stub, definition.body)):
            return True
        for code in nodes_of(definition):
            match code:
                case ast.Attribute(attr=attribute) | ast.Name(id=attribute) if (
                    attribute == "axis" or "gather" in attribute
                ):
                    return True
                case ast.Attribute(ast.Name("self"), attribute):
                    waiting.append(attribute)
    return False


def _is_stub(statement: ast.stmt) -> bool:
    """Whether a statement computes nothing: a docstring, ``...`` or an exception."""
    return isinstance(statement, ast.Raise) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )
