r"""One engine at a time: tokens per second, what sleep and fresh weights cost, how far its log-probs are off.

    for engine in plain captured vllm; do python -m benchmarks.training.engines --engine $engine; done
    python -m benchmarks.training.engines --engine vllm --hidden 2048 --layers 24 --dtype bfloat16 --rows 256 \
        --tokens 512 --lora 16 --adapter apart

One process per engine, since each keeps its memory. Weights are random, sampling is at temperature 1, and a row that
ends early counts with the tokens that it has. The trainer's own log-probs are not in the time of generation: they are
computed for every engine. With ``--turns FILE``, processes on one GPU start together, and measure one after the other.
"""

from __future__ import annotations

import argparse
import fcntl
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch

from benchmarks.training.models import END, PAD, llama
from hfdsl.protocols.call import Call, in_call
from hfdsl.protocols.collectives import SoleRank
from hfdsl.rl.engines.handle import EngineHandle
from hfdsl.rl.models.device import device
from hfdsl.rl.models.engine_weights import EngineWeights
from hfdsl.rl.models.forward import Policy
from hfdsl.rl.models.generation import generate
from hfdsl.rl.models.policies import Sampling, policy, sampling
from hfdsl.rl.models.scoring import response_log_probs
from hfdsl.rl.workers.config import BatchingConfig, GenerationConfig, ModelConfig
from hfdsl.rl.workers.lora import Lora


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, with a wait for the GPU, and the result."""
    start = time.perf_counter()
    result = run()
    if device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def sampler(
    learner: Policy, engine: Sampling, ids: torch.Tensor, tokens: int
) -> Callable[[int], tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """Samples the rows of a step: responses, their mask, and the log-probs of an engine in a process of its own."""
    mask, external = torch.ones_like(ids).bool(), engine.external

    def sample(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        with in_call(Call(seed=0, step=step, node=0, rank=0, first_row=0, row_count=len(ids))), torch.no_grad():
            if external is not None and engine.engine_weights is not None:
                sampled = external.sample(ids, mask, *engine.engine_weights.versions(), greedy=False)
                return sampled.response, sampled.mask, sampled.log_probs
            draws = torch.rand(len(ids), tokens, generator=torch.Generator().manual_seed(step)).to(device())
            if engine.captured is not None:
                return *engine.captured(ids, mask, draws), None
            return *generate(learner, ids, mask, draws, engine.generation, [END], PAD), None

    return sample


def weights_and_sleep(learner: Policy, external: EngineHandle, weights: EngineWeights) -> dict[str, str]:
    """How long sleep, and calls without prompts after it and after an update, take."""
    prompts = torch.empty(0, 1, dtype=torch.int64, device=device())

    def call() -> Any:
        return external.sample(prompts, prompts.bool(), *weights.versions(), greedy=True)

    asleep, _ = timed(external.sleep)
    awake, _ = timed(call)
    with torch.no_grad():
        for weight in learner.parameters():
            if weight.requires_grad:
                weight.mul_(1)  # a new version
    fresh, _ = timed(call)
    seconds = {"sleep, ms": asleep, "wake, ms": awake, "weights, ms": fresh}
    return {name: f"{1e3 * value:.0f}" for name, value in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("plain", "captured", "vllm"), required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[32])
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--lora", type=int, default=0, help="the rank of an adapter; 0 is none")
    parser.add_argument("--adapter", choices=("apart", "merged"), default="apart", help="of vLLM")
    parser.add_argument("--turns", type=Path, help="a file that processes lock by turns")
    args = parser.parse_args()
    turns = None if args.turns is None else args.turns.open("w")
    lock(turns, fcntl.LOCK_SH)
    positions = args.prompt + args.tokens
    model = ModelConfig(config=llama(args.hidden, args.layers, args.vocabulary, positions), dtype=args.dtype)
    cache_tokens = max(args.rows) * positions
    generation = GenerationConfig(
        args.tokens, engine=args.engine, cache_tokens=cache_tokens, adapter=args.adapter if args.lora else "auto"
    )
    lora = Lora(rank=args.lora, alpha=2 * args.lora) if args.lora else None
    learner = policy(model, 1.0, SoleRank(), lora)
    if lora is not None:
        strengthen(learner)
    batching = BatchingConfig(tokens=32_768)
    start, engine = timed(lambda: sampling(learner, model, generation, batching, None, lora=lora))
    size = sum(weight.numel() for weight in learner.parameters()) / 1e6
    adapter = f", rank {args.lora} {args.adapter}" if args.lora else ""
    print(f"{size:,.1f}M parameters, {args.dtype}{adapter}, {args.prompt} + {args.tokens} tokens, {device()}")
    lock(turns, fcntl.LOCK_EX)  # when all others have started, and none is measuring
    for rows in args.rows:
        print_row(args.engine, {"rows": str(rows)} | measured(learner, engine, rows, args))
    if engine.external is not None and engine.engine_weights is not None:
        cells = weights_and_sleep(learner, engine.external, engine.engine_weights)
        print_row(args.engine, {"start, s": f"{start:.1f}"} | cells)


@torch.no_grad()
def strengthen(learner: Policy) -> None:
    """Give a new adapter, whose B is 0, one that counts."""
    for name, weight in learner.named_parameters():
        if ".lora_B." in name:
            weight.normal_(0, 0.02)


def lock(file: IO[str] | None, operation: int) -> None:
    """Wait for a lock on a file, instead of the one that the process has on it."""
    if file is not None:
        fcntl.flock(file, operation)


def print_row(engine: str, cells: dict[str, str]) -> None:
    """A table of one row."""
    print("| engine | " + " | ".join(cells) + " |\n|---|" + "---:|" * len(cells))
    print(f"| {engine} | " + " | ".join(cells.values()) + " |", flush=True)


def measured(learner: Policy, engine: Sampling, rows: int, args: argparse.Namespace) -> dict[str, str]:
    """Tokens per second, and how far the log-probs of an engine are off."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(2, args.vocabulary, (rows, args.prompt), generator=draw).to(device())
    sample = sampler(learner, engine, ids, args.tokens)
    sample(0)  # what the first call captures or compiles is not counted
    calls = [timed(partial(sample, step)) for step in range(1, args.times + 1)]
    rates = [float(response_mask.sum()) / seconds for seconds, (_, response_mask, _) in calls]
    _, (response, response_mask, log_probs) = calls[-1]
    cells = {"tokens/s": f"{statistics.median(rates):,.0f}", "best": f"{max(rates):,.0f}"}
    if log_probs is not None:
        sequences = torch.cat([ids, response], 1)
        mask = torch.cat([torch.ones_like(ids).bool(), response_mask], 1)
        trainers = response_log_probs(learner, sequences, mask, response_mask, engine.batching, None)
        gap = (log_probs - trainers)[response_mask].abs()
        cells["log-probs apart, mean / most"] = f"{float(gap.mean()):.4f} / {float(gap.max()):.3f}"
    return cells


if __name__ == "__main__":
    main()
