"""Programs that are made to be slow to check: ``python -m benchmarks.slow_checks [--seeds N]``.

Each has fewer than 50 nodes, and sizes, meshes, pools, requirements and models that make one part of the check work: a
search for sizes that do not exist, thousands of combinations, hundreds of thousands of ranks, nodes that hardly hold a
pool, rows that went many ways. A seed makes the same program on every machine. The slowest are printed with their CPU
time, which is to stay under ``LIMIT``.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import hfdsl as hf

LIMIT = 0.5
"""Seconds of CPU that the check of any program of fewer than 50 nodes may take."""

DIMS = "BPQRST"
PRIMES = (7, 13, 31, 97, 127, 509, 1009, 4093, 8191, 65_521, 131_071, 1_000_003, 2_147_483_647)

HEAD = """\
from typing import Literal

import hfdsl as hf
from hfdsl import Add, Dispatch, Div, Mul, register


"""


@dataclass(frozen=True)
class Source:
    """A module with an ``experiment``, and what it is made of."""

    what: str
    text: str


def size(rng: random.Random) -> int:
    """A size of any order of magnitude: a prime, a power of two, or next to one."""
    match rng.randrange(5):
        case 0:
            return rng.choice(PRIMES)
        case 1:
            return 1 << rng.randrange(24)
        case 2:
            return (2 << rng.randrange(23)) + rng.choice((-1, 1))
        case 3:
            return rng.choice(PRIMES) * rng.choice(PRIMES)
    return rng.randrange(1, 5000)


def requirement(rng: random.Random, dims: Sequence[str]) -> str:
    """A requirement over dims: divisibility or a bound, linear or not, or one that is only evaluated."""
    a, b, c = (rng.choice(dims) for _ in range(3))
    number, prime = size(rng), rng.choice(PRIMES[:8])
    return rng.choice(
        (
            f"{a} % {rng.choice((8, 64, 96, number))} == 0",
            f"({a} + {b}) % {prime} == 0",
            f"{a} * {b} % {prime} == 0",
            f"{a} * {a} % {prime} == 0",
            f"({a} * {a} + {b}) % {prime} == 1",
            f"{a} * {b} * {c} <= {number}",
            f"{a} * {b} >= {number}",
            f"{a} % {b} == 0",
            f"{a} >= 2 * {b}",
            f"{a} // {prime} % 2 == 1 or {b} == {number}",
            f"({a} + {b} + {c}) * ({a} + {b} + {c}) * ({a} + {b}) % {prime} == 0",
            f"{a} == {number}",
        )
    )


def sizes(rng: random.Random, dims: Sequence[str]) -> str:
    """The sizes of a check: one or several for each dim."""
    most = rng.choice((1, 1, 3, 8, 32, 200))
    listed = {dim: [size(rng) for _ in range(rng.randrange(1, most + 1))] for dim in dims}
    return ", ".join(f"{dim}: ({', '.join(map(str, dict.fromkeys(ns)))},)" for dim, ns in listed.items())


def pool(rng: random.Random) -> tuple[str, int]:
    """The nodes of a pool, as they are written, and how many slots that is."""
    match rng.randrange(5):
        case 0:
            nodes, gpus = rng.choice((1, 2, 50, 1000, 50_000)), rng.choice((1, 8))
            return f"[{gpus}] * {nodes}", nodes * gpus
        case 1:
            slots = rng.choice((400_000, 65_521, 2**17, 720_720))
            return f"[{slots}]", slots
        case 2:
            uneven = [rng.randrange(1, 17) for _ in range(rng.choice((3, 20, 500)))]
            return str(uneven), sum(uneven)
    slots = rng.choice((1, 2, 4, 6, 8, 12, 16))
    return f"[{slots}]", slots


def mesh(rng: random.Random, slots: int) -> str:
    """A mesh of so many ranks, or of another number."""
    ranks = slots if rng.random() < 0.8 else slots + rng.choice((-1, 1, slots))
    tp = rng.choice([n for n in (1, 2, 4, 8, 3) if ranks % n == 0] or [1])
    pp = rng.choice([n for n in (1, 2, 4) if ranks // tp % n == 0] or [1])
    return f"hf.Mesh(pp={pp}, dp={max(1, ranks // tp // pp)}, tp={tp})"


def many_sizes(rng: random.Random) -> Source:
    """Dims with many sizes and requirements over several of them, in several methods."""
    dims = DIMS[: rng.randrange(1, len(DIMS) + 1)]
    methods, calls = rng.randrange(1, 6), rng.choice((1, 2, 5, 20, 40))
    lines = [*(f"class {dim}(hf.Dim): ...\n" for dim in dims), "class X(hf.Batch):\n"]
    lines += [f"    {dim.lower()}: hf.i64[{', '.join(dict.fromkeys(('B', dim)))}]\n" for dim in dims]
    lines += ["class Y(hf.Batch):\n    x: hf.f32[B]\n", "class Role(hf.Worker):\n"]
    lines += ["    def __init__(self, micro: int = 7) -> None: ...\n"]
    for method in range(methods):
        mode = rng.choice(("DP_PROTO", "THREE_D_PROTO", "ONE_TO_ALL"))
        options = rng.choice(("", ", rows=hf.Grouped(3)", ', pad="cycle"')) if mode != "ONE_TO_ALL" else ""
        lines.append(f"    @register(Dispatch.{mode}{options})\n")
        lines += [f"    @hf.requires({requirement(rng, dims)!r})\n" for _ in range(rng.choice((0, 1, 2, 5)))]
        lines.append(f"    def run{method}(self, x: X) -> None: ...\n")
    lines.append("@hf.dataflow\ndef program(x: X, role: Role, other: Role):\n")
    for _ in range(calls):
        count = rng.randrange(1, 9)
        value = rng.choice(("x", f"hf.repeat(x, {count})", f"hf.minibatches(x, {count})[0]", f"hf.take(x, {count})"))
        lines.append(f"    {rng.choice(('role', 'other'))}.run{rng.randrange(methods)}({value})\n")
    nodes, slots = pool(rng)
    place = f"hf.place(Role, pool=hf.ResourcePool({nodes}, name='pool'), mesh={mesh(rng, slots)})"
    lines.append(f"deployment = hf.Deployment(role={place}, other={place})\n")
    lines.append(f"experiment = hf.Experiment(program, deployment, {{{sizes(rng, dims)}}})\n")
    return Source("sizes", HEAD + "".join(lines))


def many_roles(rng: random.Random) -> Source:
    """Roles that share pools, with GPU memory and models to slice, on a cluster that hardly holds them."""
    roles = rng.choice((2, 5, 10, 20, 40))
    lines = ["class B(hf.Dim): ...\nclass X(hf.Batch):\n    x: hf.f32[B]\n    keep: hf.bool_[B]\n"]
    lines += ["class Role(hf.Worker):\n    def __init__(self, heads: int = 14, hidden: int = 4096) -> None: ...\n"]
    lines += ["    @register(Dispatch.DP_PROTO)\n    def run(self, x: X) -> X: ...\n"]
    lines += ["    @register(Dispatch.ONE_TO_ALL)\n    def all(self, x: X) -> X: ...\n"]
    texts = ("heads % tp == 0", "dp * tp <= hidden", f"(dp + tp) % {rng.choice(PRIMES)} == 0", f"pp == {size(rng)}")
    lines.insert(1, f"@hf.requires({rng.choice(texts)!r})\n" if rng.random() < 0.7 else "")
    names = [f"role{number}" for number in range(roles)]
    lines.append(f"@hf.dataflow\ndef program(x: X, {', '.join(f'{name}: Role' for name in names)}):\n")
    for _ in range(rng.choice((roles, 40))):
        lines.append(f"    x = {rng.choice(names)}.{'run' if rng.random() < 0.8 else 'all'}(x)\n")
    lines.append("    return x\n")
    pools = [pool(rng) for _ in range(rng.choice((1, 1, 2, 5)))]
    lines += [f"pool{n} = hf.ResourcePool({nodes}, name='pool{n}')\n" for n, (nodes, _) in enumerate(pools)]
    lines.append("deployment = hf.Deployment(\n")
    for name in names:
        n = rng.randrange(len(pools))
        options = f", heads={size(rng)}, hidden={size(rng)}"
        amount = rng.choice(("'50%'", "'30%'", "'20GiB'", "'70GiB'"))
        memory = rng.choice(("", f", gpu_memory={amount}", f", gpu_memory={amount}, offload=True"))
        lines.append(f"    {name}=hf.place(Role{options}, pool=pool{n}, mesh={mesh(rng, pools[n][1])}{memory}),\n")
    lines.append(")\n")
    kinds = [
        f"hf.Nodes({rng.choice((1, 3, 50, 50_000))}, gpus={rng.choice((1, 2, 4, 7, 8))}, "
        f"gpu_memory_gib={rng.choice((24, 40, 80))}, cpus={rng.choice((4, 96))})"
        for _ in range(rng.randrange(1, 5))
    ]
    cluster = f", cluster=hf.Cluster({', '.join(kinds)})" if rng.random() < 0.7 else ""
    lines.append(f"experiment = hf.Experiment(program, deployment, {{B: {size(rng)}}}{cluster})\n")
    return Source("roles", HEAD + "".join(lines))


def many_values(rng: random.Random) -> Source:
    """Values that are merged, filtered, repeated and cut many times, by counts of any size, and inner dataflows."""
    lines = [
        "class B(hf.Dim): ...\nclass R(hf.Dim): ...\nclass X(hf.Batch):\n    x: hf.f32[B]\n    keep: hf.bool_[B]\n"
    ]
    lines += ["class Tokens(X):\n    tokens: hf.i64[B, R]\n", "class Role(hf.Worker):\n"]
    for name, ports, returns in (("run", "x: X", "X"), ("sample", "x: X", "Tokens"), ("join", "a: X, b: X", "X")):
        rows = rng.choice(("", "", f", rows=hf.Grouped({size(rng)})"))
        lines += [f"    @register(Dispatch.DP_PROTO{rows})\n", f"    def {name}(self, {ports}) -> {returns}: ...\n"]
    lines += [f"@hf.function(rows=hf.Grouped({rng.choice((2, 4, size(rng)))}))\ndef grouped(x: X) -> X: ...\n"]
    depth = rng.choice((1, 5, 40))
    for level in range(depth):
        inner = f"inner{level - 1}(x, role)" if level else "role.run(x)"
        lines.append(f"@hf.dataflow\ndef inner{level}(x: X, role: Role) -> X:\n    return {inner}\n")
    lines.append("@hf.dataflow\ndef program(x: X, role: Role):\n    a, b = role.sample(x), role.sample(x)\n")
    for _ in range(rng.choice((3, 10, 40))):
        count, (left, right) = size(rng), rng.sample("ab", 2)
        value = rng.choice(
            (
                f"hf.repeat({left}, {count})",
                f"hf.filter({left}, {rng.choice('ab')}.keep)",
                f"hf.filter({left}, {left}.keep, group={rng.choice((2, 4, count))})",
                f"hf.fill({left}, {count})",
                f"hf.take({left}, {count})",
                f"hf.minibatches({left}, {rng.randrange(1, 4)})[-1]",
                f"X(x={left}.x, keep={right}.keep)",
                f"role.join({left}, {right})",
                f"role.sample({left})",
                f"grouped({left})",
                f"inner{rng.randrange(depth)}({left}, role)",
            )
        )
        lines.append(f"    {rng.choice('ab')} = {value}\n")
    lines.append("    return a, b\n")
    nodes, slots = pool(rng)
    place = f"hf.place(Role, pool=hf.ResourcePool({nodes}, name='pool'), mesh={mesh(rng, slots)})"
    lines.append(f"experiment = hf.Experiment(program, hf.Deployment(role={place}), {{{sizes(rng, 'BR')}}})\n")
    return Source("values", HEAD + "".join(lines))


KINDS: tuple[Callable[[random.Random], Source], ...] = (many_sizes, many_roles, many_values)


def loaded(folder: Path, name: str, text: str) -> hf.Experiment:
    """The experiment of a module."""
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    module = importlib.import_module(name)
    experiment: hf.Experiment = module.experiment
    return experiment


def measured(folder: Path, seeds: Sequence[int]) -> Iterator[tuple[float, int, str, str]]:
    """CPU seconds of the first check of each program, its seed, what it is made of, and what was found."""
    warm = random.Random(3)
    loaded(folder, "warm_up", many_sizes(warm).text).check()  # the first check of all imports what the others use
    for seed in seeds:
        rng = random.Random(seed)
        source = rng.choice(KINDS)(rng)
        try:
            experiment = loaded(folder, f"slow_{seed}", source.text)
        except hf.HfError as error:
            yield 0.0, seed, source.what, error.code
            continue
        gc.collect()
        start = process_time()
        report = experiment.check()
        yield process_time() - start, seed, source.what, " ".join(sorted(set(report.codes)))


def main() -> None:
    """Measure and print the slowest."""
    parser = argparse.ArgumentParser(description="Which small programs take long to check?")
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="how many programs (default: 200)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first seed (default: 0)")
    parser.add_argument("--show", type=int, default=10, metavar="N", help="how many of the slowest (default: 10)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        sys.path.insert(0, str(folder))
        rows = sorted(measured(folder, range(arguments.first, arguments.first + arguments.seeds)), reverse=True)
    for seconds, seed, kind, codes in rows[: arguments.show]:
        print(f"{seconds:7.3f} s  seed {seed:5}  {kind:6}  {codes}")
    over = sum(seconds > LIMIT for seconds, *_ in rows)
    print(f"{len(rows)} programs, {over} over {LIMIT} s of CPU")
    sys.exit(over > 0)


if __name__ == "__main__":
    main()
