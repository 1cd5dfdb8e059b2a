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


def compiled(ranks: int, rows_a_rank: int) -> Callable[[], Any]:
    """Compiling a PPO step on one pool of so many ranks, every one of which has rows of its own."""
    nodes = max(1, ranks // 8)
    pool = hf.ResourcePool([ranks // nodes] * nodes, name="gpus")
    placed = hf.Deployment(
        actor=hf.place(ppo.Actor, pool=pool),
        reference=hf.place(ppo.ReferencePolicy, pool=pool),
        critic=hf.place(ppo.Critic, pool=pool),
        reward=hf.place(ppo.Reward, pool=pool),
    )
    dims: dict[Any, int] = {ppo.B: ranks * rows_a_rank, ppo.P: 512, ppo.R: 768}
    return lambda: ppo.ppo.compile(placed, dims=dims)


def milliseconds(action: Callable[[], object]) -> float:
    """The time of an action."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def growth(rows: Sequence[int], ranks: int, times: int) -> list[tuple[int, float, float]]:
    """Milliseconds of a step, and of the driver's CPU, for each number of rows: columns of two tokens, two pools."""
    found = []
    plan = ppo.ppo.compile(ppo.deployment(ranks, False, TINY.name), {ppo.P: TINY.prompt, ppo.R: TINY.response})
    with plan.launch("ray") as running:
        for count in rows:
            batch = ppo.Prompts(prompts=prompts(count, 1, TINY))
            running.step(batch), running.step(batch)
            costs = [measure.cost(lambda: running.step(batch), [], measure.Serialised()) for _ in range(times)]  # noqa: B023
            wall = statistics.median(cost.wall for cost in costs)
            found.append((count, wall, statistics.fmean(cost.driver_cpu for cost in costs)))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.dataplane.planning", description="What planning costs.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 256, 4096, 16384], help="sizes of the pool")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 800, 80_000], help="rows of the steps")
    parser.add_argument("--times", type=int, default=5, help="how often each is measured (5)")
    parser.add_argument("--store", type=int, default=512, metavar="MIB", help="Ray's object store (512)")
    parser.add_argument("--json", action="store_true", help="one object instead of the tables")
    arguments = parser.parse_args(argv)
    plans = []
    for ranks in arguments.ranks:
        action = compiled(ranks, 4)
        walls = [milliseconds(action)]
        while len(walls) < arguments.times and walls[-1] < 10_000:
            walls.append(milliseconds(action))
        plans.append((ranks, statistics.median(walls), min(walls)))
    with measure.cluster(arguments.store):
        steps = growth(arguments.rows, 2, arguments.times)
    if arguments.json:
        print(json.dumps({"machine": measure.machine(), "plans": plans, "steps": steps}))
        return
    head = ["ranks", "compile ms", "best"]
    print(measure.markdown(head, [(f"{ranks:,}", *map(measure.number, rest)) for ranks, *rest in plans]))
    head = ["rows a step", "ms", "driver CPU ms"]
    print("\n" + measure.markdown(head, [(f"{rows:,}", *map(measure.number, rest)) for rows, *rest in steps]))
    print(f"\n{measure.machine()}; medians of {arguments.times}")


if __name__ == "__main__":
    main()
