"""Tensors from process to process without the object store: a transport of Ray Direct Transport's, over torch's groups.

Ray decides when something moves: a method called with ``tensor_transport=TRANSPORT`` leaves its tensors where they are,
and for every actor that gets the reference as an argument the driver submits one send and one receive, in one order for
all. What moves them is here: CUDA IPC within one GPU (no copy: the reader sees the producer's memory, which lives until
the last of them lets it go), NCCL between GPUs, gloo on CPUs.

Ray's own transports are not used. Its NCCL waits for whatever the default stream holds, and the default stream for it,
so a role's collective and a transfer can wait for each other for ever; it sends the memory of a strided tensor as if it
were contiguous, knows few dtypes, and needs CuPy. Its CUDA IPC hands one handle to all readers, so that memory is used
again while the second still reads. Here a transfer waits only for its tensors' own event, on a stream of its own.
"""

from __future__ import annotations

import pickle
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

import ray
import torch
import torch.distributed as dist
from ray.experimental import register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
)
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # of torch.distributed; its types lack them there
from torch.multiprocessing import reductions

from hfdsl.runtime.parcel import Tensors
from hfdsl.single_controller.calls import fetch

TRANSPORT: Final = "HFDSL"
"""The name for ``method.options(tensor_transport=...)``."""

Medium = Literal["ipc", "nccl", "gloo"]


# -- where processes are -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process keeps its tensors: a node, and the GPU's own identity where it has one."""

    node: str
    gpu: str | None = None

    def medium(self, reader: Place) -> Medium:
        """What carries a tensor from here to a reader.

        >>> Place("a", "GPU-1").medium(Place("a", "GPU-1")), Place("a", "GPU-1").medium(Place("b", "GPU-1"))
        ('ipc', 'nccl')
        """
        if self.gpu is None or reader.gpu is None:
            return "gloo"
        return "ipc" if self == reader else "nccl"


def _place(_: Any) -> Place:
    node = ray.get_runtime_context().get_node_id()
    return Place(node, str(torch.cuda.get_device_properties(0).uuid) if torch.cuda.is_available() else None)


# -- the driver's side -------------------------------------------------------------------------------------------------


def register() -> None:
    """Make the transport known to Ray; once a process, before the actors that use it are created.

    Those are created with ``enable_tensor_transport=True``.
    """
    from ray.experimental.rdt.util import transport_manager_info

    if TRANSPORT not in transport_manager_info:
        register_tensor_transport(TRANSPORT, ["cuda", "cpu"], DirectTransport, Tensors)


@dataclass(frozen=True, slots=True)
class _Seat:
    links: Links
    rank: int


_seats: dict[Any, _Seat] = {}
"""On the driver: the links that an actor belongs to, and its rank there."""


class Links:
    """The processes that send each other tensors, joined once at launch; ranks are positions in ``actors``.

    A pair's communicator is made when it is first used, or by ``warm``. ``deadline`` (seconds) bounds every wait for a
    peer.

    Raises:
        RoleError: HF806 where a process dies or raises while it joins.
    """

    def __init__(self, actors: Sequence[Any], deadline: float = 600.0) -> None:
        self.actors = tuple(actors)
        self.places: tuple[Place, ...] = tuple(fetch([actor.__ray_call__.remote(_place) for actor in self.actors]))
        (address,) = fetch([self.actors[0].__ray_call__.remote(_host, len(self.actors), deadline)])
        joins = [
            actor.__ray_call__.remote(_join, rank, self.places, address, deadline)
            for rank, actor in enumerate(self.actors)
        ]
        fetch(joins)
        for rank, actor in enumerate(self.actors):
            _seats[actor._actor_id] = _Seat(self, rank)

    def warm(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Make the communicators of these pairs of ranks now, so that no step pays for them."""
        # Every process meets its peers in the same order of pairs, so none waits for one that waits for it.
        pairs = sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]})
        fetch([actor.__ray_call__.remote(_warm, pairs) for actor in self.actors])

    def close(self) -> None:
        """Forget the actors; their communicators end with their processes."""
        for actor in self.actors:
            _seats.pop(actor._actor_id, None)


@dataclass
class _Route(CommunicatorMetadata):
    """Who sends to whom."""

    source: int = 0
    target: int = 0


# -- a process's side --------------------------------------------------------------------------------------------------


def _host(_: Any, size: int, deadline: float) -> tuple[str, int]:
    """Open the store where the processes meet, in the first of them."""
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # of Ray
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    bound.bind(("", 0))
    bound.listen()
    port = int(bound.getsockname()[1])
    # The listening socket is handed over, so nobody else gets the port in between.
    _here.store = TCPStore(
        address,
        port,
        size,
        is_master=True,
        timeout=timedelta(seconds=deadline),
        wait_for_workers=False,
        master_listen_fd=bound.detach(),
        use_libuv=True,
    )
    return address, port


def _join(_: Any, rank: int, places: tuple[Place, ...], address: tuple[str, int], deadline: float) -> None:
    _here.member = Member(rank, places, address, timedelta(seconds=deadline))


def _warm(_: Any, pairs: Sequence[tuple[int, int]]) -> None:
    own = member()
    for pair in pairs:
        if own.rank in pair:
            own.meet(pair[0] if own.rank == pair[1] else pair[1])


@dataclass
class _Here:
    """What this process keeps; Ray makes the transport's object, so it is found by the module."""

    store: TCPStore | None = None
    member: Member | None = None


_here = _Here()


def member() -> Member:
    """This process's end of the links; ``RuntimeError`` where it was never joined."""
    if _here.member is None:
        raise RuntimeError("this process was not joined to any links")
    return _here.member


@dataclass
class Member:
    """One process among those that send each other tensors."""

    rank: int
    places: tuple[Place, ...]
    address: tuple[str, int]
    deadline: timedelta
    _pairs: dict[int, Any] = field(default_factory=dict)
    _made: Counter[tuple[int, ...]] = field(default_factory=Counter)
    _sent: Counter[tuple[int, int]] = field(default_factory=Counter)
    _handles: Any = None
    _stream: Any = None

    def store(self, name: str) -> Store:
        """A connection of its own: one that waits for a peer would hold up whoever shares it."""
        host, port = self.address
        store = TCPStore(host, port, is_master=False, timeout=self.deadline, wait_for_workers=False)
        return PrefixStore(name, store)

    def group(self, ranks: Sequence[int]) -> Any:
        """A process group of these ranks, made by all of them, beside ``torch.distributed``'s default one.

        Raises:
            ValueError: for ranks that NCCL cannot join.
        """
        # A name is never used twice: the second group would find the first one's addresses.
        self._made[tuple(ranks)] += 1
        return self._group(f"group-{'-'.join(map(str, ranks))}-{self._made[tuple(ranks)]}", ranks)

    def _group(self, name: str, ranks: Sequence[int]) -> Any:
        media = {self.places[one].medium(self.places[other]) for one in ranks for other in ranks if one != other}
        own, size = list(ranks).index(self.rank), len(ranks)
        if media == {"nccl"}:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self.deadline
            return dist.ProcessGroupNCCL(self.store(name), own, size, options)
        if media == {"gloo"}:
            return dist.ProcessGroupGloo(self.store(name), own, size, self.deadline)
        raise ValueError(f"ranks {list(ranks)} cannot be one group: NCCL refuses two processes on one GPU")

    def meet(self, peer: int) -> None:
        """Make the communicator with a peer."""
        if self.places[self.rank].medium(self.places[peer]) == "ipc":
            return
        token = torch.zeros(1, dtype=torch.uint8, device=self.device)
        self._move([token], peer, out=self.rank < peer)

    @property
    def device(self) -> str:
        """The kind of device of this process's tensors."""
        return "cuda" if self.places[self.rank].gpu else "cpu"

    def send(self, tensors: Sequence[torch.Tensor], ready: Any, target: int) -> None:
        """Send contiguous tensors, once ``ready``; returns when they may be let go."""
        if ready is not None:
            ready.synchronize()
        if self.places[self.rank].medium(self.places[target]) == "ipc":
            # One set of handles a reader: torch counts one for each, and each reader gives back what it was given.
            handles = [reductions.reduce_tensor(tensor) for tensor in tensors]
            self._mailbox().set(self._letter(self.rank, target), pickle.dumps(handles))
        else:
            self._move(tensors, target, out=True)

    def receive(self, sizes: Sequence[tuple[torch.Size, torch.dtype]], source: int) -> list[torch.Tensor]:
        """The tensors that a peer sends; on a GPU they are there when this returns, whatever that is busy with."""
        if self.places[self.rank].medium(self.places[source]) == "ipc":
            letter = self._letter(source, self.rank)
            handles = pickle.loads(self._mailbox().get(letter))
            self._mailbox().delete_key(letter)
            return [rebuild(*args) for rebuild, args in handles]
        with self._own_stream():
            tensors = [torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in sizes]
        self._move(tensors, source, out=False)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(torch.cuda.default_stream())  # else its memory could be reused while it is read
        return tensors

    def _move(self, tensors: Sequence[torch.Tensor], peer: int, *, out: bool) -> None:
        group, other = self._pair(peer), int(self.rank < peer)
        act = group.send if out else group.recv
        with self._own_stream():
            for work in [act([as_bytes(tensor)], other, 0) for tensor in tensors if tensor.numel()]:
                work.wait()
        if self._stream is not None:
            self._stream.synchronize()

    def _own_stream(self) -> Any:
        if self.device == "cpu":
            return nullcontext()
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        return torch.cuda.stream(self._stream)

    def _pair(self, peer: int) -> Any:
        if peer not in self._pairs:
            low, high = sorted((self.rank, peer))
            self._pairs[peer] = self._group(f"pair-{low}-{high}", (low, high))
        return self._pairs[peer]

    def _mailbox(self) -> Any:
        if self._handles is None:
            self._handles = self.store("handles")
        return self._handles

    def _letter(self, source: int, target: int) -> str:
        # Both ends count alike: Ray submits a pair's sends and receives in one order.
        self._sent[source, target] += 1
        return f"{source}-{target}-{self._sent[source, target]}"


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory: the libraries know only some dtypes."""
    return tensor.reshape(-1).view(torch.uint8)


# -- the transport -----------------------------------------------------------------------------------------------------


class DirectTransport(TensorTransportManager):
    """How Ray drives the links: methods run on the driver or, on a thread of its own, in the two processes."""

    def tensor_transport_backend(self) -> str:
        """The name."""
        return TRANSPORT

    @staticmethod
    def is_one_sided() -> bool:
        """Both ends take part."""
        return False

    @staticmethod
    def can_abort_transport() -> bool:
        """Ray ends both processes when one fails or a transfer takes too long; the step fails with HF806."""
        return False

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Whether the actor was joined."""
        return actor._actor_id in _seats

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Tensors]) -> TensorTransportMetadata:
        """What a reader must know to make room: of every parcel the sizes and dtypes."""
        sizes: list[Any] = [[(tensor.shape, tensor.dtype) for tensor in bundle.tensors] for bundle in rdt_object]
        return TensorTransportMetadata(sizes, "cuda" if torch.cuda.is_available() else "cpu")

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> _Route:
        """Who sends to whom; ``ValueError`` for actors that were not joined together."""
        source, target = _seats.get(src_actor._actor_id), _seats.get(dst_actor._actor_id)
        if source is None or target is None or source.links is not target.links:
            raise ValueError(f"{src_actor} and {dst_actor} were not joined by the same Links")
        return _Route(source.rank, target.rank)

    def send_multiple_tensors(
        self, tensors: list[Tensors], tensor_transport_metadata: Any, communicator_metadata: Any
    ) -> None:
        """The producer's end."""
        for bundle in tensors:
            member().send(bundle.tensors, bundle.ready, communicator_metadata.target)

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Any,
        communicator_metadata: Any,
        target_buffers: list[Any] | None = None,
    ) -> list[Tensors]:
        """The reader's end."""
        source = communicator_metadata.source
        return [Tensors(member().receive(sizes, source)) for sizes in tensor_transport_metadata.tensor_meta]

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Tensors]) -> None:
        """Nothing is held beside the tensors."""

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """Never called: see ``can_abort_transport``."""
        raise NotImplementedError
