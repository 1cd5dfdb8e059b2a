"""How much one call of an engine varies, and what varies with it.

The same call of ``benchmarks.queues.gpu`` again and again, alone on a GPU, with the CPU time of the engine's process,
which spins while it waits for the GPU. After each call three other durations: a loop of Python, which only the host
affects; launches of tiny kernels, which the host and the driver affect; and products of large matrices, which only the
GPU affects::

    python -m benchmarks.queues.engine_speed --rows 128 --tokens 1024
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import correlation, median

import psutil  # type: ignore[import-untyped]  # comes without stubs
import torch

import hfdsl as hf
from benchmarks.queues.gpu import GROUP, PROMPT
from benchmarks.queues.long_tails import LongTailSampler, prompts_of
from benchmarks.training.models import llama
from hfdsl.rl.batches import Prompts, Rollout
from hfdsl.rl.workers import GenerationConfig, ModelConfig, Sampler, SamplerConfig

TAIL = 3


@hf.dataflow
def sampled(prompts: Prompts, sampler: Sampler) -> Rollout:
    """Only generation."""
    return sampler.generate(hf.repeat(prompts, GROUP))


def host() -> None:
    """Additions in Python."""
    total = 0
    for i in range(2_000_000):
        total += i


def launches() -> None:
    """Kernels that take the GPU less time than the host."""
    value = torch.zeros(8, device="cuda")
    for _ in range(5000):
        value.add_(1.0)


def products() -> None:
    """Kernels that take the host less time than the GPU."""
    matrix = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for _ in range(100):
        matrix @ matrix


def engine_seconds() -> float:
    """The CPU time of the processes that this one has started."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return float(sum(time.user + time.system for time in times))


def milliseconds(work: Callable[[], object]) -> float:
    """What it takes, with its kernels."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a line for each call and their summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=1280)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=1024, help="the longest response")
    parser.add_argument("--calls", type=int, default=20)
    args = parser.parse_args(argv)
    config = llama(args.hidden, args.layers, args.vocabulary, PROMPT + args.tokens)
    generation = GenerationConfig(args.tokens, engine="vllm", cache_tokens=args.rows * (PROMPT + args.tokens))
    model = ModelConfig(config=config, end_tokens=())
    sampler = LongTailSampler(SamplerConfig(model, generation, autocast="bfloat16"))
    prompts = prompts_of(args.rows // GROUP, PROMPT, TAIL, args.vocabulary, 0)
    works: dict[str, Callable[[], object]] = {
        "generate": lambda: sampled(prompts, sampler=sampler),
        "host": host,
        "launches": launches,
        "products": products,
    }
    for work in works.values():  # once for what is compiled
        milliseconds(work)
    names = ["generate", "CPU of generate", "host", "launches", "products"]
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    rows = list[list[float]]()
    for _ in range(args.calls):
        before = engine_seconds()
        generating = milliseconds(works["generate"])
        cpu = 1e3 * (engine_seconds() - before)
        rows.append([generating, cpu, *(milliseconds(works[name]) for name in names[2:])])
        print("| " + " | ".join(f"{taken:.1f}" for taken in rows[-1]) + " |", flush=True)
    generate, *_ = columns = list(zip(*rows, strict=True))
    for name, taken in zip(names, columns, strict=True):
        spread = f"median {median(taken):.1f}, {min(taken):.1f} to {max(taken):.1f}"
        print(f"{name}: {spread}, correlation with generate {correlation(generate, taken):.2f}")


if __name__ == "__main__":
    main()
