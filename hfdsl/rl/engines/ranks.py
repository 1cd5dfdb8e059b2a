"""The ranks that share an engine: each runs one of its processes, with a part of its weights and its cache.

A worked example, two ranks along ``tp``, and a process that dies::

    rank 0                                   rank 1
    opens a store, sends its address         connects to the store
    starts process 0  ... the processes meet in the store ...  starts process 1
    asks process 0 for rows                  asks process 1 for the same rows
    waits                                    waits; process 1 is killed by the host
    waits                                    writes the error into the store, raises HF954
    reads the error, ends process 0,
    raises the same HF954
    -- the next call --
    has no process                           has no process
    both start one: a new store, and so on

Process 0 would wait for process 1 in a collective until the collective times out, which on a GPU never happens. So a
rank does not wait for its process alone: it also checks the store twice a second. A rank whose own process dies takes
its store along, which the other ranks notice as well. And no rank continues before all of them have the same rows: at
the end of every call, the ranks exchange their outcomes, an error or a digest each.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeVar

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is documented there

from hfdsl.errors import HfError, ResourceError
from hfdsl.protocols.collectives import AxisGroup, SoleRank
from hfdsl.rl.engines.interface import Rendezvous
from hfdsl.rl.workers.slicing import group_problem

if TYPE_CHECKING:
    from hfdsl.protocols.worker import Worker

T = TypeVar("T")

ENDED: Final = "hfdsl/ended"
"""The store key under which a rank writes why the engine ended."""

CONNECT: Final = timedelta(seconds=60)
"""The timeout for connecting to a store and for its replies."""


@dataclass(frozen=True, slots=True)
class EngineRanks:
    """The ranks of an engine: ``members`` are coordinates along ``peers``, whose ranks may belong to several engines.

    >>> ranks = EngineRanks()
    >>> ranks.size, ranks.together(lambda: [5], list)
    (1, [5])
    """

    peers: AxisGroup = field(default_factory=SoleRank)
    members: tuple[int, ...] = (0,)
    has_other_rows: bool = False
    """Whether every member has its own rows, as along ``dp``; along ``tp`` all have the same rows."""

    near: str = "127.0.0.1"
    """An address that all ranks can reach, by which a rank finds its own."""

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.members)

    @property
    def rank(self) -> int:
        """The number of this rank among the members."""
        return self.members.index(self.peers.rank)

    def gather(self, value: T) -> list[T]:
        """The values of all members, in order; all peers must call it."""
        if self.peers.size == 1:
            return [value]
        values = self.peers.all_gather(value)
        return [values[member] for member in self.members]

    def together(self, call: Callable[[], T], compared: Callable[[T], object]) -> T:
        """The value of a call that all members make, as returned by the first member; on failure all raise one error.

        Raises:
            HfError: the call's error on this rank, or on the first rank where it failed; HF954 if the compared parts of
                the values differ between ranks.
        """
        if self.peers.size == 1:
            return call()
        value: T | None = None
        error: HfError | None = None
        try:
            value = call()
        except HfError as caught:
            error = caught
        digest = b"" if error is not None or value is None else _digest(compared(value))
        outcomes = self.gather((error, digest, value if self.rank == 0 else None))
        for failure in filter(None, (error, *(failure for failure, _, _ in outcomes))):
            raise failure
        if len({digest for _, digest, _ in outcomes}) > 1:
            raise ResourceError("HF954", f"the {len(outcomes)} processes of an engine have sampled different tokens")
        return outcomes[0][2]  # type: ignore[return-value]  # the first has one

    def link(self) -> EngineLink | None:
        """The meeting point for the processes of a new engine; None for a single process. All peers must call it."""
        if self.peers.size == 1:
            return None
        store = _opened(self.near) if self.size > 1 and self.rank == 0 else None
        address, port = self.gather(None if store is None else (store.host, store.port))[0] or ("", 0)
        if self.size == 1:
            return None
        store = store or TCPStore(address, port, is_master=False, timeout=CONNECT)
        return EngineLink(store, Rendezvous(self.rank, self.size, address, port), self.peers)


@dataclass(frozen=True, slots=True)
class EngineLink:
    """The store of an engine's ranks, which lives as long as the engine's processes."""

    store: TCPStore
    rendezvous: Rendezvous
    peers: AxisGroup

    def meet(self) -> None:
        """Let the other ranks query their processes before this one waits: threads wait by turns."""
        if self.peers.in_threads:
            self.peers.barrier()

    def end(self, error: HfError) -> None:
        """Publish the reason for which the engine ended to the other ranks."""
        if self.ended() is None:
            self.store.set(ENDED, pickle.dumps(error).hex())

    def ended(self) -> HfError | None:
        """The reason for which another rank has ended the engine, or None."""
        try:
            written = self.store.get(ENDED) if self.store.check([ENDED]) else None
        except RuntimeError as lost:
            return ResourceError("HF954", f"the rank that started the engine with this one is gone: {lost}")
        error: HfError | None = pickle.loads(bytes.fromhex(written.decode())) if written else None  # ours
        return error


def engine_ranks(worker: Worker, engine_tp: int | None) -> EngineRanks:
    """The ranks that share a role's engine: neighbors along ``tp``, or the requested number along ``dp``.

    Raises:
        ResourceError: HF957 if the mesh has no such groups; HF812 where ranks share a GPU.
    """
    mesh, coordinates = worker.mesh, worker.coordinates
    problem = group_problem(mesh, engine_tp)
    if problem is not None:
        raise ResourceError("HF957", problem)
    near = worker.get_master_addr_port()[0]
    size = engine_tp or mesh.gen_tp_size
    if mesh.tp > 1:
        fold = mesh.tp // size
        members = tuple(rank for rank in range(mesh.tp) if rank % fold == coordinates.tp % fold)
        ranks = EngineRanks(worker.axis("tp"), members, near=near)
    elif size > 1:
        first = coordinates.dp - coordinates.dp % size
        ranks = EngineRanks(worker.axis("dp"), tuple(range(first, first + size)), has_other_rows=True, near=near)
    else:
        return EngineRanks()
    if ranks.size > 1 and ranks.peers.in_threads and torch.cuda.is_available():
        raise ResourceError("HF812", f"an engine on {size} ranks needs a process and a GPU for each, as on Ray")
    return ranks


def _opened(near: str) -> TCPStore:
    """A store on a free port, at the address by which this host reaches the others."""
    return TCPStore(_own_address(near), 0, is_master=True, wait_for_workers=False, timeout=CONNECT)


def _own_address(near: str) -> str:
    """This host's address on the route to another one; sends nothing."""
    family, kind, _, _, address = socket.getaddrinfo(near, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _digest(value: object) -> bytes:
    return blake2b(pickle.dumps(value), digest_size=16).digest()
