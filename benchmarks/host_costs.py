"""What a sync costs its host: the CPU time of hfdsl's syncs beside bare loops of the same collectives and copies.

A Llama of 24 layers has all its 219 parameters, but is narrow, so that the time is that of calls and not of bytes, and
buckets are smaller in proportion: as many as at the width of 1.3B parameters. Both ways take turns in one run; a row is
the CPU time of the main thread of rank 0, the median of some calls. ``gloo`` is two processes, each with one thread.
``nowhere`` is one, whose collectives and messages return at once: what is left is calls and copies. Its last rows are
what digests add to a sync on a GPU (``benchmarks.digest_costs``).
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import hfdsl as hf
from benchmarks.digest_costs import VerifiedSides
from benchmarks.gpu.resharding import B, Copy, synced
from benchmarks.training.models import llama
from hfdsl.plan.resharding import BUCKET_BYTES as SYNC_BYTES
from hfdsl.plan.resharding import WeightMessage
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.protocols.worker import RankContext
from hfdsl.rl import workers as w
from hfdsl.rl.workers.layouts import GATHERED_BYTES
from hfdsl.runtime.digests import BegunDigests, DigestLayouts, as_words, host_digest
from hfdsl.runtime.rank.process_groups import ProcessCollectives
from hfdsl.runtime.rank.role_workers import build_worker, construction_call
from hfdsl.runtime.weights import exchange
from hfdsl.runtime.weights.held_parts import HeldPart
from hfdsl.runtime.weights.local_weights import LocalWeights
from hfdsl.runtime.weights.messages import HeldParts
from hfdsl.runtime.weights.resharding import exported_weights, loaded_weights

RANKS: Final = 2
HIDDEN: Final = 64
REAL_HIDDEN: Final = 2048
"""The width here, and that of 1.3B parameters."""

SMALLER: Final = (REAL_HIDDEN // HIDDEN) ** 2
"""By how much weights are smaller, and buckets with them."""


copy_tensors: Final = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]  # torch's optimizers use it


def configuration() -> w.ActorConfig:
    """An actor in bfloat16 with two heads, which ``tp=2`` slices."""
    return w.ActorConfig(
        w.ModelConfig(config=llama(HIDDEN, 24, 32000 * HIDDEN // REAL_HIDDEN, 2048, share=1), dtype="bfloat16"),
        w.GenerationConfig(max_tokens=8),
        w.TrainingConfig(w.OptimizerConfig(1e-6)),
    )


def cpu_seconds(calls: Mapping[str, Sequence[Callable[[], object]]], times: int) -> dict[str, list[float]]:
    """The median CPU seconds of this thread in each call of each way; ways take turns, after two that warm up."""
    taken: dict[str, list[list[float]]] = {way: [] for way in calls}
    for _ in range(times + 2):
        for way, parts in calls.items():
            spans = []
            for call in parts:
                dist.barrier()
                start = time.thread_time()
                call()
                spans.append(time.thread_time() - start)
            taken[way].append(spans)
    return {way: [statistics.median(spans) for spans in zip(*turns[2:], strict=True)] for way, turns in taken.items()}


# -- generation slices in place ----------------------------------------------------------------------------------------


class BareGather:
    """Slices gathered in buckets by torch alone, into memory that is there."""

    def __init__(self, slices: Iterable[tuple[torch.Tensor, int]], group: Any, size: int) -> None:
        self._group, self._buckets = group, list[_BareBucket]()
        waiting, count = list[tuple[torch.Tensor, int]](), 0
        for tensor, dim in slices:
            if waiting and count + tensor.nbytes > size:
                self._buckets.append(_BareBucket(waiting))
                waiting, count = [], 0
            waiting.append((tensor, dim))
            count += tensor.nbytes
        self._buckets.append(_BareBucket(waiting))

    @torch.no_grad()
    def gather(self) -> None:
        """Gather, and join slices of columns, each bucket while the next one travels."""
        before: tuple[_BareBucket, Any] | None = None
        for bucket in self._buckets:
            work = self._group.allgather_into_tensor_coalesced(bucket.arriving, bucket.slices)
            if before is not None:
                before[1].wait()
                before[0].join()
            before = bucket, work
        if before is not None:
            before[1].wait()
            before[0].join()

    @torch.no_grad()
    def copy_back(self) -> None:
        """Copy the slices of this rank."""
        for bucket in self._buckets:
            copy_tensors(bucket.slices, bucket.own)


class _BareBucket:
    def __init__(self, slices: Sequence[tuple[torch.Tensor, int]]) -> None:
        self.slices = [tensor.detach() for tensor, _ in slices]
        joined = [torch.cat([tensor.detach()] * RANKS, dim) for tensor, dim in slices]
        columns = [dim > 0 for _, dim in slices]
        self.arriving = [
            torch.cat([tensor] * RANKS) if is_column else whole
            for tensor, whole, is_column in zip(self.slices, joined, columns, strict=True)
        ]
        self.columns = [
            (buffer.chunk(RANKS), whole)
            for buffer, whole, is_column in zip(self.arriving, joined, columns, strict=True)
            if is_column
        ]
        self.own = [whole.chunk(RANKS, dim)[dist.get_rank()] for whole, (_, dim) in zip(joined, slices, strict=True)]

    def join(self) -> None:
        for parts, whole in self.columns:
            torch.cat(parts, 1, out=whole)


def actor_on(rank: int, collectives: ProcessCollectives, mesh: hf.Mesh) -> Any:
    """A rank of an actor."""
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, configuration(), pool=hf.ResourcePool([RANKS], use_gpu=False), mesh=mesh)
    )
    context = RankContext(rank=rank, world_size=RANKS, mesh=mesh, collectives=collectives)
    return build_worker(deployment["actor"], construction_call("actor", deployment, 0), context)


def in_place(rank: int, collectives: ProcessCollectives, times: int) -> dict[str, list[float]]:
    """From ``tp=2`` to ``gen_tp=1``, and back."""
    actor = actor_on(rank, collectives, hf.Mesh(tp=RANKS, gen_tp=1))
    slices = actor.sampling.slices
    slices.bucket_bytes = GATHERED_BYTES // SMALLER
    whole = dict(slices.policy.named_parameters())
    cut = [
        (each, next(dim for dim in range(each.dim()) if each.shape[dim] != whole[name].shape[dim]))
        for name, each in actor.policy.named_parameters()
        if each.shape != whole[name].shape
    ]
    bare = BareGather(cut, actor.axis("micro_dp").process_group, GATHERED_BYTES // SMALLER)
    entered: list[Any] = []

    def enter() -> None:
        entered.append(slices.gathered())
        entered[0].__enter__()

    def leave() -> None:
        entered.pop().__exit__(None, None, None)

    return cpu_seconds({"bare": (bare.gather, bare.copy_back), "hfdsl": (enter, leave)}, times)


# -- between roles -----------------------------------------------------------------------------------------------------


class Nowhere:
    """A communicator whose messages leave and arrive at once, and are not there."""

    def send(self, tensors: Sequence[torch.Tensor], rank: int, tag: int) -> Nowhere:
        return self

    recv = send

    def wait(self) -> None:
        """Do nothing."""


class Arriving(exchange.Arriving):
    """Weights that arrive over a communicator of this process."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator

    @property
    def device(self) -> str:
        return "cpu"

    def receive(
        self,
        sync: ScheduledSync,
        rank: int,
        peers: Mapping[int, exchange.Arriving],
        held: HeldParts | None,
        write: exchange.Write,
    ) -> None:
        exchange.receive(sync, rank, self._communicator, self.device, held, write)


class BareMessages:
    """Messages by torch alone, between memory that is there and the parts that a rank holds."""

    def __init__(self, messages: Iterable[WeightMessage], held: LocalWeights) -> None:
        self._held, self._flat = list[list[torch.Tensor]](), list[list[torch.Tensor]]()
        for message in messages:
            self._held.append([held.part(transfer.parameter, transfer.box) for transfer in message.transfers])
            self._flat.append([torch.empty_like(part).contiguous() for part in self._held[-1]])

    @torch.no_grad()
    def send(self) -> None:
        """Pack and send, with two messages under way."""
        leaving: deque[Nowhere] = deque()
        for held, flat in zip(self._held, self._flat, strict=True):
            if len(leaving) == RANKS:
                leaving.popleft().wait()
            copy_tensors(flat, held)
            leaving.append(Nowhere().send(flat, 0, 0))

    @torch.no_grad()
    def receive(self) -> None:
        """Receive and unpack."""
        for held, flat in zip(self._held, self._flat, strict=True):
            Nowhere().recv(flat, 0, 0).wait()
            copy_tensors(held, flat)


def between_roles(collectives: ProcessCollectives, times: int) -> tuple[dict[str, list[float]], Mapping[str, float]]:
    """From rank 0 of an actor on ``tp=2``, to a sampler that has all of the model, and a digest of that.

    Also what digests add to a sync on a GPU.
    """
    mesh, config = hf.Mesh(tp=RANKS), configuration()
    sampling = w.SamplerConfig(config.model, config.generation)
    places = hf.Deployment(
        actor=hf.place(w.Actor, config, pool=hf.ResourcePool([RANKS], use_gpu=False), mesh=mesh),
        sampler=hf.place(Copy, sampling, pool=hf.ResourcePool([1], use_gpu=False)),
    )
    plan = synced.compile(places, {B: 1}, optimize=hf.Optimize(bucket_bytes=SYNC_BYTES // SMALLER))
    actor, sampler = actor_on(0, collectives, mesh), Copy(sampling)
    export = next(step for step in plan.steps if step.parts)
    [sync] = export.parts

    @torch.no_grad()
    def send(weights: Any) -> None:
        exports = dict(exchange.exported([sync], 0, weights, export.label))
        exchange.send([*exports.values()], Nowhere(), "cpu")

    def arriving_weights() -> exchange.ArrivingWeights:
        peers = {source: Arriving(Nowhere()) for source in sync.schedule.sources[0]}
        return exchange.ArrivingWeights(sync, 0, peers, "sampler.load")

    held: dict[str, HeldPart] = sampler.held_weights("policy")
    layouts = DigestLayouts()
    words = [as_words(part.tensor.detach(), (0,) * part.tensor.dim()) for part in held.values()]

    def read() -> None:
        for part in words:
            host_digest(part, (0,) * part.dim())

    def digest() -> None:
        begun = BegunDigests(layouts=layouts)
        begun.add(held.items())
        begun.digests()

    sent = [message for bucket in sync.schedule.messages_from(0) for message in bucket]
    arriving = [message for bucket in sync.schedule.messages_to(0) for message in bucket]
    sending = BareMessages(sent, exported_weights(sync, 0, actor.held_weights("policy"), export.label))
    receiving = BareMessages(arriving, loaded_weights(sync, 0, held, "sampler.load"))
    load = next(step for step in plan.steps if step.sync is not None)
    sides = VerifiedSides((export, load), (actor, sampler), send, arriving_weights)
    ours = partial(sides.send, verified=False), partial(sides.receive, verified=False), digest
    taken = cpu_seconds({"bare": (sending.send, receiving.receive, read), "hfdsl": ours}, times)
    return taken, sides.seconds(times)


# -- processes ---------------------------------------------------------------------------------------------------------

IN_PLACE: Final = ("tp=2 to gen_tp=1", "and back")
BETWEEN_ROLES: Final = ("actor of tp=2 sends", "sampler receives", "digests")


def over_gloo(rank: int, port: int, times: int) -> None:
    """Measure as one of two ranks, and print as the first."""
    torch.set_num_threads(1)
    taken = in_place(rank, ProcessCollectives(rank, RANKS, "127.0.0.1", port, 120.0), times)
    if rank == 0:
        rows("gloo", IN_PLACE, taken)
    dist.barrier()
    dist.destroy_process_group()


def over_nothing(times: int) -> None:
    """Measure and print with collectives that do nothing."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    collectives = ProcessCollectives(0, RANKS, "", 0, 120.0)
    rows("nowhere", IN_PLACE, in_place(0, collectives, times))
    taken, digests = between_roles(collectives, times)
    rows("nowhere", BETWEEN_ROLES, taken)
    for name, seconds in digests.items():
        print(f"nowhere  {name:24} {seconds * 1e3:8.2f} ms of a verified sync", flush=True)


def rows(group: str, names: Sequence[str], taken: Mapping[str, Sequence[float]]) -> None:
    """Rows of the table."""
    for name, bare, ours in zip(names, taken["bare"], taken["hfdsl"], strict=True):
        print(
            f"{group:8} {name:24} {bare * 1e3:8.2f} ms bare {ours * 1e3:8.2f} ms hfdsl {ours / bare:6.2f}x", flush=True
        )


def main(times: int) -> None:
    """Print the rows."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    groups = [[partial(over_nothing, times)], [partial(over_gloo, rank, port, times) for rank in range(RANKS)]]
    for ranks in groups:
        processes = [context.Process(target=rank) for rank in ranks]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
