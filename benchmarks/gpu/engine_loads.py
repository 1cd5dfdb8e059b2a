"""New weights for vLLM in a process beside the trainer: written in place, and by its loader, beside a copy on the GPU.

    python -m benchmarks.gpu.engine_loads                                    # on a GPU, 1.26B and 3.17B in bfloat16
    python -m benchmarks.gpu.engine_loads --hidden 64 --layers 24 --vocabulary 200 --dtype float32   # anywhere

The trainer is one rank, whose weights are whole. A load is a call of the role's engine without prompts after an update,
so it is everything between the update and the first prompt but for sleep, which has rows of its own. The copy is of one
tensor of as many bytes to another one, in the trainer's process. Digests of every weight in vLLM's memory are compared
with the trainer's, and greedy tokens after both ways with each other.

On a CPU, vLLM has none of its kernels, which read copies of weights, and weights are lent in shared memory. What counts
there is the CPU time of both processes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import torch

from benchmarks.gpu.timing import GPUS, seconds, wait
from benchmarks.training.models import llama
from hfdsl.protocols.call import Call, in_call
from hfdsl.protocols.collectives import SoleRank
from hfdsl.rl.engines import handle as handles
from hfdsl.rl.engines import process as processes
from hfdsl.rl.engines.handle import EngineHandle, Sampled
from hfdsl.rl.engines.interface import EngineStart
from hfdsl.rl.engines.vllm_engine import VllmEngine
from hfdsl.rl.models.device import device
from hfdsl.rl.models.forward import Policy
from hfdsl.rl.models.policies import policy, sampling
from hfdsl.rl.models.sharding import full_weights
from hfdsl.rl.workers.config import BatchingConfig, GenerationConfig, ModelConfig
from tests.rl.engines.unpacked import UnpackedEngine

MODELS: Final = ((2048, 24), (3072, 28))
"""The widths and layers of 1.26B and of 3.17B parameters."""

PROMPTS, PROMPT, TOKENS = 16, 32, 64


class TwoWays(VllmEngine):
    """vLLM that loads either way, and digests its weights."""

    def __init__(self, start: EngineStart, folder: Path) -> None:
        super().__init__(start, folder)
        self.direct_writer = self.writer

    def reload(self, on: bool) -> None:
        """Load by ``reload_weights`` from now on, or write in place."""
        self.writer = None if on else self.direct_writer

    def digests(self) -> dict[str, int]:
        """A digest of every weight in the memory of vLLM's model."""
        assert self.direct_writer is not None
        return digests((name, place.target) for name, place in self.direct_writer.places.items())

    def cpu_seconds(self) -> float:
        """The CPU time of this process so far."""
        return time.process_time()


class TwoWaysOnCpu(UnpackedEngine, TwoWays):
    """The same without the kernels of a CPU."""


@torch.no_grad()
def digests(weights: Iterator[tuple[str, torch.Tensor]]) -> dict[str, int]:
    """A sum of the bits of each weight, in which every element has a factor of its own."""
    digests_by_name = {}
    for name, weight in weights:
        bits = weight.contiguous().flatten().view(torch.int16 if weight.element_size() == 2 else torch.int32).long()
        digests_by_name[name] = int((bits * (1 + torch.arange(len(bits), device=bits.device) % 999_983)).sum())
    return digests_by_name


class Trainer:
    """A policy, and its engine."""

    def __init__(self, hidden: int, layers: int, vocabulary: int, dtype: Any) -> None:
        config = llama(hidden, layers, vocabulary, PROMPT + TOKENS)
        model = ModelConfig(config=config, dtype=dtype)
        generation = GenerationConfig(TOKENS, engine="vllm", cache_tokens=PROMPTS * (PROMPT + TOKENS))
        self.policy: Policy = policy(model, 1.0, SoleRank())
        sampler = sampling(self.policy, model, generation, BatchingConfig(tokens=4096), None)
        assert sampler.external is not None
        assert sampler.engine_weights is not None
        self.engine: EngineHandle = sampler.external
        self.weights = sampler.engine_weights
        draw = torch.Generator().manual_seed(0)
        self.prompts = torch.randint(2, vocabulary, (PROMPTS, PROMPT), generator=draw).to(device())

    @property
    def bytes(self) -> int:
        """The bytes of its weights."""
        return sum(weight.numel() * weight.element_size() for weight in self.policy.parameters())

    @torch.no_grad()
    def update(self) -> None:
        """Give every weight another value."""
        for weight in self.policy.parameters():
            weight.mul_(-1.01 if weight.ndim > 1 else 1.01)
        wait()

    def call(self, prompts: torch.Tensor) -> Sampled:
        """Greedy rows, by the weights as they are."""
        with in_call(Call(seed=0, step=0, node=0, rank=0, first_row=0, row_count=len(prompts))):
            mask = torch.ones_like(prompts).bool()
            return self.engine.sample(prompts, mask, *self.weights.versions(), greedy=True)

    def load(self) -> None:
        """Have the engine take the weights, and nothing else."""
        self.call(self.prompts[:0])

    def reload(self, *, on: bool) -> None:
        """Which way the engine takes them."""
        self.engine.process._copies = not on
        self.engine.process.release()
        self.engine.process._call("reload", on)

    def sleep(self, *, keep_weights: bool) -> None:
        """Have the engine sleep, and keep its weights or not."""
        self.engine.process.sleep(keep_weights=keep_weights)
        self.engine.asleep = True

    def agrees_awake(self) -> str:
        """Whether every weight of vLLM's is the trainer's after it woke."""
        self.load()
        return self.agrees()

    def agrees(self) -> str:
        """Whether every weight of vLLM's is the trainer's."""
        ours, theirs = digests(iter(full_weights(self.policy))), self.engine.process._call("digests")
        same = sum(theirs[name.removeprefix("model.")] == digest for name, digest in ours.items())
        return f"{same} of {len(ours)}"


def loads(trainer: Trainer, times: int) -> list[float]:
    """The seconds of some loads, each after an update."""
    return [update_seconds for _ in range(times) for update_seconds in [updated(trainer, trainer.load)]]


def updated(trainer: Trainer, call: Callable[[], object]) -> float:
    """The seconds of a call after an update."""
    trainer.update()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def measure(hidden: int, layers: int, vocabulary: int, dtype: Any, times: int) -> None:
    """The rows of a model."""
    began = time.perf_counter()
    trainer = Trainer(hidden, layers, vocabulary, dtype)
    size, billions = trainer.bytes, sum(weight.numel() for weight in trainer.policy.parameters()) / 1e9
    print(
        f"\n{billions:.2f}B parameters, {dtype}, {size / 1e9:.2f} GB, engine up in {time.perf_counter() - began:.0f} s"
    )
    print("| way | first, ms | median, ms | best, ms | GB/s | of a device copy | weights alike |\n|---|" + "---:|" * 6)
    copied = device_copy(size)
    row("device copy", [copied] * 2, size, copied, "")
    tokens = {}
    for way, on in (("reload_weights", True), ("in place", False)):
        trainer.reload(on=on)
        times_taken = loads(trainer, times + 1)
        row(way, times_taken, size, copied, trainer.agrees())
        parts(trainer, 20 if on else 400)
    for way, on in (("reload_weights", True), ("in place", False)):
        trainer.reload(on=on)
        trainer.engine.process.versions = {}
        tokens[way] = trainer.call(trainer.prompts)
    alike = torch.equal(tokens["reload_weights"].response, tokens["in place"].response)
    apart = float((tokens["reload_weights"].log_probs - tokens["in place"].log_probs).abs().max())
    print(f"greedy tokens alike: {alike}, log-probs apart at most {apart:g}")
    for keeps in (True, False) * 3:
        asleep, awake = span(partial(trainer.sleep, keep_weights=keeps)), updated(trainer, trainer.load)
        how = "with" if keeps else "without"
        print(f"sleep {how} weights {1e3 * asleep:.0f} ms, wake with fresh ones {1e3 * awake:.0f} ms", flush=True)
    trainer.sleep(keep_weights=False)
    print(f"weights alike after a sleep without them: {trainer.agrees_awake()}")
    trainer.engine.process.close()


def device_copy(size: int) -> float:
    """The seconds of a copy of one tensor of so many bytes."""
    source = torch.zeros(size, dtype=torch.uint8, device=device())
    target = torch.empty_like(source)
    return seconds(lambda: target.copy_(source), 20)


def parts(trainer: Trainer, times: int) -> None:
    """What a load consists of, on the host of the trainer."""
    spans: Mapping[str, float] = {
        "versions": span(trainer.weights.versions),
        "listed": span(lambda: dict(trainer.weights.versions()[0].weights())),
        "empty call": span(trainer.load),
    }
    ours, theirs = cpu_seconds(trainer, times)
    spans = {**spans, "CPU time of a load": ours, "of the engine's process": theirs}
    print("  " + ", ".join(f"{name} {1e3 * value:.2f} ms" for name, value in spans.items()), flush=True)


def cpu_seconds(trainer: Trainer, times: int) -> tuple[float, float]:
    """The CPU times of a load after an update: the trainer's process, and the engine's less that of a call.

    Each is the first decile of some loads: whatever else runs on the machine only adds to them.
    """
    ours, theirs, of_calls = list[float](), list[float](), list[float]()
    measured = partial(trainer.engine.process._call, "cpu_seconds")
    for _ in range(times):
        trainer.update()
        before, between, start = measured(), measured(), time.process_time()
        trainer.load()
        wait()
        ours.append(time.process_time() - start)
        theirs.append(measured() - between)
        of_calls.append(between - before)
    ours_least, theirs_least, call_least = (quantiles(column, n=10)[0] for column in (ours, theirs, of_calls))
    return ours_least, theirs_least - call_least


def span(call: Callable[[], object]) -> float:
    """The seconds of a call."""
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def row(way: str, seconds: list[float], size: int, copied: float, alike: str) -> None:
    """A row of the table: the first load apart."""
    first, later = seconds[0], seconds[1:]
    cells = [f"{1e3 * value:.2f}" for value in (first, median(later), min(later))]
    rate = size / median(later)
    print(f"| {way} | {' | '.join(cells)} | {rate / 1e9:,.1f} | {copied / median(later):.0%} | {alike} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, help="of one model, instead of the two")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--times", type=int, default=10)
    args = parser.parse_args()
    engine = TwoWays if GPUS else TwoWaysOnCpu
    handles.ENGINES["vllm"] = f"benchmarks.gpu.engine_loads:{engine.__name__}"
    if not GPUS:
        torch.set_num_threads(1)  # both processes count what their threads do
        processes.LENT_FROM = frozenset({"cpu"})  # type: ignore[misc]
    if GPUS:
        print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    for hidden, layers in ((args.hidden, args.layers),) if args.hidden else MODELS:
        measure(hidden, layers, args.vocabulary, args.dtype, args.times)


if __name__ == "__main__":
    main()
