"""Runs on Ray of bodies that sleep, beside what ``hfdsl simulate`` predicts; and what the control plane costs.

python -m benchmarks.queues.runs               # long tails, by lag: seconds per step, measured and predicted
python -m benchmarks.queues.runs --overhead    # driver CPU per step, with and without a queue
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from statistics import median

from benchmarks.queues.programs import batch, compiled
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.queues.durations import DrawnSeconds
from hfdsl.runtime.queues.plan_simulation import simulate_plan
from hfdsl.runtime.running import Running

Row = Mapping[str, object]

LAG = 4
"""That of the queues whose overhead is measured."""

TOGETHER = 10
"""Steps that are timed together: a busy machine makes some of them several times as slow."""


def stepping(running: Running) -> Callable[[], object]:
    """One step at a time, whether the program has a queue or not."""
    if running.plan.split.queues:
        results = running.stream(repeat(batch()))
        return lambda: next(results)
    return lambda: running.step(batch())


def tails(steps: int, update: float, spreads: Sequence[float]) -> Iterator[Row]:
    """Generation with a long tail, as long as an update on average over ranks; a row for every tail and lag."""
    for tail in spreads:
        seconds = {"engine.generate": DrawnSeconds(update / 2, tail), "actor.update": DrawnSeconds(update)}
        synchronous = 0.0
        for lag in (None, 1, 2, 4):
            plan = compiled(lag, seconds)
            # The first step loads what bodies import, and is not measured: durations are drawn by the step's number.
            simulated = simulate_plan(plan, seconds, steps + 1)
            predicted = (simulated.results[-1] - simulated.results[0]) / steps
            with plan.launch("ray") as running:
                step = stepping(running)
                step()
                start = time.perf_counter()
                for _ in range(steps):
                    step()
                measured = (time.perf_counter() - start) / steps
            synchronous = synchronous or measured
            yield {
                "p99/median": tail,
                "lag": "no queue" if lag is None else lag,
                "s per step": f"{measured:.3f}",
                "predicted": f"{predicted:.3f}",
                "off by": f"{predicted / measured - 1:+.1%}",
                "times as fast": f"{synchronous / measured:.2f}",
            }


def overhead(steps: int, rounds: int) -> Iterator[Row]:
    """CPU of the driver per step of bodies that do nothing: medians of tens of steps, in rounds that take turns."""
    nothing = {"engine.generate": DrawnSeconds(0.0), "actor.update": DrawnSeconds(0.0)}
    kinds: tuple[Late | None, ...] = (None, "wait", "drop", "refill")
    cpu: dict[Late | None, list[tuple[float, float]]] = {late: [] for late in kinds}
    for _ in range(rounds):
        for late, costs in cpu.items():
            with compiled(LAG if late else None, nothing, late=late or "wait").launch("ray") as running:
                step = stepping(running)
                for _ in range(20 + steps // 5):
                    step()
                for _ in range(max(1, steps // TOGETHER)):
                    thread, process = time.thread_time(), time.process_time()
                    for _ in range(TOGETHER):
                        step()
                    ends = time.thread_time(), time.process_time()
                    costs.append(((ends[0] - thread) / TOGETHER, (ends[1] - process) / TOGETHER))
    for late, costs in cpu.items():
        yield {
            "queue": "none" if late is None else f'lag={LAG}, late="{late}"',
            "driver CPU ms, its thread": f"{1000 * median(thread for thread, _ in costs):.2f}",
            "all threads": f"{1000 * median(process for _, process in costs):.2f}",
        }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overhead", action="store_true", help="the control plane instead of long tails")
    parser.add_argument("--steps", type=int, default=30, help="measured steps of a run")
    parser.add_argument("--rounds", type=int, default=3, help="with --overhead: runs of each kind")
    parser.add_argument("--tails", type=float, nargs="+", default=[3.0, 10.0], help="99th percentiles over medians")
    parser.add_argument("--update", type=float, default=0.5, help="seconds of an update")
    arguments = parser.parse_args(argv)
    steps = arguments.steps
    rows = tails(steps, arguments.update, arguments.tails)
    if arguments.overhead:
        rows = overhead(steps, arguments.rounds)
    for position, row in enumerate(rows):
        if position == 0:
            print("| " + " | ".join(row) + " |\n|" + "---|" * len(row))
        print("| " + " | ".join(map(str, row.values())) + " |", flush=True)


if __name__ == "__main__":
    main()
