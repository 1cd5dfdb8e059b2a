"""What proofs and simulations of queues cost, for 10 queues and 50 nodes: ``python -m benchmarks.queues.analysis``.

The program is a chain of eleven stages: an engine, relays of three calls each, and a trainer that sends its weights to
the engine. CPU times are medians of 20 runs in a warm process, of simulations of 5; a program's caches are empty.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import process_time

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from hfdsl.check.context import Context
from hfdsl.check.program import Program
from hfdsl.check.queue_bounds import queue_bounds
from hfdsl.check.rules.queues import bounds, lags, live_queues
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.throughput import throughput
from hfdsl.runtime.queues.durations import DrawnSeconds
from hfdsl.runtime.queues.plan_simulation import simulate_plan

QUEUES = 10


class B(hf.Dim): ...


class Rows(hf.Batch):
    value: hf.f32[B]


class Engine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, rows: Rows) -> Rows:
        return rows

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, float]) -> None: ...


class Relay(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def relay(self, rows: Rows) -> Rows:
        return rows


class Trainer(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.corrects("policy", lag=100)
    @hf.writes("policy")
    def update(self, rows: Rows) -> Rows:
        return rows

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, float]:
        return {}


@hf.dataflow
def chain(rows: Rows, engine: Engine, first: Relay, second: Relay, third: Relay, trainer: Trainer) -> Rows:
    """Ten queues of lag 2, and 50 nodes."""
    rows = first.relay(first.relay(second.relay(third.relay(engine.generate(rows)))))
    for _ in range(QUEUES):
        rows = third.relay(second.relay(first.relay(hf.queue(rows, lag=2, late="wait"))))
    rows = trainer.update(hf.queue(rows))
    hf.sync(trainer, engine)
    return rows


def deployment() -> hf.Deployment:
    """Every role on a pool of its own."""
    roles = {"engine": Engine, "first": Relay, "second": Relay, "third": Relay, "trainer": Trainer}
    pools = {name: hf.ResourcePool([1], use_gpu=False, name=name) for name in roles}
    return hf.Deployment(**{name: hf.place(kind, pool=pools[name]) for name, kind in roles.items()})


def milliseconds(action: Callable[[], object], times: int = 20) -> float:
    """The median of what an action takes."""
    times_taken = []
    for _ in range(times):
        start = process_time()
        action()
        times_taken.append(1000 * (process_time() - start))
    return statistics.median(times_taken)


def analysis(plan: CompiledPlan) -> None:
    """All proofs of queues, of a program that nothing is known of but its graph and its sizes."""
    context = Context.of(Program(plan.graph, plan.inference, plan.deployment), {B: 8})
    findings = [*bounds.all_rules(context), *live_queues.stages_overlap(context), *lags.all_rules(context)]
    findings += live_queues.batches_are_filled(context)
    if findings or [bounds.worst for bounds in queue_bounds(context)] != [2] * QUEUES:
        raise RuntimeError(str(findings))


def main() -> None:
    """Print the table."""
    places = deployment()
    plan = chain.compile(places, {B: 8})
    seconds = {step.label: 1.0 + index % 7 for index, step in enumerate(plan.steps)}
    drawn = {label: DrawnSeconds(median, tail=1.5) for label, median in seconds.items()}
    rows = {
        "proofs of queues": milliseconds(lambda: analysis(plan)),
        "throughput, and the least lag that is enough": milliseconds(lambda: throughput(plan, seconds)),
        "a simulation of 200 steps": milliseconds(lambda: simulate_plan(plan, drawn, 200), 5),
        "the whole check": milliseconds(lambda: chain.check(places, {B: 8})),
    }
    nodes, queue_count = len(plan.graph.nodes), len(plan.split.queues)
    print(f"{nodes} nodes, {queue_count} queues\n\n| | ms |\n|---|--:|")
    for name, duration in rows.items():
        print(f"| {name} | {duration:.1f} |")


if __name__ == "__main__":
    main()
