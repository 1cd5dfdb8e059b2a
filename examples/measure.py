"""Run recipes as their READMEs say, and write the curves that they leave.

    python examples/measure.py mathematics dpo
    python examples/measure.py                   # all, in the order of the table below
    python examples/measure.py --draw            # the pictures again, from the numbers

The commands are the first block of a README. ``curve.json`` beside it has the numbers, the seconds of each command and
the machine; ``curve.svg`` is drawn from these, and ``docs/recipes.svg`` has all curves.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any, TypeAlias

EXAMPLES = Path(__file__).parent
PROBLEMS = 512
"""Held-out problems, of which a share s has a standard error of sqrt(s * (1 - s) / PROBLEMS), 0.02 at most."""

Point: TypeAlias = tuple[float, float]

CURVES: dict[str, list[tuple[str, str, str]]] = {
    "mathematics": [("solved, greedy", "runs/mathematics/grpo", "held_out/solved")],
    "dpo": [
        ("solved, greedy", "runs/dpo", "held_out/solved"),
        ("pairs in order", "runs/dpo", "actor/correct"),
    ],
    "reward_model": [("pairs in order", "runs/reward_model/reward", "held_out/correct")],
    "ppo_reward_model": [
        ("solved, greedy", "runs/ppo_reward_model/ppo", "held_out/solved"),
        ("scored 1 or more", "runs/ppo_reward_model/ppo", "outcome/solved"),
        ("weak: solved, greedy", "runs/ppo_reward_model/weak_ppo", "held_out/solved"),
        ("weak: scored 1 or more", "runs/ppo_reward_model/weak_ppo", "outcome/solved"),
    ],
    "lora": [("solved, greedy", "runs/lora", "held_out/solved")],
    "custom_loss": [("solved, greedy", "runs/custom_loss", "held_out/solved")],
    "lagged_grpo": [("solved, greedy", "runs/lagged_grpo", "held_out/solved")],
    "pass_at_k": [
        ("before GRPO", "runs/pass_at_k/before", "pass"),
        ("after", "runs/pass_at_k/after", "pass"),
    ],
    "custom_protocol": [("solved, greedy", "runs/custom_protocol", "held_out/solved")],
    "dapo_rounds": [("solved, greedy", "runs/dapo_rounds", "held_out/solved")],
    "distillation": [("solved, greedy", "runs/distillation", "held_out/solved")],
    "two_policies": [
        ("left solves, greedy", "runs/two_policies/mutual", "held_out/left_solved"),
        ("right solves, greedy", "runs/two_policies/mutual", "held_out/right_solved"),
    ],
}
"""By recipe, in the order in which they need each other's models: the label, the run and the metric of every curve."""


def commands(recipe: str) -> list[str]:
    """The commands of a recipe: the first block of its README."""
    text = (EXAMPLES / recipe / "README.md").read_text("utf-8")
    block = re.search(r"^```shell\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    if block is None:
        raise SystemExit(f"{recipe}/README.md has no block of commands")
    lines = block[1].replace("\\\n", " ").splitlines()
    return [" ".join(shlex.split(line, comments=True)) for line in lines if line.strip()]


def points(run: Path, metric: str) -> list[Point]:
    """The values of a metric by step; those of pass@k by k."""
    records: list[dict[str, Any]] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if metric == "pass":
        matches = ((re.search(r"/pass_(\d+)$", name), value) for name, value in records[-1].items())
        return sorted((int(match[1]), round(value, 4)) for match, value in matches if match)
    return [(record["step"], round(record[metric], 4)) for record in records if metric in record]


def measure(recipe: str) -> dict[str, Any]:
    """Run a recipe, and read its curves."""
    seconds = {}
    for command in commands(recipe):
        print(f"$ {command}", flush=True)
        start = time.perf_counter()
        subprocess.run(shlex.split(command), check=True, stdout=subprocess.DEVNULL)
        seconds[command] = round(time.perf_counter() - start)
    return {
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}, no GPU",
        "seconds": seconds,
        "curves": {label: points(Path(run), metric) for label, run, metric in CURVES[recipe]},
    }


def plot(axes: Any, curves: dict[str, list[Point]], title: str, *, powers: bool) -> None:
    """Curves, with two standard errors around shares of held-out problems."""
    for label, curve in curves.items():
        steps, values = zip(*curve, strict=True)
        [line] = axes.plot(steps, values, "o-" if len(steps) < 30 else "-", markersize=3, label=label)
        if "solve" in label:
            errors = [2 * (value * (1 - value) / PROBLEMS) ** 0.5 for value in values]
            low = [value - error for value, error in zip(values, errors, strict=True)]
            high = [value + error for value, error in zip(values, errors, strict=True)]
            axes.fill_between(steps, low, high, alpha=0.2, linewidth=0, color=line.get_color())
    if powers:
        axes.set_xscale("log", base=2)
    axes.set(ylim=(0, 1), title=title, xlabel="k" if powers else "step")
    axes.grid(alpha=0.3)
    corner = {"loc": "lower right"} if len(curves) < 3 else {"loc": "upper right", "bbox_to_anchor": (1, 0.92)}
    axes.legend(**corner, fontsize="small")


def draw() -> None:
    """The picture of every recipe that has numbers, and one of all."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "hfdsl"
    files = {recipe: EXAMPLES / recipe / "curve.json" for recipe in CURVES}
    numbers = {recipe: json.loads(file.read_text("utf-8"))["curves"] for recipe, file in files.items() if file.exists()}
    for recipe, curves in numbers.items():
        figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
        plot(axes, curves, recipe, powers=recipe == "pass_at_k")
        figure.savefig(files[recipe].with_suffix(".svg"), metadata={"Date": None})
        plt.close(figure)
    across = 3
    rows = -(-len(numbers) // across)
    figure, grid = plt.subplots(rows, across, figsize=(11, 3.2 * rows), squeeze=False, layout="constrained")
    for axes in grid.flat[len(numbers) :]:
        axes.set_axis_off()
    for axes, (recipe, curves) in zip(grid.flat, numbers.items(), strict=False):
        plot(axes, curves, recipe, powers=recipe == "pass_at_k")
    figure.savefig(EXAMPLES.parent / "docs/recipes.svg", metadata={"Date": None})


def main() -> None:
    """Measure, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", help="folders; left out: all")
    parser.add_argument("--draw", action="store_true", help="run nothing")
    options = parser.parse_args()
    for recipe in [] if options.draw else options.recipes or CURVES:
        (EXAMPLES / recipe / "curve.json").write_text(json.dumps(measure(recipe), indent=1) + "\n")
    draw()


if __name__ == "__main__":
    main()
