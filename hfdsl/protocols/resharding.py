"""Resharding: the ranks from which each rank can receive its boxes of a parameter, and the proof that these suffice.

A worked example
----------------
A weight of 8 rows over ``tp=4``, of which generation in the same processes has ``gen_tp=2``::

    rank   holds    needs    owns of it    receives
    0      [0:2]    [0:4]    [0:2]         [2:4] from rank 1
    1      [2:4]    [0:4]    [2:4]         [0:2] from rank 0
    2      [4:6]    [4:8]    [4:6]         [6:8] from rank 3
    3      [6:8]    [4:8]    [6:8]         [4:6] from rank 2

Every rank receives 2 of 8 rows, (d_g - 1) / t of the weight for ``d_g`` = 4 / 2 replicas in ``t`` = 4 ranks, holds 4
rows in the end, and no row twice: what it held is a part of what it needs.

The proof
---------
``routes`` goes through the holdings of the source, the nearest first where they overlap, and gives each element that is
still needed to the first holding that has it. ``flaws`` does not believe this. For the boxes N that a rank needs and
the pieces P that it is assigned:

- N without P is empty: every needed element arrives, from the rank itself or from another one.
- The pieces have as many elements as N. They cover N, so they have at least |N| different elements, and no more in all:
  so no two of them overlap, and none has anything beside N.
- Each piece lies in its holding: the rank that sends it has it.
- The pieces of the rank's own holding have as many elements as that holding has in common with N: nothing is received
  that is already in the process.

So the bytes that a rank receives are those of N less those of N that it owns, whatever the assignment.

Ranks with equal boxes on both sides share one ``Need``, and parameters of one shape, dtype and cuts one ``Route``. The
proof of a route is that of all its parameters on all its ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from hfdsl.protocols.boxes import (
    Box,
    combination_count,
    difference,
    in_words,
    intersection,
    overlap,
    total,
    volume,
    whole,
    without,
)
from hfdsl.protocols.cuts import is_predefined
from hfdsl.protocols.layouts import Holding, Layout, Parameter, StandardLayout, holdings
from hfdsl.protocols.mesh import Mesh

MOST_BOXES: Final = 4
"""How many boxes of a rank a message lists."""

Side: TypeAlias = Literal["source", "target"]

RankMap: TypeAlias = Mapping[int, int]
"""For target ranks in the process of a source rank, that rank."""

RankDistance: TypeAlias = "Callable[[tuple[int, ...], int], tuple[int, ...]]"
"""The distance from the nearest of some source ranks to a target rank."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A box that each rank of a holding of the source has."""

    box: Box
    holding: Holding


@dataclass(frozen=True, slots=True)
class Need:
    """The boxes that ``ranks`` of the target need, in pieces, and what these ranks own on the side of the source."""

    ranks: tuple[int, ...]
    boxes: tuple[Box, ...]
    pieces: tuple[Piece, ...]
    owned: Holding | None = None

    @property
    def received(self) -> Iterator[Piece]:
        """The pieces that another process sends."""
        return (piece for piece in self.pieces if piece.holding is not self.owned)

    @property
    def owned_elements(self) -> int:
        """The number of needed elements that the process already has."""
        return _common(self.boxes, self.owned.boxes) if self.owned else 0


@dataclass(frozen=True, slots=True)
class Route:
    """Parameters with equal cuts on both sides, the ranks that hold them, and the ranks that need them."""

    parameters: tuple[Parameter, ...]
    sources: tuple[Holding, ...]
    needs: tuple[Need, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The full shape of each parameter."""
        return self.parameters[0].shape

    @property
    def item_bytes(self) -> int:
        """The bytes of an element."""
        return self.parameters[0].item_bytes


def routes(
    parameters: Iterable[Parameter],
    source_layout: Layout,
    source_mesh: Mesh,
    target_layout: Layout,
    target_mesh: Mesh,
    shared: RankMap | None = None,
    distance: RankDistance | None = None,
) -> tuple[Route, ...]:
    """The routes of all parameters, tied ones once; of holdings that overlap, the one at the least ``distance`` sends.

    Raises:
        ProtocolError: HF734 if a parameter cannot be cut as a layout says.

    >>> from hfdsl.protocols.layouts import Generation, Slices
    >>> mesh = Mesh(tp=4, gen_tp=2)
    >>> same = {rank: rank for rank in range(4)}
    >>> weight = Parameter("weight", (8,))
    >>> [route] = routes([weight], Slices(0), mesh, Generation(Slices(0)), mesh, same)
    >>> [(need.ranks, [piece.box for piece in need.received]) for need in route.needs]
    [((0,), [((2, 4),)]), ((1,), [((0, 2),)]), ((2,), [((6, 8),)]), ((3,), [((4, 6),)])]
    """
    groups = alike(parameters, source_layout, source_mesh, target_layout, target_mesh)
    return routes_of(groups, source_layout, source_mesh, target_layout, target_mesh, shared, distance)


def routes_of(
    groups: Iterable[tuple[Parameter, ...]],
    source_layout: Layout,
    source_mesh: Mesh,
    target_layout: Layout,
    target_mesh: Mesh,
    shared: RankMap | None = None,
    distance: RankDistance | None = None,
) -> tuple[Route, ...]:
    """The routes of parameters in the groups of ``alike``.

    Raises:
        ProtocolError: as ``routes``.
    """
    processes = tuple(sorted(shared.items())) if shared else ()
    return tuple(
        _route(
            group,
            holdings(source_layout, group[0], source_mesh),
            holdings(target_layout, group[0], target_mesh),
            processes,
            distance,
        )
        for group in groups
    )


def alike(
    parameters: Iterable[Parameter], source_layout: Layout, source_mesh: Mesh, target_layout: Layout, target_mesh: Mesh
) -> tuple[tuple[Parameter, ...], ...]:
    """Group parameters by shape, element size and cuts, or boxes, on both sides; tied parameters count once.

    Raises:
        ProtocolError: HF734 if a layout cannot cut a parameter.
    """
    groups: dict[object, list[Parameter]] = {}
    stored: set[str] = set()
    for parameter in parameters:
        name = target_layout.stored_as(parameter.name)
        if name not in stored:
            stored.add(name)
            groups.setdefault(
                (
                    parameter.shape,
                    parameter.item_bytes,
                    _lies(source_layout, parameter, source_mesh),
                    _lies(target_layout, parameter, target_mesh),
                ),
                [],
            ).append(parameter)
    return tuple(map(tuple, groups.values()))


def _lies(layout: Layout, parameter: Parameter, mesh: Mesh) -> object:
    """A key that is equal for parameters with equal cuts; of a layout or cut of users' own, with equal boxes."""
    cuts = tuple(layout.cuts(parameter, mesh)) if isinstance(layout, StandardLayout) else None
    return holdings(layout, parameter, mesh) if cuts is None or not all(map(is_predefined, cuts)) else cuts


def _route(
    parameters: tuple[Parameter, ...],
    sources: tuple[Holding, ...],
    targets: tuple[Holding, ...],
    processes: tuple[tuple[int, int], ...],
    distance: RankDistance | None,
) -> Route:
    held = tuple(holding.boxes for holding in sources)
    covered = _assigned((whole(parameters[0].shape),), held)
    disjoint = sum(volume(box) for box, _ in covered) == sum(map(total, held))
    owners = _owners(tuple(target.ranks for target in targets), tuple(source.ranks for source in sources), processes)
    needs: list[Need] = []
    for target, groups in zip(targets, owners, strict=True):
        pieces = _pieces(target.boxes, sources) if disjoint else ()
        for owner, ranks in groups:
            owned = None if owner is None else sources[owner]
            if disjoint:
                needs.append(Need(ranks, target.boxes, pieces, owned))
                continue
            for order, readers in _orders(ranks, owner, sources, distance):
                needs.append(Need(readers, target.boxes, _pieces(target.boxes, order), owned))
    return Route(parameters, sources, tuple(needs))


@lru_cache(maxsize=1024)
def _owners(
    targets: tuple[tuple[int, ...], ...],
    sources: tuple[tuple[int, ...], ...],
    processes: tuple[tuple[int, int], ...],
) -> tuple[tuple[tuple[int | None, tuple[int, ...]], ...], ...]:
    """For each holding of the target, its ranks by the holding of the source that is in their process."""
    holding_of = {rank: number for number, ranks in enumerate(sources) for rank in ranks}
    owner_of = {target: holding_of.get(source) for target, source in processes}
    groups: list[tuple[tuple[int | None, tuple[int, ...]], ...]] = []
    for target in targets:
        by_owner: dict[int | None, list[int]] = {}
        for rank in target:
            by_owner.setdefault(owner_of.get(rank), []).append(rank)
        groups.append(tuple((owner, tuple(ranks)) for owner, ranks in by_owner.items()))
    return tuple(groups)


def _orders(
    ranks: tuple[int, ...], owner: int | None, sources: tuple[Holding, ...], distance: RankDistance | None
) -> Iterator[tuple[tuple[Holding, ...], tuple[int, ...]]]:
    """The orders in which ranks look for an element in holdings, their own first and then the nearest."""
    by_order: dict[tuple[int, ...], list[int]] = {}
    for rank in ranks:
        distances = [() if distance is None else distance(source.ranks, rank) for source in sources]
        order = sorted(range(len(sources)), key=lambda number: (number != owner, distances[number]))
        by_order.setdefault(tuple(order), []).append(rank)
    for numbers, readers in by_order.items():
        yield tuple(sources[number] for number in numbers), tuple(readers)


def _pieces(boxes: tuple[Box, ...], sources: tuple[Holding, ...]) -> tuple[Piece, ...]:
    assigned = _assigned(boxes, tuple(holding.boxes for holding in sources))
    return tuple(Piece(box, sources[number]) for box, number in assigned)


@lru_cache(maxsize=256)  # stages differ in their ranks, not in their boxes
def _assigned(boxes: tuple[Box, ...], held: tuple[tuple[Box, ...], ...]) -> tuple[tuple[Box, int], ...]:
    """Boxes in pieces, each with the number of the first holding that has it; parts that none has are omitted."""
    pieces: list[tuple[Box, int]] = []
    missing = boxes
    for number, source in enumerate(held):
        for box in source:
            uncovered: list[Box] = []
            for part in missing:
                common = intersection(part, box)
                if common is None:
                    uncovered.append(part)
                else:
                    pieces.append((common, number))
                    uncovered += difference(part, common)
            missing = tuple(uncovered)
        if not missing:
            break
    return tuple(pieces)


def _common(left: Iterable[Box], right: Sequence[Box]) -> int:
    """Count the elements that two sets of disjoint boxes have in common."""
    return sum(volume(common) for box in left for other in right if (common := intersection(box, other)) is not None)


# -- the proof ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flaw:
    """A defect of a parameter on some ranks of a side, or, where ``ranks`` is empty, on all of them together."""

    code: str
    parameter: Parameter
    side: Side
    ranks: tuple[int, ...]
    problem: str

    @property
    def message(self) -> str:
        """The parameter, the elements and the problem, without ranks."""
        return f"{self.parameter.name!r} {self.parameter.shape}: {self.problem}"


def flaws(route: Route) -> Iterator[Flaw]:
    """Prove that a route gives every rank its needed boxes: yield the defects, none if the proof succeeds."""
    parameter = route.parameters[0]
    invalid = [
        *(flaw for holding in route.sources for flaw in _invalid(parameter, "source", holding.ranks, holding.boxes)),
        *(flaw for need in route.needs for flaw in _invalid(parameter, "target", need.ranks, need.boxes)),
    ]
    if invalid:
        yield from invalid
        return  # the checks below assume valid boxes
    held = dict.fromkeys(need.boxes for need in route.needs)
    lost = without([whole(parameter.shape)], (box for boxes in held for box in boxes))
    if total(lost):
        yield Flaw("HF736", parameter, "target", (), f"{_elements(lost)} on no rank that loads it")
    pieces_held: dict[int, dict[int, int]] = {}  # of pieces, the elements by holding
    for need in route.needs:
        if id(need.pieces) not in pieces_held:
            pieces_held[id(need.pieces)] = by_holding = dict[int, int]()
            for piece in need.pieces:
                by_holding[id(piece.holding)] = by_holding.get(id(piece.holding), 0) + volume(piece.box)
            yield from _unequal(parameter, need)
        owned = pieces_held[id(need.pieces)].get(id(need.owned), 0)
        if owned != need.owned_elements:
            problem = f"{need.owned_elements} of the needed elements are in the process, and {owned} of them are kept"
            yield Flaw("HF736", parameter, "target", need.ranks, problem)


def _invalid(parameter: Parameter, side: Side, ranks: tuple[int, ...], boxes: Sequence[Box]) -> Iterator[Flaw]:
    """HF735: boxes that are no parts of the parameter, or that overlap on one rank or make no tensor together."""
    full = whole(parameter.shape)
    for box in boxes:
        if without([box], [full]):
            yield Flaw("HF735", parameter, side, ranks, f"{in_words(box)} is not within the parameter")
            return
    if (twice := overlap(boxes)) is not None:
        yield Flaw("HF735", parameter, side, ranks, f"{_elements([twice])} in two boxes of one rank")
    elif (together := tensor_problem(boxes)) is not None:
        yield Flaw("HF735", parameter, side, ranks, together)


def tensor_problem(boxes: Sequence[Box]) -> str | None:
    """Why disjoint boxes of a rank are no tensor; None if they are one.

    >>> tensor_problem([((0, 2), (0, 2)), ((2, 4), (2, 4))])
    'its boxes [0:2, 0:2], [2:4, 2:4] are 2 of the 4 combinations of their ranges, so they make no tensor'
    """
    combinations = combination_count(boxes)
    if len(boxes) == combinations:
        return None
    named, others = ", ".join(map(in_words, boxes[:MOST_BOXES])), len(boxes) - MOST_BOXES
    more = f" and {others} other{'s' * (others > 1)}" if others > 0 else ""
    count = f"{len(boxes)} of the {combinations} combinations of their ranges"
    return f"its boxes {named}{more} are {count}, so they make no tensor"


def _unequal(parameter: Parameter, need: Need) -> Iterator[Flaw]:
    """HF736: pieces that are not exactly the needed boxes, or that their sender does not hold."""
    assigned = tuple(piece.box for piece in need.pieces)
    missing, sent, count = _remaining(need.boxes, assigned), total(assigned), total(need.boxes)
    if missing:
        problem = f"{_elements(missing)} needed, and on no rank that exports it"
        yield Flaw("HF736", parameter, "target", need.ranks, problem)
    elif sent != count:
        problem = f"{_elements(need.boxes)} needed, and {sent} elements would be sent"
        yield Flaw("HF736", parameter, "target", need.ranks, problem)
    for piece in need.pieces:
        if lacking := _remaining((piece.box,), piece.holding.boxes):
            problem = f"{_elements(lacking)} sent by a rank that does not hold it"
            yield Flaw("HF736", parameter, "source", piece.holding.ranks, problem)


@lru_cache(maxsize=2048)  # as of ``_assigned``
def _remaining(boxes: tuple[Box, ...], removed: tuple[Box, ...]) -> tuple[Box, ...]:
    return without(boxes, removed)


def _elements(boxes: Sequence[Box]) -> str:
    """Boxes in words, of several the first: ``[0:4, 0:8] (32 elements) is``."""
    count, others = total(boxes), len(boxes) - 1
    more = f" and {others} other box{'es' * (others > 1)}" if others else ""
    return f"{in_words(boxes[0])}{more} ({count} element{'s' * (count != 1)}) {'are' if others else 'is'}"
