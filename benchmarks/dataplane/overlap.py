"""Independent roles on disjoint pools: how much longer a step takes than its critical path.

``python -m benchmarks.dataplane.overlap``
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ray
import torch

from benchmarks.dataplane import measure, naps


class Napper:
    """A role of the programs written by hand."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def nap(self, *columns: Any) -> Any:
        """As long as a role takes."""
        time.sleep(self._seconds)
        return sum(columns)


class ByHand:
    """The same steps in Ray: waiting for each role, as verl's trainers do, or with references as arguments."""

    def __init__(self, seconds: float, ranks: int) -> None:
        actor: Any = ray.remote(Napper)
        self._pools = {n: [actor.options(num_cpus=0.01).remote(seconds) for _ in range(ranks)] for n in naps.ROLES}
        ray.get([napper.nap.remote(0) for pool in self._pools.values() for napper in pool])

    def _call(self, name: str, wait: bool, *columns: Sequence[Any]) -> list[Any]:
        arguments = zip(*columns, strict=True) if columns else [(1,)] * len(self._pools[name])
        refs = [napper.nap.remote(*row) for napper, row in zip(self._pools[name], arguments, strict=True)]
        return ray.get(refs) if wait else refs

    def pair(self, wait: bool) -> None:
        """Two roles that need nothing of each other."""
        first, second = self._call("reference", wait), self._call("critic", wait)
        if not wait:
            ray.get(first + second)

    def ppo(self, wait: bool) -> None:
        """Six calls on four pools."""
        rolled = self._call("actor", wait)
        inferred = [self._call(name, wait, rolled) for name in ("reference", "critic", "reward")]
        updated = [self._call(name, wait, *inferred) for name in ("critic", "actor")]
        if not wait:
            ray.get([ref for ranks in updated for ref in ranks])

    def close(self) -> None:
        """End the processes."""
        for napper in [napper for pool in self._pools.values() for napper in pool]:
            ray.kill(napper)


def milliseconds(step: Callable[[], object], times: int) -> float:
    """The median of so many steps after one."""
    walls = []
    for _ in range(times + 1):
        start = time.perf_counter()
        step()
        walls.append((time.perf_counter() - start) * 1e3)
    return statistics.median(walls[1:])


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.dataplane.overlap", description="Overlap of independent roles.")
    parser.add_argument("--seconds", type=float, default=0.2, help="what a role takes (0.2)")
    parser.add_argument("--ranks", type=int, default=2, help="workers a pool (2)")
    parser.add_argument("--times", type=int, default=5, help="measured steps (5)")
    parser.add_argument("--store", type=int, default=512, metavar="MIB", help="Ray's object store (512)")
    parser.add_argument("--json", action="store_true", help="one object instead of the table")
    arguments = parser.parse_args(argv)
    seconds, ranks, times = arguments.seconds, arguments.ranks, arguments.times
    column = torch.zeros(ranks)
    results = {}
    with measure.cluster(arguments.store):
        hand = ByHand(seconds, ranks)
        for kind, critical, step in (("two roles", 1, hand.pair), ("PPO, four pools", 3, hand.ppo)):
            for path, wait in (("waiting for each call", True), ("Ray by hand", False)):
                results[kind, path] = milliseconds(partial(step, wait), times), critical
        hand.close()
        two = naps.pair.compile(naps.deployment(seconds, ranks, ("reference", "critic")), {naps.B: ranks})
        with two.launch("ray") as running:
            batch = naps.Rolled(rolled=column)
            results["two roles", "**hfdsl**"] = milliseconds(lambda: running.step(batch), times), 1
        four = naps.ppo.compile(naps.deployment(seconds, ranks), {naps.B: ranks})
        with four.launch("ray") as running:
            start = naps.Start(start=column)
            results["PPO, four pools", "**hfdsl**"] = milliseconds(lambda: running.step(start), times), 3
    table = [
        (f"{kind}, {path}", wall, critical * seconds * 1e3)
        for (kind, path), (wall, critical) in sorted(results.items(), reverse=True)
    ]
    if arguments.json:
        rows = [{"name": name, "ms": wall, "critical_ms": critical} for name, wall, critical in table]
        print(json.dumps({"machine": measure.machine(), "rows": rows}))
        return
    cells = [
        (name, measure.number(wall), measure.number(critical), f"{wall / critical:.3f}×")
        for name, wall, critical in table
    ]
    print(measure.markdown(["", "ms", "critical path ms", "ratio"], cells))
    print(f"\n{measure.machine()}; medians of {times}")


if __name__ == "__main__":
    main()
