"""The six-call PPO chain: what its data plane costs, with hfdsl and with others, in one run and in turn.

``python -m benchmarks.dataplane.chain --mib 4 64 256``; ``benchmarks/dataplane/README.md`` says what is measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import torch

from benchmarks.dataplane import measure, ppo, ppo_narrow
from benchmarks.dataplane.columns import NARROW, ROW_BYTES, WIDE, Chain, expected, prompts
from benchmarks.dataplane.floor import Floor
from benchmarks.dataplane.measure import MIB, Serialized, Summary


class Path(Protocol):
    """A way to run the chain."""

    def prepare(self, batch: Any) -> Any:
        """The batch as ``step`` takes it; outside of its time."""
        ...

    def step(self, prompts: Any) -> tuple[int, int]:
        """One step: the digests of the critic's and the actor's updates."""
        ...


class OnHfdsl:
    """The chain as an hfdsl program."""

    def __init__(self, program: Any, chain: Chain, size: Size) -> None:
        self._program = program
        dims = {program.B: size.rows, program.P: chain.prompt, program.R: chain.response}
        deployment = program.deployment(size.ranks, size.colocated, chain.name, size.touch)
        self._running = program.ppo.compile(deployment, dims=dims).launch("ray")

    def prepare(self, batch: Any) -> Any:
        """The batch as ``step`` takes it."""
        return self._program.Prompts(prompts=batch)

    def step(self, prompts: Any) -> tuple[int, int]:
        """One step: the two digests."""
        critic, actor = self._running.step(prompts)
        return critic.digest.value, actor.digest.value

    def close(self) -> None:
        """End the processes."""
        self._running.close()


@dataclass(frozen=True)
class Named:
    """A path, its name, its chain; ``peer`` is its name as a column of ratios."""

    name: str
    path: Path
    chain: Chain
    peer: str = ""


@dataclass(frozen=True)
class Size:
    """A chain, its batch and its pools: two of ``ranks`` processes, or one where all roles are colocated."""

    chain: Chain
    rows: int
    ranks: int
    colocated: bool
    touch: bool = False

    @property
    def chains(self) -> tuple[Chain, ...]:
        """The chain, and the narrow one beside the wide one on split pools."""
        return (WIDE, NARROW) if self.chain is WIDE and not self.colocated else (self.chain,)

    def floors(self) -> dict[Chain, Floor]:
        """The processes without Ray: to be forked before Ray starts and torch has threads."""
        return {c: Floor(c, self.rows, self.ranks, self.colocated, self.touch) for c in self.chains}


@contextmanager
def paths(
    size: Size, peers: Sequence[str], store_mib: int, floors: Mapping[Chain, Floor] | None = None
) -> Iterator[list[Named]]:
    """All ways to run the chain, ready."""
    named: list[Named] = []

    def name(text: str, chain: Chain) -> str:
        return f"{text}, narrow" if chain is NARROW else text

    def peer(text: str, chain: Chain) -> str:
        return f"{text} narrow" if chain is NARROW else text

    with ExitStack() as stack:

        def kept(path: Any) -> Any:
            stack.callback(path.close)
            return path

        for chain, floor in (floors or {}).items():
            named.append(Named(name("shared memory, no Ray", chain), kept(floor), chain, peer("floor", chain)))
        stack.enter_context(measure.cluster(store_mib))
        if "verl" in peers:
            from benchmarks.dataplane import with_verl

            verl = kept(with_verl.Pools(size.chain, size.ranks, size.colocated, size.touch))
            named += [
                Named("verl, TensorDict", with_verl.OnTensorDict(verl), size.chain, "verl"),
                Named("verl, DataProto", with_verl.OnProto(verl, tuned=False), size.chain),
                Named("verl, tuned by hand", with_verl.OnProto(verl, tuned=True), size.chain, "tuned"),
            ]
            if "queue" in peers:
                named.append(Named("verl, TransferQueue", kept(with_verl.OnQueue(verl)), size.chain))
        if "hand" in peers:
            from benchmarks.dataplane import by_hand

            pools = kept(by_hand.Pools(size.chains, size.ranks, size.colocated, size.touch))
            for chain in size.chains:
                call_by_call, resident = by_hand.CallByCall(pools, chain), by_hand.Resident(pools, chain)
                named += [
                    Named(name("Ray by hand, call by call", chain), call_by_call, chain),
                    Named(name("Ray by hand, resident", chain), resident, chain, peer("resident", chain)),
                ]
        if "hfdsl" in peers:
            for chain in size.chains:
                program = ppo_narrow if chain is NARROW else ppo
                named.append(Named(name("**hfdsl**", chain), kept(OnHfdsl(program, chain, size)), chain))
        yield named


def check(named: Named, rows: int) -> None:
    """Hold a path to what the chain computes, twice with new prompts: every column came to every reader."""
    for number in (101, 102):
        digests = named.path.step(named.path.prepare(prompts(rows, number, named.chain)))
        right = expected(named.chain, rows, number)
        assert digests == right, f"{named.name}: {digests} instead of {right}"


def measured(
    group: Sequence[Named], rows: int, arguments: argparse.Namespace, serialized: Serialized
) -> dict[str, Summary]:
    """The cost of every path of a group, in turn."""
    prepared = {named.name: named.path.prepare(prompts(rows, 1, named.chain)) for named in group}
    by_name = {named.name: named for named in group}

    def step(name: str) -> Callable[[], object]:
        return lambda: by_name[name].path.step(prepared[name])

    def enter(name: str) -> None:
        getattr(by_name[name].path, "enter", lambda: None)()

    for named in group:
        enter(named.name)
        check(named, rows)
    steps = {name: step(name) for name in by_name}
    forked = [pid for named in group if isinstance(named.path, Floor) for pid in named.path.pids]
    workers = [*measure.processes(), *forked]
    measure.interleaved(steps, arguments.warm, workers, serialized, enter)
    costs = measure.interleaved(steps, arguments.times, workers, serialized, enter)
    watch = measure.MemoryWatch()
    peaks: dict[str, float] = {}
    try:
        for _ in range(arguments.watched):
            for name, make in steps.items():
                enter(name)
                peaks[name] = max(peaks.get(name, 0.0), watch.peak(make))
    finally:
        watch.close()
    return {name: Summary.of(costs[name], peaks.get(name, 0.0)) for name in steps}


HEAD = ("ms", "best", "driver CPU ms", "workers CPU ms", "driver MiB out", "in", "loopback MiB", "driver peak MiB")


def report(group: Sequence[Named], summaries: Mapping[str, Summary]) -> str:
    """A table of one group: costs, and each path's wall time beside that of its peers."""
    peers = {named.peer: summaries[named.name].wall for named in group if named.peer}
    shown = [peer for peer in ("verl", "tuned", "resident", "floor") if peer in peers]
    rows = []
    for named in group:
        summary = summaries[named.name]
        narrow = named.chain is NARROW
        cells = [
            measure.number(value) for value in (summary.wall, summary.best, summary.driver_cpu, summary.workers_cpu)
        ]
        cells += [measure.number(value / MIB, 2) for value in (summary.sent, summary.received, summary.loopback)]
        cells.append(measure.number(max(0.0, summary.memory), 2))
        for peer in shown:
            wall = peers.get(f"{peer} narrow", peers[peer]) if narrow else peers[peer]
            below = peer in ("verl", "tuned")
            cells.append(measure.number(wall / summary.wall if below else summary.wall / wall, 2) + "×")
        rows.append((named.name, *cells))
    titles = {"verl": "verl / it", "tuned": "tuned / it", "resident": "it / resident", "floor": "it / floor"}
    return measure.markdown(["", *HEAD, *(titles[peer] for peer in shown)], rows)


KINDS = {False: "split", True: "shared"}
PEERS = ("verl", "queue", "hand", "hfdsl", "floor")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.dataplane.chain", description="What the data plane costs.")
    parser.add_argument("--mib", type=float, nargs="+", default=[4, 64, 256], help="sizes of the batch (4 64 256)")
    parser.add_argument("--ranks", type=int, default=4, help="workers a pool (4)")
    parser.add_argument(
        "--pools", nargs="+", choices=KINDS.values(), default=list(KINDS.values()), help="split, shared"
    )
    parser.add_argument("--times", type=int, default=10, help="measured rounds (10)")
    parser.add_argument("--warm", type=int, default=3, help="rounds before those (3)")
    parser.add_argument("--watched", type=int, default=2, help="rounds after those, in which memory is watched (2)")
    parser.add_argument("--paths", nargs="+", choices=PEERS, default=PEERS, help="whose paths (all)")
    parser.add_argument("--store", type=int, default=4096, metavar="MIB", help="Ray's object store (4096)")
    parser.add_argument("--touch", action="store_true", help="bodies read a value of every page of their inputs")
    parser.add_argument("--json", action="store_true", help="one object instead of tables")
    arguments = parser.parse_args(argv)
    peers = list(arguments.paths)
    missing = [name for name in ("verl", "tensordict", "transfer_queue") if find_spec(name) is None]
    if missing and "verl" in peers:
        peers.remove("verl")
    torch.set_num_threads(1)  # as in Ray's workers: what the driver computes, it computes in one thread
    serialized = measure.Serialized().install()
    ranks = arguments.ranks
    sizes = [
        Size(WIDE, max(1, round(mib * MIB / ROW_BYTES / ranks)) * ranks, ranks, together, arguments.touch)
        for mib in arguments.mib
        for together in KINDS
        if KINDS[together] in arguments.pools
    ]
    floors = [size.floors() if "floor" in peers else {} for size in sizes]
    everything = []
    for size, floor in zip(sizes, floors, strict=True):
        mib, kind = size.rows * ROW_BYTES / MIB, KINDS[size.colocated]
        with paths(size, peers, arguments.store, floor) as group:
            summaries = measured(group, size.rows, arguments, serialized)
        everything.append(
            {"mib": mib, "pools": kind, "paths": {name: asdict(summary) for name, summary in summaries.items()}}
        )
        if not arguments.json:
            print(f"\n{mib:g} MiB, {kind} pools, {size.ranks} workers a pool\n\n{report(group, summaries)}", flush=True)
    if arguments.json:
        print(json.dumps({"machine": measure.machine(), "groups": everything}))
        return
    print(f"\n{measure.machine()}; medians of {arguments.times}")
    if missing and "verl" in arguments.paths:
        print(f"without verl's rows: {', '.join(missing)} cannot be imported; see benchmarks/dataplane/README.md")


if __name__ == "__main__":
    main()
