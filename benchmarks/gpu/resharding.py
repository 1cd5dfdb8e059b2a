"""Weights that change layout: between GPUs and in place, beside collectives by hand, and what digests of a sync cost.

python -m benchmarks.gpu.resharding                          # two GPUs: 1.3B and 7B from one to the other, in 4 minutes
python -m benchmarks.gpu.resharding exchange --models small  # on CPUs
python -m benchmarks.gpu.resharding in-place                 # two GPUs: tp=2 to gen_tp=1
python -m benchmarks.gpu.resharding digests                  # two GPUs: an actor, and a sampler on a pool of its own
python -m benchmarks.gpu.resharding in-place --hidden 128 --layers 2 --vocabulary 512          # on CPUs
python -m benchmarks.gpu.resharding digests --hidden 512 --layers 4 --vocabulary 8000 [--store]  # on CPUs
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import sys
import time
from typing import Any, Literal

import torch
import torch.distributed as dist

import hfdsl as hf
from benchmarks.gpu.exchanges import WAYS, MiB, compare
from benchmarks.gpu.models import SIZES
from benchmarks.gpu.timing import GPUS, seconds, wait
from benchmarks.training.models import llama
from hfdsl.protocols.collectives import AxisGroup, recorded_collectives
from hfdsl.protocols.worker import RankContext
from hfdsl.rl import workers as w
from hfdsl.rl.models.generation_slices import GenerationSlices
from hfdsl.runtime.digests import digests
from hfdsl.runtime.rank.process_groups import ProcessCollectives, all_gather_single
from hfdsl.runtime.rank.role_workers import build_worker, construction_call

RANKS = 2


class B(hf.Dim):
    """Rows."""


class Asked(hf.Batch):
    x: hf.f32[B]


class Loaded(hf.Batch):
    bytes: hf.Metric[int, Literal["max"]]


class Copy(w.Sampler):
    """A sampler that waits for its weights."""

    @hf.register(hf.Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.reads("policy")
    def loaded(self, request: Asked) -> Loaded:
        wait()
        return Loaded(bytes=sum(weight.nbytes for weight in self.copy.state().values()))


@hf.dataflow
def synced(request: Asked, actor: w.Actor, sampler: Copy) -> Loaded:
    hf.sync(actor, sampler)
    return sampler.loaded(request)


def configuration(arguments: argparse.Namespace) -> w.ActorConfig:
    sizes = llama(arguments.hidden, arguments.layers, arguments.vocabulary, 2048, share=1)
    return w.ActorConfig(
        w.ModelConfig(config=sizes, dtype="bfloat16"),
        w.GenerationConfig(max_tokens=8),
        w.TrainingConfig(w.OptimizerConfig(1e-6)),
    )


def raw_seconds(peers: AxisGroup, size: int, place: torch.device, times: int) -> float:
    """An all-gather of so many bytes of each rank, in one piece."""
    sent = torch.zeros(size, dtype=torch.uint8, device=place)
    gathered = torch.empty(peers.size * size, dtype=torch.uint8, device=place)
    return seconds(lambda: all_gather_single(gathered, sent, peers.process_group), times)


# -- in place ----------------------------------------------------------------------------------------------------------


def in_place(rank: int, arguments: argparse.Namespace, port: int) -> None:
    """One rank: generation slices gathered parameter by parameter, in buckets, and as many bytes in one all-gather."""
    if not GPUS:
        torch.set_num_threads(1)
    if GPUS:
        torch.cuda.set_device(rank)
    mesh = hf.Mesh(tp=RANKS, gen_tp=1)
    pool = hf.ResourcePool([RANKS], use_gpu=GPUS)
    deployment = hf.Deployment(actor=hf.place(w.Actor, configuration(arguments), pool=pool, mesh=mesh))
    collectives = ProcessCollectives(rank, RANKS, "127.0.0.1", port, 120.0)
    context = RankContext(rank=rank, world_size=RANKS, mesh=mesh, collectives=collectives)
    actor = build_worker(deployment["actor"], construction_call("actor", deployment, 0), context)
    slices, policy = actor.sampling.slices, actor.policy
    parameters = list({id(parameter): parameter for parameter in policy.parameters()}.values())
    whole = {
        name
        for name, parameter in slices.policy.named_parameters()
        if parameter.shape == policy.get_parameter(name).shape
    }
    held = sum(parameter.nbytes for parameter in parameters)
    sliced = sum(parameter.nbytes for name, parameter in policy.named_parameters() if name not in whole)
    raw = raw_seconds(actor.axis("micro_dp"), sliced, parameters[0].device, arguments.times)
    spans_by_way: dict[str, list[tuple[float, float]]] = {}
    buckets = {"by parameter": 0, "in buckets": slices.bucket_bytes}
    for way, size in buckets.items():
        slices.bucket_bytes = size
        for _ in range(arguments.times + 2):  # two of each warm up
            dist.barrier()
            wait()
            start = time.perf_counter()
            with slices.gathered():
                wait()
                entered = time.perf_counter()
            wait()
            spans_by_way.setdefault(way, []).append((entered - start, time.perf_counter() - entered))
    gathers = {way: counted_gathers(actor, slices, size) for way, size in buckets.items()}
    peak = 0
    if GPUS:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated() - held
        with slices.gathered():
            peak = torch.cuda.max_memory_allocated() - base
    digest = seconds(lambda: digests(actor.held_weights("policy").items()), arguments.times)
    if rank == 0:
        needed = held + sliced * (RANKS - 1)
        print(
            f"model {needed / 1e9:.3f} GB, of which a rank has {held / 1e9:.3f} GB and receives {sliced / 1e9:.3f} GB"
        )
        print(f"one raw all-gather   {raw * 1e3:8.2f} ms  {sliced / raw / 1e9:7.1f} GB/s received")
        for way, spans in spans_by_way.items():
            fold, back = (statistics.median(span) for span in zip(*spans[2:], strict=True))
            print(
                f"{way:20} {fold * 1e3:8.2f} ms  {sliced / fold / 1e9:7.1f} GB/s, {fold / raw:.2f}x of raw, "
                f"{gathers[way]} collectives, and {back * 1e3:.2f} ms back"
            )
        print(f"peak                 {peak / MiB:8.0f} MiB, generation slice {needed / MiB:.0f} MiB")
        print(f"digests of a slice   {digest * 1e3:8.2f} ms  {held / digest / 1e9:7.1f} GB/s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def counted_gathers(actor: w.Actor, slices: GenerationSlices, size: int) -> int:
    """The collectives of a call with buckets of so many bytes."""
    slices.bucket_bytes = size
    endpoint: Any = (actor._hf_rank.collectives, actor.rank)
    with recorded_collectives(endpoint) as results, slices.gathered():
        return len(results)


# -- digests -----------------------------------------------------------------------------------------------------------


def verified(arguments: argparse.Namespace) -> None:
    """A sync between two pools, without digests and with them."""
    config = configuration(arguments)
    pools = [hf.ResourcePool([1], use_gpu=GPUS) for _ in range(2)]
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, config, pool=pools[0]),
        sampler=hf.place(Copy, w.SamplerConfig(config.model, config.generation), pool=pools[1]),
    )
    request = Asked(x=torch.zeros(1))
    optimize = hf.Optimize(direct=not arguments.store)
    with synced.compile(deployment, {B: 1}, optimize=optimize).launch("ray", deadline=300) as running:
        size = running.step(request).bytes.value
        plain = seconds(lambda: running.step(request), arguments.times)

        def step() -> None:
            with running.verifying("policy"):
                running.step(request)

        checked = seconds(step, arguments.times)
    cost = checked - plain
    print(f"sync of {size / 1e9:.3f} GB         {plain * 1e3:8.1f} ms  {size / plain / 1e9:6.1f} GB/s")
    print(
        f"verified             {checked * 1e3:8.1f} ms  {cost / plain:+.1%}; every 20th step {cost / plain / 20:+.2%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", default="exchange", choices=["exchange", "in-place", "digests"])
    for name, default in (("hidden", 2048), ("layers", 24), ("vocabulary", 32000), ("times", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--store", action="store_true", help="digests: send weights through the object store")
    parser.add_argument("--models", nargs="+", default=["1.3B", "7B"] if GPUS else ["small"], choices=SIZES)
    parser.add_argument("--ways", nargs="+", default=[*WAYS], choices=WAYS, help="exchange: which syncs are measured")
    parser.add_argument(
        "--bucket", type=int, default=hf.Optimize().bucket_bytes // MiB, help="exchange: bucket_bytes, in MiB"
    )
    parser.add_argument(
        "--changed", type=float, default=0.0, help="exchange: the share of elements that changes, also sent alone"
    )
    parser.add_argument("--no-raw", action="store_true", help="exchange: leave out the collectives by hand")
    parser.add_argument("--seconds", type=float, default=190, help="exchange: no row begins after them")
    arguments = parser.parse_args()
    if arguments.what == "digests":
        verified(arguments)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if arguments.what == "exchange":
        compare(arguments, port)
        return
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=in_place, args=(rank, arguments, port)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in ranks))


if __name__ == "__main__":
    main()
