"""``Worker``: the base class of roles, through which a body knows its rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self

from hfdsl.errors import DefinitionError, ResourceError
from hfdsl.protocols.collectives import AxisGroup, Collectives, SoleRank, peers
from hfdsl.protocols.mesh import Coordinates, Mesh, mesh_or_flat

RESERVED_ENV = ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""The environment variables that a worker group sets in every rank's process."""

CPU_PER_PROCESS = 0.01
"""CPUs that one worker process asks of Ray: enough to be placed, too little to crowd out anything else."""

PROCESSES_PER_SLOT = 10
"""How many processes, one per group, fit a slot of a pool by default."""


@dataclass(frozen=True, slots=True)
class RankContext:
    """The rank and group of a worker, and the rendezvous of the group."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    mesh: Mesh | None = None
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    offloads: bool = False
    """Whether a plan that is known when the worker is constructed offloads it while it is idle."""
    collectives: Collectives | None = field(default=None, compare=False, repr=False)

    def env(self) -> dict[str, str]:
        """The context as the environment variables that distributed libraries read.

        >>> RankContext(rank=1, world_size=2).env()["RANK"]
        '1'
        """
        return {name: str(getattr(self, name.lower())) for name in RESERVED_ENV}

    @classmethod
    def from_env(cls) -> RankContext:
        """The context from the environment variables, by default rank 0 of 1; HF513 if they are not numbers."""
        try:
            return cls(
                rank=int(os.environ.get("RANK", "0")),
                world_size=int(os.environ.get("WORLD_SIZE", "1")),
                local_rank=int(os.environ.get("LOCAL_RANK", "0")),
                local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
                master_addr=os.environ.get("MASTER_ADDR", "127.0.0.1"),
                master_port=int(os.environ.get("MASTER_PORT", "0")),
            )
        except ValueError as error:
            raise ResourceError("HF513", f"a rank variable of the environment is not a whole number: {error}") from None


current_rank: ContextVar[RankContext | None] = ContextVar("hfdsl_current_rank", default=None)
"""Set while a worker is constructed: the rank that it is going to be."""

instead_of_worker: ContextVar[Callable[[type], Any] | None] = ContextVar("hfdsl_instead_of_worker", default=None)
"""Set while no worker can be made, as in a traced dataflow: what the call of a role class gives in its place."""


class Worker:
    """One rank of a role. Subclasses need not call ``super().__init__()``.

    Raises ``DefinitionError`` (HF111) for an attribute or method of a subclass that has a name of this class.

    >>> Worker().rank, Worker().world_size
    (0, 1)
    """

    _hf_rank: RankContext

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in vars(cls):
            if name in OWN_NAMES:
                raise DefinitionError("HF111", f"{cls.__name__}.{name} hides hf.Worker.{name}; rename it")

    def __setattr__(self, name: str, value: object) -> None:
        if name in OWN_NAMES:
            raise DefinitionError(
                "HF111", f"{type(self).__name__} sets self.{name}, which hf.Worker tells; use another name"
            )
        super().__setattr__(name, value)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: D102  # nothing that a user calls
        # Bound here, not in __init__, so that a subclass's own __init__ may already read ``self.rank``.
        instead = instead_of_worker.get()
        if instead is not None:
            return instead(cls)  # type: ignore[no-any-return]  # no worker: its constructor is not run
        self = super().__new__(cls)
        self._hf_rank = current_rank.get() or RankContext.from_env()
        return self

    @property
    def rank(self) -> int:
        """This rank's number in its group, from 0."""
        return self._hf_rank.rank

    @property
    def world_size(self) -> int:
        """The number of ranks of the group."""
        return self._hf_rank.world_size

    @property
    def local_rank(self) -> int:
        """This rank's number among the group's ranks on its node, from 0."""
        return self._hf_rank.local_rank

    @property
    def local_world_size(self) -> int:
        """The number of the group's ranks on this node."""
        return self._hf_rank.local_world_size

    @property
    def mesh(self) -> Mesh:
        """The mesh that the group's ranks are laid out on (``Mesh(dp=world_size)`` by default)."""
        return mesh_or_flat(self._hf_rank.mesh, self.world_size, "the worker group")

    @property
    def coordinates(self) -> Coordinates:
        """The coordinates of this rank on the mesh."""
        return self.mesh.coordinates(self.rank)

    def axis(self, name: str) -> AxisGroup:
        """The ranks that differ from this one along one mesh axis only, ``"dp"``, ``"tp"`` or ``"pp"``; or ``"world"``.

        On a mesh with ``gen_tp`` or ``gen_pp`` there are also these two, for the ranks of a generation replica, and
        ``"micro_dp"``, for those that hold the same part of other replicas.

        Raises ``ProtocolError`` (HF409) for an axis that the mesh does not have, and ``ResourceError`` (HF513) where no
        plan runs these ranks.

        >>> Worker().axis("dp").all_reduce(2.5)
        2.5
        """
        ranks = peers(self.mesh, self.rank, name)
        if len(ranks) == 1:
            return SoleRank()
        if self._hf_rank.collectives is None:
            raise ResourceError(
                "HF513", f"{type(self).__name__}.axis({name!r}) works where a plan runs the role; none does"
            )
        return self._hf_rank.collectives.group(ranks, self.rank)

    def get_master_addr_port(self) -> tuple[str, str]:
        """The address and port that rank 0 keeps for the group's process group, as environment variables spell them."""
        return self._hf_rank.master_addr, str(self._hf_rank.master_port)


OWN_NAMES = frozenset(name for name in vars(Worker) if not name.startswith("_"))
"""Names that ``Worker`` offers a body; a subclass may not define them."""
