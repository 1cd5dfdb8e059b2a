"""Mutation testing: which small mistakes in hfdsl's own code would its tests not notice?

    python -m benchmarks.mutation hfdsl/protocols --tests tests/protocols hfdsl/protocols
    python -m benchmarks.mutation hfdsl/check --tests tests/check hfdsl/check --sample 400 --seed 1

One process imports and collects the tests. A forked child runs them once, in a random order, under a tracer that tells
the lines that each of them reaches. Then each mutant has a child of its own, which puts the mutated code into the live
functions and runs the tests that reach it, the fastest first, until one fails. Properties try few examples, always the
same ones, and what runs while modules are imported is not mutated, so scores are lower bounds for these mutants.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.mutation.mutants import Mutant, mutants
from benchmarks.mutation.trying import Trying

ROOT = Path(__file__).parent.parent.parent
EQUIVALENT = Path(__file__).parent / "equivalent.toml"
KEYS = ("file", "function", "before", "after", "nth")


def listed(path: Path, mutants: list[Mutant]) -> set[Mutant]:
    """The mutants that a list in TOML names, as survivors are printed."""
    names = [tuple(entry[key] for key in KEYS) for entry in tomllib.loads(path.read_text("utf-8")).get("mutant", ())]
    return {mutant for mutant in mutants if tuple(getattr(mutant, key) for key in KEYS) in names}


def draw(files: list[str], sample: int | None, per_file: int, seed: int) -> tuple[list[Mutant], int]:
    """A sample of the mutants, with at least so many of each file, and how many there are."""
    chance = random.Random(seed)
    by_file = {
        file: chance.sample(file_mutants, len(file_mutants)) for file in files if (file_mutants := mutants(ROOT, file))
    }
    total = sum(map(len, by_file.values()))
    if sample is None:
        return [mutant for file_mutants in by_file.values() for mutant in file_mutants], total
    chosen = [mutant for file_mutants in by_file.values() for mutant in file_mutants[:per_file]]
    unchosen = [mutant for file_mutants in by_file.values() for mutant in file_mutants[per_file:]]
    return chosen + chance.sample(unchosen, max(0, min(sample - len(chosen), len(unchosen)))), total


def interval(killed: int, total: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share."""
    z, share = 1.96, killed / total
    middle, width = share + z * z / (2 * total), z * math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
    return (middle - width) / (1 + z * z / total), (middle + width) / (1 + z * z / total)


def report(fates: dict[Mutant, str], total: int) -> str:
    """The score and a table of the files."""
    lines = ["| file | mutants | killed | by timeout | survived | equivalent |", "|---|---:|---:|---:|---:|---:|"]
    counts = Counter((mutant.file, fate) for mutant, fate in fates.items())
    for file in sorted({mutant.file for mutant in fates}):
        count = Counter({fate: number for (of, fate), number in counts.items() if of == file})
        lines.append(row(file, count))
    count = Counter(fates.values())
    judged = count.total() - count["equivalent"]
    killed = count["killed"] + count["timeout"]
    low, high = interval(killed, judged)
    sure = f" (95% interval {low:.1%} to {high:.1%}; a sample of {total})" if len(fates) < total else ""
    return "\n".join([*lines, row("all", count), "", f"killed {killed} of {judged}: {killed / judged:.1%}{sure}"])


def row(name: str, count: Counter[str]) -> str:
    """A row of the table."""
    killed, missed = count["killed"] + count["timeout"], count["survived"] + count["unreached"]
    return f"| {name} | {count.total()} | {killed} | {count['timeout']} | {missed} | {count['equivalent']} |"


def main() -> None:
    """Draw the mutants, try them, and print the score and the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", help="files and folders to mutate, from the checkout's root")
    parser.add_argument("--tests", nargs="+", default=["tests", "hfdsl"], help="what pytest collects")
    parser.add_argument("--sample", type=int, help="how many mutants (default: all)")
    parser.add_argument("--each", type=int, default=15, help="of a sample, at least so many a file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=25, help="at most so many for a property")
    parser.add_argument("--longest", type=float, default=5.0, help="CPU seconds; slower tests do not run")
    parser.add_argument("--only", type=Path, help="mutants to try again: what an earlier run printed")
    arguments = parser.parse_args()
    files = [str(f.relative_to(ROOT)) for p in arguments.paths for f in sorted((ROOT / p).rglob("*.py")) or [ROOT / p]]
    mutants, total = draw(files, arguments.sample, arguments.each, arguments.seed)
    if arguments.only:
        again = listed(arguments.only, mutants)
        mutants = [mutant for mutant in mutants if mutant in again]
    equivalent = listed(EQUIVALENT, mutants)
    fates = dict.fromkeys(mutants, "equivalent")
    print(
        f"# {len(mutants)} of {total} mutants of {len(files)} files, {len(equivalent)} of them equivalent", flush=True
    )

    def tried(mutant: Mutant, fate: str) -> None:
        fates[mutant] = fate
        if fate in ("survived", "unreached"):
            lines = [f"{key} = {json.dumps(getattr(mutant, key))}" for key in KEYS]
            print(f"[[mutant]]  # {fate}, line {mutant.lines.start}", *lines, "", sep="\n", flush=True)

    plugin = Trying(ROOT, [m for m in mutants if m not in equivalent], arguments.examples, arguments.longest, tried)
    options = ["-q", "--capture=no", "-p", "no:cacheprovider", "-o", "timeout=0", "-m", "not ray and not gpu"]
    code = pytest.main([*options, *arguments.tests], plugins=[plugin])
    print(report(fates, total))
    sys.exit(code)


if __name__ == "__main__":
    main()
