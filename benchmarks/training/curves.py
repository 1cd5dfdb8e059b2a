"""Held-out answers that are right over the steps of runs, as a table and as one picture.

python benchmarks/training/curves.py runs -o docs/real_run.svg --figures benchmarks/training/real_run.json

Runs have the names that ``real_run.sh`` gives their folders. Those whose names end in ``_seed`` and a number are one
line of the table and one curve: the median of them, with the range between the lowest and the highest. ``--figures``
keeps what was read of the runs; such a file can be given in place of the folder.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

LAST_STEPS = 50
"""How many steps at the end have the median that is given as the time per step."""


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run."""

    steps: int
    solved: Mapping[int, float]
    """Step, and the share of held-out problems that are solved after it."""
    seconds: float
    """Of a step, the median of the last ones."""
    nodes: Mapping[str, float]
    """The same of each node, in milliseconds."""


def run_in(metrics: Path) -> Run:
    """The figures in a run's ``metrics.jsonl``."""
    records = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    times = [record["time"] for record in records if record["time"]["nodes"]][-LAST_STEPS:]
    return Run(
        steps=records[-1]["step"],
        solved={record["step"]: record["held_out/solved"] for record in records if "held_out/solved" in record},
        seconds=median(time["seconds"] for time in times),
        nodes={name: 1e3 * median(time["nodes"][name] for time in times) for name in times[-1]["nodes"]},
    )


def runs_in(place: Path) -> dict[str, Run]:
    """The runs of a folder, or those that ``--figures`` wrote, by name."""
    if place.is_dir():
        return {path.parent.name: run_in(path) for path in sorted(place.glob("*/metrics.jsonl"))}
    saved: dict[str, Any] = json.loads(place.read_text("utf-8"))
    return {
        name: Run(**{**run, "solved": {int(step): share for step, share in run["solved"].items()}})
        for name, run in saved.items()
    }


def groups(runs: Mapping[str, Run]) -> dict[str, list[Run]]:
    """Runs that differ only by their seeds, by name."""
    by_name: dict[str, list[Run]] = {}
    for name, run in runs.items():
        by_name.setdefault(re.sub(r"_seed\d+$", "", name), []).append(run)
    return dict(sorted(by_name.items()))


def common_steps(runs: Sequence[Run]) -> list[int]:
    """The steps after which all of these runs were evaluated."""
    return sorted(set.intersection(*(set(run.solved) for run in runs)))


def spread(values: Sequence[float], digits: int = 2) -> str:
    """``0.60 (0.58-0.63)``: median, lowest and highest."""
    middle = f"{median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def table(groups_of_runs: Mapping[str, Sequence[Run]]) -> None:
    print("| | seeds | steps | held-out before | after | seconds a step |\n|---|---:|---:|---:|---:|---:|")
    for name, runs in groups_of_runs.items():
        evaluated = common_steps(runs)
        before, after = (spread([run.solved[evaluated[at]] for run in runs]) if evaluated else "" for at in (0, -1))
        steps = evaluated[-1] if evaluated else max(run.steps for run in runs)
        print(f"| {name} | {len(runs)} | {steps} | {before} | {after} | {spread([run.seconds for run in runs], 3)} |")
    for name, runs in groups_of_runs.items():
        shares = {node: median(run.nodes[node] for run in runs) for node in runs[0].nodes}
        print(f"\n{name}, ms: " + ", ".join(f"{node} {ms:.1f}" for node, ms in shares.items()))


def draw(groups_of_runs: Mapping[str, Sequence[Run]], out: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "hfdsl"
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for name, runs in groups_of_runs.items():
        steps = common_steps(runs)
        if not steps or runs[0].steps < LAST_STEPS:
            continue
        values = [[run.solved[step] for run in runs] for step in steps]
        algorithm, _, where = name.partition("_")
        label = f"{algorithm.upper()} {where.replace('_', ' ')}".rstrip() + (
            f", median of {len(runs)} seeds" if len(runs) > 1 else ""
        )
        (line,) = axes.plot(steps, [median(shares) for shares in values], "o-", markersize=3, label=label)
        if len(runs) > 1:
            axes.fill_between(
                steps,
                [min(shares) for shares in values],
                [max(shares) for shares in values],
                color=line.get_color(),
                alpha=0.15,
            )
    axes.set(xlabel="step of 512 responses", ylabel="held-out problems solved, greedy", ylim=(0, 1))
    axes.legend(frameon=False, loc="lower right")
    axes.grid(alpha=0.3)
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of the runs' folders, or files of --figures")
    parser.add_argument("-o", "--out", type=Path, help="where the picture goes")
    parser.add_argument("--figures", type=Path, help="where the figures of the runs go, as JSON")
    options = parser.parse_args()
    runs = {name: run for place in options.runs for name, run in runs_in(place).items()}
    groups_of_runs = groups(runs)
    table(groups_of_runs)
    if options.figures:
        figures = {name: asdict(run) for name, run in runs.items()}
        options.figures.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    if options.out:
        draw({name: runs for name, runs in groups_of_runs.items() if not name.startswith("supervised")}, options.out)


if __name__ == "__main__":
    main()
