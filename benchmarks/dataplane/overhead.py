"""What a step costs with next to nothing to move: the chain with rows of a few bytes, and one call of many ranks.

``python -m benchmarks.dataplane.overhead``
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from benchmarks.dataplane import measure
from benchmarks.dataplane.chain import Size, check, paths
from benchmarks.dataplane.columns import TINY, prompts
from benchmarks.dataplane.light import Bare, Light, deployment, light
from benchmarks.dataplane.measure import Cost, Summary


def chains(size: Size, peers: Sequence[str], arguments: argparse.Namespace) -> dict[str, Summary]:
    """The chain with one row of 2 + 2 tokens a rank, with all peers in turn."""
    with paths(size, peers, arguments.store) as group:
        steps: dict[str, Callable[[], object]] = {}
        for named in group:
            getattr(named.path, "enter", lambda: None)()
            check(named, size.rows)
            batch = named.path.prepare(prompts(size.rows, 1, TINY))
            steps[named.name] = lambda path=named.path, batch=batch: path.step(batch)  # type: ignore[misc]
        enter = {named.name: getattr(named.path, "enter", lambda: None) for named in group}
        return summaries(steps, arguments, lambda name: enter[name]())


def summaries(
    steps: dict[str, Callable[[], object]],
    arguments: argparse.Namespace,
    before: Callable[[str], object] = lambda name: None,
) -> dict[str, Summary]:
    """The cost of these steps in turn, after a fifth as many."""
    workers, serialized = measure.processes(), measure.Serialized()
    measure.interleaved(steps, 1 + arguments.times // 5, workers, serialized, before, 0.01)
    costs_by_name: dict[str, list[Cost]] = measure.interleaved(
        steps, arguments.times, workers, serialized, before, 0.01
    )
    return {name: Summary.of(costs, 0.0) for name, costs in costs_by_name.items()}


def world(ranks: int, arguments: argparse.Namespace) -> dict[str, Summary]:
    """One call of so many ranks, without arguments and with a number as the answer."""
    with measure.cluster(arguments.store, cpus=max(8, ranks)) as ray:
        actor: Any = ray.remote(Bare)
        bare = [actor.options(num_cpus=0.01).remote([]) for _ in range(ranks)]
        ray.get([actor.count.remote() for actor in bare])
        with light.compile(deployment(Light, ranks)).launch("ray") as running:
            return summaries(
                {
                    "Ray by hand": lambda: ray.get([actor.count.remote() for actor in bare]),
                    "**hfdsl**": running.step,
                },
                arguments,
            )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.dataplane.overhead", description="Steps that move nothing.")
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8], help="workers of the chain in all (4 8)")
    parser.add_argument("--world", type=int, nargs="*", default=[8, 16, 32, 64], help="ranks of a call (8 16 32 64)")
    parser.add_argument("--times", type=int, default=30, help="measured rounds (30)")
    parser.add_argument("--store", type=int, default=256, metavar="MIB", help="Ray's object store (256)")
    parser.add_argument("--json", action="store_true", help="one object instead of the tables")
    arguments = parser.parse_args(argv)
    peers = ["hand", "hfdsl", *(["verl"] if find_spec("verl") is not None else [])]
    summaries: dict[str, dict[str, Summary]] = {}
    for workers in arguments.workers:
        for colocated in (True, False):
            ranks = workers if colocated else workers // 2
            kind = "one pool" if colocated else "two pools"
            size = Size(TINY, ranks, ranks, colocated)
            summaries[f"chain, {workers} workers, {kind}"] = chains(size, peers, arguments)
    for ranks in arguments.world:
        summaries[f"one call, {ranks} ranks"] = world(ranks, arguments)
    if arguments.json:
        rows = {kind: {name: asdict(summary) for name, summary in of.items()} for kind, of in summaries.items()}
        print(json.dumps({"machine": measure.machine(), "steps": rows}))
        return
    cells = []
    for kind, of in summaries.items():
        for name, summary in of.items():
            beside = f"{summary.driver_cpu / of['**hfdsl**'].driver_cpu:.2f}×"
            numbers = map(measure.number, (summary.wall, summary.best, summary.driver_cpu, summary.workers_cpu))
            cells.append((f"{kind}: {name}", *numbers, beside))
    head = ["", "ms", "best", "driver CPU ms", "workers CPU ms", "driver CPU / hfdsl's"]
    print(measure.markdown(head, cells))
    print(f"\n{measure.machine()}; medians of {arguments.times}")
    if "verl" not in peers:
        print("without verl's rows: verl cannot be imported; see benchmarks/dataplane/README.md")


if __name__ == "__main__":
    main()
