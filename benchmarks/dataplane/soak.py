"""Many steps in a row: nothing may grow. Exit status 1 where something does.

``python -m benchmarks.dataplane.soak --steps 10000``, or through relays: ``--relay --ranks 4``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import hfdsl as hf
from benchmarks.dataplane import measure, ppo
from benchmarks.dataplane.columns import TINY, expected, prompts
from benchmarks.dataplane.relay import as_if_apart
from benchmarks.dataplane.resident_memory import anonymous

# What a series may gain between the second and the last quarter of a run: so much, or a share of what it was at first.
# Ray's own threads and unfreed objects come and go by dozens; one leaked in a hundred steps makes 100 in 10,000.
ALLOWED = {
    "driver MiB": (8.0, 0.03),
    "workers MiB": (24.0, 0.03),
    "driver handles": (8.0, 0.0),
    "workers handles": (16.0, 0.0),
    "threads": (32.0, 0.0),
    "store MiB": (8.0, 0.05),
    "objects": (48.0, 0.0),
    "references": (48.0, 0.0),
}


def handles(pid: int) -> int:
    """Open files, sockets and pipes of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int) -> int:
    """Threads of a process."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def store() -> tuple[float, int]:
    """MiB in use in Ray's object store, and how many objects."""
    import ray
    from ray._private import internal_api

    ask: Any = internal_api  # without types
    address = ray.get_runtime_context().gcs_address  # of our cluster: there may be others on this machine
    stats = ask.get_memory_info_reply(ask.get_state_from_address(address)).store_stats
    return stats.object_store_bytes_used / measure.MIB, stats.num_local_objects


def held(driver: int, workers: Sequence[int]) -> dict[str, float]:
    """What is held now."""
    import ray

    used, objects = store()
    worker: Any = ray._private.worker.global_worker
    references = worker.core_worker.get_all_reference_counts()
    return {
        "driver MiB": anonymous(driver) / 1024,
        "workers MiB": sum(anonymous(pid) for pid in workers) / 1024,
        "driver handles": handles(driver),
        "workers handles": sum(handles(pid) for pid in workers),
        "threads": threads(driver) + sum(threads(pid) for pid in workers),
        "store MiB": used,
        "objects": objects,
        "references": len(references),
    }


def gain(values: Sequence[float]) -> float:
    """From the second quarter to the last: medians, so that one odd moment is no growth."""
    quarter = max(1, len(values) // 4)
    return statistics.median(values[-quarter:]) - statistics.median(values[quarter : 2 * quarter] or values[:quarter])


def growing(series: Mapping[str, Sequence[float]]) -> list[str]:
    """The names of the series that have gained more than they may."""
    growing_names = []
    for name, values in series.items():
        amount, share = ALLOWED[name]
        if gain(values) > max(amount, share * values[0]):
            growing_names.append(name)
    return growing_names


def slope(steps: Sequence[int], values: Sequence[float]) -> float:
    """The gain per 1,000 steps after the first quarter, by least squares."""
    start = len(values) // 4
    if len(values) - start < 2:
        return 0.0
    return statistics.linear_regression(steps[start:], values[start:]).slope * 1000


def soak(
    running: Any, rows: int, steps: int, every: int, others: Container[int]
) -> tuple[list[int], dict[str, list[float]]]:
    """So many steps, each tenth with new prompts; what this process and its workers but others hold, every so often."""
    driver, workers = os.getpid(), [pid for pid in measure.processes() if pid not in others]
    at: list[int] = []
    series: dict[str, list[float]] = {name: [] for name in ALLOWED}
    for number in range(steps):
        key = 1 + number // 10 % 50
        critic, actor = running.step(ppo.Prompts(prompts=prompts(rows, key, TINY)))
        if number % every == every - 1:
            assert (critic.digest.value, actor.digest.value) == expected(TINY, rows, key)
            time.sleep(0.2)  # let Ray free what the last step left behind
            at.append(number + 1)
            for name, value in held(driver, workers).items():
                series[name].append(value)
    return at, series


def main(argv: Sequence[str] | None = None) -> None:
    """Run, print, and exit with 1 where something grows."""
    parser = argparse.ArgumentParser(prog="benchmarks.dataplane.soak", description="Many steps: nothing may grow.")
    parser.add_argument("--steps", type=int, default=10_000, help="how many (10000)")
    parser.add_argument("--rows", type=int, default=4096, help="rows of a step (4096)")
    parser.add_argument("--ranks", type=int, default=2, help="workers a pool (2)")
    parser.add_argument("--relay", action="store_true", help="call ranks by relays, as if each pool were a node")
    parser.add_argument("--samples", type=int, default=40, help="how often is looked (40)")
    parser.add_argument("--store", type=int, default=512, metavar="MIB", help="Ray's object store (512)")
    parser.add_argument("--json", action="store_true", help="one object instead of the table")
    arguments = parser.parse_args(argv)
    plan = ppo.ppo.compile(
        ppo.deployment(arguments.ranks, False, TINY.name),
        dims={ppo.B: arguments.rows, ppo.P: TINY.prompt, ppo.R: TINY.response},
        optimize=hf.Optimize(relay=arguments.relay),
    )
    if arguments.relay:
        as_if_apart(lambda group, rank: group)
    start = time.perf_counter()
    with measure.cluster(arguments.store):
        others = set(measure.processes())  # of an earlier launch in this cluster: they may still be ending
        with plan.launch("ray") as running:
            every = max(1, arguments.steps // arguments.samples)
            at, series = soak(running, arguments.rows, arguments.steps, every, others)
    seconds, wrong = time.perf_counter() - start, growing(series)
    slopes = {name: slope(at, values) for name, values in series.items()}
    if arguments.json:
        print(
            json.dumps({"machine": measure.machine(), "growing": wrong, "at": at, "series": series, "slopes": slopes})
        )
    else:
        rows = [
            (
                name,
                measure.number(values[0], 4),
                measure.number(values[-1], 4),
                f"{slopes[name]:+.3f}",
                "**grows**" if name in wrong else "",
            )
            for name, values in series.items()
        ]
        print(measure.markdown(["", "first", "last", "per 1,000 steps", ""], rows))
        print(f"\n{arguments.steps:,} steps in {seconds:,.0f} s; {measure.machine()}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
