"""From nothing to the first answer of every worker: hfdsl beside bare actors of Ray with the same imports.

``python -m benchmarks.dataplane.startup``. Besides, a role whose constructor waits, alone, and four of these on pools
of their own. Each start has a cluster of its own, which runs before the clock does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from benchmarks.dataplane import measure
from benchmarks.dataplane.light import (
    Bare,
    Heavy,
    Light,
    deployment,
    heavy,
    imported,
    imported_heavy,
    light,
    loading,
    loading_alone,
    loading_deployment,
)


def modules_of(flow: Any, role: type[Light]) -> list[str]:
    """What a worker of hfdsl has imported when it answers, as far as it is hfdsl, torch or numpy."""
    with flow.compile(deployment(role, 1)).launch("ray") as running:
        [names] = running.step()
    return [name for name in names if name.split(".")[0] in ("hfdsl", "torch", "numpy") and find_module(name)]


def find_module(name: str) -> bool:
    """Whether this can be imported by its name; some modules are made while others are imported."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def with_hfdsl(flow: Any, role: type[Light], ranks: int) -> None:
    """Launch and step once."""
    with flow.compile(deployment(role, ranks)).launch("ray") as running:
        assert sum(running.step()) == ranks


def with_pools(flow: Any, names: Sequence[str]) -> None:
    """Launch roles on pools of their own, and step once."""
    with flow.compile(loading_deployment(LOADING, names)).launch("ray") as running:
        assert running.step() == [1]


def with_ray(modules: list[str], ranks: int) -> None:
    """Bare actors, and a call of each."""
    import ray

    actor: Any = ray.remote(Bare)
    actors = [actor.options(num_cpus=0.01).remote(modules) for _ in range(ranks)]
    assert sum(ray.get([actor.count.remote() for actor in actors])) == ranks
    for worker in actors:
        ray.kill(worker)


def with_verl(ranks: int) -> None:
    """A worker group of verl's, and a call."""
    import ray

    from benchmarks.dataplane import with_verl as verl

    group = verl.group(ranks)
    assert group.same(1) == [1] * ranks
    for worker in group.workers:
        ray.kill(worker)


def seconds(action: Callable[[], object], store: int) -> float:
    """The time of an action in a new cluster."""
    with measure.cluster(store):
        time.sleep(2)  # Ray starts what it starts beforehand
        start = time.perf_counter()
        action()
        return time.perf_counter() - start


PATHS = ("light", "torch", "pools", "verl")

LOADING = 10.0
"""The seconds that a constructor waits, as for a checkpoint."""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.dataplane.startup", description="From nothing to an answer.")
    parser.add_argument("--ranks", type=int, default=8, help="workers (8)")
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=PATHS, help="what starts (all)")
    parser.add_argument("--times", type=int, default=3, help="starts of each (3)")
    parser.add_argument("--store", type=int, default=256, metavar="MIB", help="Ray's object store (256)")
    parser.add_argument("--json", action="store_true", help="one object instead of the table")
    arguments = parser.parse_args(argv)
    ranks = arguments.ranks
    actions: dict[str, Callable[[], object]] = {}
    with measure.cluster(arguments.store):
        if "light" in arguments.paths:
            small = modules_of(imported, Light)
            actions["**hfdsl**, no torch in the roles"] = lambda: with_hfdsl(light, Light, ranks)
            actions["bare actors, the same imports"] = lambda: with_ray(small, ranks)
        if "torch" in arguments.paths:
            large = modules_of(imported_heavy, Heavy)
            actions["**hfdsl**, roles with torch"] = lambda: with_hfdsl(heavy, Heavy, ranks)
            actions["bare actors, the same imports, torch"] = lambda: with_ray(large, ranks)
            actions["bare actors, torch alone"] = lambda: with_ray(["torch"], ranks)
    if "pools" in arguments.paths:
        actions["**hfdsl**, a role whose constructor takes 10 s"] = lambda: with_pools(loading_alone, ["actor"])
        roles = ["actor", "critic", "reference", "engine"]
        actions["**hfdsl**, four of them, each on a pool of its own"] = lambda: with_pools(loading, roles)
    if "verl" in arguments.paths and find_spec("verl") is not None:
        actions["verl"] = lambda: with_verl(ranks)
    wall_seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(arguments.times):
        for name, action in actions.items():
            wall_seconds[name].append(seconds(action, arguments.store))
    if arguments.json:
        print(json.dumps({"machine": measure.machine(), "seconds": wall_seconds}))
        return
    medians = {name: statistics.median(times) for name, times in wall_seconds.items()}
    peers = {"**hfdsl**, no torch in the roles": "bare actors, the same imports"}
    peers["**hfdsl**, roles with torch"] = "bare actors, the same imports, torch"
    peers["**hfdsl**, four of them, each on a pool of its own"] = "**hfdsl**, a role whose constructor takes 10 s"
    cells = [
        (name, measure.number(wall), measure.number(min(wall_seconds[name])), ratio(wall, medians, peers.get(name)))
        for name, wall in medians.items()
    ]
    print(measure.markdown(["", "s", "best", "beside its peer"], cells))
    print(f"\n{ranks} workers; {measure.machine()}; medians of {arguments.times}")
    if "verl" in arguments.paths and "verl" not in wall_seconds:
        print("without verl's row: verl cannot be imported; see benchmarks/dataplane/README.md")


def ratio(wall: float, medians: dict[str, float], peer: str | None) -> str:
    """How much longer than its peer."""
    return f"{wall / medians[peer]:.2f}×" if peer else ""


if __name__ == "__main__":
    main()
