"""What a check costs: ``python benchmarks/check.py`` prints one table (``--json`` for machines).

The programs are written as source files in a temporary folder, one statement a line as a user would have them, since
finding the user's lines is a part of what is measured.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path
from time import perf_counter, process_time
from types import ModuleType

import hfdsl

DECLARATIONS = """\
import hfdsl as hf
from hfdsl import bool_, f32, i64, register, Dispatch
from typing import Literal


class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...


class Prompts(hf.Batch):
    ids: i64[B, P]
    answer: hf.Obj[str, B]


class Rollout(hf.Batch):
    ids: i64[B, hf.Add[P, R]]
    response_mask: bool_[B, R]
    log_probs: f32[B, R]


class Reference(hf.Batch):
    ref_log_probs: f32[B, R]


class Scores(hf.Batch):
    reward: f32[B]


class Values(hf.Batch):
    values: f32[B, R]


class Estimates(hf.Batch):
    advantages: f32[B, R]
    returns: f32[B, R]


class Experience(Rollout):
    ref_log_probs: f32[B, R]
    values: f32[B, R]
    advantages: f32[B, R]
    returns: f32[B, R]


class Metrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Config:
    def __init__(self, micro_batch: int) -> None:
        self.micro_batch = micro_batch


class Actor(hf.Worker):
    def __init__(self, config: Config) -> None:
        self.config = config

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % micro_batch == 0")
    def update(self, experience: Experience) -> Metrics: ...


class Critic(hf.Worker):
    def __init__(self, config: Config) -> None:
        self.config = config

    @register(Dispatch.THREE_D_PROTO)
    def estimate(self, rollout: Rollout) -> Values: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % micro_batch == 0")
    def update(self, experience: Experience) -> Metrics: ...


class Frozen(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, rollout: Rollout) -> Reference: ...


class Reward(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts, rollout: Rollout) -> Scores: ...


@hf.function
def penalize(reward: f32[B], log_probs: f32[B, R], ref_log_probs: f32[B, R]) -> Scores: ...


@hf.function(rows=hf.Grouped(4))
def gae(scores: Scores, values: Values, lam: float = 0.95) -> Estimates: ...


@hf.dataflow
def program(
    prompts: Prompts, actor: Actor, critic: Critic, frozen: Frozen, reward: Reward
):
"""

ITERATION = """\
questions_{i} = hf.repeat(prompts, 4)
rollout_{i} = actor.generate(questions_{i})
values_{i} = critic.estimate(rollout_{i})
frozen_{i} = frozen.log_probs(rollout_{i})
scores_{i} = reward.score(questions_{i}, rollout_{i})
scores_{i} = penalize(scores_{i}.reward, rollout_{i}.log_probs, frozen_{i}.ref_log_probs)
estimates_{i} = gae(scores_{i}, values_{i}, lam=0.9)
experience_{i} = hf.merge(Experience, rollout_{i}, frozen_{i}, values_{i}, estimates_{i})
first_{i}, second_{i} = hf.minibatches(experience_{i}, 2)
actor.update(first_{i})
actor.update(second_{i})
critic.update(first_{i})
critic.update(second_{i})
""".splitlines()
NODES = 14  # of an iteration: two of them are the mini-batches

MISTAKES = (  # each is one node and one finding; they read what the first iteration makes
    "penalize(scores_0.rewrd, rollout_0.log_probs, frozen_0.ref_log_probs)",  # HF201: a misspelled column
    "penalize(scores_0.reward, rollout_0.response_mask, frozen_0.ref_log_probs)",  # HF220: another dtype
    "reward.score(prompts, rollout_0)",  # HF212: another number of rows
    "actor.update(rollout_0)",  # HF204: another record
    "gae(scores_0, values=values_0, lamda=0.9)",  # HF202: a misspelled port
    "critic.estimate(rollout=values_0.values)",  # HF206: a column where a record is taken
    "gae(scores_0)",  # HF203: a port that is not wired
    "penalize(scores_0.reward, rollout_0.log_probs, rollout_0.ids)",  # HF220, at another argument
)

DEPLOYMENT = """\


def place(nodes, gpus, pp, tp):
    pool = hf.ResourcePool([gpus] * nodes, name="pool")
    mesh = hf.Mesh(pp=pp, dp=nodes * gpus // (pp * tp), tp=tp)
    config = Config(micro_batch=32)
    return hf.Deployment(
        actor=hf.place(Actor, config, pool=pool, mesh=mesh),
        critic=hf.place(Critic, config, pool=pool, mesh=mesh),
        frozen=hf.place(Frozen, pool=pool, mesh=mesh),
        reward=hf.place(Reward, pool=pool, mesh=mesh),
    )


experiment = hf.Experiment(program, place(2, 8, 1, 2), {B: 512, P: 1024, R: 1024})
large = hf.Experiment(program, place(2048, 8, 8, 8), {B: 4096, P: 1024, R: 1024})
"""


def source(statements: Sequence[str]) -> str:
    """A module with one dataflow."""
    return DECLARATIONS + "".join(f"    {line}\n" for line in statements) + DEPLOYMENT


def clean(nodes: int) -> str:
    """A program without mistakes of about so many nodes, in iterations of PPO."""
    iterations = range(max(1, nodes // NODES))
    return source([line.format(i=i) for i in iterations for line in ITERATION])


def mistaken(findings: int) -> str:
    """A program with so many findings of several kinds, each at a line of its own, in about as many nodes."""
    return source([*(line.format(i=0) for line in ITERATION), *islice(cycle(MISTAKES), findings)])


@dataclass(frozen=True)
class Row:
    """A line of the table. ``first`` is the first call in a process, where it is told apart; ``best`` the fastest."""

    name: str
    unit: str
    median: float
    target: float
    first: float | None = None
    best: float | None = None
    facts: str = ""


def timed(action: Callable[[], object], clock: Callable[[], float] = process_time) -> float:
    """Milliseconds: of this process's own CPU time, which other programs on the machine do not add to."""
    gc.collect()
    start = clock()
    action()
    return (clock() - start) * 1000


def undisturbed(action: Callable[[], object], times: int) -> float:
    """The fastest of so many, in milliseconds, while Python's garbage collector rests."""
    gc.disable()
    try:
        return min(timed(action) for _ in range(times))
    finally:
        gc.enable()


def repeated(name: str, target: float, times: int, action: Callable[[], object]) -> Row:
    """A row of an action that is taken so many times after the first."""
    first, *others = (timed(action) for _ in range(times + 1))
    return Row(name, "ms", statistics.median(others), target, first, min(others))


def written(folder: Path, name: str, text: str) -> ModuleType:
    """The module of a source text."""
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def checks(folder: Path, sizes: Sequence[int], times: int) -> Iterator[Row]:
    """Checks within a process. PPO is first, since the first call of all loads what a check needs."""
    ppo = written(folder, "bench_ppo", clean(NODES)).large
    ranks = ppo.deployment["actor"].pool.world_size
    row = repeated(f"PPO on {ranks:,} GPUs", 10, times * 10, ppo.check)
    assert not ppo.check().findings
    yield replace(row, facts=f"{len(ppo.dataflow.trace().nodes)} nodes")

    smallest, *larger = sizes
    wrong = written(folder, "bench_mistaken", mistaken(smallest)).experiment
    row = repeated(f"{smallest:,} findings, as text", 200, times, lambda: str(wrong.check()))
    report = wrong.check()
    assert len(report.findings) == smallest
    nodes = len(wrong.dataflow.trace().nodes)
    yield replace(row, facts=f"{nodes} nodes, {len(set(report.codes))} codes, {len(str(report)):,} characters")

    for nodes in sizes:
        module = written(folder, f"bench_clean_{nodes}", clean(nodes))
        target = 50 * nodes / 1000 if nodes == smallest else nodes / 10
        row = repeated(f"{nodes:,} nodes, clean", target, times, module.experiment.check)
        assert not module.experiment.check().findings
        yield row
    if larger:
        smallest_check, largest_check = (
            sys.modules[f"bench_clean_{n}"].experiment.check for n in (smallest, larger[-1])
        )
        grown = undisturbed(largest_check, times) / larger[-1] / (undisturbed(smallest_check, times) / smallest)
        yield Row("time a node, largest to smallest", "x", grown, 1.2, facts="1 is linear; no garbage collection")

    module = sys.modules[f"bench_clean_{smallest}"]
    uneven = replace(module.experiment, dims={**module.experiment.dims, module.B: 100})
    row = repeated(f"{smallest:,} nodes, a size that divides nothing", 200, times, uneven.check)
    [finding] = uneven.check().findings
    assert finding.help
    yield replace(row, facts=f"{finding.code} with a size that works")


def many_sizes(folder: Path, times: int) -> Iterator[Row]:
    """Small programs with sizes, requirements and a mesh that give a check much to do."""
    text = """\
import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...


class Rows(hf.Batch):
    prompts: hf.i64[B, P]
    responses: hf.i64[B, R]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.requires("B % 7 == 0", "P % 64 == 0", "R % 64 == 0")
    def split(self, rows: Rows) -> Rows: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B * P * R <= 16777216", "(P + R) % 128 == 0", "P * R % 4096 == 0", "R >= 2 * P")
    def joint(self, rows: Rows) -> Rows: ...


@hf.dataflow
def split(rows: Rows, role: Role):
    return role.split(rows)


@hf.dataflow
def joint(rows: Rows, role: Role):
    return role.joint(rows)


def place(ranks, tp=1):
    pool = hf.ResourcePool([ranks], name="pool")
    return hf.Deployment(role=hf.place(Role, pool=pool, mesh=hf.Mesh(dp=ranks // tp, tp=tp)))
"""
    module = written(folder, "bench_sizes", text)
    b, p, r = module.B, module.P, module.R
    many = {b: tuple(range(56, 88)), p: tuple(range(64, 81)), r: tuple(range(64, 80))}
    cases = {
        "3 sizes of 3 dims, few that work": (module.split, 8, {b: (64, 57, 113), p: (64, 127, 255), r: (64, 127, 191)}),
        "32 x 17 x 16 sizes": (module.split, 8, many),
        "32 x 17 x 16 sizes, read together": (module.joint, 8, many),
        "4 requirements over 3 dims": (module.joint, 8, {b: 10_007, p: 100_003, r: 999_983}),
        "400,000 ranks": (module.joint, 400_000, {b: 400_001, p: 64, r: 64}),
    }
    for name, (program, ranks, dims) in cases.items():
        deployment = module.place(ranks, tp=2)
        row = repeated(name, 500, times, partial(program.check, deployment, dims))
        yield replace(row, facts=" ".join(program.check(deployment, dims).codes))


def processes(folder: Path, times: int) -> Iterator[Row]:
    """``hfdsl check FILE`` as a process, beside an import of the same file."""
    name = "bench_process"
    (folder / f"{name}.py").write_text(clean(NODES))
    paths = [str(folder), str(Path(hfdsl.__file__).parent.parent)]
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment = {**inherited, "PYTHONPATH": os.pathsep.join(paths), "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}

    def run(*arguments: str) -> Callable[[], object]:
        command = [sys.executable, *arguments]
        return lambda: subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True)

    imports, check = run("-c", f"import {name}"), run("-m", "hfdsl", "check", f"{name}.py:experiment")
    imports(), check()  # the first of each writes the bytecode
    # in turn, so that both meet the same machine
    pairs = [(timed(imports, perf_counter), timed(check, perf_counter)) for _ in range(times)]
    alone, checked = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    above = statistics.median(b - a for a, b in pairs)
    best = min(b for _, b in pairs) - min(a for a, _ in pairs)
    facts = f"{checked:.0f} ms beside {alone:.0f} ms"
    yield Row("hfdsl check FILE, above its import", "ms", above, 150, None, best, facts)


def machine() -> str:
    """What the numbers were measured on."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores{load}"


def table(rows: Sequence[Row]) -> str:
    """For people."""

    def number(value: float | None, unit: str) -> str:
        return "" if value is None else f"{value:,.{1 if value >= 10 else 2}f} {unit}"

    cells: list[tuple[str, ...]] = [("", "median", "target", "first", "best", "")]
    for row in rows:
        numbers = (number(value, row.unit) for value in (row.median, row.target, row.first, row.best))
        cells.append((row.name, *numbers, row.facts))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join([name.ljust(widths[0]), *(c.rjust(w) for c, w in zip(numbers, widths[1:-1], strict=True)), facts])
        for name, *numbers, facts in cells
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a check costs.")
    parser.add_argument("--json", action="store_true", help="one object instead of the table")
    parser.add_argument("--times", type=int, default=15, metavar="N", help="how often each check is made (default: 15)")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1000, 2000, 5000, 10_000], metavar="N", help="nodes of the programs"
    )
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        sys.path.insert(0, str(folder))
        times = arguments.times
        tables = checks(folder, arguments.sizes, times), many_sizes(folder, times), processes(folder, times)
        rows = list(chain.from_iterable(tables))
    if arguments.json:
        print(json.dumps({"machine": machine(), "rows": [asdict(row) for row in rows]}))
    else:
        print(f"{table(rows)}\n\n{machine()}; the median of {arguments.times} (PPO: {arguments.times * 10})")


if __name__ == "__main__":
    main()
