"""Tensors from process to process of one node without the object store: a transport of Ray Direct Transport's.

A method called with ``tensor_transport=TRANSPORT`` leaves its tensors where they are, and Ray has every actor that gets
the reference as an argument fetch them. It fetches them alone, by CUDA IPC: the maker says in its own turn where the
memory is, and from then on has no part in it; the reader maps that memory, of its own GPU or of another, and copies.

That the maker has no part is what keeps ranks from waiting for each other for ever. A send that it had to make on a
thread of its own while a body runs, as NCCL asks for, may never start: a body that waits for a number from the GPU, by
``tolist`` say, keeps other threads from launching anything, and where that number comes after a collective with the
very rank that waits for the send, neither ends. Fetching has no such circle: what a call reads was made by calls before
it, in one order for all ranks, and nobody but the reader has to do anything for it. For the same reason the maker waits
for its GPU before it lends: a reader fetches one thing after the other, in the order in which they were made.

Processes without a GPU lend each other memory of the node's; that is for programs for GPUs on machines that have none.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import ray
import torch
import torch.distributed as dist
from ray._private import ray_constants
from ray.experimental import register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
)
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # of torch.distributed; its types lack them there

from hfdsl.runtime.lending import Loan, fetched, keep_mapped, lent
from hfdsl.runtime.parcel import Tensors
from hfdsl.single_controller.calls import fetch

TRANSPORT: Final = "HFDSL"
"""The name for ``method.options(tensor_transport=...)``."""

# -- where processes are -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process keeps its tensors: a node, and the GPU's own identity where it has one."""

    node: str
    gpu: str | None = None


# -- the driver's side -------------------------------------------------------------------------------------------------


def register() -> None:
    """Make the transport known to Ray; once a process, before the actors that use it are created.

    Those are created with ``enable_tensor_transport=True``.
    """
    from ray.experimental.rdt.util import transport_manager_info

    if TRANSPORT not in transport_manager_info:
        register_tensor_transport(TRANSPORT, ["cuda", "cpu"], DirectTransport, Tensors)


_linked: dict[Any, Links] = {}
"""On the driver: the links that an actor belongs to."""


class Links:
    """The processes that read each other's tensors, joined once at launch; ranks are positions in ``actors``.

    ``reached`` holds (maker, reader) where one has read from the other as a trial. ``deadline`` (seconds) bounds every
    wait of a group for a peer. With ``keep`` memory of other GPUs stays mapped for a few transfers: see ``Mappings``.

    Raises:
        RoleError: HF806 where a process dies or raises while it joins.
    """

    def __init__(self, actors: Sequence[Any], deadline: float = 600.0, keep: bool = True) -> None:
        ray_constants.RDT_FETCH_FAIL_TIMEOUT_SECONDS = deadline  # else a minute, and Ray ends both processes
        self.actors = tuple(actors)
        self.places: tuple[Place, ...] = tuple(self._all(_place))
        (address,) = fetch([self.actors[0].__ray_call__.remote(_host, len(self.actors), deadline)])
        samples = self._all(_join, self.places, address, deadline)
        self.reached = frozenset(pair for pairs in self._all(_try, samples, keep) for pair in pairs)
        for actor in self.actors:
            _linked[actor._actor_id] = self

    def _all(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What a function returns in every process, which it is given with its rank."""
        return list(
            fetch([one.__ray_call__.remote(_call, function, rank, *args) for rank, one in enumerate(self.actors)])
        )

    def keep_nothing(self) -> list[Any]:
        """Have every process unmap what it has mapped, after each transfer from now on; references to wait for."""
        return [actor.__ray_call__.remote(_stay_mapped, False) for actor in self.actors]

    def close(self) -> None:
        """Forget the actors; those that live on unmap what they have mapped."""
        for actor in self.actors:
            _linked.pop(actor._actor_id, None)
        if ray.is_initialized():
            self.keep_nothing()  # and nobody waits: an actor may have ended, or never end what it does


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


def _call(_: Any, function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def _stay_mapped(_: Any, keep: bool) -> None:
    keep_mapped(keep)


def _place(_: int) -> Place:
    node = ray.get_runtime_context().get_node_id()
    return Place(node, str(torch.cuda.get_device_properties(0).uuid) if torch.cuda.is_available() else None)


def _join(rank: int, places: tuple[Place, ...], address: tuple[str, int], deadline: float) -> Loan | None:
    """Become a member, and lend a sample; None where a process cannot lend."""
    _make_store()
    ray_constants.RDT_FETCH_FAIL_TIMEOUT_SECONDS = deadline
    _here.member = Member(rank, places, address, timedelta(seconds=deadline))
    _here.sample = torch.tensor([rank], device=_here.member.device)
    try:
        return lent([_here.sample])
    except (AttributeError, OSError, RuntimeError):  # no such memory on this system, or not of this allocator
        return None


def _make_store() -> None:
    """Have Ray make what keeps fetched tensors in this process, before two threads ask for it.

    Ray makes it for who asks first, without a lock (2.60): a call that waits for its arguments and the thread that
    fetches them could get one each, and the call would wait for ever.
    """
    from ray._private.worker import global_worker

    global_worker.rdt_manager.rdt_store  # noqa: B018  # a property that makes it


def _try(rank: int, samples: Sequence[Loan | None], keep: bool) -> list[tuple[int, int]]:
    """From whom a process can read; ``keep`` holds for what it reads after these."""
    places = member().places
    near = (maker for maker, sample in enumerate(samples) if sample and places[maker].node == places[rank].node)
    reached = [(maker, rank) for maker in near if maker != rank and _arrives(samples[maker], maker)]
    keep_mapped(keep)
    return reached


def _arrives(sample: Loan | None, maker: int) -> bool:
    try:
        return sample is not None and fetched(sample)[0].tolist() == [maker]
    except (OSError, RuntimeError):  # GPUs without a way to each other, say
        return False


@dataclass
class _Here:
    """What this process keeps; Ray makes the transport's object, so it is found by the module."""

    store: TCPStore | None = None
    member: Member | None = None
    sample: torch.Tensor | None = None


_here = _Here()


def member() -> Member:
    """This process's end of the links; ``RuntimeError`` where it was never joined."""
    if _here.member is None:
        raise RuntimeError("this process was not joined to any links")
    return _here.member


@dataclass
class Member:
    """One process among those that read each other's tensors, and are told of some at the same time."""

    rank: int
    places: tuple[Place, ...]
    address: tuple[str, int]
    deadline: timedelta
    _made: Counter[tuple[int, ...]] = field(default_factory=Counter)

    @property
    def device(self) -> str:
        """The kind of device of this process's tensors."""
        return "cuda" if self.places[self.rank].gpu else "cpu"

    def group(self, ranks: Sequence[int]) -> Any:
        """A process group of these ranks, made by all of them, beside ``torch.distributed``'s default one.

        Raises:
            ValueError: for ranks that NCCL cannot join.
        """
        # A name is never used twice: the second group would find the first one's addresses.
        self._made[tuple(ranks)] += 1
        store = self._store(f"group-{'-'.join(map(str, ranks))}-{self._made[tuple(ranks)]}")
        own, size = list(ranks).index(self.rank), len(ranks)
        gpus = [(self.places[rank].node, self.places[rank].gpu) for rank in ranks]
        if any(gpu is None for _, gpu in gpus):
            return dist.ProcessGroupGloo(store, own, size, self.deadline)
        if len(set(gpus)) < len(gpus):
            raise ValueError(f"ranks {list(ranks)} cannot be one group: NCCL refuses two processes on one GPU")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self.deadline
        return dist.ProcessGroupNCCL(store, own, size, options)

    def _store(self, name: str) -> Store:
        """A connection of its own: one that waits for a peer would hold up whoever shares it."""
        host, port = self.address
        store = TCPStore(host, port, is_master=False, timeout=self.deadline, wait_for_workers=False)
        return PrefixStore(name, store)


# -- the transport -----------------------------------------------------------------------------------------------------


@dataclass
class _Lending(TensorTransportMetadata):
    """What readers are told: of every parcel where its tensors are."""

    loans: Sequence[Loan] = ()


class DirectTransport(TensorTransportManager):
    """How Ray drives the links: methods run on the driver, in the maker's turn, or on a thread of the reader's."""

    def tensor_transport_backend(self) -> str:
        """The name."""
        return TRANSPORT

    @staticmethod
    def is_one_sided() -> bool:
        """Only the reader takes part."""
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        """Ray ends both processes when one fails or a transfer takes too long; the step fails with HF806."""
        return False

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Whether the actor was joined."""
        return actor._actor_id in _linked

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Tensors]) -> TensorTransportMetadata:
        """Lend the tensors; on the maker's own thread, so nothing is launched beside a body."""
        loans = [lent(bundle.tensors) for bundle in rdt_object]
        sizes: list[Any] = [loan.sizes for loan in loans]
        return _Lending(sizes, "cuda" if torch.cuda.is_available() else "cpu", loans)

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        """Nothing to tell; ``ValueError`` for actors that were not joined together."""
        links = _linked.get(src_actor._actor_id)
        if links is None or links is not _linked.get(dst_actor._actor_id):
            raise ValueError(f"{src_actor} and {dst_actor} were not joined by the same Links")
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Any,
        communicator_metadata: Any,
        target_buffers: list[Any] | None = None,
    ) -> list[Tensors]:
        """Fetch them."""
        return [Tensors(fetched(loan)) for loan in tensor_transport_metadata.loans]

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Tensors]) -> None:
        """All who read it have it."""
        for loan in tensor_transport_meta.loans:
            loan.close()

    def send_multiple_tensors(self, tensors: Any, tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        """Refused: readers fetch, and the maker has no part in it; Ray asks only transports of two sides to send."""
        raise RuntimeError(f"{TRANSPORT} is one-sided: readers fetch tensors, nothing sends them")

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """Nothing is under way that others wait for; Ray ends both processes instead, see ``can_abort_transport``."""
