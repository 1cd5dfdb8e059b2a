"""Placements of a value along one mesh axis, and the collects that preserve its meaning.

==========  ===========================================  ===============================
placement   the coordinates of the axis hold              a collect that keeps the value
==========  ===========================================  ===============================
``R``       the same value                               pick any one
``S``       consecutive parts of the rows                join in coordinate order
``P(op)``   terms of one value                           reduce by ``op``
``At(i)``   the value, at coordinate i alone             pick exactly i
``V``       unrelated values                             none
==========  ===========================================  ===============================

A list may be taken of anything: it loses nothing, and changes the kind of the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hfdsl.errors import ProtocolError
from hfdsl.protocols.mesh import Mesh, axis_size
from hfdsl.protocols.protocol import Protocol


@dataclass(frozen=True, slots=True)
class Replicated:
    """Every coordinate holds the same value.

    >>> str(Replicated())
    'R'
    """

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, slots=True)
class Sharded:
    """Every coordinate holds its consecutive share of dim ``dim``; protocols split and join dim 0, the rows.

    >>> str(Sharded(1))
    'S(1)'
    """

    dim: int = 0

    def __str__(self) -> str:
        return f"S({self.dim})"


@dataclass(frozen=True, slots=True)
class Partial:
    """The coordinates hold terms that make the value when reduced by ``op``.

    >>> str(Partial("sum"))
    'P(sum)'
    """

    op: str = "sum"

    def __str__(self) -> str:
        return f"P({self.op})"


@dataclass(frozen=True, slots=True)
class Varying:
    """The coordinates hold unrelated values.

    >>> str(Varying())
    'V'
    """

    def __str__(self) -> str:
        return "V"


@dataclass(frozen=True, slots=True)
class At:
    """Only coordinate ``index`` holds the value; a negative index counts from the end, as in a list.

    >>> str(At(0)), str(At(-1))
    ('@0', '@last')
    """

    index: int

    def __str__(self) -> str:
        return "@last" if self.index == -1 else f"@{self.index}"


AxisPlacement: TypeAlias = Replicated | Sharded | Partial | Varying | At
Collect: TypeAlias = int | str
"""Along one axis: ``"join"``, ``"first"``, ``"last"``, a coordinate, ``"list"``, or the reduction of a ``Partial``."""

R = Replicated()
S = Sharded()
V = Varying()
LAST = At(-1)


def fault(placement: AxisPlacement, collect: Collect, size: int) -> str | None:
    """The code of the finding when ``collect`` changes a value placed so on an axis of ``size``, or None.

    >>> fault(R, "join", 2), fault(S, "join", 2), fault(LAST, 0, 2)
    ('HF405', None, 'HF404')
    """
    picked = {"first": 0, "last": size - 1}.get(collect) if isinstance(collect, str) else collect
    if picked is not None and not 0 <= picked < size:
        return "HF404"
    if collect == "list" or size == 1:
        return None  # nothing is dropped, and a lone coordinate is all there is
    match placement:
        case Replicated():
            return None if picked is not None else "HF405"
        case Sharded(dim):
            return None if collect == "join" and dim == 0 else "HF419" if collect == "join" else "HF403"
        case Partial(op):
            return None if collect == op else "HF403"
        case At(index):
            return None if picked == (index if index >= 0 else index + size) else "HF404"
        case Varying():
            return "HF403"


PIPELINE = ("pp", "gen_pp")


def default_leaves(protocol: Protocol) -> dict[str, AxisPlacement]:
    """The default placement of a body's output: sharded on split axes, at the last stage of ``pp``, else replicated.

    Where the caller gets a list, the listed axes vary: that is what a list is for.

    >>> from hfdsl.protocols.predefined import THREE_D_PROTO
    >>> {axis: str(placement) for axis, placement in default_leaves(THREE_D_PROTO).items()}
    {'dp': 'S(0)', 'pp': '@last', 'tp': 'R'}
    """

    def leaves(axis: str, pick: Collect) -> AxisPlacement:
        if pick == "join" and not protocol.joins:
            return V
        if axis in protocol.split:
            return S
        return LAST if axis in PIPELINE and protocol.joins else R

    return {axis: leaves(axis, pick) for axis, pick in protocol.picks}


def faults(protocol: Protocol, mesh: Mesh, leaves: Mapping[str, AxisPlacement] | None = None) -> dict[str, str]:
    """The axes of ``mesh`` along which collecting a body's output changes it, with the code of the finding.

    ``leaves`` says how the body leaves its output where that differs from ``default_leaves``; ``ProtocolError`` (HF409)
    for an axis that the protocol does not have.

    >>> from hfdsl.protocols.predefined import THREE_D_PROTO
    >>> faults(THREE_D_PROTO, Mesh(dp=2, tp=2), {"tp": Partial("sum")})
    {'tp': 'HF403'}
    """
    placed = default_leaves(protocol)
    unknown = sorted(set(leaves or {}) - set(placed))
    if unknown:
        raise ProtocolError("HF409", f"protocol {protocol.name!r} has axes {list(placed)}, not {unknown}")
    placed.update(leaves or {})
    codes: dict[str, str] = {}
    for axis, pick in protocol.picks:
        collect: Collect = "list" if pick == "join" and not protocol.joins else pick
        code = fault(placed[axis], collect, axis_size(mesh, axis))
        if code is not None:
            codes[axis] = code
    return codes
