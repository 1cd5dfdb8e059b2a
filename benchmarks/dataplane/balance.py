"""Balanced rows: what a step gains whose ranks take as long as their responses are, and what it pays.

``python -m benchmarks.dataplane.balance``
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence

import hfdsl as hf
from benchmarks.dataplane import lengths, measure


def drawn(rows: int, longest: int, seed: int) -> list[int]:
    """Lengths with a long tail: the logarithms are normal, with a median of an eighth of the longest."""
    source = random.Random(seed)
    return [max(1, min(longest, round(longest / 8 * source.lognormvariate(0, 1)))) for _ in range(rows)]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.dataplane.balance", description="Rows balanced by their lengths.")
    parser.add_argument("--rows", type=int, default=128, help="responses a step (128)")
    parser.add_argument("--longest", type=int, default=2048, help="tokens of the longest one (2048)")
    parser.add_argument("--ranks", type=int, default=4, help="workers a pool (4)")
    parser.add_argument("--seconds", type=float, default=20e-6, help="what a token takes (20e-6)")
    parser.add_argument("--times", type=int, default=9, help="measured steps (9)")
    parser.add_argument("--store", type=int, default=512, metavar="MIB", help="Ray's object store (512)")
    parser.add_argument("--json", action="store_true", help="one object instead of the table")
    arguments = parser.parse_args(argv)
    rows, longest, ranks = arguments.rows, arguments.longest, arguments.ranks
    deployment = lengths.deployment(ranks, arguments.seconds, longest)
    steps = [drawn(rows, longest, seed) for seed in range(arguments.times + 1)]
    size = rows // ranks
    table = []
    with measure.cluster(arguments.store):
        for name, balance in (("in their order", False), ("balanced", True)):
            optimize = hf.Optimize(balance=balance)
            plan = lengths.ppo.compile(deployment, {lengths.B: rows, lengths.R: longest}, optimize=optimize)
            walls, heaviest = [], []
            with plan.launch("ray") as running:
                for drawing in steps:
                    start = time.perf_counter()
                    result = running.step(lengths.prompts(drawing))
                    walls.append((time.perf_counter() - start) * 1e3)
                    if result.tokens.tensor.tolist() != drawing:
                        raise SystemExit(f"rows are not in their order: {result.tokens.tensor.tolist()}, not {drawing}")
                    loads = [sum(drawing[first : first + size]) for first in range(0, rows, size)]
                    in_order = max(loads) * ranks / sum(drawing)
                    recorded = running.timeline.imbalances.get("actor.update")
                    heaviest.append(recorded.balanced if recorded else in_order)
            floor = 2e3 * arguments.seconds * statistics.mean(sum(drawing) / ranks for drawing in steps[1:])
            table.append((name, statistics.mean(heaviest[1:]), statistics.mean(walls[1:]), floor))
    if arguments.json:
        shown = [{"name": n, "imbalance": i, "ms": wall, "floor_ms": floor} for n, i, wall, floor in table]
        print(json.dumps({"machine": measure.machine(), "rows": shown}))
        return
    cells = [
        (name, f"{imbalance:.3f}", measure.number(wall), measure.number(floor), f"{wall / floor:.3f}×")
        for name, imbalance, wall, floor in table
    ]
    print(measure.markdown(["rows", "heaviest rank over the mean", "ms", "evenly, ms", "ratio"], cells))
    print(f"\n{measure.machine()}; means of {arguments.times}")


if __name__ == "__main__":
    main()
