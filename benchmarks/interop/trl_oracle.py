"""Sizes of TRL's trainers, as TRL's own configuration classes judge them and as ``hfdsl check --from trl`` does.

Run with a Python that has TRL, transformers and accelerate::

    python benchmarks/interop/trl_oracle.py 400

It draws configurations with one seed, most of them near a valid one, and prints where the two agree, with the times of
both.
"""

from __future__ import annotations

import importlib
import random
import statistics
import sys
import time
import warnings
from collections import Counter
from typing import Any

from hfdsl.check.codes import CODES
from hfdsl.interop.checking import report_on
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs
from hfdsl.interop.text import SourceText
from hfdsl.interop.trl.reading import from_script

DRAWN: dict[str, tuple[Any, ...]] = {
    "per_device_train_batch_size": (1, 2, 3, 4, 8, 0),
    "gradient_accumulation_steps": (1, 2, 3, 4),
    "num_generations": (1, 2, 3, 4, 8, 16),
    "steps_per_generation": (None, None, 1, 2, 3),
    "generation_batch_size": (None, None, 8, 24, 32, 33),
    "eval_strategy": ("no", "no", "steps"),
    "per_device_eval_batch_size": (4, 8, 5),
    "num_generations_eval": (None, 2, 4),
    "auto_find_batch_size": (False, False, False, True),
    "log_completions_hub_repo": (None, None, None, "name/repository"),
    "log_completions": (False, True),
}


def draw(source: random.Random) -> tuple[dict[str, Any], int]:
    """Arguments and a number of processes: usually two or three arguments beside the defaults."""
    keys = source.sample(sorted(DRAWN), source.randint(1, 4))
    arguments = {key: source.choice(DRAWN[key]) for key in keys}
    if arguments.get("eval_strategy") == "steps":
        arguments["eval_steps"] = 10
    return {key: value for key, value in arguments.items() if value is not None}, source.choice((1, 2, 3, 4, 6, 8))


def main(count: int) -> None:
    """Compare ``count`` configurations."""
    warnings.simplefilter("ignore")
    config = importlib.import_module("trl").GRPOConfig
    source, counts = random.Random(0), Counter[str]()
    times: dict[str, list[float]] = {"hfdsl": [], "TRL": []}
    for _ in range(count):
        arguments, processes = draw(source)
        config.world_size = processes
        started = time.perf_counter()
        refused = ""
        try:
            config(output_dir="unused", use_cpu=True, bf16=False, **arguments)
        except Exception as error:  # noqa: BLE001  # whatever TRL raises is its verdict
            refused = f"{type(error).__name__}: {error}"
        times["TRL"].append(time.perf_counter() - started)
        words = " ".join(f"--{key} {value}" for key, value in arguments.items())
        started = time.perf_counter()
        text = f"accelerate launch --num_processes {processes} -m trl.scripts.grpo {words}"
        [reading] = from_script(SourceText("run.sh", text), Inputs("run.sh"))
        report = report_on(LIBRARIES["trl"], reading, "run.sh")
        times["hfdsl"].append(time.perf_counter() - started)
        refuses = any(CODES[finding.code].severity == "error" for finding in report)
        counts[f"TRL {'refuses' if refused else 'accepts'}, hfdsl {'refuses' if refuses else 'accepts'}"] += 1
        if refuses != bool(refused):
            sys.stdout.write(f"{text}\n  TRL: {refused or 'accepts'}\n  hfdsl: {[f.message for f in report]}\n")
    for name, number in sorted(counts.items()):
        sys.stdout.write(f"{name:40}{number:6}\n")
    for name, seconds in times.items():
        sys.stdout.write(f"median of {name}, ms{statistics.median(seconds) * 1e3:12.1f}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
