"""Meshes: named axes over the ranks of a worker group, and the generation groups inside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from hfdsl.errors import ProtocolError, ResourceError
from hfdsl.types.arguments import constructor_takes
from hfdsl.types.numbers import brief, count_range, divisors, is_count

AXES = ("pp", "dp", "tp")
"""The training axes, in the default numbering order: pipeline stages outermost, tensor ranks innermost."""

GENERATION_AXES = ("dp", "micro_dp", "gen_pp", "gen_tp")
"""The axes of generation inside a mesh: each rank has coordinates on these too."""


@dataclass(frozen=True, slots=True)
class Coordinates:
    """The coordinates of one rank along the training axes."""

    pp: int
    dp: int
    tp: int

    def __str__(self) -> str:
        return f"pp={self.pp} dp={self.dp} tp={self.tp}"


@constructor_takes(ResourceError, "HF501", "hf.Mesh")
@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The axes that a role's ranks are laid out on; ``order`` numbers the ranks, outermost axis first.

    Generation inside the mesh may use smaller groups: ``gen_pp`` and ``gen_tp`` divide ``pp`` and ``tp``; what is left
    over becomes micro-data-parallel replicas. Without them, generation uses the training sizes.

    Raises ``ResourceError`` (HF501) for a size below 1 and ``ProtocolError`` for an order that is not a permutation of
    the axes (HF409) or a generation size that does not divide (HF414).

    >>> mesh = Mesh(pp=2, dp=2, tp=4, gen_tp=2)
    >>> mesh.world_size, mesh.micro_dp_size
    (16, 2)
    >>> mesh.coordinates(13)
    Coordinates(pp=1, dp=1, tp=1)
    """

    pp: int = 1
    dp: int = 1
    tp: int = 1
    gen_pp: int | None = None
    gen_tp: int | None = None
    order: tuple[str, ...] = AXES

    def __post_init__(self) -> None:
        for axis in ("pp", "dp", "tp", "gen_pp", "gen_tp"):
            size = getattr(self, axis)
            if size is None and axis.startswith("gen_"):
                continue
            if not is_count(size):
                raise ResourceError("HF501", f"mesh axis {axis!r} needs {count_range(size)}, got {brief(size)}")
        listed = isinstance(self.order, (tuple, list))
        if not listed or set(map(repr, self.order)) != set(map(repr, AXES)) or len(self.order) != len(AXES):
            raise ProtocolError("HF409", f"a mesh's order names each of {AXES} once, got {self.order!r}")
        object.__setattr__(self, "order", tuple(self.order))
        for axis, size, generation in (("pp", self.pp, self.gen_pp), ("tp", self.tp, self.gen_tp)):
            if generation is not None and size % generation:
                raise ProtocolError(
                    "HF414",
                    f"gen_{axis}={generation} does not divide {axis}={size}: a rank's training shard would lie in two "
                    f"generation shards; set gen_{axis} to one of {', '.join(map(str, divisors(size)))}",
                )

    @property
    def world_size(self) -> int:
        """The number of ranks: the product of the training axes."""
        return self.pp * self.dp * self.tp

    @property
    def gen_pp_size(self) -> int:
        """Pipeline stages of one generation replica (``pp`` unless ``gen_pp`` says less)."""
        return self.pp if self.gen_pp is None else self.gen_pp

    @property
    def gen_tp_size(self) -> int:
        """Tensor ranks of one generation replica (``tp`` unless ``gen_tp`` says less)."""
        return self.tp if self.gen_tp is None else self.gen_tp

    @property
    def micro_dp_size(self) -> int:
        """Generation replicas inside one training replica."""
        return (self.pp // self.gen_pp_size) * (self.tp // self.gen_tp_size)

    def coordinates(self, rank: int) -> Coordinates:
        """The coordinates of ``rank``; HF513 for a rank that the mesh does not have."""
        if not 0 <= rank < self.world_size:
            raise ResourceError("HF513", f"rank {rank} is not on {self}, whose ranks are 0..{self.world_size - 1}")
        return _coordinates(self)[rank]

    def rank(self, *, pp: int = 0, dp: int = 0, tp: int = 0) -> int:
        """The rank at these coordinates; HF513 for coordinates outside the mesh.

        >>> Mesh(dp=2, tp=4).rank(dp=1, tp=3)
        7
        """
        at = {"pp": pp, "dp": dp, "tp": tp}
        number = 0
        for axis in self.order:
            size = getattr(self, axis)
            if not 0 <= at[axis] < size:
                raise ResourceError("HF513", f"{axis}={at[axis]} is not on {self}, where {axis} is 0..{size - 1}")
            number = number * size + at[axis]
        return number

    # Neighbors fold: a generation shard is the union of the training shards of (t / gen_tp) consecutive tensor ranks,
    # so dividing gives the shard and the remainder is the replica.

    def gen_tp_rank(self, at: Coordinates) -> int:
        """The tensor-parallel rank, within its generation replica, of the rank at ``at``."""
        return at.tp // (self.tp // self.gen_tp_size)

    def gen_pp_rank(self, at: Coordinates) -> int:
        """The pipeline stage, within its generation replica, of the rank at ``at``."""
        return at.pp // (self.pp // self.gen_pp_size)

    def micro_dp_rank(self, at: Coordinates) -> int:
        """The index of the rank's generation replica within its training replica."""
        tp_fold = self.tp // self.gen_tp_size
        return at.pp % (self.pp // self.gen_pp_size) * tp_fold + at.tp % tp_fold

    def __str__(self) -> str:
        return _text(self)


@lru_cache(maxsize=64)  # layouts ask for each rank once a parameter
def _coordinates(mesh: Mesh) -> tuple[Coordinates, ...]:
    """The coordinates of all ranks."""
    places = product(*(range(getattr(mesh, axis)) for axis in mesh.order))
    return tuple(Coordinates(**dict(zip(mesh.order, place, strict=True))) for place in places)


@lru_cache(maxsize=64)  # every call of a role may name it
def _text(mesh: Mesh) -> str:
    sizes = " ".join(f"{axis}={getattr(mesh, axis)}" for axis in AXES)
    folded = [f"{axis}={size}" for axis in ("gen_pp", "gen_tp") if (size := getattr(mesh, axis)) is not None]
    return f"Mesh({' '.join([sizes, *folded])})"


AXIS_SIZE: Mapping[str, Callable[[Mesh], int]] = {
    "pp": lambda mesh: mesh.pp,
    "dp": lambda mesh: mesh.dp,
    "tp": lambda mesh: mesh.tp,
    "gen_pp": lambda mesh: mesh.gen_pp_size,
    "gen_tp": lambda mesh: mesh.gen_tp_size,
    "micro_dp": lambda mesh: mesh.micro_dp_size,
    "rank": lambda mesh: mesh.world_size,
}

AXIS_RANK: Mapping[str, Callable[[Mesh, int], int]] = {
    "pp": lambda mesh, rank: mesh.coordinates(rank).pp,
    "dp": lambda mesh, rank: mesh.coordinates(rank).dp,
    "tp": lambda mesh, rank: mesh.coordinates(rank).tp,
    "gen_pp": lambda mesh, rank: mesh.gen_pp_rank(mesh.coordinates(rank)),
    "gen_tp": lambda mesh, rank: mesh.gen_tp_rank(mesh.coordinates(rank)),
    "micro_dp": lambda mesh, rank: mesh.micro_dp_rank(mesh.coordinates(rank)),
    "rank": lambda mesh, rank: rank,
}


def axis_size(mesh: Mesh, axis: str) -> int:
    """The size of a training axis, a generation axis or ``"rank"`` (all ranks in a row) on ``mesh``."""
    return AXIS_SIZE[axis](mesh)


def axis_rank(mesh: Mesh, axis: str, rank: int) -> int:
    """The coordinate of ``rank`` along ``axis`` of ``mesh``."""
    return AXIS_RANK[axis](mesh, rank)


def check_world(mesh: Mesh, ranks: int, owner: str) -> None:
    """Raise ``ResourceError`` (HF501) unless ``mesh`` lays out exactly the ``ranks`` that ``owner`` has.

    >>> check_world(Mesh(dp=4, tp=2), 8, "pool 'train'")
    """
    if mesh.world_size == ranks:
        return
    per_replica = mesh.pp * mesh.tp
    nearest = per_replica * max(1, ranks // per_replica)
    fix = f"give it {nearest} ranks, or choose pp and tp whose product divides {ranks}"
    if ranks % per_replica == 0:
        fix = f"set dp to {ranks // per_replica}"
    raise ResourceError(
        "HF501",
        f"{mesh} lays out {mesh.world_size} ranks (pp*dp*tp = {mesh.pp}*{mesh.dp}*{mesh.tp}), but {owner} has {ranks}; "
        + fix,
    )


def check_mesh(mesh: object, owner: str) -> None:
    """Raise ``ResourceError`` (HF501) for a value that is not a mesh, such as a dict; None is the default mesh."""
    if mesh is not None and not isinstance(mesh, Mesh):
        sizes = mesh if isinstance(mesh, Mapping) else {"dp": 2, "tp": 2}
        example = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise ResourceError("HF501", f"{owner}: mesh= takes an hf.Mesh, such as hf.Mesh({example}), got {mesh!r}")


def mesh_or_flat(mesh: Mesh | None, ranks: int, owner: str) -> Mesh:
    """The mesh a group works on: its own, checked against its size, or pure data parallelism."""
    check_mesh(mesh, owner)
    if mesh is None:
        return Mesh(dp=ranks)
    check_world(mesh, ranks, owner)
    return mesh
