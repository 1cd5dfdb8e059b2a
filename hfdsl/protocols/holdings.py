"""Holdings: which ranks hold which boxes of a parameter in a layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from hfdsl.errors import ProtocolError
from hfdsl.protocols.boxes import Box, in_words, is_range
from hfdsl.protocols.cuts import Layout, Only, StandardLayout, part_at
from hfdsl.protocols.extents import boxes_of
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.parameters import Parameter
from hfdsl.types.numbers import brief

Coordinate: TypeAlias = tuple[int, ...]
"""Coordinates on several axes, in the order of the axes."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The ranks that hold the same boxes of a parameter: replicas."""

    boxes: tuple[Box, ...]
    ranks: tuple[int, ...]


def holdings(layout: Layout, parameter: Parameter, mesh: Mesh) -> tuple[Holding, ...]:
    """All boxes of a parameter on the ranks, each different part once; ranks without any are omitted.

    >>> from hfdsl.protocols.cuts import Slices
    >>> holdings(Slices(0), Parameter("bias", (8,)), Mesh(dp=2, tp=2))
    (Holding(boxes=(((0, 4),),), ranks=(0, 2)), Holding(boxes=(((4, 8),),), ranks=(1, 3)))

    Raises:
        ProtocolError: HF734 if the parameter cannot be cut so.
    """
    by_boxes: dict[tuple[Box, ...], list[int]] = {}
    for boxes, ranks in _boxes_by_ranks(layout, parameter, mesh):
        by_boxes.setdefault(boxes, []).extend(ranks)
    return tuple(Holding(boxes, tuple(sorted(ranks))) for boxes, ranks in by_boxes.items() if boxes)


def rank_boxes(layout: Layout, parameter: Parameter, mesh: Mesh, rank: int) -> tuple[Box, ...]:
    """The boxes of a rank that have elements.

    Raises:
        ProtocolError: HF734 if the parameter cannot be cut so, HF739 for what are no boxes, HF735 for those of another
            number of dims.

    >>> from hfdsl.protocols.cuts import Shards
    >>> [rank_boxes(Shards(), Parameter("bias", (2,)), Mesh(dp=3), rank) for rank in range(3)]
    [(((0, 1),),), (((1, 2),),), ()]
    """
    returned = layout.boxes(parameter, mesh, rank)
    boxes, dims, held = tuple(returned) if isinstance(returned, Iterable) else (returned,), len(parameter.shape), []
    for box in boxes:
        if not (isinstance(box, tuple) and all(map(is_range, box))):
            problem = f"{brief(returned)}, which are no boxes: a box is a tuple with a range (start, stop) per dim"
            raise ProtocolError("HF739", f"{_boxes_of_rank(layout, parameter, mesh, rank)}, {problem}")
        if len(box) != dims:
            problem = f"{in_words(box)}, which has {len(box)} dim{'s' * (len(box) != 1)} instead of {dims}"
            raise ProtocolError("HF735", f"{_boxes_of_rank(layout, parameter, mesh, rank)}, {problem}")
        if all(start != stop for start, stop in box):
            held.append(box)
    return tuple(held)


def _boxes_of_rank(layout: Layout, parameter: Parameter, mesh: Mesh, rank: int) -> str:
    name = type(layout).__name__
    return f"{name}.boxes gives for {parameter.name!r} {parameter.shape}, rank {rank} ({mesh.coordinates(rank)})"


def _boxes_by_ranks(
    layout: Layout, parameter: Parameter, mesh: Mesh
) -> Iterator[tuple[tuple[Box, ...], tuple[int, ...]]]:
    if not isinstance(layout, StandardLayout):
        for rank in range(mesh.world_size):
            yield rank_boxes(layout, parameter, mesh, rank), (rank,)
        return
    cuts = layout.cuts(parameter, mesh)
    for at, ranks in ranks_by_coordinate(mesh, tuple(cut.axes for cut in cuts)).items():
        yield boxes_of(part_at(parameter, mesh, cuts, at)), ranks


@lru_cache(maxsize=256)
def ranks_by_coordinate(mesh: Mesh, axes: tuple[tuple[str, ...], ...]) -> Mapping[Coordinate, tuple[int, ...]]:
    """The ranks at each coordinate of axes; several axes may count as one."""
    at: dict[Coordinate, list[int]] = {}
    cuts = [Only(axis=names, at=()) for names in axes]
    for rank in range(mesh.world_size):
        at.setdefault(tuple(cut.coordinate(mesh, rank) for cut in cuts), []).append(rank)
    return {coordinate: tuple(ranks) for coordinate, ranks in at.items()}
