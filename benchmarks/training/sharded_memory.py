"""The GPU memory of an actor whose weights FSDP2 cuts over two GPUs: as predicted before launch, and as measured.

python -m benchmarks.training.sharded_memory            # a Llama of 1.26 billion parameters, on two GPUs
python -m benchmarks.training.sharded_memory --hidden 4096 --inner 11008 --layers 16
python -m benchmarks.training.sharded_memory --tiny     # on CPUs: it only runs

Updates of random rows without an engine. A row is an update: the most that torch allocated in its forward passes and in
its backward passes, what was allocated as a backward pass began, the most in the optimizer's step, what is left, what
torch keeps, and what the device has in use besides that.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import sys
from typing import Any

import torch
import torch.distributed as dist

import hfdsl as hf
from benchmarks.training.models import llama
from hfdsl.protocols.call import Call, in_call
from hfdsl.protocols.worker import RankContext
from hfdsl.rl import workers as w
from hfdsl.rl.batches import Experience
from hfdsl.rl.losses import Clip
from hfdsl.rl.workers.gpu_memory import gpu_bytes
from hfdsl.runtime.rank.process_groups import ProcessCollectives
from hfdsl.runtime.rank.role_workers import build_worker, construction_call

RANKS = 2
GIB = 2**30


def config(args: argparse.Namespace) -> w.ActorConfig:
    """A Llama whose weights are cut over the data parallel ranks."""
    training = w.TrainingConfig(
        w.OptimizerConfig(1e-6), autocast="bfloat16", checkpointing=not args.whole_passes, sharding="fsdp"
    )
    return w.ActorConfig(
        model=w.ModelConfig(config=llama(args.hidden, args.layers, args.vocabulary, 2048, args.inner)),
        generation=w.GenerationConfig(8),
        training=training,
        batching=w.BatchingConfig(tokens=args.micro_batch, packing=args.packing),
    )


class Passes:
    """The memory of forward and of backward passes: the peak starts again as each begins."""

    def __init__(self) -> None:
        self.forward = self.backward = self.between = 0
        plain = torch.Tensor.backward

        def measured(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self.forward = max(self.forward, torch.cuda.max_memory_allocated())
            self.between = max(self.between, torch.cuda.memory_allocated())
            torch.cuda.reset_peak_memory_stats()
            plain(tensor, *args, **kwargs)  # type: ignore[no-untyped-call]  # of torch
            torch.cuda.synchronize()
            self.backward = max(self.backward, torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()

        torch.Tensor.backward = measured  # type: ignore[method-assign, assignment]  # for this process

    def begin(self) -> None:
        self.forward = self.backward = self.between = 0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def experience(args: argparse.Namespace, place: torch.device) -> Experience:
    """The rows of a rank: random tokens, all of the response."""
    draw = torch.Generator().manual_seed(0)
    shape = (args.rows, args.prompts + args.responses)
    ids = torch.randint(2, args.vocabulary, shape, generator=draw)
    response = torch.ones(args.rows, args.responses, dtype=torch.bool)
    log_probs = -torch.rand(args.rows, args.responses, generator=draw)
    columns: dict[str, Any] = {"ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool), "response_mask": response}
    columns |= {"log_probs": log_probs, "advantage": torch.randn(log_probs.shape, generator=draw)}
    return Experience(**{name: column.to(place) for name, column in columns.items()})


def updates(rank: int, args: argparse.Namespace, port: int) -> None:
    """One rank: updates, and what they take."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(rank)
    mesh, actor_config = hf.Mesh(dp=RANKS), config(args)
    pool = hf.ResourcePool([RANKS], use_gpu=on_gpu)
    deployment = hf.Deployment(actor=hf.place(w.Actor, actor_config, pool=pool, mesh=mesh))
    collectives = ProcessCollectives(rank, RANKS, "127.0.0.1", port, 120.0)
    context = RankContext(rank=rank, world_size=RANKS, mesh=mesh, collectives=collectives)
    actor: Any = build_worker(deployment["actor"], construction_call("actor", deployment, 0), context)
    rows = experience(args, torch.device("cuda" if on_gpu else "cpu"))
    predicted = gpu_bytes(mesh, actor_config)["update"]
    if rank == 0:
        print(f"{args.hidden} x {args.layers}, predicted, GiB: {sum(predicted.values()) / GIB:.2f}", end=": ")
        print(", ".join(f"{name} {size / GIB:.2f}" for name, size in predicted.items()), flush=True)
        print("| update | forward | as backward begins | backward | optimizer | after | kept | besides |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
    passes = Passes() if on_gpu else None
    for step in range(args.updates):
        if passes is not None:
            passes.begin()
        with in_call(
            Call(seed=0, step=step, node=0, rank=rank, first_row=rank * args.rows, row_count=RANKS * args.rows)
        ):
            actor.update(rows, loss=Clip())
        if passes is not None and rank == 0:
            torch.cuda.synchronize()
            free, device = torch.cuda.mem_get_info()
            reserved = torch.cuda.memory_reserved()
            passed = [passes.forward, passes.between, passes.backward, torch.cuda.max_memory_allocated()]
            figures = [*passed, torch.cuda.memory_allocated(), reserved, device - free - reserved]
            print(f"| {step + 1} | {' | '.join(f'{figure / GIB:.2f}' for figure in figures)} |", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"vocabulary": 32_000, "hidden": 2048, "layers": 24, "rows": 96, "updates": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help="of each rank" if name == "rows" else None)
    for name, value in {"prompts": 16, "responses": 496, "micro-batch": 16_384}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--inner", type=int, help="the width of the MLP")
    parser.add_argument("--packing", action="store_true")
    parser.add_argument("--whole-passes", action="store_true", help="keep activations instead of computing them twice")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.tiny:
        small = {"vocabulary": 64, "hidden": 64, "layers": 2, "rows": 4, "prompts": 8, "responses": 8}
        vars(args).update(small, micro_batch=64, updates=1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=updates, args=(rank, args, port)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in ranks))


if __name__ == "__main__":
    main()
