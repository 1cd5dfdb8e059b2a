"""Declared transfer protocols: from a mesh to the chunk of each rank, and to the collected ranks in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from hfdsl.errors import DefinitionError, ProtocolError
from hfdsl.protocols.mesh import Mesh, axis_rank, axis_size
from hfdsl.types.numbers import brief, is_count

Pick: TypeAlias = int | Literal["join", "first", "last"]
"""The choice of a collect along one axis: every coordinate in order, or only one."""

Gives: TypeAlias = Literal["whole", "per_rank", "per_stage"]
Takes: TypeAlias = Literal["whole", "per_rank"]

SYSTEMS: tuple[frozenset[str], ...] = (
    frozenset({"pp", "dp", "tp"}),
    frozenset({"dp", "micro_dp", "gen_pp", "gen_tp"}),
    frozenset({"rank"}),
)
"""The coordinate systems: in each of them a rank is identified by its coordinates."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """A transfer protocol declared on mesh coordinates.

    ``split`` names the axes whose product numbers the chunks, outermost first; no axis means that every rank gets the
    same value. ``collect`` says for every axis of one coordinate system, training (``pp dp tp``), generation
    (``dp micro_dp gen_pp gen_tp``) or flat (``rank``), whether all coordinates are taken in order (``"join"``) or one
    (``"first"``, ``"last"``, or a number). ``gives`` is what the caller gets: one joined batch or a list.
    ``takes`` is what a call takes: whole values, or lists with one value per rank.

    Raises ``DefinitionError`` for a name (HF111) or a kind (HF112) that has no meaning, and ``ProtocolError`` (HF409)
    for axes that make no coordinate system.

    >>> halves = Protocol("HALVES", split=("dp",), collect={"dp": "join", "pp": "last", "tp": "first"})
    >>> mesh = Mesh(pp=2, dp=2)
    >>> halves.chunk_count(mesh), halves.chunk_of(mesh), halves.collected(mesh)
    (2, (0, 1, 0, 1), (2, 3))
    """

    name: str
    split: tuple[str, ...] = ()
    collect: Mapping[str, Pick] | tuple[tuple[str, Pick], ...] = (("rank", "join"),)
    gives: Gives = "whole"
    takes: Takes = "whole"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise DefinitionError("HF111", f"a protocol needs a name, got {self.name!r}")
        pairs = _pairs(self.collect)
        if pairs is None:
            example = "{'dp': 'join', 'tp': 'first', 'pp': 'last'}"
            problem = f"protocol {self.name!r}: collect= takes a dict such as {example}, got {brief(self.collect)}"
            raise DefinitionError("HF112", problem)
        if not isinstance(self.split, (str, tuple, list)) or not all(isinstance(axis, str) for axis in self.split):
            problem = f"protocol {self.name!r}: split= takes a tuple of axes, such as ('dp',), got {brief(self.split)}"
            raise ProtocolError("HF409", problem)
        # One stored form, so that equal declarations are equal values and a protocol can key a cache.
        object.__setattr__(self, "collect", pairs)
        object.__setattr__(self, "split", (self.split,) if isinstance(self.split, str) else tuple(self.split))
        if self.gives not in ("whole", "per_rank", "per_stage") or self.takes not in ("whole", "per_rank"):
            raise DefinitionError(
                "HF112",
                f"protocol {self.name!r} gives 'whole', 'per_rank' or 'per_stage' and takes 'whole' or 'per_rank', "
                f"got gives={self.gives!r}, takes={self.takes!r}",
            )
        axes = [axis for axis, _ in pairs]
        if frozenset(axes) not in SYSTEMS or len(set(axes)) != len(axes):
            raise ProtocolError(
                "HF409",
                f"protocol {self.name!r}: collect= has {', '.join(map(str, axes)) or 'no axis'}; it takes one entry "
                "for each of pp, dp and tp; or for each of dp, micro_dp, gen_pp and gen_tp; or for rank alone",
            )
        for axis, pick in pairs:
            if not is_count(pick, least=0) and pick not in ("join", "first", "last"):
                raise DefinitionError(
                    "HF112",
                    f"protocol {self.name!r} collects {axis}={pick!r}; use 'join', 'first', 'last' or a coordinate",
                )
        if set(self.split) - set(axes) or len(set(self.split)) != len(self.split):
            raise ProtocolError(
                "HF409", f"protocol {self.name!r} splits over {list(self.split)}; split over axes of {axes}, each once"
            )

    @property
    def picks(self) -> tuple[tuple[str, Pick], ...]:
        """``collect`` as pairs of axis and pick, in the order they were declared."""
        return self.collect if isinstance(self.collect, tuple) else tuple(self.collect.items())

    @property
    def splits(self) -> bool:
        """Whether dispatch cuts the caller's value into chunks (a per-rank taker is given them ready cut)."""
        return bool(self.split) and self.takes == "whole"

    @property
    def joins(self) -> bool:
        """Whether collect joins outputs into one value (else the caller gets a list)."""
        return self.gives == "whole"

    def chunk_count(self, mesh: Mesh) -> int:
        """The number of chunks that dispatch makes on ``mesh`` (1: everyone gets the whole value)."""
        count = 1
        for axis in self.split:
            count *= axis_size(mesh, axis)
        return count

    def chunk_of(self, mesh: Mesh) -> tuple[int, ...]:
        """The index of the chunk that each rank gets."""
        return _chunk_of(self, mesh)

    def collected(self, mesh: Mesh) -> tuple[int, ...]:
        """The ranks whose outputs are taken, in output order: coordinates decide, never rank numbers.

        Raises ``ProtocolError`` (HF404) when a picked coordinate is not on ``mesh``.
        """
        return _collected(self, mesh)

    def collected_count(self, mesh: Mesh) -> int:
        """The number of collected ranks: ``len(self.collected(mesh))``, without enumerating ranks.

        Raises ``ProtocolError`` (HF404) when a picked coordinate is not on ``mesh``.
        """
        picked = _picked(self, mesh)
        if "rank" in picked:
            return int(_is_picked(mesh, picked["rank"], picked))
        # A coordinate of a generation replica says where a rank is along pp and where along tp, each by itself.
        pp_fold, tp_fold = mesh.pp // mesh.gen_pp_size, mesh.tp // mesh.gen_tp_size
        pp_replica, tp_replica = divmod(picked["micro_dp"], tp_fold) if "micro_dp" in picked else (None, None)
        stages = _picked_count(mesh.pp, pp_fold, picked.get("pp"), picked.get("gen_pp"), pp_replica)
        shards = _picked_count(mesh.tp, tp_fold, picked.get("tp"), picked.get("gen_tp"), tp_replica)
        return stages * shards * (1 if "dp" in picked else mesh.dp)

    def __str__(self) -> str:
        return self.name


def _pairs(collect: object) -> tuple[tuple[Any, Any], ...] | None:
    """The entries of ``collect``, as pairs of axis and pick; None if it has others."""
    entries = tuple(collect.items() if isinstance(collect, Mapping) else collect if isinstance(collect, tuple) else ())
    pairs = all(isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str) for entry in entries)
    return entries if pairs and isinstance(collect, (Mapping, tuple)) else None


@lru_cache(maxsize=1024)
def _chunk_of(protocol: Protocol, mesh: Mesh) -> tuple[int, ...]:
    chunks = []
    for rank in range(mesh.world_size):
        index = 0
        for axis in protocol.split:
            index = index * axis_size(mesh, axis) + axis_rank(mesh, axis, rank)
        chunks.append(index)
    return tuple(chunks)


@lru_cache(maxsize=1024)
def _collected(protocol: Protocol, mesh: Mesh) -> tuple[int, ...]:
    picked = _picked(protocol, mesh)
    # Axes nest the way dispatch cut them, the others as declared; a picked axis has one coordinate and orders nothing.
    nesting = (*protocol.split, *(axis for axis, _ in protocol.picks))
    ranks = (rank for rank in range(mesh.world_size) if _is_picked(mesh, rank, picked))
    return tuple(sorted(ranks, key=lambda rank: tuple(axis_rank(mesh, axis, rank) for axis in nesting)))


def _picked(protocol: Protocol, mesh: Mesh) -> dict[str, int]:
    """The coordinate that is picked along each axis."""
    return {axis: _coordinate(protocol, mesh, axis, pick) for axis, pick in protocol.picks if pick != "join"}


def _picked_count(size: int, fold: int, coordinate: int | None, generation: int | None, replica: int | None) -> int:
    """Count the picked coordinates of a training axis: a coordinate, those of a generation shard, of a replica.

    ``fold`` neighbors share a generation shard, one for each replica.
    """
    coordinates = range(size) if generation is None else range(generation * fold, (generation + 1) * fold)
    if replica is not None:
        coordinates = coordinates[replica::fold]
    return len(coordinates) if coordinate is None else int(coordinate in coordinates)


def _is_picked(mesh: Mesh, rank: int, picked: Mapping[str, int]) -> bool:
    return all(axis_rank(mesh, axis, rank) == at for axis, at in picked.items())


def _coordinate(protocol: Protocol, mesh: Mesh, axis: str, pick: Pick) -> int:
    size = axis_size(mesh, axis)
    ends: dict[Pick, int] = {"first": 0, "last": size - 1}
    index = ends.get(pick, pick)
    if not isinstance(index, int) or index >= size:
        raise ProtocolError(
            "HF404",
            f"protocol {protocol.name!r} collects {axis}={pick}, but {axis} of {mesh} runs over 0..{size - 1}",
        )
    return index
