r"""GRPO with a queue on GPUs, beside the same steps without one: seconds per step, tokens/s, and what is predicted.

    python -m benchmarks.queues.gpu                   # an engine of vLLM on one GPU, the trainer on another
    python -m benchmarks.queues.gpu --gpus one        # both on one GPU, in processes of their own
    python -m benchmarks.queues.gpu --gpus shared     # no queue: each of two GPUs samples and trains in turn
    python -m benchmarks.queues.gpu --cpu --hidden 64 --layers 2 --rows 32 --tokens 16 --steps 3    # it only runs

A Llama with random weights, whose responses have drawn lengths (``benchmarks.queues.long_tails``). The reward takes no
time, and every row trains with the same columns. A run is a tail and a queue: ``10:none`` and ``10:4`` send weights
between calls, ``10:4drop`` drops late groups, and ``10:4flight`` sends weights in flight, to an engine that samples the
rows of up to lag + 1 calls in one batch.

All runs share their processes and take turns, ``--rounds`` times, each from an empty queue: the cores of a virtual host
are up to twice as slow from one second to the next, so two runs compare only in the same minutes. Results are measured
once the queue is in its steady state: neither those that were generated ahead while the first update waited, nor the
last ones, beside which nothing is generated; else a lag of 4 would seem faster than its engine. Before its first run a
case warms vLLM up, which compiles until its third call.

*Predicted* is what ``hfdsl simulate`` makes of the times that calls took in the run without a queue, where each has the
engine and the GPU for itself; it is the mean of many steps. On one GPU it needs two more figures:

- How much the engine slows the trainer down (``utilization``). nvidia-smi measures the share of time with any kernel
  (``benchmarks.queues.utilization``); a call without samples counts as one that keeps the GPU busy. But under MPS
  kernels of two processes run side by side. So if there is a run with a lag of 1 and weights sent in the same way, as
  in ``--runs 10:none 10:1flight 10:4flight``, its actor tells: there all calls of the actor run beside ``generate``,
  and if they take 1.2 times as long as alone, its utilization is 0.2.
- How much room a call leaves in the batch of its engine (``engine_utilization``). A stream in flight begins with
  lag + 1 calls at once, and until the first weights arrive all of their tokens have the same version. So the engine
  has sampled this many tokens in this time, and a call occupies it for as long as it takes to sample the tokens of one.
  That is right whether calls share the engine or wait for their rows to be admitted, and it leaves out the end of the
  stream, where the engine has few rows.

On two GPUs larger lags are predicted from the times that calls took with a lag of 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, Literal

import hfdsl as hf
from benchmarks.queues.long_tails import EvenTokens, InFlightLongTails, LongTailActor, LongTailSampler, prompts_of
from benchmarks.queues.utilization import UtilizationSampler, utilization_of_calls
from benchmarks.training.models import llama
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.timeline import Timeline, read_trace
from hfdsl.protocols.queueing import Late
from hfdsl.rl.batches import (
    ActorMetrics,
    B,
    Experience,
    Outcome,
    P,
    Prompts,
    R,
    Rollout,
    ScoredRollout,
    Sequences,
    TokenVersions,
    VersionedScoredRollout,
)
from hfdsl.rl.functions import group_advantages, outcome
from hfdsl.rl.losses import Clip
from hfdsl.rl.sampling import with_proximal
from hfdsl.rl.workers import (
    Actor,
    ActorConfig,
    BatchingConfig,
    GenerationConfig,
    InFlightSampler,
    ModelConfig,
    OptimizerConfig,
    Reward,
    Sampler,
    SamplerConfig,
    TrainingConfig,
)
from hfdsl.runtime.queues.durations import RecordedSeconds
from hfdsl.runtime.queues.plan_simulation import recorded_seconds
from hfdsl.runtime.queues.queue_simulation import simulate_run
from hfdsl.runtime.running import Running

GROUP, UPDATES, PROMPT = 8, 2, 32
GENERATE, LOAD = "sampler.generate", "sampler.load"

PREDICTED = 20
"""How many times lag + 1 steps a prediction is the mean of."""

COMPILED = 5
"""After so many calls an engine takes as long as from then on."""

RUNS = ("10:none", "3:none", "10:1", "3:1", "10:4", "3:4")


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


class OldestTokens(hf.Batch):
    """The smallest version of a batch's tokens, and how many of them have it."""

    version: hf.Metric[float, Literal["min"]]
    count: hf.Metric[float, Literal["sum"]]


@hf.function(rows=hf.Whole)
def oldest_tokens(sequences: Sequences, versions: TokenVersions) -> OldestTokens:
    """Those of the responses.

    >>> import torch
    >>> mask = torch.tensor([[True, True, True], [True, False, False]])
    >>> real = torch.ones(2, 5, dtype=torch.bool)
    >>> sequences = Sequences(ids=torch.zeros(2, 5, dtype=torch.int64), mask=real, response_mask=mask)
    >>> result = oldest_tokens(sequences, TokenVersions(token_versions=torch.tensor([[3, 3, 4], [3, 3, 3]])))
    >>> result.version.value, result.count.value
    (3.0, 3.0)
    """
    of_tokens = versions.token_versions.tensor[sequences.response_mask.tensor]
    return OldestTokens(version=float(of_tokens.min()), count=float((of_tokens == of_tokens.min()).sum()))


@hf.dataflow
def grpo_in_flight(
    prompts: Prompts, actor: Actor, reward: Reward, sampler: InFlightSampler, *, lag: int = 4, late: Late = "wait"
) -> tuple[ActorMetrics, Outcome, OldestTokens]:
    """The same with weights in flight."""
    questions = hf.repeat(prompts, GROUP)
    rollout = sampler.generate(questions)
    sampled = hf.merge(VersionedScoredRollout, rollout, reward.score(questions, rollout))
    batch = hf.queue(sampled, group=GROUP, lag=lag, late=late)
    versions = hf.merge(TokenVersions, batch)
    experience = hf.merge(
        Experience, with_proximal(batch, actor), versions, group_advantages(batch, batch, group=GROUP)
    )
    metrics = [actor.update(part, loss=Clip(0.2)) for part in hf.minibatches(experience, UPDATES)]
    hf.sync(actor, sampler, during="generate")
    return metrics[-1], outcome(batch, batch), oldest_tokens(batch, batch)


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table."""

    rows: int
    tail: int
    lag: int | None
    late: Late | None
    in_flight: bool

    @property
    def before(self) -> int:
        """How many results of a run come before the first that is measured."""
        return 2 * self.lag + 1 if self.lag else 1

    @property
    def warm_up(self) -> int:
        """How many results come before the first run."""
        if self.in_flight:
            return self.calls
        return 0 if self.lag else COMPILED

    @property
    def calls(self) -> int:
        """How many calls of ``GENERATE`` have been dispatched and not trained on: so many results may come at once."""
        return (self.lag or 0) + 1

    def measured(self, steps: int) -> int:
        """How many results are measured."""
        return -(-steps // self.calls) * self.calls

    def batches(self, measured: int) -> int:
        """How many batches a run has, of which so many are measured."""
        return self.before + measured + (self.lag or 0)

    def seconds(self, results: Sequence[float], measured: int) -> float:
        """Seconds per measured step, from the times of all results."""
        return (results[self.before + measured - 1] - results[self.before - 1]) / measured

    def predicted(self, plan: CompiledPlan, calls: Mapping[str, RecordedSeconds]) -> float:
        """Seconds per step in a simulation of ``PREDICTED`` times lag + 1 steps."""
        count = PREDICTED * self.calls
        return self.seconds(simulate_run(plan, calls, self.batches(count)).results, count)

    @property
    def synchronous(self) -> Case:
        """The case without a queue beside which this one is printed."""
        return Case(self.rows, self.tail, lag=None, late=None, in_flight=False)

    @property
    def overlapping(self) -> Case:
        """The case in which each call of the actor runs beside the engine, which says how much they share the GPU."""
        return Case(self.rows, self.tail, lag=1, late="wait", in_flight=self.in_flight)

    @property
    def name(self) -> str:
        """Plans that run on the same processes have different names."""
        return f"rows{self.rows}_tail{self.tail}_lag{self.lag}_{self.late}"


@dataclass(frozen=True, slots=True)
class Measured:
    """A case: seconds between two results, tokens per second, and what calls took where there is no queue.

    ``occupied`` is for how long a call of ``GENERATE`` occupies a full engine; 0 without weights in flight.
    """

    seconds: float
    tokens: float
    calls: Mapping[str, RecordedSeconds]
    occupied: float = 0.0

    def overlapping(self, alone: Measured, *, shared: bool) -> Mapping[str, RecordedSeconds]:
        """The calls by which larger lags are predicted, from this run with a lag of 1, where they overlap.

        On GPUs of their own they are those of this run. On a ``shared`` GPU they are those of the run without a queue,
        with the interference of ``GENERATE`` beside which the actor's calls take as long as they do here.
        """
        if not shared:
            return self.calls
        beside, by_themselves = (
            sum(mean(times.seconds) for name, times in run.calls.items() if name.startswith("actor."))
            for run in (self, alone)
        )
        generate = alone.calls[GENERATE]
        interference = min(generate.utilization, max(0.0, beside / by_themselves - 1))
        return {**alone.calls, GENERATE: replace(generate, interference=interference)}


def mean_of(results: Sequence[Measured]) -> Measured:
    """The runs of a case in all rounds as one; each has the same number of steps."""
    calls = {
        name: RecordedSeconds(
            tuple(seconds for result in results for seconds in result.calls[name].seconds),
            utilization=mean(result.calls[name].utilization for result in results),
        )
        for name in results[0].calls
    }
    seconds = mean(result.seconds for result in results)
    tokens = sum(result.tokens * result.seconds for result in results) / len(results) / seconds
    return Measured(seconds, tokens, calls, mean(result.occupied for result in results))


def deployment(args: argparse.Namespace, *, in_flight: bool, calls: int) -> hf.Deployment:
    """The roles on their GPUs; an engine that takes weights in flight samples so many calls at once."""
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
    sampling = SamplerConfig(model, generation, autocast="bfloat16" if on_gpu else None, concurrent_calls=calls)
    role = InFlightLongTails if in_flight else LongTailSampler
    return hf.Deployment(
        actor=hf.place(LongTailActor, actor, pool=trainer, transport="cuda ipc" if args.copied else None),
        sampler=hf.place(role, sampling, pool=engine, colocate=False),
        reward=reward,
    )


def compiled(case: Case, places: hf.Deployment, args: argparse.Namespace) -> CompiledPlan:
    """The plan of a case."""
    flow = (
        grpo_in_flight.given(lag=case.lag or 0, late=case.late or "wait")
        if case.in_flight
        else grpo.given(lag=case.lag, late=case.late)
    )
    plan = flow.compile(
        places, dims={B: case.rows // GROUP, P: PROMPT, R: args.tokens}, optimize=hf.Optimize(direct=not args.stored)
    )
    return replace(plan, graph=replace(plan.graph, name=case.name))


def results_of(running: Running, case: Case, batches: int, vocabulary: int) -> Iterator[Any]:
    """The results of a case on so many batches, the same ones in every run."""
    loader = (prompts_of(case.rows // GROUP, PROMPT, case.tail, vocabulary, number) for number in range(batches))
    return map(running.step, loader) if case.lag is None else running.stream(loader)


def measured(running: Running, case: Case, args: argparse.Namespace) -> Measured:
    """Run a case."""
    count = case.measured(args.steps)
    times, lengths, timelines, oldest = list[float](), list[float](), list[Timeline](), list[OldestTokens]()
    with TemporaryDirectory() as folder:
        trace = Path(args.traces or folder) / f"{case.name}.json"
        with UtilizationSampler() as sampler, running.trace(trace):
            for _, rollout, *oldest_of_batch in results_of(running, case, case.batches(count), args.vocabulary):
                times.append(time.perf_counter())
                lengths.append(rollout.length.value)
                timelines.append(running.timeline)
                oldest += oldest_of_batch
        occupied = 0.0
        if case.in_flight:
            calls_sampled = first_tokens(oldest[: case.calls]) / case.rows / mean(lengths[: case.calls])
            occupied = seconds_before_load(read_trace(trace.read_text())) / calls_sampled
    seconds, measured_lengths = case.seconds(times, count), lengths[case.before : case.before + count]
    steps = timelines[case.before : case.before + count]
    calls = recorded_seconds(running.plan, timelines[case.before :])  # all of them: durations vary by a quarter
    if case.lag is None:
        for name, utilization in utilization_of_calls(sampler.samples, steps).items():
            calls[name] = replace(calls[name], utilization=utilization)
    tokens = case.rows * sum(measured_lengths) / count / seconds
    return Measured(seconds, tokens, calls, occupied)


def seconds_before_load(steps: Iterable[Timeline]) -> float:
    """From the start of the first ``GENERATE`` to the first ``LOAD``."""
    calls = [call for step in steps for call in step.calls]
    first, loaded = (min(call.start for call in calls if call.name == name) for name in (GENERATE, LOAD))
    return loaded - first


def first_tokens(oldest: Sequence[OldestTokens]) -> float:
    """The tokens of calls that were sampled before the first load."""
    version = min(tokens.version.value for tokens in oldest)
    return sum(tokens.count.value for tokens in oldest if tokens.version.value == version)


def table(args: argparse.Namespace) -> Iterator[Mapping[str, object]]:
    """The rows, each as soon as it is measured; at last those of all rounds together."""
    start = time.perf_counter()
    runs = [run.partition(":")[::2] for run in args.runs if args.gpus != "shared" or run.endswith(":none")]
    cases = [Case(rows, int(tail), *queue_of(queue)) for rows in args.rows for tail, queue in runs]
    in_flight = [case for case in cases if case.in_flight]
    places = deployment(args, in_flight=bool(in_flight), calls=max((case.calls for case in in_flight), default=1))
    plans = {case: compiled(case, places, args) for case in cases}
    launched_case = (in_flight or cases)[0]
    with plans[launched_case].launch("ray", timeout=180, deadline=600) as launched:
        print(f"started after {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        running = {case: launched if case is launched_case else launched.also(plans[case]) for case in cases}
        rounds: list[dict[Case, Measured]] = []
        for number in range(1, args.rounds + 1):
            rounds.append({})
            for case in cases:
                if number == 1:
                    deque(results_of(running[case], case, case.warm_up, args.vocabulary), maxlen=0)
                base = rounds[0].get(case.synchronous)
                seconds_left = args.until - (time.perf_counter() - start)
                if base is not None and base.seconds * case.batches(case.measured(args.steps)) > seconds_left:
                    print(f"left out for want of time: {case}", file=sys.stderr, flush=True)
                    continue
                rounds[-1][case] = measured(running[case], case, args)
                yield row(str(number), case, plans[case], rounds[-1], args)
    if args.rounds > 1:
        together = {case: mean_of([results[case] for results in rounds if case in results]) for case in rounds[0]}
        yield from (row("all", case, plans[case], together, args) for case in together)


def row(
    number: str, case: Case, plan: CompiledPlan, results: Mapping[Case, Measured], args: argparse.Namespace
) -> Mapping[str, object]:
    """What is printed of a case in a round, beside the one without a queue if that was measured.

    It is predicted from that one, or from the calls of a case in which they overlap.
    """
    result, base, overlapped = results[case], results.get(case.synchronous), results.get(case.overlapping)
    calls = dict(base.calls) if base is not None else {}
    interference = ""
    if base is not None and overlapped is not None and (case.calls > 2 or args.gpus == "one"):
        calls = dict(overlapped.overlapping(base, shared=args.gpus == "one"))
        interference = f"{calls[GENERATE].sharing.interference:.0%}" if args.gpus == "one" else ""
    ratio = predicted = off = own = ""
    engine = f"{result.occupied:.2f} s" if result.occupied else ""
    if base is not None:
        if result.occupied:
            share = min(1.0, result.occupied / mean(calls[GENERATE].seconds))
            calls[GENERATE] = replace(calls[GENERATE], engine_utilization=share)
            engine = f"{share:.0%}"
        seconds = case.predicted(plan, calls)
        ratio, predicted = f"{base.seconds / result.seconds:.2f}", f"{seconds:.2f}"
        off = f"{seconds / result.seconds - 1:+.1%}"
        if args.gpus == "two" and not case.in_flight:
            own = f"{case.predicted(plan, result.calls) / result.seconds - 1:+.1%}"
    return {
        "round": number,
        "rows": case.rows,
        "p99/median": case.tail,
        "lag": "no queue" if case.lag is None else case.lag,
        "late": case.late or "",
        "weights": "in flight" if case.in_flight else "between calls",
        "s per step": f"{result.seconds:.2f}",
        "tokens/s": f"{result.tokens:,.0f}",
        "times as fast": ratio,
        "predicted": predicted,
        "off by": off,
        "by its own calls": own,
        "of the engine": engine,
        "interference": interference,
        "calls, s (GPU)": ", ".join(
            f"{name} {of_each_step(calls)}" + (f" ({calls.utilization:.0%})" if case.lag is None else "")
            for name, calls in result.calls.items()
        ),
    }


def of_each_step(calls: RecordedSeconds) -> str:
    """The seconds of a node by step and rank; one number if they hardly differ."""
    mean = sum(calls.seconds) / len(calls.seconds)
    if max(calls.seconds) - min(calls.seconds) < 0.05 * mean + 0.01:
        return f"{mean:.2f}"
    return "/".join(f"{seconds:.2f}" for seconds in calls.seconds)


def queue_of(text: str) -> tuple[int | None, Late | None, bool]:
    """A queue of the command line: its lag, its discipline, and whether weights are in flight.

    >>> queue_of("none"), queue_of("2drop"), queue_of("4flight")
    ((None, None, False), (2, 'drop', False), (4, 'wait', True))
    """
    if text == "none":
        return None, None, False
    lag = int(text.removesuffix("drop").removesuffix("flight"))
    return lag, "drop" if text.endswith("drop") else "wait", text.endswith("flight")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a table row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", choices=("two", "one", "shared"), default="two")
    parser.add_argument("--cpu", action="store_true", help="processes without GPUs instead")
    parser.add_argument("--copied", action="store_true", help="weights wait for an engine's calls in copies")
    parser.add_argument("--stored", action="store_true", help="weights through the object store instead of NCCL")
    parser.add_argument("--hidden", type=int, default=1280)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1024], help="responses of a step")
    parser.add_argument("--tokens", type=int, default=512, help="the longest response")
    parser.add_argument("--runs", nargs="+", default=RUNS, help="p99/median:queue, such as 10:4flight")
    parser.add_argument("--steps", type=int, default=5, help="measured steps of a row")
    parser.add_argument("--rounds", type=int, default=1, help="how often the runs take turns")
    parser.add_argument("--batch", type=int, default=16_384, help="tokens of a micro-batch")
    parser.add_argument("--cache", type=int, default=320_000, help="the most tokens of the engine's cache")
    parser.add_argument("--traces", help="a folder for a trace of every run")
    parser.add_argument("--until", type=float, default=1e9, help="no row begins that may end after so many seconds")
    args = parser.parse_args(argv)
    if args.gpus == "two" and 0 < sum(run.endswith("flight") for run in args.runs) < len(args.runs):
        parser.error("on two GPUs, give runs in flight a command of their own: weights go by another transport there")
    for position, cells in enumerate(table(args)):
        if position == 0:
            print("| " + " | ".join(cells) + " |\n|" + "---|" * len(cells))
        print("| " + " | ".join(map(str, cells.values())) + " |", flush=True)


if __name__ == "__main__":
    main()
