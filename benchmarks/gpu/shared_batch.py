"""An engine of vLLM alone: calls one after another, several in one batch, and loads between their decode steps.

    python -m benchmarks.gpu.shared_batch                        # on a GPU, 0.5B in bfloat16
    python -m benchmarks.gpu.shared_batch --hidden 2048          # 1.26B
    python -m benchmarks.gpu.shared_batch --hidden 64 --layers 2 --vocabulary 500 --rows 64 --tokens 32 --dtype float32

Each call has rows whose lengths have a long tail (``benchmarks.queues.long_tails``). ``generate`` is one call of vLLM's
for all rows. In the other rows the engine takes ``--round`` decode steps at a time, as for an ``InFlightSampler``; *at
once* calls are in its batch, and where weights are loaded, one load follows the end of every call. *After loads* is
the time of the rounds directly after them, which compute the keys and values of all running rows again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.queues.long_tails import LongTails, prompts_of
from benchmarks.training.models import llama
from hfdsl.protocols.call import Call, in_call
from hfdsl.protocols.collectives import SoleRank
from hfdsl.rl.engines.handle import ENGINES, EngineHandle
from hfdsl.rl.engines.interface import Completion
from hfdsl.rl.models.device import device
from hfdsl.rl.models.policies import policy, sampling
from hfdsl.rl.workers.config import BatchingConfig, GenerationConfig, ModelConfig

PROMPT, GROUP = 32, 8

WAYS = ((None, False), (1, False), (2, False), (5, False), (1, True), (2, True), (5, True))
"""Calls at once in a batch, or None for ``generate``; and whether weights are loaded as calls end."""


@dataclass(slots=True)
class Spent:
    """Decode steps, tokens, and the seconds of parts."""

    steps: int = 0
    tokens: int = 0
    begins: float = 0.0
    rounds: list[float] = field(default_factory=list)
    loads: float = 0.0
    after_loads: float = 0.0


class Engine:
    """A policy, and its engine."""

    def __init__(self, args: argparse.Namespace) -> None:
        ENGINES["vllm"] = f"{LongTails.__module__}:{LongTails.__name__}"
        config = llama(args.hidden, args.layers, args.vocabulary, PROMPT + args.tokens)
        model = ModelConfig(config=config, dtype=args.dtype, end_tokens=())
        generation = GenerationConfig(args.tokens, args.temperature, engine="vllm", cache_tokens=args.cache)
        self.policy = policy(model, args.temperature, SoleRank())
        sampler = sampling(self.policy, model, generation, BatchingConfig(tokens=4096), None)
        assert sampler.external is not None
        assert sampler.engine_weights is not None
        self.handle: EngineHandle = sampler.external
        self.weights = sampler.engine_weights
        self.args = args
        no_rows = torch.zeros(0, PROMPT, dtype=torch.long, device=device())
        with in_call(Call(seed=0, step=0, node=0, rank=0, first_row=0, row_count=0)):
            self.handle.sample(no_rows, no_rows.bool(), *self.weights.versions(), greedy=False)

    def rows(self, call: int) -> tuple[list[list[int]], list[int]]:
        """The prompts of a call, each several times, and a seed for each row."""
        args = self.args
        prompts = prompts_of(args.rows // GROUP, PROMPT, args.tail, args.vocabulary, call).ids.tensor.tolist()
        return [prompt for prompt in prompts for _ in range(GROUP)], list(range(args.rows))

    def generate(self, calls: int) -> Spent:
        """Calls one after another."""
        spent = Spent()
        for call in range(calls):
            prompts, seeds = self.rows(call)
            start = time.perf_counter()
            spent.tokens += tokens(self.handle.process.generate(prompts, seeds))
            spent.rounds.append(time.perf_counter() - start)
        return spent

    def step_by_step(self, calls: int, at_once: int, *, loads: bool) -> Spent:
        """Calls of which several are in the batch."""
        spent, waiting, running = Spent(), iter(range(calls)), set[int]()
        ended, loaded = at_once, False
        while ended or running:
            for call in [call for _, call in zip(range(ended), waiting, strict=False)]:
                start = time.perf_counter()
                self.handle.process.begin(call, *self.rows(call))
                spent.begins += time.perf_counter() - start
                running.add(call)
            if not running:
                break
            start = time.perf_counter()
            stepped = self.handle.process.step(self.args.round)
            duration = time.perf_counter() - start
            spent.rounds.append(duration)
            spent.after_loads += duration if loaded else 0.0
            spent.steps += stepped.steps
            spent.tokens += sum(map(tokens, stepped.ended.values()))
            running -= stepped.ended.keys()
            ended, loaded = len(stepped.ended), bool(loads and stepped.ended)
            if loaded:
                spent.loads += self.load()
        return spent

    @torch.no_grad()
    def load(self) -> float:
        """The seconds of a load into an engine that has rows."""
        for weight in self.policy.parameters():
            weight.mul_(1.0)
        start = time.perf_counter()
        self.handle._replace(self.weights.versions()[0])
        return time.perf_counter() - start


def tokens(completions: list[Completion]) -> int:
    """Those of all responses."""
    return sum(len(completion.tokens) for completion in completions)


def table(args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    """The rows, each as soon as it is measured."""
    engine = Engine(args)
    engine.generate(4)  # vLLM compiles, also in its third call
    for at_once, loads in WAYS:
        calls = args.calls if at_once is None else max(args.calls, 2 * at_once)
        start = time.perf_counter()
        spent = engine.generate(calls) if at_once is None else engine.step_by_step(calls, at_once, loads=loads)
        seconds = time.perf_counter() - start
        yield {
            "at once": "generate" if at_once is None else at_once,
            "loads": calls if loads else "",
            "s per call": f"{seconds / calls:.2f}",
            "tokens/s": f"{spent.tokens / seconds:,.0f}",
            "decode steps per call": f"{spent.steps / calls:.0f}" if spent.steps else "",
            "ms per step": f"{1e3 * sum(spent.rounds) / spent.steps:.1f}" if spent.steps else "",
            "s of begins": f"{spent.begins / calls:.2f}" if at_once else "",
            "s of a load": f"{spent.loads / calls:.3f}" if loads else "",
            "after loads": f"{spent.after_loads / calls:.2f}" if loads else "",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=1280)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--rows", type=int, default=1024, help="of a call")
    parser.add_argument("--tokens", type=int, default=512, help="the longest response")
    parser.add_argument("--tail", type=int, default=10, help="the 99th percentile of lengths over their median")
    parser.add_argument("--cache", type=int, default=320_000, help="tokens of the engine's cache")
    parser.add_argument("--round", type=int, default=8, help="decode steps between two requests to the engine")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--calls", type=int, default=3, help="measured calls of a row, at least")
    for position, cells in enumerate(table(parser.parse_args())):
        if position == 0:
            print("| " + " | ".join(cells) + " |\n|" + "---|" * len(cells))
        print("| " + " | ".join(map(str, cells.values())) + " |", flush=True)


if __name__ == "__main__":
    main()
