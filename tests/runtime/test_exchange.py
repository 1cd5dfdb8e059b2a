"""Exchanges of weights: the bits of the way through the store, in place, in buckets, without waiting forever."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import RoleError, SyncError
from hfdsl.plan import buckets
from hfdsl.plan.message_memory import ALIGNMENT, buffer_bytes
from hfdsl.plan.optimize import Optimize
from hfdsl.plan.resharding import Schedule, compile_schedule
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.protocols.layouts import Cut, Layout, Parameter, Replicas
from hfdsl.rl.models.copies import LoadFence
from hfdsl.runtime.weights import exchange
from hfdsl.runtime.weights.exchange import Arriving, ArrivingWeights, Exported, exported
from hfdsl.runtime.weights.messages import HeldParts
from tests.protocols.layout_cases import composed, cut_lists, local_tensor, meshes, parameters
from tests.runtime import resharding_programs as p

Mesh = hf.Mesh
WAIT = 120.0
"""Seconds after which a rank that waits is taken to wait forever."""


# -- ranks as threads, and a group in which a message leaves only when its reader expects it


@dataclass
class Work:
    done: threading.Event = field(default_factory=threading.Event)
    failed: bool = False

    def wait(self) -> None:
        assert self.done.wait(WAIT), "a rank waits forever"
        if self.failed:
            raise RuntimeError("a peer is lost")

    def fail(self) -> None:
        self.failed = True
        self.done.set()


class Links:
    """Messages by sender and receiver; the memory that messages use beside the weights of roles, by rank.

    The process of rank 0 dies before it sends its message number ``last``.
    """

    def __init__(self, last: int | None = None, weights: Sequence[Mapping[str, torch.Tensor]] = ()) -> None:
        self.last = last
        tensors = (tensor for rank in weights for tensor in rank.values() if isinstance(tensor, torch.Tensor))
        self.weights = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self.lost: set[int] = set()
        self.lock = threading.Lock()
        self.sends: dict[tuple[int, int], deque[tuple[torch.Tensor, Work]]] = defaultdict(deque)
        self.receives: dict[tuple[int, int], deque[tuple[torch.Tensor, Work]]] = defaultdict(deque)
        self.buffers: dict[int, dict[int, int]] = defaultdict(dict)
        self.most: dict[int, int] = defaultdict(int)

    def lose(self, rank: int) -> None:
        """All that wait for a rank fail, as they do when its process has died."""
        with self.lock:
            self.lost.add(rank)
            for pair in {*self.sends, *self.receives}:
                self.match(pair)

    def match(self, pair: tuple[int, int]) -> None:
        if self.lost.intersection(pair):
            for _, work in (*self.sends[pair], *self.receives[pair]):
                work.fail()
            return
        while self.sends[pair] and self.receives[pair]:
            (sent, leaving), (flat, arrived) = self.sends[pair].popleft(), self.receives[pair].popleft()
            flat.copy_(sent)
            leaving.done.set()
            arrived.done.set()

    def count(self, rank: int, flat: torch.Tensor) -> None:
        memory, held = flat.untyped_storage(), self.buffers[rank]
        if memory.data_ptr() not in self.weights:
            held[memory.data_ptr()] = memory.nbytes()
        self.most[rank] = max(self.most[rank], sum(held.values()))


class Communicator:
    """The end of a rank of the group."""

    def __init__(self, links: Links, rank: int, size: int, device: str = "cpu") -> None:
        self.links, self.me, self.size, self.device, self.sent = links, rank, size, device, 0

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work:
        with self.links.lock:
            self.sent += 1
            if self.me == 0 and self.sent == self.links.last:
                raise RuntimeError("killed")
            self.links.count(self.me, tensors[0])
            self.links.sends[self.me, rank].append((tensors[0], work := Work()))
            self.links.match((self.me, rank))
        return work

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work:
        with self.links.lock:
            self.links.count(self.me, tensors[0])
            self.links.receives[rank, self.me].append((tensors[0], work := Work()))
            self.links.match((rank, self.me))
        return work

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Any:
        if self.me != options.rootRank:
            return self.recv(tensors, options.rootRank, 0)
        works = [self.send(tensors, rank, 0) for rank in range(self.size) if rank != self.me]
        return All(works)


@dataclass
class All:
    works: list[Work]

    def wait(self) -> None:
        for work in self.works:
            work.wait()


class Remote(Arriving):
    """Weights that arrive over such a group."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator

    @property
    def device(self) -> str:
        return self.communicator.device

    def receive(
        self,
        sync: ScheduledSync,
        rank: int,
        peers: Mapping[int, Arriving],
        held: HeldParts | None,
        write: exchange.Write,
    ) -> None:
        exchange.receive(sync, rank, self.communicator, self.device, held, write)


class Keeper:
    """A role that says where it keeps its weights, and refuses to use them after a load that failed."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self.weights, self.fence = weights, LoadFence()

    @contextmanager
    def receiving(self, state: str) -> Iterator[Mapping[str, Any]]:
        with self.fence.loading():
            yield self.weights


def exchanged(
    sync: ScheduledSync,
    sources: Sequence[Mapping[str, Any]],
    targets: Sequence[Mapping[str, Any]],
    last: int | None = None,
    device: str = "cpu",
) -> tuple[Links, list[Exception]]:
    """All ranks of both sides go through an exchange, into the memory of the targets."""
    links, errors, _ = kept(sync, sources, targets, last, device)
    return links, errors


def kept(
    sync: ScheduledSync,
    sources: Sequence[Mapping[str, Any]],
    targets: Sequence[Mapping[str, Any]],
    last: int | None = None,
    device: str = "cpu",
) -> tuple[Links, list[Exception], list[Keeper]]:
    """The same, with the roles that keep the memory of the targets."""
    links, errors, size = Links(last, [*sources, *targets]), list[Exception](), len(sync.senders) + len(targets)
    keepers = [Keeper(weights) for weights in targets]

    def send(rank: int) -> None:
        columns = dict(exported([sync], rank, sources[rank], "actor.weights"))
        exports = [value for value in columns.values() if isinstance(value, Exported)]
        if exports:
            exchange.send(exports, Communicator(links, sync.senders.index(rank), size), device)

    def load(rank: int) -> None:
        communicator = Communicator(links, len(sync.senders) + rank, size, device)
        peers = {source: Remote(communicator) for source in sync.schedule.sources[rank]}
        arriving = ArrivingWeights(sync, rank, peers, "engine.load")
        arriving.load(keepers[rank], lambda weights: None, in_place=True)

    def run(function: Any, rank: int, place: int) -> None:
        try:
            function(rank)
        except Exception as error:  # noqa: BLE001  # looked at when all have ended
            errors.append(error)
            links.lose(place)

    places = {rank: sync.senders.index(rank) if rank in sync.senders else size for rank in range(len(sources))}
    threads = [threading.Thread(target=run, args=(send, rank, places[rank])) for rank in range(len(sources))]
    threads += [
        threading.Thread(target=run, args=(load, rank, len(sync.senders) + rank)) for rank in range(len(targets))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    return links, errors, keepers


def scheduled(schedule: Schedule, source: Layout, target: Layout, *, broadcast: bool = False) -> ScheduledSync:
    return ScheduledSync(
        state="policy",
        export=0,
        load=1,
        schedule=schedule,
        source_layout=source,
        target_layout=target,
        broadcast=broadcast,
    )


@dataclass(frozen=True)
class DrawnSync:
    """A sync of some whole weights between two meshes, each of which cuts them in its own way."""

    sync: ScheduledSync
    full: dict[str, torch.Tensor]
    cuts: tuple[list[Cut], list[Cut]]

    def held(self, full: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """What each rank of the source has of whole weights."""
        return sides(full, self.cuts[0], self.sync.schedule.source_mesh)

    def needed(self, full: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """What each rank of the target has of them."""
        return sides(full, self.cuts[1], self.sync.schedule.target_mesh)


@st.composite
def drawn_syncs(draw: st.DrawFn) -> DrawnSync:
    first = draw(parameters())
    weights = [Parameter(f"weight{i}", first.shape, first.dtype) for i in range(draw(st.integers(1, 3)))]
    mesh, other_mesh = draw(meshes(most=4)), draw(meshes(most=4))
    source, target = draw(cut_lists(first, mesh)), draw(cut_lists(first, other_mesh))
    full = whole(weights)
    assume(all(elements(sides(full, *side)) == elements([full]) for side in ((source, mesh), (target, other_mesh))))
    layouts, most = (composed(source), composed(target)), draw(st.integers(8, 200))
    schedule = compile_schedule(weights, layouts[0], mesh, layouts[1], other_mesh, bucket_bytes=most)
    return DrawnSync(scheduled(schedule, *layouts), full, (source, target))


@given(st.data())
def test_every_rank_gets_its_elements_in_the_planned_memory(data: st.DataObject) -> None:
    drawn = data.draw(drawn_syncs())
    sync, schedule, direct = drawn.sync, drawn.sync.schedule, data.draw(st.sampled_from([1, 16, 2**20]))
    held, needed = drawn.held(drawn.full), drawn.needed(drawn.full)
    got = [{name: torch.full_like(part, -1) for name, part in rank.items()} for rank in needed]
    with mock.patch.multiple(buckets, BROADCAST_BYTES=direct, SEND_BYTES=direct):
        links, errors = exchanged(sync, held, got)
    assert errors == []
    for place, rank in enumerate(sync.senders):
        sent = [message.transfers for bucket in schedule.messages_from(rank) for message in bucket]
        sizes = [sum(transfer.bytes + ALIGNMENT - 1 for transfer in transfers) for transfers in sent]
        assert links.most[place] <= 2 * max(sizes)
    for rank, expected in enumerate(needed):
        assert all(torch.equal(got[rank][name], part) for name, part in expected.items())
        parts = [sum(len(message.transfers) for message in bucket) for bucket in schedule.messages_to(rank)]
        more = 2 * max(parts, default=0) * ALIGNMENT
        assert links.most[len(sync.senders) + rank] <= schedule.peak[rank] - schedule.needed[rank] + more


@given(st.data())
def test_a_plan_counts_the_buffers_that_ranks_allocate(data: st.DataObject) -> None:
    drawn, direct = data.draw(drawn_syncs()), data.draw(st.sampled_from([1, 16, 2**20]))
    sync, schedule, names = drawn.sync, drawn.sync.schedule, list(drawn.full)
    transposed = data.draw(st.lists(st.sampled_from(names), unique=True))  # on both sides
    held, needed = (
        [{name: as_stored(part, name in transposed) for name, part in rank.items()} for rank in ranks]
        for ranks in (drawn.held(drawn.full), drawn.needed(drawn.full))
    )
    contiguous = set(names) - set(transposed)
    with mock.patch.multiple(buckets, BROADCAST_BYTES=direct, SEND_BYTES=direct):
        links, errors = exchanged(sync, held, needed)
        planned = {side: buffer_bytes(schedule, side, contiguous) for side in ("exports", "loads")}
    assert errors == []
    senders = range(len(sync.senders))
    sent = max((links.most[place] for place in senders), default=0)
    received = max((links.most[len(senders) + rank] for rank in range(len(needed))), default=0)
    assert sent <= planned["exports"]
    assert received <= planned["loads"]
    if len(needed) == 1 and not transposed:
        assert received == planned["loads"]
        assert sent == planned["exports"] or len(senders) > 1


def as_stored(part: torch.Tensor, transposed: bool) -> torch.Tensor:
    """A tensor in memory of its own, with the last dim outermost if it is ``transposed``."""
    return part.clone() if not transposed or part.dim() < 2 else part.movedim(-1, 0).contiguous().movedim(0, -1)


def whole(weights: list[Parameter]) -> dict[str, torch.Tensor]:
    """Weights of which no two elements are equal, but for those that bfloat16 rounds."""
    return {
        parameter.name: (torch.arange(parameter.bytes // parameter.item_bytes) % 251 + 7 * number)
        .view(parameter.shape)
        .to(getattr(torch, parameter.dtype))
        for number, parameter in enumerate(weights)
    }


def sides(full: Mapping[str, torch.Tensor], cuts: list[Cut], mesh: hf.Mesh) -> list[dict[str, torch.Tensor]]:
    """What each rank has, as frameworks cut it."""
    parts = [
        {name: local_tensor(tensor, cuts, mesh, rank) for name, tensor in full.items()}
        for rank in range(mesh.world_size)
    ]
    return [{name: part.clone() for name, part in rank.items() if part is not None} for rank in parts]


def elements(ranks: Sequence[Mapping[str, torch.Tensor]]) -> set[tuple[str, float]]:
    return {(name, value) for rank in ranks for name, part in rank.items() for value in part.flatten().tolist()}


@pytest.mark.usefixtures("both_ways")
def test_a_broadcast_reaches_all_ranks_bucket_by_bucket() -> None:
    full = whole(p.PARAMETERS)
    schedule = compile_schedule(p.PARAMETERS, Replicas(), Mesh(), Replicas(), Mesh(dp=3), bucket_bytes=64)
    sync = scheduled(schedule, Replicas(), Replicas(), broadcast=True)
    got = [{name: torch.zeros_like(tensor) for name, tensor in full.items()} for _ in range(3)]
    links, errors = exchanged(sync, [full], got)
    assert errors == []
    assert all(torch.equal(rank[name], tensor) for rank in got for name, tensor in full.items())
    assert len(schedule.buckets) > 10
    assert max(links.most.values()) <= 64 + 4 * ALIGNMENT


@pytest.mark.usefixtures("both_ways")
def test_a_reader_without_room_lets_the_others_go_on() -> None:
    full, mesh = whole(p.PARAMETERS), Mesh(tp=2)
    schedule = compile_schedule(p.PARAMETERS, p.TENSOR, mesh, Replicas(), Mesh(dp=2), bucket_bytes=64)
    sync = scheduled(schedule, p.TENSOR, Replicas())
    held = [
        {parameter.name: p.local(parameter, p.TENSOR.boxes(parameter, mesh, rank), 0) for parameter in p.PARAMETERS}
        for rank in (0, 1)
    ]
    full = {parameter.name: p.whole(parameter, 0) for parameter in p.PARAMETERS}
    got = [{name: torch.zeros_like(tensor) for name, tensor in full.items()} for _ in range(2)]
    del got[1]["down"]
    _, [error] = exchanged(sync, held, got)
    assert isinstance(error, SyncError)
    assert (error.code, error.ranks) == ("HF774", (1,))
    assert "'engine.load' loads into no 'down' on rank 1" in error.message
    assert all(torch.equal(got[0][name], tensor) for name, tensor in full.items())
    assert not any(tensor.any() for tensor in got[1].values())  # refused before anything was written


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("broadcast", [False, True])
def test_a_sender_that_dies_before_any_message_leaves_no_mixture_in_use(broadcast: bool) -> None:
    """Whatever has left: a reader has all of the new version, or raises and refuses to be used."""
    mesh = Mesh() if broadcast else Mesh(tp=2)
    layout: Layout = Replicas() if broadcast else p.TENSOR
    schedule = compile_schedule(p.PARAMETERS, layout, mesh, Replicas(), Mesh(dp=2), bucket_bytes=128)
    sync = scheduled(schedule, layout, Replicas(), broadcast=broadcast)
    held = [
        {parameter.name: p.local(parameter, layout.boxes(parameter, mesh, rank), 1) for parameter in p.PARAMETERS}
        for rank in range(mesh.world_size)
    ]
    new = {parameter.name: p.whole(parameter, 1) for parameter in p.PARAMETERS}
    count = sum(map(len, schedule.messages_from(0)))
    for last in range(1, count + 1):
        tables = [{parameter.name: p.whole(parameter, 0) for parameter in p.PARAMETERS} for _ in range(2)]
        _, errors, keepers = kept(sync, held, tables, last)
        assert any(str(error) == "killed" for error in errors)
        assert not all(map(usable, keepers))
        for keeper in filter(usable, keepers):
            assert all(torch.equal(keeper.weights[name], tensor) for name, tensor in new.items())


def usable(keeper: Keeper) -> bool:
    try:
        keeper.fence.check()
    except SyncError:
        return False
    return True


# -- runs


def launched(
    engine: type[p.Engine],
    *,
    direct: bool = True,
    fails: int = -1,
    backend: Any = "local",
    trainer: type[p.Trainer] = p.Trainer,
) -> Any:
    train, roll = hf.ResourcePool([4], use_gpu=False), hf.ResourcePool([2], use_gpu=False)
    deployment = hf.Deployment(
        actor=hf.place(trainer, p.SHARDED, pool=train, mesh=Mesh(dp=2, tp=2)),
        engine=hf.place(engine, p.TENSOR, fails, pool=roll, mesh=Mesh(tp=2)),
    )
    return p.synced.compile(deployment, optimize=Optimize(direct=direct, bucket_bytes=64)).launch(backend)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("engine", [p.Engine, p.InPlace, p.Loads])
@pytest.mark.parametrize("direct", [True, False])
def test_both_ways_give_the_same_bits(engine: type[p.Engine], direct: bool) -> None:
    if engine is p.InPlace and not direct:
        engine = p.Loads  # through the store, weights arrive at once
    with launched(engine, direct=direct) as running:
        for _ in range(3):
            assert all(running.step())
        peak = next(peak for peak in running.plan.peaks if peak.process[0] == "engine")
        assert (peak.bytes == 0) == direct  # what is exchanged never waits in a store


@pytest.mark.nightly
@pytest.mark.parametrize("engine", [p.Engine, p.InPlace])
def test_the_same_between_processes(ray_cluster: Any, engine: type[p.Engine]) -> None:
    with launched(engine, backend="ray") as running:
        for _ in range(3):
            assert all(running.step())


@pytest.mark.nightly
def test_a_process_that_is_killed_in_an_exchange_ends_the_step(ray_cluster: Any) -> None:
    with launched(p.InPlace, backend="ray", trainer=p.Killed) as running:
        assert all(running.step())
        with pytest.raises(RoleError) as raised:
            running.step()
    assert raised.value.code == "HF806"


@pytest.mark.nightly
def test_a_load_that_fails_keeps_nobody_waiting(ray_cluster: Any) -> None:
    with launched(p.InPlace, backend="ray", fails=1) as running:
        assert all(running.step())
        with pytest.raises(RoleError, match="no memory"):
            running.step()


def sending(backend: Any, how: str, *, direct: bool = True, **launch: Any) -> Any:
    train, roll = hf.ResourcePool([4], use_gpu=False), hf.ResourcePool([2], use_gpu=False)
    deployment = hf.Deployment(
        actor=hf.place(p.Unsendable, p.SHARDED, 0, how, pool=train, mesh=Mesh(dp=2, tp=2)),
        engine=hf.place(p.InPlace, p.TENSOR, pool=roll, mesh=Mesh(tp=2)),
    )
    plan = p.synced.compile(deployment, optimize=Optimize(direct=direct, bucket_bytes=64))
    return plan.launch(backend, **launch)


KINDS = {
    "meta": "a meta tensor, which has a shape and no values",
    "sparse": "one of layout torch.sparse_coo: .to_dense() makes it dense",
}


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize(("direct", "verifies"), [(True, False), (False, False), (True, True), (False, True)])
def test_weights_without_values_are_refused_before_anybody_waits(how: str, direct: bool, verifies: bool) -> None:
    with sending("local", how, direct=direct) as running:
        running.step()
        with pytest.raises(SyncError) as raised, running.verifying() if verifies else nullcontext():
            running.step()
    error = raised.value
    assert (error.code, error.role, error.parameter, error.ranks) == ("HF773", "actor", "qkv", (1,))
    assert error.message == f"'actor.weights' returned 'qkv', {KINDS[how]}, on rank 1"


@hf.dataflow
def unstated(actor: p.Unstated, engine: p.Engine) -> None:
    hf.sync(actor, engine)


@pytest.mark.parametrize("how", KINDS)
def test_whole_weights_without_values_are_refused_too(how: str) -> None:
    """Also where nobody states any."""
    pools = [hf.ResourcePool([2], use_gpu=False) for _ in range(2)]
    deployment = hf.Deployment(
        actor=hf.place(p.Unstated, how, pool=pools[0]),
        engine=hf.place(p.Engine, Replicas(), pool=pools[1]),
    )
    with unstated.compile(deployment).launch("local") as running, pytest.raises(SyncError) as raised:
        running.step()
    assert raised.value.message == f"'actor.weights' returned 'qkv', {KINDS[how]}, on rank 0"


@pytest.mark.parametrize("direct", [True, False])
def test_a_weight_that_cannot_be_computed_is_the_mistake_of_its_sender(direct: bool) -> None:
    with sending("local", "computed", direct=direct) as running:
        running.step()
        with pytest.raises(RoleError, match=CANNOT) as raised:
            running.step()
        assert isinstance(raised.value, OSError)


CANNOT = "HF806: what 'actor.weights' returned cannot be sent from rank 1: OSError: no memory for a row"


def test_readers_do_not_wait_for_a_sender_that_has_failed(ray_cluster: Any) -> None:
    """Their deadline would blame them (HF807)."""
    with sending("ray", "computed", deadline=100.0) as running:
        running.step()
        with pytest.raises(RoleError, match=CANNOT):
            running.step()


@pytest.mark.nightly
def test_readers_do_not_wait_for_weights_that_are_refused(ray_cluster: Any) -> None:
    with sending("ray", "meta", deadline=100.0) as running:
        running.step()
        with pytest.raises(SyncError, match=r"HF773: .* on rank 1"):
            running.step()
