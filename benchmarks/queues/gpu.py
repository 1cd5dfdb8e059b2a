r"""GRPO with a queue on GPUs, beside the same steps without one: seconds per step, tokens/s, and what is predicted.

    python -m benchmarks.queues.gpu                   # an engine of vLLM on one GPU, the trainer on another
    python -m benchmarks.queues.gpu --gpus one        # both on one GPU, in processes of their own
    python -m benchmarks.queues.gpu --gpus shared     # no queue: each of two GPUs samples and trains in turn
    python -m benchmarks.queues.gpu --cpu --hidden 64 --layers 2 --rows 32 --tokens 16 --steps 3    # it only runs

A Llama with random weights, whose responses have drawn lengths (``benchmarks.queues.long_tails``). All rows of a table
run on the same processes, one after another, each from an empty queue. Results are measured once the queue is in its
steady state: neither those that were generated ahead while the first update waited, nor the last ones, beside which
nothing is generated; else a lag of 4 would seem faster than its engine. *Predicted* is what ``hfdsl simulate`` makes of
the times that calls took in the row without a queue, with the same number of rows and the same tail.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import hfdsl as hf
from benchmarks.queues.long_tails import EvenTokens, LongTailActor, LongTailSampler, prompts_of
from benchmarks.training.models import llama
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.timeline import Timeline
from hfdsl.protocols.queueing import Late
from hfdsl.rl.batches import ActorMetrics, B, Experience, Outcome, P, Prompts, R, Rollout, ScoredRollout
from hfdsl.rl.functions import group_advantages, outcome
from hfdsl.rl.losses import Clip
from hfdsl.rl.sampling import with_proximal
from hfdsl.rl.workers import (
    Actor,
    ActorConfig,
    BatchingConfig,
    GenerationConfig,
    ModelConfig,
    OptimizerConfig,
    Reward,
    Sampler,
    SamplerConfig,
    TrainingConfig,
)
from hfdsl.runtime.queues.plan_simulation import RecordedSeconds, recorded_seconds, simulate_plan
from hfdsl.runtime.running import Running

GROUP, UPDATES, PROMPT = 8, 2, 32


@hf.dataflow
def grpo(
    prompts: Prompts,
    actor: Actor,
    reward: Reward,
    sampler: Sampler | None = None,
    *,
    lag: int | None = None,
    late: Late | None = None,
) -> tuple[ActorMetrics, Outcome]:
    """GRPO without a reference; without a sampler the actor samples, and nothing is queued."""
    questions = hf.repeat(prompts, GROUP)
    rollout = actor.generate(questions) if sampler is None else sampler.generate(questions)
    sampled = hf.merge(ScoredRollout, rollout, reward.score(questions, rollout))
    batch = hf.queue(sampled, group=GROUP, lag=lag, late=late)
    policy = hf.merge(Rollout, batch) if sampler is None else with_proximal(batch, actor)
    experience = hf.merge(Experience, policy, group_advantages(batch, batch, group=GROUP))
    metrics = [actor.update(part, loss=Clip(0.2)) for part in hf.minibatches(experience, UPDATES)]
    if sampler is not None:
        hf.sync(actor, sampler)
    return metrics[-1], outcome(batch, batch)


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """A row of the table."""

    rows: int
    tail: int
    lag: int | None
    late: Late | None

    @property
    def before(self) -> int:
        """How many results come before the first that is measured."""
        return 2 * (self.lag or 0) + 1

    def batches(self, steps: int) -> int:
        """How many batches a run has of which so many steps are measured."""
        return self.before + steps + (self.lag or 0)

    def seconds(self, results: Sequence[float], steps: int) -> float:
        """Seconds per measured step, from the times of all results."""
        return (results[self.before + steps - 1] - results[self.before - 1]) / steps

    @property
    def name(self) -> str:
        """Plans that run on the same processes have different names."""
        return f"rows{self.rows}_tail{self.tail}_lag{self.lag}_{self.late}"


@dataclass(frozen=True, slots=True)
class Measured:
    """A case: seconds between two results, tokens per second, and what calls took where there is no queue."""

    seconds: float
    tokens: float
    calls: Mapping[str, RecordedSeconds]


def deployment(args: argparse.Namespace) -> hf.Deployment:
    """The roles on their GPUs."""
    on_gpu = not args.cpu
    config = llama(args.hidden, args.layers, args.vocabulary, PROMPT + args.tokens)
    model = ModelConfig(config=config, end_tokens=())
    cache = min(max(args.rows) * (PROMPT + args.tokens), args.cache)
    generation = GenerationConfig(args.tokens, engine="vllm", cache_tokens=cache)
    training = TrainingConfig(OptimizerConfig(learning_rate=1e-6), autocast="bfloat16" if on_gpu else None)
    actor = ActorConfig(
        model=model,
        generation=generation if args.gpus == "shared" else replace(generation, engine="plain"),
        training=training,
        batching=BatchingConfig(tokens=args.batch, packing=True),
    )
    trainer = hf.ResourcePool([2 if args.gpus == "shared" else 1], use_gpu=on_gpu, name="trainer")
    reward = hf.place(EvenTokens, pool=hf.ResourcePool([1], use_gpu=False, name="rewards"))
    if args.gpus == "shared":
        return hf.Deployment(actor=hf.place(LongTailActor, actor, pool=trainer), reward=reward)
    engine = trainer if args.gpus == "one" else hf.ResourcePool([1], use_gpu=on_gpu, name="engine")
    sampling = SamplerConfig(model, generation, autocast="bfloat16" if on_gpu else None)
    return hf.Deployment(
        actor=hf.place(LongTailActor, actor, pool=trainer),
        sampler=hf.place(LongTailSampler, sampling, pool=engine, colocate=False),
        reward=reward,
    )


def compiled(case: Case, places: hf.Deployment, args: argparse.Namespace) -> CompiledPlan:
    """The plan of a case."""
    flow = grpo.given(lag=case.lag, late=case.late)
    plan = flow.compile(
        places, dims={B: case.rows // GROUP, P: PROMPT, R: args.tokens}, optimize=hf.Optimize(direct=not args.stored)
    )
    return replace(plan, graph=replace(plan.graph, name=case.name))


def measured(running: Running, case: Case, args: argparse.Namespace) -> Measured:
    """Run a case."""
    batches = case.batches(args.steps)
    loader = (prompts_of(case.rows // GROUP, PROMPT, case.tail, args.vocabulary, n) for n in range(batches))
    results: Iterator[Any] = map(running.step, loader) if case.lag is None else running.stream(loader)
    times, lengths, timelines = list[float](), list[float](), list[Timeline]()
    for _, rollout in results:
        times.append(time.perf_counter())
        lengths.append(rollout.length.value)
        timelines.append(running.timeline)
    seconds, made = case.seconds(times, args.steps), lengths[case.before : case.before + args.steps]
    calls = recorded_seconds(running.plan, timelines[1:]) if case.lag is None else {}
    return Measured(seconds, case.rows * sum(made) / args.steps / seconds, calls)


def table(args: argparse.Namespace) -> Iterator[Mapping[str, object]]:
    """The rows, each as soon as it is measured."""
    start, places = time.perf_counter(), deployment(args)
    lags = [None] if args.gpus == "shared" else [None, *map(queue_of, args.lags)]
    cases = [
        Case(rows, tail, queue[0] if queue else None, queue[1] if queue else None)
        for rows in args.rows
        for tail in args.tails
        for queue in lags
    ]
    first = compiled(cases[0], places, args)
    synchronous: dict[tuple[int, int], Measured] = {}
    with first.launch("ray", timeout=180, deadline=600) as launched:
        print(f"started in {time.perf_counter() - start:.0f} s\n", flush=True)
        for case in cases:
            if time.perf_counter() - start > args.until:
                return
            plan = first if case is cases[0] else compiled(case, places, args)
            result = measured(launched if case is cases[0] else launched.also(plan), case, args)
            base = synchronous.setdefault((case.rows, case.tail), result)
            simulated = simulate_plan(plan, base.calls, case.batches(args.steps))
            predicted = case.seconds(simulated.results, args.steps)
            yield {
                "rows": case.rows,
                "p99/median": case.tail,
                "lag": "no queue" if case.lag is None else case.lag,
                "late": case.late or "",
                "s per step": f"{result.seconds:.2f}",
                "tokens/s": f"{result.tokens:,.0f}",
                "times as fast": f"{base.seconds / result.seconds:.2f}",
                "predicted": f"{predicted:.2f}",
                "off by": f"{predicted / result.seconds - 1:+.1%}",
                "calls, s": ", ".join(f"{name} {mean(calls):.2f}" for name, calls in result.calls.items()),
            }


def mean(calls: RecordedSeconds) -> float:
    """Of the ranks and steps of a node."""
    return sum(calls.seconds) / len(calls.seconds)


def queue_of(text: str) -> tuple[int, Late]:
    """A queue of the command line.

    >>> queue_of("4"), queue_of("2drop")
    ((4, 'wait'), (2, 'drop'))
    """
    return (int(text.removesuffix("drop")), "drop" if text.endswith("drop") else "wait")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a table row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", choices=("two", "one", "shared"), default="two")
    parser.add_argument("--cpu", action="store_true", help="processes without GPUs instead")
    parser.add_argument("--stored", action="store_true", help="weights through the object store instead of NCCL")
    parser.add_argument("--hidden", type=int, default=1280)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1024], help="responses of a step")
    parser.add_argument("--tokens", type=int, default=512, help="the longest response")
    parser.add_argument("--tails", type=int, nargs="+", default=[10, 3], help="p99/median")
    parser.add_argument("--lags", nargs="+", default=["4", "1", "4drop", "2"], help="lags, such as 4 or 4drop")
    parser.add_argument("--steps", type=int, default=5, help="measured steps of a row")
    parser.add_argument("--batch", type=int, default=16_384, help="tokens of a micro-batch")
    parser.add_argument("--cache", type=int, default=320_000, help="the most tokens of the engine's cache")
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which no further row begins")
    args = parser.parse_args(argv)
    for position, row in enumerate(table(args)):
        if position == 0:
            print("| " + " | ".join(row) + " |\n|" + "---|" * len(row))
        print("| " + " | ".join(map(str, row.values())) + " |", flush=True)


if __name__ == "__main__":
    main()
