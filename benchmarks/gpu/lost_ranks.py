r"""Ranks of FSDP2 that are killed: whether the run continues, how long that takes, and whether it learns the same.

    python -m benchmarks.gpu.lost_ranks         # two GPUs, 0.5B
    python -m benchmarks.gpu.lost_ranks --cpu --hidden 64 --layers 2 --vocabulary 200 --rows 16 --tokens 8

GRPO of a Llama with random weights, whose parameters and optimizer FSDP2 shards over two ranks, beside a reward. Three
runs with the same seed: two that lose nothing, which show what the order of sums on a GPU changes, and one in which a
rank dies by SIGKILL in a forward pass of an update, while it generates, and between two steps. In the forward pass its
peer waits for it in a collective.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

import hfdsl as hf
from benchmarks.queues.long_tails import EvenTokens, prompts_of
from benchmarks.training.models import llama
from hfdsl.rl.batches import B, P, R
from hfdsl.rl.dataflows.grpo import grpo_without_reference
from hfdsl.rl.workers import (
    Actor,
    ActorConfig,
    BatchingConfig,
    GenerationConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
)

GROUP, PROMPT, RANKS, FOLDER = 8, 32, 2, "BENCHMARK_LOST_RANKS_FOLDER"

FIRST_LAYER: Final = "model.model.layers.0"

LOSSES: Final[Mapping[int, tuple[str, int]]] = {3: ("update", 1), 5: ("generate", 0), 7: ("before the step", 1)}
"""By step, where a rank dies, and which one."""


class MortalActor(Actor):
    """An actor whose ranks write down their process IDs, and die in a forward pass with gradients if a file says so."""

    def __init__(self, config: ActorConfig) -> None:
        super().__init__(config)
        folder = Path(os.environ[FOLDER])
        (folder / f"pid {self.rank}").write_text(str(os.getpid()))
        order = folder / f"die {self.rank}"

        def die(*_: object) -> None:
            if torch.is_grad_enabled() and order.exists():
                order.unlink()
                os.kill(os.getpid(), signal.SIGKILL)

        self.policy.get_submodule(FIRST_LAYER).register_forward_pre_hook(die)


def deployment(args: argparse.Namespace) -> hf.Deployment:
    """The actor on two GPUs, the reward on a CPU."""
    config = ActorConfig(
        model=ModelConfig(config=llama(args.hidden, args.layers, args.vocabulary, PROMPT + args.tokens)),
        generation=GenerationConfig(args.tokens),
        training=TrainingConfig(OptimizerConfig(learning_rate=1e-5), autocast=None if args.cpu else "bfloat16"),
        batching=BatchingConfig(tokens=16_384),
    )
    return hf.Deployment(
        actor=hf.place(MortalActor, config, pool=hf.ResourcePool([RANKS], use_gpu=not args.cpu)),
        reward=hf.place(EvenTokens, pool=hf.ResourcePool([1], use_gpu=False)),
    )


def strike(folder: Path, where: str, rank: int, generating: float) -> None:
    """Have a rank die in the step that comes."""
    if where == "update":
        (folder / f"die {rank}").touch()
        return
    pid = int((folder / f"pid {rank}").read_text())
    if where == "generate":
        threading.Timer(generating / 2, os.kill, (pid, signal.SIGKILL)).start()
    else:
        os.kill(pid, signal.SIGKILL)


def run(args: argparse.Namespace, losses: Mapping[int, tuple[str, int]]) -> list[tuple[float, float, float]]:
    """The loss, the score and the seconds of each step, from a launch of its own."""
    dims = {B: args.rows // GROUP, P: PROMPT, R: args.tokens}
    plan = grpo_without_reference.given(group=GROUP, updates=2).compile(deployment(args), dims)
    curve, generating = list[tuple[float, float, float]](), 0.0
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        retries = hf.Retries(attempts=3, every=args.every) if losses else None
        with plan.launch(
            "ray", seed=1, worker_env={FOLDER: name}, retries=retries, timeout=180, deadline=300
        ) as running:
            print(f"launched in {time.perf_counter() - start:.1f} s", flush=True)
            for step in range(args.steps):
                earlier = len(running.recoveries)
                if step in losses:
                    strike(Path(name), *losses[step], generating)
                start = time.perf_counter()
                metrics, outcome = running.step(prompts_of(args.rows // GROUP, PROMPT, 3, args.vocabulary, step))
                seconds = time.perf_counter() - start
                curve.append((metrics.loss.value, outcome.score.value, seconds))
                print(f"step {step}: loss {curve[-1][0]:.3e}, score {curve[-1][1]:.4f}, {seconds:.1f} s", flush=True)
                intervals = (interval for interval in running.timeline.intervals if interval.name == "actor.generate")
                generating = max((interval.stop - interval.start for interval in intervals), default=generating)
                for recovered in running.recoveries[earlier:]:
                    where, rank = losses[step]
                    usual = min(seconds for *_, seconds in curve)
                    print(
                        f"step {step}, rank {rank} killed in {where}: {seconds:.1f} s, a step takes {usual:.1f} s, "
                        f"{recovered.repeated_steps} steps repeated, lost {dict(recovered.lost)}, {recovered.cause}",
                        flush=True,
                    )
    return curve


def apart(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], column: int) -> str:
    """The largest difference of a column of two curves."""
    return f"{max(abs(a[column] - b[column]) for a, b in zip(first, second, strict=True)):.2g}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run all three, and print their curves side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--hidden", type=int, default=1280)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--every", type=int, default=2, help="steps between two copies of the states")
    args = parser.parse_args(argv)
    curves: list[Any] = [run(args, losses) for losses in ({}, {}, LOSSES)]
    print("| step | loss | again | with losses | score | again | with losses |\n|" + "---:|" * 7)
    for step, rows in enumerate(zip(*curves, strict=True)):
        cells = [f"{row[0]:.3e}" for row in rows] + [f"{row[1]:.4f}" for row in rows]
        print(f"| {step} | " + " | ".join(cells) + " |")
    for column, name in enumerate(("loss", "score")):
        again, lost = (apart(curves[0], curve, column) for curve in curves[1:])
        print(f"{name}: {again} apart without losses, {lost} with them", flush=True)


if __name__ == "__main__":
    main()
