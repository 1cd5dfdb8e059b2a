"""Random schedules of a queue: how often is its bound broken, here and by admission control alone?

    python -m benchmarks.queues.schedules --schedules 100000
    python -m benchmarks.queues.schedules --tails  # what a long tail costs, by lag and discipline

Admission control is the rule by which AReaL and SkyRL bound staleness: with B groups a batch and v updates done, a
group is admitted while fewer than (k + v + 1) B were; the trainer takes the first B groups that are done.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hfdsl.protocols.queueing import DISCIPLINES
from hfdsl.runtime.schedule import QueueSpec
from hfdsl.runtime.simulation import Slots, simulate
from hfdsl.testing import broken_laws

ADMISSION = "admission only"
P99 = 2.326  # standard deviations of a normal distribution


@dataclass(frozen=True)
class Schedule:
    """A queue, with durations of groups and updates in seconds, by number."""

    lag: int
    batch: int
    slots: int
    updates: int
    group_seconds: Callable[[int], float]
    update_seconds: Callable[[int], float]
    lost: Callable[[int], bool]


def lognormal(seed: int, median: float, tail: float) -> Callable[[int], float]:
    """Durations whose 99th percentile is ``tail`` times their median; the same for the same number."""
    sigma = math.log(tail) / P99
    return lambda number: median * random.Random(f"{seed} {number}").lognormvariate(0.0, sigma)


def drawn(seed: int) -> Schedule:
    """A random schedule."""
    rng = random.Random(seed)
    batch, lag = rng.randint(1, 6), rng.randint(0, 6)
    group_seconds = lognormal(seed, rng.uniform(0.2, 4.0), rng.choice([1.5, 3.0, 10.0, 30.0]))
    losing = rng.choice([0.0, 0.0, 0.2, 0.5])
    return Schedule(
        lag=lag,
        batch=batch,
        slots=rng.randint(1, 4 * batch),
        updates=rng.randint(5, 15),
        group_seconds=group_seconds,
        update_seconds=lambda update: 1.0,
        lost=lambda number: random.Random(f"lost {seed} {number}").random() < losing,
    )


def admission_only(s: Schedule) -> list[int]:
    """The staleness of every group that is trained under admission control, which takes what is done first."""
    running: list[tuple[float, int, int]] = []  # when it is done, its number, its version
    stamps: list[int] = []  # versions, in the order in which groups were done
    trained, number, lost, version, now, busy_until = list[int](), 0, 0, 0, 0.0, math.inf
    while version < s.updates:
        while len(running) < s.slots and number - lost < (s.lag + version + 1) * s.batch:
            heapq.heappush(running, (now + s.group_seconds(number), number, version))
            number += 1
        if busy_until == math.inf and len(stamps) >= s.batch:
            trained += [version - stamp for stamp in stamps[: s.batch]]
            del stamps[: s.batch]
            busy_until = now + s.update_seconds(version)
        now = min(busy_until, running[0][0] if running else math.inf)
        if busy_until <= now:
            version, busy_until = version + 1, math.inf
        while running and running[0][0] <= now:
            _, group, stamp = heapq.heappop(running)
            if s.lost(group):
                lost += 1
            else:
                stamps.append(stamp)
    return trained


def compare(schedules: int, first: int) -> Iterator[dict[str, object]]:
    """A row for every discipline, and one for admission control."""
    stale, broken, groups = Counter[str](), Counter[str](), Counter[str]()
    schedules_over, most = Counter[str](), Counter[str]()
    for seed in range(first, first + schedules):
        s = drawn(seed)
        late = DISCIPLINES[seed % len(DISCIPLINES)]
        spec = QueueSpec("queue", s.lag, late, s.batch)
        outcome = simulate(spec, Slots(s.slots, s.group_seconds, s.update_seconds), s.updates, s.lost)
        staleness: dict[str, list[int]] = {late: [n for batch in outcome.batches for n in batch.staleness]}
        staleness[ADMISSION] = admission_only(s)
        broken[late] += bool(broken_laws(spec, outcome.decisions)) or len(outcome.batches) < s.updates
        for name, values in staleness.items():
            over = sum(value > s.lag for value in values)
            stale[name] += over
            groups[name] += len(values)
            schedules_over[name] += over > 0
            most[name] = max(most[name], max(values, default=0) - s.lag)
    for name in (*map(str, DISCIPLINES), ADMISSION):
        count = schedules if name == ADMISSION else schedules // len(DISCIPLINES)
        yield {
            "rule": name,
            "schedules": count,
            "groups": groups[name],
            "over the lag": f"{stale[name] / max(groups[name], 1):.1%}",
            "schedules over": f"{schedules_over[name] / max(count, 1):.1%}",
            "most above": max(most[name], 0),
            "other laws broken": None if name == ADMISSION else broken[name],
        }


def tails(updates: int = 300, batch: int = 32, slots: int = 128) -> Iterator[dict[str, object]]:
    """Seconds per update of 1 s each, with as much generation as the slots manage, by tail, lag and discipline."""
    for tail in (3.0, 10.0, 26.0):
        sigma = math.log(tail) / P99
        median = slots / batch / math.exp(sigma * sigma / 2)  # so that the mean is that of the slots' capacity
        for lag in (0, 1, 2, 4, 8):
            row: dict[str, object] = {"p99/median": tail, "lag": lag}
            for late in DISCIPLINES:
                world = Slots(slots, lognormal(7, median, tail), lambda update: 1.0)
                outcome = simulate(QueueSpec("queue", lag, late, batch), world, updates)
                row[late] = f"{outcome.seconds:.2f}"
                row[f"{late}: dropped"] = f"{outcome.dropped_share:.0%}"
            schedule = Schedule(
                lag=lag,
                batch=batch,
                slots=slots,
                updates=updates,
                group_seconds=lognormal(7, median, tail),
                update_seconds=lambda update: 1.0,
                lost=lambda number: False,
            )
            values = admission_only(schedule)
            row["admission only: over the lag"] = f"{sum(value > lag for value in values) / len(values):.0%}"
            row["admission only: worst"] = max(values)
            yield row


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, or one JSON object a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many random schedules")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--tails", action="store_true", help="long tails instead of random schedules")
    parser.add_argument("--json", action="store_true", help="one object a row")
    arguments = parser.parse_args(argv)
    rows = list(tails() if arguments.tails else compare(arguments.schedules, arguments.first))
    if arguments.json:
        print("\n".join(json.dumps(row) for row in rows))
        return
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join("" if value is None else str(value) for value in row.values()) + " |")


if __name__ == "__main__":
    main()
