"""Tensors between processes of one host without the object store: a transport of Ray Direct Transport.

A method called with ``tensor_transport=TRANSPORT`` leaves its tensors where they are, and Ray has every actor that gets
the reference as an argument fetch them. The reader fetches alone, by CUDA IPC: the producer publishes where the memory
is, and from then on takes no part; the reader maps that memory, of its own GPU or of another, and copies.

Because the producer takes no part, ranks cannot deadlock. With NCCL the producer would send on another thread while a
body runs, and that send may never start: a body that waits for a number from the GPU, by ``tolist`` say, keeps other
threads from launching anything, and where that number comes after a collective with the very rank that waits for the
send, neither ends. Fetching has no such cycle: what a call reads was produced by calls before it, in one order for all
ranks, and only the reader has to act. For the same reason the producer waits for its GPU before it shares: a reader
fetches one value after the other, in the order in which they were produced.

Processes without a GPU share memory of the host; that is for programs for GPUs on machines that have none.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import ray
import torch
import torch.distributed as dist

from hfdsl.errors import LostProcessError
from hfdsl.runtime.rank.torch_internals import PrefixStore, Store, TCPStore, nccl_options
from hfdsl.runtime.transports.serialization import Tensors
from hfdsl.runtime.transports.tensor_sharing import SharedTensors, keep_mapped, read_shared, share
from hfdsl.single_controller.ray_internals import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
    actor_id,
    make_tensor_store,
    register_tensor_transport,
    set_fetch_timeout,
    tensor_transports,
)
from hfdsl.single_controller.waiting import fetch

TRANSPORT: Final = "HFDSL"
"""The name for ``method.options(tensor_transport=...)``."""

# -- where processes are -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceLocation:
    """The place of a process's tensors: a host, by Ray's node ID, and the UUID of its GPU if it has one."""

    host: str
    gpu: str | None = None


# -- the driver's side -------------------------------------------------------------------------------------------------


def register() -> None:
    """Register the transport with Ray; once per process, before creating the actors that use it.

    Those are created with ``enable_tensor_transport=True``.
    """
    if TRANSPORT not in tensor_transports():
        register_tensor_transport(TRANSPORT, ["cuda", "cpu"], DirectTransport, Tensors)


_links_of: dict[Any, Links] = {}
"""The links of each actor, on the driver."""


class Links:
    """The processes that exchange tensors, joined once at launch; ranks are positions in ``actors``.

    Those of ``sharing`` ranks, all where it is None, read each other's memory: ``reached`` holds the (producer, reader)
    whose trial transfer succeeded. ``deadline`` (seconds) bounds every wait of
    a process group for a peer. With ``keep_mapped`` memory of other GPUs stays mapped for a few transfers: see
    ``Mappings``.

    Raises:
        RoleError: HF806 if a process dies or raises while it joins.
    """

    def __init__(
        self,
        actors: Sequence[Any],
        deadline: float = 600.0,
        keep_mapped: bool = True,
        sharing: Collection[int] | None = None,
    ) -> None:
        set_fetch_timeout(deadline)  # else a minute, and Ray ends both processes
        self.actors = tuple(actors)
        self.locations: tuple[DeviceLocation, ...] = tuple(self._call_all(_location))
        (address,) = fetch([self.actors[0].__ray_call__.remote(_open_store, len(self.actors), deadline)])
        shares = [sharing is None or rank in sharing for rank in range(len(actors))]
        samples = self._call_all(_join, self.locations, address, deadline, shares)
        probed = self._call_all(_probe, samples, keep_mapped) if any(shares) else ()
        self.reached = frozenset(pair for pairs in probed for pair in pairs)
        for actor in self.actors:
            _links_of[actor_id(actor)] = self

    def _call_all(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """The results of a function in every process; its arguments are the actor's instance, the rank and ``args``."""
        return fetch([actor.__ray_call__.remote(function, rank, *args) for rank, actor in enumerate(self.actors)])

    def unmap_after_transfers(self) -> list[Any]:
        """Have every process unmap after each transfer from now on; return references to wait for."""
        return [actor.__ray_call__.remote(_keep_mapped, False) for actor in self.actors]

    def close(self) -> None:
        """Forget the actors; the live ones unmap their mappings."""
        for actor in self.actors:
            _links_of.pop(actor_id(actor), None)
        if ray.is_initialized():
            self.unmap_after_transfers()  # without waiting: an actor may have ended, or never finish what it does


# -- a process's side: functions that Ray calls with the actor's instance ----------------------------------------------


def _open_store(_: Any, size: int, deadline: float) -> tuple[str, int]:
    """Open the store where the processes meet, in the first process."""
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # of Ray
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    bound.bind(("", 0))
    bound.listen()
    port = int(bound.getsockname()[1])
    # The listening socket is handed over, so no other process gets the port in between.
    _state.store = TCPStore(
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


def _keep_mapped(_: Any, keep: bool) -> None:
    keep_mapped(keep)


def _location(_: Any, rank: int) -> DeviceLocation:
    host = ray.get_runtime_context().get_node_id()
    return DeviceLocation(host, str(torch.cuda.get_device_properties(0).uuid) if torch.cuda.is_available() else None)


def _join(
    _: Any,
    rank: int,
    locations: tuple[DeviceLocation, ...],
    address: tuple[str, int],
    deadline: float,
    shares: Sequence[bool],
) -> SharedTensors | None:
    """Join the links, and share a tensor with the rank; None if this process does not or cannot share."""
    _state.member = Member(rank, locations, address, timedelta(seconds=deadline))
    if not shares[rank]:
        return None
    make_tensor_store()
    set_fetch_timeout(deadline)
    _state.sample = torch.tensor([rank], device=_state.member.device)
    try:
        return share([_state.sample])
    except (AttributeError, OSError, RuntimeError):  # no such memory on this system, or not of this allocator
        return None


def _probe(_: Any, rank: int, samples: Sequence[SharedTensors | None], keep: bool) -> list[tuple[int, int]]:
    """The (producer, rank) pairs from which a process can read; ``keep`` applies to later reads."""
    locations = member().locations
    reached = [
        (producer, rank)
        for producer, sample in enumerate(samples)
        if producer != rank and locations[producer].host == locations[rank].host and _readable(sample, producer)
    ]
    keep_mapped(keep)
    return reached


def _readable(sample: SharedTensors | None, producer: int) -> bool:
    """Whether this process can read another one's sample, which holds that process's rank."""
    try:
        return sample is not None and read_shared(sample)[0].tolist() == [producer]
    except (OSError, RuntimeError):  # such as GPUs that cannot reach each other
        return False


@dataclass
class _State:
    """The state of this process, in the module, since Ray constructs the transport's object itself."""

    store: TCPStore | None = None
    member: Member | None = None
    sample: torch.Tensor | None = None


_state = _State()


def member() -> Member:
    """This process's member of the links; ``RuntimeError`` if it never joined any."""
    if _state.member is None:
        raise RuntimeError("this process was not joined to any links")
    return _state.member


@dataclass
class Member:
    """One of the processes that read each other's tensors and take part in broadcasts."""

    rank: int
    locations: tuple[DeviceLocation, ...]
    address: tuple[str, int]
    deadline: timedelta
    _created: Counter[tuple[int, ...]] = field(default_factory=Counter)

    @property
    def device(self) -> str:
        """The kind of device of this process's tensors."""
        return "cuda" if self.locations[self.rank].gpu else "cpu"

    def device_of(self, ranks: Sequence[int]) -> str:
        """The kind of device of the tensors that these ranks exchange."""
        return "cuda" if all(self.locations[rank].gpu for rank in ranks) else "cpu"

    def communicator(self, ranks: Sequence[int]) -> Any:
        """A torch process group of these ranks, which all of them create; the default group does not change.

        Raises:
            ValueError: for ranks that NCCL cannot join.
        """
        # A name is never used twice: the second communicator would find the first one's addresses.
        self._created[tuple(ranks)] += 1
        store = self._store(f"communicator-{'-'.join(map(str, ranks))}-{self._created[tuple(ranks)]}")
        rank_in_group, size = list(ranks).index(self.rank), len(ranks)
        gpus = [(self.locations[rank].host, self.locations[rank].gpu) for rank in ranks]
        if any(gpu is None for _, gpu in gpus):
            return dist.ProcessGroupGloo(store, rank_in_group, size, self.deadline)
        if len(set(gpus)) < len(gpus):
            raise ValueError(f"ranks {list(ranks)} cannot be one communicator: NCCL refuses two processes on one GPU")
        group = dist.ProcessGroupNCCL(store, rank_in_group, size, nccl_options(self.deadline))
        # Connected now, it is the communicator of sends and receives, too; else torch makes one for each pair of ranks,
        # with memory of its own on the GPU. They run one after another, of which torch would warn.
        os.environ.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")
        group.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
        return group

    def _store(self, name: str) -> Store:
        """A separate connection, since one that waits for a peer would block everybody who shares it."""
        host, port = self.address
        store = TCPStore(host, port, is_master=False, timeout=self.deadline, wait_for_workers=False)
        return PrefixStore(name, store)


# -- the transport -----------------------------------------------------------------------------------------------------


@dataclass
class _SharedMetadata(TensorTransportMetadata):
    """Ray's metadata for readers: the places of every payload's tensors, and which payloads are read lazily."""

    shared: Sequence[SharedTensors] = ()
    lazy: Sequence[bool] = ()


class _SharedByProducer(Tensors):
    """Tensors of another process. Ray keeps them there until the call that reads them has ended."""

    __slots__ = ("_shared",)

    def __init__(self, shared: SharedTensors) -> None:
        super().__init__([], lazy=True)
        self._shared = shared

    def read(self) -> list[torch.Tensor]:
        """Copies of the tensors.

        Raises:
            LostProcessError: HF806 if the other process is gone, or its memory cannot be mapped.
        """
        try:
            return read_shared(self._shared)
        except torch.OutOfMemoryError:  # a RuntimeError, too
            raise
        except (OSError, RuntimeError) as error:
            problem = f"weights cannot be read in the memory of the process that sends them, which may be gone: {error}"
            raise LostProcessError("HF806", problem) from error


class DirectTransport(TensorTransportManager):
    """The transport that Ray calls: on the driver, on the main thread of the producer, or on a thread of the reader."""

    def tensor_transport_backend(self) -> str:
        """The name."""
        return TRANSPORT

    @staticmethod
    def is_one_sided() -> bool:
        """Return True: only the reader takes part."""
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        """Return True: Ray ends both processes if one fails or is too slow, and the step fails with HF806."""
        return False

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Whether the actor joined links."""
        return actor_id(actor) in _links_of

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Tensors]) -> TensorTransportMetadata:
        """Share the tensors, on the producer's main thread, so no kernel is launched while a body runs."""
        shared = [share(part.tensors) for part in rdt_object]
        sizes: list[Any] = [part.sizes for part in shared]
        lazy = [part.lazy for part in rdt_object]
        return _SharedMetadata(sizes, "cuda" if torch.cuda.is_available() else "cpu", shared, lazy)

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        """Return empty metadata; ``ValueError`` for actors that were not joined together."""
        links = _links_of.get(actor_id(src_actor))
        if links is None or links is not _links_of.get(actor_id(dst_actor)):
            raise ValueError(f"{src_actor} and {dst_actor} were not joined by the same Links")
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Any,
        communicator_metadata: Any,
        target_buffers: list[Any] | None = None,
    ) -> list[Tensors]:
        """Copy the tensors that are not read lazily."""
        metadata = tensor_transport_metadata
        return [
            _SharedByProducer(part) if lazy else Tensors(read_shared(part))
            for part, lazy in zip(metadata.shared, metadata.lazy, strict=True)
        ]

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Tensors]) -> None:
        """Do nothing: all readers have their copies."""
        for part in tensor_transport_meta.shared:
            part.close()

    def send_multiple_tensors(self, tensors: Any, tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        """Refuse: readers fetch, and the producer takes no part; Ray calls this only for two-sided transports."""
        raise RuntimeError(f"{TRANSPORT} is one-sided: readers fetch tensors, nothing sends them")

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """Do nothing: no peer waits for a transfer, and Ray ends both processes, see ``can_abort_transport``."""
