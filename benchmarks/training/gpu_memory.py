"""The GPU memory of an actor with a colocated engine, by phase: as predicted before launch, and as measured.

python -m benchmarks.training.gpu_memory            # a Llama of 1.26 billion parameters, on a GPU
python -m benchmarks.training.gpu_memory --lora 16 --packing
python -m benchmarks.training.gpu_memory --tiny     # on a CPU: it only runs
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.training.models import llama
from hfdsl import Mesh
from hfdsl.plan.gpu_memory import CONTEXT
from hfdsl.protocols.call import Call, in_call
from hfdsl.rl import workers as w
from hfdsl.rl.batches import Experience, Prompts, Rollout
from hfdsl.rl.losses import Clip
from hfdsl.rl.workers.gpu_memory import gpu_bytes

GIB = 2**30


def config(args: argparse.Namespace) -> w.ActorConfig:
    """A Llama, and its engine."""
    model = llama(args.hidden, args.layers, args.vocabulary, positions=2048)
    return w.ActorConfig(
        model=w.ModelConfig(config=model, dtype="bfloat16" if args.lora else "float32"),
        generation=w.GenerationConfig(args.responses, engine=args.engine, cache_tokens=args.cache),
        training=w.TrainingConfig(w.OptimizerConfig(), autocast="bfloat16", checkpointing=True),
        batching=w.BatchingConfig(tokens=args.micro_batch, packing=args.packing),
        lora=w.Lora(rank=args.lora) if args.lora else None,
    )


class Meter:
    """The most memory in use while something runs: that torch allocates, that it keeps, and of the device."""

    def __init__(self) -> None:
        self.on_gpu = torch.cuda.is_available()

    def used(self) -> int:
        free, total = torch.cuda.mem_get_info() if self.on_gpu else (0, 0)
        return total - free

    def __call__(self, call: Callable[[], Any]) -> tuple[Any, float, float, float]:
        """What a call returns, and GiB that torch has allocated, that it has kept, and of the device."""
        most, stop = [self.used()], threading.Event()

        def watch() -> None:
            while not stop.wait(0.005):
                most.append(self.used())

        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            result = call()
            if self.on_gpu:
                torch.cuda.synchronize()
        finally:
            stop.set()
            watcher.join()
        allocated = torch.cuda.max_memory_allocated() if self.on_gpu else 0
        reserved = torch.cuda.max_memory_reserved() if self.on_gpu else 0
        return result, allocated / GIB, reserved / GIB, max(most) / GIB

    def now(self) -> tuple[float, float, float]:
        """The same at this moment."""
        if not self.on_gpu:
            return 0.0, 0.0, 0.0
        return torch.cuda.memory_allocated() / GIB, torch.cuda.memory_reserved() / GIB, self.used() / GIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in {"vocabulary": 32_000, "hidden": 2048, "layers": 24, "rows": 128}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in {"prompts": 64, "responses": 448, "cache": 131_072, "micro-batch": 16_384}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--lora", type=int, default=0, help="the rank of an adapter of a bfloat16 model; 0 is none")
    parser.add_argument("--packing", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.tiny:
        small = {"vocabulary": 64, "hidden": 64, "layers": 2, "rows": 8, "prompts": 8, "responses": 8}
        vars(args).update(small, cache=1024, engine="plain", micro_batch=64)
    actor_config, meter = config(args), Meter()
    predicted = gpu_bytes(Mesh(), actor_config)
    print("| phase | predicted, GiB | of the device, GiB | apart | allocated | kept | parts of the prediction |")
    print("|---|---:|---:|---:|---:|---:|---|")

    def row(phase: str, method: str, allocated: float, reserved: float, device: float) -> None:
        parts = predicted.get(method, {})
        listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
        total = (CONTEXT + sum(parts.values())) / GIB
        gap = f"{total / device - 1:+.1%}" if device else ""
        cells = f"{total:.2f} | {device:.2f} | {gap} | {allocated:.2f} | {reserved:.2f}"
        print(f"| {phase} | {cells} | {listed} |", flush=True)

    actor, *most = meter(lambda: w.Actor(actor_config))
    row("construct", "generate", *most)
    row("idle, at first", "", *meter.now())
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(2, args.vocabulary, (args.rows, args.prompts), generator=draw)
    prompts = Prompts(ids=ids, mask=torch.ones_like(ids, dtype=torch.bool), task=[{}] * args.rows)

    def called(node: int, body: Callable[[], Any]) -> tuple[Any, float, float, float]:
        with in_call(Call(seed=0, step=0, node=node, rank=0, first_row=0, row_count=args.rows)):
            return meter(body)

    rollout: Rollout
    rollout, *most = called(0, lambda: actor.generate(prompts))
    row("generate", "generate", *most)
    _, *most = called(1, lambda: actor.log_probs(rollout))
    row("log_probs", "log_probs", *most)
    columns = {name: getattr(rollout, name).tensor for name in ("ids", "mask", "response_mask", "log_probs")}
    advantage = torch.randn(columns["log_probs"].shape, generator=draw).to(columns["log_probs"].device)
    experience = Experience(**columns, advantage=advantage)
    for update in range(2):
        _, *most = called(2 + update, lambda: actor.update(experience, loss=Clip()))
        row(f"update {update + 1}", "update", *most)
    _, *most = called(4, lambda: actor.generate(prompts))
    row("generate again", "generate", *most)
    row("idle", "", *meter.now())
    _, *most = meter(actor.weights)
    row("weights", "weights", *most)
    if meter.on_gpu:
        torch.cuda.empty_cache()
        row("idle, cache of torch emptied", "", *meter.now())


if __name__ == "__main__":
    main()
