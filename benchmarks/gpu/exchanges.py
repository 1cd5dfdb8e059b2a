"""Weights from a trainer to an engine on another GPU: a sync by schedule beside collectives that are written by hand.

Both roles hold a Llama of random weights and do nothing else. A trainer of one rank has all of every weight, so its
sync is a broadcast; where its layout says that it has them in two halves, the sync goes piece by piece, as from slices.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray
import torch
import torch.distributed as dist

import hfdsl as hf
from benchmarks.gpu.models import SIZES, Size
from benchmarks.gpu.timing import GPUS, seconds, wait
from hfdsl.protocols.boxes import Box
from hfdsl.protocols.layouts import Layout, Parameter, Replicas
from hfdsl.runtime.rank.process_groups import all_gather_single

DEVICE = "cuda" if GPUS else "cpu"
MiB = 2**20


# -- roles -------------------------------------------------------------------------------------------------------------


class Halves(Layout):
    """All of every parameter, as two boxes."""

    def boxes(self, parameter: Parameter, mesh: hf.Mesh, rank: int) -> tuple[Box, ...]:
        (_, rows), *others = ((0, size) for size in parameter.shape)
        return ((0, rows // 2), *others), ((rows // 2, rows), *others)


class Holder(hf.Worker):
    """A role with the weights of a model, in memory that stays; after a sync one element in ``period`` changes."""

    def __init__(self, size: Size, layout: Layout, *, filled: bool, period: int = 0) -> None:
        torch.manual_seed(0)
        self.period, self.first = period, 0
        self.weights = {
            parameter.name: torch.empty(parameter.shape, dtype=torch.bfloat16, device=DEVICE).fill_(0.0)
            for parameter in size.parameters()
        }
        for weight in self.weights.values() if filled else ():
            weight.normal_()
        wait()
        # More than the weights have: the allocator gives one of 21.5 MiB 22.
        self.allocated = torch.cuda.memory_allocated() if GPUS else 0

    @staticmethod
    def state_parameters(size: Size, layout: Layout, *, filled: bool, period: int = 0) -> dict[str, list[Parameter]]:
        return {"policy": size.parameters()}

    def held_weights(self, state: str) -> dict[str, Any]:
        return self.weights

    def peak(self) -> int:
        """Wait for the GPU; the most bytes that it has had beside the weights since the last call."""
        if not GPUS:
            return 0
        wait()
        most = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return int(most) - self.allocated


class Trainer(Holder):
    @hf.register(hf.Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy", layout=lambda mesh, size, layout, *, filled, period=0: layout)
    def exported(self) -> dict[str, Any]:
        return self.weights

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.writes("policy")
    def sent(self) -> int:
        for weight in self.weights.values() if self.period else ():
            weight.view(torch.int16).view(-1)[self.first :: self.period].bitwise_xor_(1)
        self.first = (self.first + 1) % max(self.period, 1)
        return self.peak()


class Engine(Holder):
    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=Replicas())
    def load(self, weights: dict[str, Any]) -> None:
        for name, weight in weights.items():
            self.weights[name].copy_(weight)

    @contextmanager
    def receiving(self, state: str) -> Iterator[Mapping[str, torch.Tensor]]:
        yield self.weights

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.reads("policy", staleness=1)
    def loaded(self) -> int:
        return self.peak()


@hf.dataflow
def synced(trainer: Trainer, engine: Engine) -> tuple[hf.PerRank[int], hf.PerRank[int]]:
    hf.sync(trainer, engine)
    return trainer.sent(), engine.loaded()


# -- by hand -----------------------------------------------------------------------------------------------------------


def by_hand(rank: int, port: int, names: list[str], times: int) -> None:
    """A rank of two: collectives of whole parameters, one after the other, and one of 1 GiB at most."""
    torch.set_num_threads(1)
    if GPUS:
        torch.cuda.set_device(rank)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("nccl" if GPUS else "gloo", init_method=address, rank=rank, world_size=2)
    for name in names:
        size = SIZES[name]
        weights = [torch.zeros(parameter.shape, dtype=torch.bfloat16, device=DEVICE) for parameter in size.parameters()]
        halves = [torch.zeros(weight.numel() // 2, dtype=torch.bfloat16, device=DEVICE) for weight in weights]
        large = torch.zeros(min(size.bytes, 2**30), dtype=torch.uint8, device=DEVICE)

        def broadcast(weights: list[torch.Tensor] = weights) -> None:
            works: list[Any] = [dist.broadcast(weight, 0, async_op=True) for weight in weights]
            for work in works:
                work.wait()

        def gather(weights: list[torch.Tensor] = weights, halves: list[torch.Tensor] = halves) -> None:
            for weight, half in zip(weights, halves, strict=True):
                all_gather_single(weight.view(-1), half, dist.group.WORLD)

        def send(large: torch.Tensor = large) -> None:
            (dist.send if rank == 0 else dist.recv)(large, 1 - rank)

        broadcast_seconds = seconds(partial(dist.broadcast, large, 0), times) * size.bytes / large.nbytes
        row(rank == 0, name, "one broadcast of its bytes, by hand", size.bytes, broadcast_seconds)
        sent = seconds(send, times) * size.bytes / large.nbytes
        row(rank == 0, name, "one send of its bytes, by hand", size.bytes, sent)
        row(rank == 0, name, "broadcasts of parameters, by hand", size.bytes, seconds(broadcast, times))
        gather_seconds = seconds(gather, times)
        row(rank == 0, name, "all-gathers of halves, by hand", size.bytes // 2, gather_seconds)
        del weights, halves, large
    dist.barrier()
    dist.destroy_process_group()


def row(shown: bool, model: str, way: str, received: int, duration: float, more: str = "") -> None:
    if shown:
        size, speed = f"{received / 1e9:.3f} GB", f"{received / duration / 1e9:.1f} GB/s"
        print(f"{model:6} {size:>10}  {way:36} {duration * 1e3:9.2f} ms {speed:>11}  {more}", flush=True)


# -- by bare actors of Ray ---------------------------------------------------------------------------------------------


class BareActor:
    """An actor of Ray without hfdsl: one of two that broadcast the bytes of a model at once."""

    def __init__(self, rank: int, port: int, size: int) -> None:
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("nccl" if GPUS else "gloo", init_method=address, rank=rank, world_size=2)
        self.bytes = torch.zeros(size, dtype=torch.uint8, device=DEVICE)

    def broadcast(self) -> None:
        dist.broadcast(self.bytes, 0)

    def waited(self) -> int:
        """What stands for the two calls of ``synced`` whose results a step returns."""
        wait()
        return 0


def by_ray(name: str, times: int) -> None:
    """The same messages as a step of ``synced``, from a driver that plans and checks nothing."""
    size = SIZES[name].bytes
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    bare: Any = ray.remote(BareActor)
    actors = [bare.options(num_gpus=int(GPUS)).remote(rank, port, size) for rank in range(2)]

    def step() -> None:
        for actor in actors:
            actor.broadcast.remote()
        ray.get([actor.waited.remote() for actor in actors])

    row(True, name, "one broadcast, by bare actors of Ray", size, seconds(step, times, lambda: None))
    for actor in actors:
        ray.kill(actor)


# -- by schedule -------------------------------------------------------------------------------------------------------

WAYS = {
    "broadcast": (Replicas(), True),
    "pieces": (Halves(), True),
    "store": (Halves(), False),
}
"""The layouts of trainers, and whether the sync goes without the store."""

STORED_BYTES = 4 * 2**30
"""The most bytes that are sent through the object store."""


def by_schedule(name: str, way: str, times: int, bucket_bytes: int, period: int, *, deltas: bool) -> None:
    """Steps that sync, after which one element in ``period`` changes, and do nothing else; also with digests."""
    size, (layout, direct) = SIZES[name], WAYS[way]
    pools = [hf.ResourcePool([1], use_gpu=GPUS) for _ in range(2)]
    deployment = hf.Deployment(
        trainer=hf.place(Trainer, size, layout, filled=True, period=period, pool=pools[0]),
        engine=hf.place(Engine, size, Replicas(), filled=False, pool=pools[1]),
    )
    switches = hf.Optimize(direct=direct, bucket_bytes=bucket_bytes, deltas=deltas)
    plan = synced.compile(deployment, optimize=switches)
    (sync,) = plan.syncs
    with plan.launch("ray", deadline=120) as running:
        planned = (sync.peak - sync.needed) / MiB

        def verified() -> Any:
            with running.verifying("policy"):
                return running.step()

        def memory(step: Callable[[], Any]) -> str:
            step()  # whose peaks are read before the next
            (sent,), (loaded,) = step()
            return f"beside the weights {sent / MiB:.0f} and {loaded / MiB:.0f} MiB, planned {planned:.0f}"

        if not direct:
            row(True, name, f"hf.sync, {way}", size.bytes, seconds(running.step, times, lambda: None))
        else:
            median_seconds, checked = in_turns(running.step, verified, times)
            what = f"hf.sync, {way}" + ", changes alone" * deltas
            row(True, name, what, size.bytes, median_seconds, memory(running.step) if GPUS else "")
            cost = f"{checked / median_seconds - 1:+.1%}; every 20th step {(checked / median_seconds - 1) / 20:+.2%}"
            memory_too = f"; {memory(verified)}" if GPUS else ""
            row(True, name, "  with digests on both sides", size.bytes, checked, cost + memory_too)
        if period:  # the trainer has changed its weights since
            verified()
            return
        compared = running.verify("policy")
        if not compared.compared:
            raise RuntimeError(f"not compared: {compared.skipped}")


def in_turns(first: Callable[[], Any], second: Callable[[], Any], times: int) -> tuple[float, float]:
    """The median seconds of two calls that take turns, so that both have what else the machine does."""
    durations: tuple[list[float], list[float]] = ([], [])
    for _ in range(times + 2):
        for function, spans in zip((first, second), durations, strict=True):
            start = time.perf_counter()
            function()
            spans.append(time.perf_counter() - start)
    return statistics.median(durations[0][2:]), statistics.median(durations[1][2:])


def compare(arguments: argparse.Namespace, port: int) -> None:
    """Print each row as it is measured; none begins after ``arguments.seconds``."""
    start, names, times, limit = time.perf_counter(), arguments.models, arguments.times, arguments.seconds
    context = multiprocessing.get_context("spawn")
    ranks = [
        context.Process(target=by_hand, args=(rank, port, names, times)) for rank in range(2) if not arguments.no_raw
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(limit)
        if process.is_alive():
            print("by hand: not done in time", flush=True)
            process.kill()
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    for name in ["empty", *names] if not arguments.no_raw else []:
        by_ray(name, times)
    for way in arguments.ways:
        for name in ["empty", *names]:
            if not WAYS[way][1] and SIZES[name].bytes > STORED_BYTES:
                print(f"{name}, {way}: left out, it takes minutes", flush=True)
                continue
            if time.perf_counter() - start > limit:
                print(f"{name}, {way}: left out, {limit:.0f} s have passed", flush=True)
                continue
            period, bucket_bytes = round(1 / arguments.changed) if arguments.changed else 0, arguments.bucket * MiB
            for deltas in (False, True) if period and WAYS[way][1] else (False,):
                try:
                    by_schedule(name, way, times if WAYS[way][1] else 1, bucket_bytes, period, deltas=deltas)
                except Exception as error:  # noqa: BLE001  # the other rows are worth having
                    print(f"{name}, {way}: {type(error).__name__}: {error}", flush=True)
    ray.shutdown()
