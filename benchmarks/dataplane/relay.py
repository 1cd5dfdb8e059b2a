"""What the calls of a step cost the driver as ranks grow: one call per rank, and one call per node through relays.

``python -m benchmarks.dataplane.relay``
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import Any

import hfdsl as hf
from benchmarks.dataplane import measure, ppo
from benchmarks.dataplane.columns import TINY, prompts
from benchmarks.dataplane.light import Bare, Light, deployment, light
from benchmarks.dataplane.measure import Summary
from hfdsl.plan.payloads import Topology, planned_topology
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.protocols.worker import RankContext
from hfdsl.runtime.backend import Submission, do_nothing
from hfdsl.runtime.digests import Digests
from hfdsl.runtime.messages import CallResult, SegmentResult
from hfdsl.runtime.processes import Processes
from hfdsl.runtime.rank.executor import Executor
from hfdsl.runtime.ray.relay_client import Relays
from hfdsl.runtime.running import Running
from hfdsl.runtime.verification.digest_report import DigestReport
from hfdsl.runtime.verification.verified_syncs import DTypes, VerifiedSync

DIRECT, RELAYED = "a call per rank", "a call per node"


# -- on this machine


class Gathers:
    """A relay by hand: it calls its ranks and answers for all of them."""

    def __init__(self, ranks: Sequence[Any]) -> None:
        self._ranks = ranks

    def count(self) -> list[int]:
        """One call of every rank."""
        import ray

        return list(ray.get([rank.count.remote() for rank in self._ranks]))


@hf.dataflow
def relayed(role: Light) -> hf.PerRank[int]:
    return role.count()


def by_hand(ranks: int, a_node: int, arguments: argparse.Namespace) -> dict[str, Summary]:
    """Ray alone: actors that are called by the driver, and by actors of which the driver calls one a node."""
    with measure.cluster(arguments.store, cpus=8) as ray:
        actor: Any = ray.remote(num_cpus=0)(Bare)
        relay: Any = ray.remote(num_cpus=0)(Gathers)
        actors = started(ray, [partial(actor.remote, [])] * ranks)
        nodes = [actors[first : first + a_node] for first in range(0, ranks, a_node)]
        relays = started(ray, [partial(relay.remote, node) for node in nodes])
        steps: dict[str, Callable[[], object]] = {
            f"Ray by hand, {DIRECT}": lambda: ray.get([actor.count.remote() for actor in actors]),
            f"Ray by hand, {RELAYED}": lambda: ray.get([relay.count.remote() for relay in relays]),
        }
        return summaries(steps, arguments.times)


def started(ray: Any, makers: Sequence[Callable[[], Any]]) -> list[Any]:
    """Actors, eight at a time: processes that all start at once take each other's time and memory."""
    actors: list[Any] = []
    for first in range(0, len(makers), 8):
        some = [maker() for maker in makers[first : first + 8]]
        ray.get([actor.count.remote() for actor in some])
        actors += some
    return actors


def as_if_apart(node_of: Callable[[str, int], object]) -> None:
    """Have relays of later runs take this machine for many: `node_of` says on which node each rank is."""
    from hfdsl.runtime.ray import groups

    class Nodes(Relays):
        def __init__(self, workers: Any, nodes: Mapping[str, Sequence[str]], left: Callable[[], float]) -> None:
            apart = {g: [f"{node}|{node_of(g, rank)}" for rank, node in enumerate(nodes[g])] for g in nodes}
            super().__init__(workers, apart, left)

        def _start(self, host: str, ranks: Any) -> Any:
            return super()._start(host.partition("|")[0], ranks)

    groups.Relays = Nodes  # type: ignore[attr-defined,assignment]  # in this process


def on_hfdsl(ranks: int, a_node: int, arguments: argparse.Namespace) -> dict[str, Summary]:
    """A step of one call, both ways on the same processes."""
    as_if_apart(lambda group, rank: rank // a_node)
    placed = deployment(Light, ranks)
    with (
        measure.cluster(arguments.store, cpus=ranks),
        light.compile(placed, optimize=hf.Optimize(relay=False)).launch("ray", timeout=900) as running,
    ):
        through_relay = running.also(relayed.compile(placed, optimize=hf.Optimize(relay=True)))
        steps = {f"**hfdsl**, {DIRECT}": running.step, f"**hfdsl**, {RELAYED}": through_relay.step}
        return summaries(steps, arguments.times)


def summaries(steps: Mapping[str, Callable[[], object]], times: int) -> dict[str, Summary]:
    """The cost of these steps in turn, after 34: by then a run has learned how long bodies take."""
    workers, serialized = measure.processes(), measure.Serialized()
    measure.interleaved(steps, 34, workers, serialized, pause=0.0)
    return {
        name: Summary.of(costs, 0.0)
        for name, costs in measure.interleaved(steps, times, workers, serialized, pause=0.01).items()
    }


# -- where they meet


def as_on_a_cluster(summaries: Mapping[int, Mapping[str, Summary]], way: str) -> dict[int, float]:
    """Milliseconds of a step where nodes work at the same time, by world.

    That is one node's step, as it was measured, and what the calls of the others cost the driver more.
    """
    least = summaries[min(summaries)][f"**hfdsl**, {way}"]
    return {
        n: least.wall + of[f"**hfdsl**, {way}"].driver_cpu - least.driver_cpu for n, of in sorted(summaries.items())
    }


def crossing(first: Mapping[int, float], second: Mapping[int, float]) -> float | None:
    """From where on the other takes no more than the one, between what was measured along straight lines."""
    worlds = sorted(first)
    if worlds and second[worlds[0]] <= first[worlds[0]]:
        return worlds[0]
    for low, high in pairwise(worlds):
        before, after = second[low] - first[low], second[high] - first[high]
        if after <= 0:
            return low + (high - low) * before / (before - after)
    return None


def crossover(summaries: Mapping[int, Mapping[str, Summary]], a_node: int) -> str:
    """The table of both ways, measured and as on a cluster, and where they meet."""
    ways = [f"**hfdsl**, {way}" for way in (DIRECT, RELAYED)]
    measured = [{n: of[way].wall for n, of in summaries.items()} for way in ways]
    cpu = [{n: of[way].driver_cpu for n, of in summaries.items()} for way in ways]
    cluster = [as_on_a_cluster(summaries, way) for way in (DIRECT, RELAYED)]
    columns = [column for pair in (cpu, measured, cluster) for column in pair]
    rows = [(f"{n}", *(measure.number(column[n]) for column in columns)) for n in sorted(summaries)]
    names = ("driver CPU ms", "ms here", "ms as on a cluster")
    head = ["ranks", *(f"{name}: {way}" for name in names for way in (DIRECT, RELAYED))]
    lines = [measure.markdown(head, rows), ""]
    for name, (first, second) in zip(names, (cpu, measured, cluster), strict=True):
        at = crossing(first, second)
        where = f"at {at:.0f} ranks" if at is not None else f"nowhere up to {max(summaries)} ranks"
        lines.append(f"{name}: they meet {where}, {a_node} ranks a node")
    return "\n".join(lines)


# -- beyond


class Accepts:
    """A backend that runs nothing: what is left is what hfdsl itself does in the driver."""

    def __init__(self, plan: Plan) -> None:
        self.driver = Executor(plan=plan, group=DRIVER, roles=(), context=RankContext(), seed=0, collectives=None)
        self._topology = planned_topology(plan)

    def add(self, plan: Plan) -> None:
        """Nobody is there."""

    def topology(self, plan: Plan) -> Topology:
        """As the pools have it."""
        return self._topology

    def put(self, plan: Plan, content: Any) -> Any:
        """It stays here."""
        return content

    def run(self, submission: Submission) -> list[tuple[Any, Sequence[Any]]]:
        """Every rank acknowledges at once, and sends ones."""
        segment = submission.segment
        result = SegmentResult(
            group=segment.group,
            rank=0,
            start=0.0,
            stop=0.0,
            calls=tuple(CallResult(step.label, 0, 0.0, 0.0) for step in segment.steps),
            payload_bytes=(),
            held_bytes=0,
            peak_bytes=0,
        )
        return [(result, [dict.fromkeys(sent.slices, 1) for sent in sends]) for sends in submission.sends]

    def done(
        self, acknowledgments: Sequence[Any], wanted: Sequence[Any] = (), meanwhile: Callable[[], None] = do_nothing
    ) -> list[SegmentResult]:
        """All of them are."""
        return list(acknowledgments)

    def get(self, handles: Sequence[Any]) -> list[Any]:
        """They are here."""
        return list(handles)

    def save(self, folder: str, background: bool) -> None:
        """Nobody keeps anything."""

    def saved(self, folder: str, wait: float) -> dict[str, list[dict[str, str]]] | None:
        """Nothing."""
        return {}

    def load(self, folder: str, saved: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        """Nobody takes anything."""

    def record(self, folder: str | None) -> None:
        """Nobody has calls to write."""

    def digests(self, sync: VerifiedSync, role: str, dtypes: DTypes | None, exported: bool) -> list[Digests | None]:
        """Nobody has weights."""
        return []

    def digest_exports(self, wanted: Mapping[VerifiedSync, DTypes]) -> None:
        """Nobody exports any."""

    def sent_digests(self) -> list[DigestReport]:
        """Nobody sends any."""
        return []

    def begin(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to end."""


def programs(ranks: int) -> Iterator[tuple[str, Plan, tuple[Any, ...]]]:
    """A step of one call with a number from every rank, and the PPO chain with a row per rank, on one pool."""
    pool = hf.ResourcePool([8] * (ranks // 8), use_gpu=False, name="ranks")
    yield "one call", light.compile(hf.Deployment(role=hf.place(Light, pool=pool))), ()
    roles = {"actor": ppo.Actor, "reference": ppo.ReferencePolicy, "critic": ppo.Critic, "reward": ppo.Reward}
    placed = hf.Deployment(**{name: hf.place(role, TINY.name, pool=pool) for name, role in roles.items()})
    dims = {ppo.B: ranks, ppo.P: TINY.prompt, ppo.R: TINY.response}
    yield "PPO chain", ppo.ppo.compile(placed, dims), (ppo.Prompts(prompts=prompts(ranks, 1, TINY)),)


def bookkeeping(ranks: int) -> Iterator[tuple[str, float, float]]:
    """CPU milliseconds of the first step, which finds the routes, and of those after it."""
    for name, plan, batches in programs(ranks):
        running = Running(plan, Processes(Accepts(plan), {plan.name: 0}, 0, [plan]))
        first = milliseconds(partial(running.step, *batches))
        gc.collect()
        gc.disable()  # it looks at the whole plan now and then
        try:
            later = [milliseconds(partial(running.step, *batches)) for _ in range(9)]
        finally:
            gc.enable()
        yield name, first, statistics.median(later)


def milliseconds(action: Callable[[], object]) -> float:
    """The CPU time of an action."""
    start = time.process_time()
    action()
    return (time.process_time() - start) * 1e3


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.dataplane.relay", description="Calls of many ranks.")
    parser.add_argument("--world", type=int, nargs="*", default=[8, 16, 32, 64, 128], help="ranks (8 16 32 64 128)")
    parser.add_argument("--a-node", type=int, default=8, help="ranks a node (8)")
    parser.add_argument(
        "--beyond", type=int, nargs="*", default=[256, 1024, 4096, 16_384], help="ranks that are not there"
    )
    parser.add_argument("--times", type=int, default=60, help="measured rounds (60)")
    parser.add_argument("--store", type=int, default=256, metavar="MIB", help="Ray's object store (256)")
    parser.add_argument("--json", action="store_true", help="one object instead of the tables")
    arguments = parser.parse_args(argv)
    beyond = [(ranks, *row) for ranks in arguments.beyond for row in bookkeeping(ranks)]
    summaries: dict[int, dict[str, Summary]] = {}
    for ranks in arguments.world:
        print(f"{ranks} ranks start", file=sys.stderr, flush=True)
        summaries[ranks] = by_hand(ranks, arguments.a_node, arguments) | on_hfdsl(ranks, arguments.a_node, arguments)
    if arguments.json:
        worlds = {ranks: {name: asdict(summary) for name, summary in of.items()} for ranks, of in summaries.items()}
        print(json.dumps({"machine": measure.machine(), "worlds": worlds, "beyond": beyond}))
        return
    rows = [
        (
            f"{ranks} ranks: {name}",
            *map(measure.number, (summary.driver_cpu, summary.wall, summary.best, summary.workers_cpu)),
        )
        for ranks, of in summaries.items()
        for name, summary in of.items()
    ]
    if summaries:
        print(measure.markdown(["", "driver CPU ms", "ms", "best", "workers CPU ms"], rows))
        print("\n" + crossover(summaries, arguments.a_node))
    head = ["without Ray", "first step, CPU ms", "later steps", "µs a rank"]
    numbers = [(f"{n:,} ranks: {name}", first, later, later / n * 1e3) for n, name, first, later in beyond]
    if numbers:
        print("\n" + measure.markdown(head, [(name, *map(measure.number, of)) for name, *of in numbers]))
    print(f"\n{measure.machine()}; {arguments.a_node} ranks a node, medians of {arguments.times}")


if __name__ == "__main__":
    main()
