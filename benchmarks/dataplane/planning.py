"""What planning costs, and what a step costs the driver as rows grow.

``python -m benchmarks.dataplane.planning``
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import hfdsl as hf
from benchmarks.dataplane import measure, ppo
from benchmarks.dataplane.columns import TINY, prompts

LONGEST_MS = 5_000
"""After a compile that takes longer, it is not repeated, and larger worlds are left out."""


def compiled(ranks: int, mesh: hf.Mesh | None) -> Callable[[], Any]:
    """Compiling a PPO step on one pool of so many ranks, with four rows a rank."""
    nodes = max(1, ranks // 8)
    pool = hf.ResourcePool([ranks // nodes] * nodes, name="gpus")
    placed = hf.Deployment(
        actor=hf.place(ppo.Actor, pool=pool, mesh=mesh),
        reference=hf.place(ppo.ReferencePolicy, pool=pool, mesh=mesh),
        critic=hf.place(ppo.Critic, pool=pool, mesh=mesh),
        reward=hf.place(ppo.Reward, pool=pool, mesh=mesh),
    )
    dims: dict[Any, int] = {ppo.B: ranks * 4, ppo.P: 512, ppo.R: 768}
    return lambda: ppo.ppo.compile(placed, dims=dims)


def plans(worlds: Sequence[int], times: int) -> list[tuple[str, float, float]]:
    """Milliseconds of compiling, median and best: every rank with rows of its own, and with pp=8 and tp=8."""
    rows = []
    for kind, smallest, mesh_of in (
        ("dp", 1, lambda ranks: None),
        ("pp=8, tp=8", 64, lambda ranks: hf.Mesh(pp=8, dp=ranks // 64, tp=8)),
    ):
        for ranks in worlds:
            if ranks % smallest:
                continue
            action = compiled(ranks, mesh_of(ranks))
            walls = [milliseconds(action)]
            while len(walls) < times and walls[-1] < LONGEST_MS:
                walls.append(milliseconds(action))
            rows.append((f"{ranks:,}, {kind}", statistics.median(walls), min(walls)))
            if walls[-1] >= LONGEST_MS:
                break
    return rows


def milliseconds(action: Callable[[], object]) -> float:
    """The time of an action."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def growth(rows: Sequence[int], ranks: int, times: int) -> list[tuple[int, float, float]]:
    """Milliseconds of a step, and of the driver's CPU, for each number of rows: columns of two tokens, two pools."""
    growth_rows = []
    plan = ppo.ppo.compile(ppo.deployment(ranks, False, TINY.name), {ppo.P: TINY.prompt, ppo.R: TINY.response})
    with plan.launch("ray") as running:
        for count in rows:
            batch = ppo.Prompts(prompts=prompts(count, 1, TINY))
            running.step(batch), running.step(batch)
            costs = [measure.cost(lambda: running.step(batch), [], measure.Serialized()) for _ in range(times)]  # noqa: B023
            wall = statistics.median(cost.wall for cost in costs)
            growth_rows.append((count, wall, statistics.fmean(cost.driver_cpu for cost in costs)))
    return growth_rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.dataplane.planning", description="What planning costs.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024, 4096, 16_384], help="sizes of the pool")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 800, 80_000], help="rows of the steps")
    parser.add_argument("--times", type=int, default=5, help="how often each is measured (5)")
    parser.add_argument("--store", type=int, default=512, metavar="MIB", help="Ray's object store (512)")
    parser.add_argument("--json", action="store_true", help="one object instead of the tables")
    arguments = parser.parse_args(argv)
    compiles = plans(sorted(arguments.ranks), arguments.times)
    with measure.cluster(arguments.store):
        steps = growth(arguments.rows, 2, arguments.times)
    if arguments.json:
        print(json.dumps({"machine": measure.machine(), "plans": compiles, "steps": steps}))
        return
    head = ["ranks", "compile ms", "best"]
    print(measure.markdown(head, [(name, *map(measure.number, rest)) for name, *rest in compiles]))
    head = ["rows a step", "ms", "driver CPU ms"]
    print("\n" + measure.markdown(head, [(f"{rows:,}", *map(measure.number, rest)) for rows, *rest in steps]))
    print(f"\n{measure.machine()}; medians of {arguments.times}")


if __name__ == "__main__":
    main()
