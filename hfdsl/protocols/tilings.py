"""Tilings: whether the parts that cuts leave cover a parameter, without a look at every rank.

A worked example
----------------
``Slices(0).then(Shards("dp"))`` of a weight of 8192 rows on ``Mesh(dp=128, tp=8)``: 1,024 ranks hold 1,024 different
parts. The eight slices tile the weight, and each has 1024 rows. A cut sees how much is left of each dim and a
coordinate, and nothing else, so all eight are cut alike: if the 128 shards of 1024 rows tile those rows, then all 1,024
parts tile the weight. That are 136 cuts to look at.

The argument
------------
By induction over the cuts: let the parts after some cuts hold every element of the parameter. Each is cut by the next
one as an array of its own that has the same sizes. If the parts of that array cover it, for all coordinates, they hold
every element of it. Since the axes are independent, each part is there with each of these coordinates. Parts without
elements twice stay so, since a cut takes from them what lies at different places.

So where both sides of a sync tile a parameter, every element that a rank needs is on some rank that exports it, and
there is a schedule. Where they do not, or where that is not known here, ``resharding.routes`` finds out rank by rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from hfdsl.protocols.boxes import Range
from hfdsl.protocols.cuts import Cut, Layout, StandardLayout, is_predefined
from hfdsl.protocols.extents import Extent
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.parameters import Parameter

INDEPENDENT: Final = (frozenset(("pp", "dp", "tp")), frozenset(("gen_pp", "gen_tp", "micro_dp", "dp")))
"""Axes that lay out the ranks of a mesh: each combination of coordinates is one rank, or several."""


def tiles(layout: Layout, parameter: Parameter, mesh: Mesh) -> bool:
    """Whether ranks hold all of a parameter, and no rank holds an element twice; False if unknown.

    >>> from hfdsl.protocols.layouts import Only, Shards, Slices
    >>> layout, weight = Slices(0).then(Shards("dp")), Parameter("weight", (8192, 4))
    >>> tiles(layout, weight, Mesh(dp=128, tp=8)), tiles(layout.then(Only(axis="pp", at=(1,))), weight, Mesh(pp=1))
    (True, False)

    Raises:
        ProtocolError: HF734 if the parameter cannot be cut so.
    """
    return isinstance(layout, StandardLayout) and cuts_tile(parameter, layout.cuts(parameter, mesh), mesh)


def cuts_tile(parameter: Parameter, cuts: Sequence[Cut], mesh: Mesh) -> bool:
    """``tiles`` for the cuts of a layout."""
    if not all(map(is_predefined, cuts)) or not independent(cuts):
        return False
    shapes = {parameter.shape}
    for cut in cuts:
        remaining = set[tuple[int, ...]]()
        for shape in shapes:
            parts = _parts(parameter, cut, shape, cut.parts(mesh))
            if 0 not in shape and not _cover(shape, parts):
                return False
            remaining.update(tuple(sum(stop - start for start, stop in ranges) for ranges in part) for part in parts)
        shapes = {shape for shape in remaining if 0 not in shape}
    return True


def independent(cuts: Iterable[Cut]) -> bool:
    """Whether each combination of the coordinates of cuts is on some rank.

    >>> from hfdsl.protocols.layouts import Shards, Slices
    >>> independent([Slices(0, "tp"), Shards("dp")]), independent([Slices(0, "tp"), Shards("tp")])
    (True, False)
    """
    axes = [axis for cut in cuts for axis in cut.axes]
    return len(set(axes)) == len(axes) and any(combined.issuperset(axes) for combined in INDEPENDENT)


def _parts(parameter: Parameter, cut: Cut, shape: tuple[int, ...], count: int) -> tuple[Extent, ...]:
    full_extent: Extent = tuple(((0, size),) for size in shape)
    parts = (cut.cut(parameter, full_extent, index, count) for index in range(count))
    return tuple(part for part in parts if part is not None)


def _cover(shape: tuple[int, ...], parts: Iterable[Extent]) -> bool:
    """Whether parts, each whole except in one dim, cover all elements, none of them twice in one part."""
    ranges_of: dict[int, set[Range]] = {}
    parts = tuple(dict.fromkeys(parts))
    for part in parts:
        partial = [dim for dim, size in enumerate(shape) if part[dim] != ((0, size),)]
        if not partial:
            return all(_inside(size, ranges) for part in parts for size, ranges in zip(shape, part, strict=True))
        if len(partial) > 1 or not _inside(shape[partial[0]], part[partial[0]]):
            return False
        ranges_of.setdefault(partial[0], set()).update(part[partial[0]])
    return any(_reaches(shape[dim], ranges) for dim, ranges in ranges_of.items())


def _inside(size: int, ranges: Sequence[Range]) -> bool:
    """Whether ranges are disjoint parts of a dim."""
    ordered = sorted(ranges)
    return all(start >= 0 and stop <= size for start, stop in ordered) and all(
        first[1] <= second[0] for first, second in pairwise(ordered)
    )


def _reaches(size: int, ranges: Iterable[Range]) -> bool:
    """Whether ranges cover a dim."""
    end = 0
    for start, stop in sorted(ranges):
        if start > end:
            return False
        end = max(end, stop)
    return end >= size
