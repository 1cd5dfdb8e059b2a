"""Owners of a piece: of the ranks that hold it, those that send it to a rank, in turns.

The nearest ones do: those on the same host, and of these the ones that differ from the rank on the fewest axes.

>>> owners = Owners(Mesh(dp=2, tp=2), {0: 0}, hosts=([0, 0, 1, 1], [0, 1]))
>>> owners.nearest((1, 2, 3), target=0), owners.nearest((1, 2, 3), target=1)
((1,), (2, 3))
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from hfdsl.protocols.mesh import Coordinates, Mesh
from hfdsl.protocols.resharding import RankMap


class Owners:
    """The owners of pieces on the ranks of a mesh; ``shared`` and ``hosts`` are as in ``Schedule``."""

    def __init__(self, mesh: Mesh, shared: RankMap, hosts: tuple[Sequence[int] | None, Sequence[int] | None]) -> None:
        self._mesh, self._shared, self._hosts = mesh, shared, hosts
        self._nearest: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}

    def nearest(self, holders: tuple[int, ...], target: int) -> tuple[int, ...]:
        """The holders that are nearest to a target rank."""
        if (holders, target) not in self._nearest:
            distances = [self._distance(source, target) for source in holders]
            least = min(distances)
            self._nearest[holders, target] = tuple(
                source for source, distance in zip(holders, distances, strict=True) if distance == least
            )
        return self._nearest[holders, target]

    def of_turn(self, holders: tuple[int, ...], target: int, turn: int) -> int:
        """The nearest holder whose turn it is."""
        owners = self.nearest(holders, target)
        return owners[turn % len(owners)]

    def distance(self, holders: tuple[int, ...], target: int) -> tuple[bool, int]:
        """The distance from a target rank to the nearest of the holders."""
        return min(self._distance(source, target) for source in holders)

    @cached_property
    def _coordinates(self) -> tuple[Coordinates, ...]:
        return tuple(map(self._mesh.coordinates, range(self._mesh.world_size)))

    def _distance(self, source: int, target: int) -> tuple[bool, int]:
        """Whether hosts differ, and on how many axes of the mesh the rank differs from that in the target's process."""
        hosts, other_hosts = self._hosts
        remote = hosts is not None and other_hosts is not None and hosts[source] != other_hosts[target]
        if target not in self._shared:
            return remote, 0
        rank, peer = self._coordinates[source], self._coordinates[self._shared[target]]
        return remote, (rank.pp != peer.pp) + (rank.dp != peer.dp) + (rank.tp != peer.tp)
