"""The driver killed at random moments, and resumed: no prompt is lost or trained twice, and the bits are the same.

``python -m benchmarks.faults.killed_drivers --kills 50`` runs ``hfdsl train`` on a program without a queue and on one
with it, kills the command with SIGKILL at a random moment, and runs it again with ``--resume``, until it ends. What it
leaves is compared with what a run leaves that nobody kills: each line of the metrics, the decisions of the queue, and
the weights at the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.dataplane import measure
from benchmarks.faults.letters import LETTERS, WIDTH

ROWS, STEPS, MARK = 8, 150, "BENCHMARK_FAULTS_DRIVER"

CONFIGURATION = """
algorithm = "benchmarks.faults.letters:{program}"
backend = "{backend}"
output = "{folder}/run"
steps = {steps}
seed = {seed}
dims = {{ B = {rows}, P = {width} }}

[deployment.pools.all]
processes = [2]
gpu = false

[deployment.default]
pool = "all"

[data]
source = {{ kind = "JsonLines", path = "{data}" }}
tokenizer = {{ kind = "Characters", alphabet = "{letters}" }}
prompt = {{ text = "{{word}}" }}

[checkpoints]
every = {every}
behind = {behind}

[policy]
size = {size}
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A configuration, and where what it leaves is."""

    file: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The command, in a session of its own."""
        command = [sys.executable, "-m", "hfdsl", "train", str(self.file), *arguments]
        output = (self.file.parent / "output").open("a")
        mark = {MARK: str(self.file.parent)}
        with output:
            return subprocess.Popen(
                command, stdout=output, stderr=output, text=True, start_new_session=True, env={**os.environ, **mark}
            )

    def output(self) -> str:
        """What the commands have printed."""
        return (self.file.parent / "output").read_text()

    def metrics(self) -> list[dict[str, Any]]:
        """Those of each step, without times."""
        lines = (self.file.parent / "run/metrics.jsonl").read_text().splitlines()
        names = ("step", "loss", "weight", "trained", "twice")
        return [
            {name: value for name, value in json.loads(line).items() if name.rpartition("/")[2] in names}
            for line in lines
        ]

    def results(self) -> dict[str, Any]:
        """All that has to be the same."""
        folder = self.file.parent / "run"
        last = max((folder / "checkpoints").iterdir())
        decisions = folder / "queues.jsonl"
        return {
            "metrics": self.metrics(),
            "decisions": decisions.read_text() if decisions.exists() else "",
            "states": json.loads((last / "state.json").read_text())["roles"],
        }

    def processes(self) -> list[int]:
        """Those that the commands have left behind."""
        mark, pids = f"{MARK}={self.file.parent}".encode(), list[int]()
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                    pids.append(int(folder.name))
            except OSError:  # it ended meanwhile
                continue
        return pids


def configured(folder: Path, program: str, backend: str, seed: int, every: int, behind: bool) -> Run:
    """A run in a new folder."""
    folder.mkdir()
    data = folder.parent / "prompts.jsonl"
    if not data.exists():
        words = map("".join, itertools.product(LETTERS, repeat=WIDTH))
        data.write_text("".join(f'{{"word": "{word}"}}\n' for word in words))
    text = CONFIGURATION.format(
        program=program,
        backend=backend,
        folder=folder,
        steps=STEPS,
        seed=seed,
        rows=ROWS,
        width=WIDTH,
        data=data,
        letters=LETTERS,
        every=every,
        behind=str(behind).lower(),
        size=len(LETTERS) + 3,
    )
    if program == "asynchronous":
        text += f"\n[guesser]\nsize = {len(LETTERS) + 3}\n"
    file = folder / "run.toml"
    file.write_text(text)
    return Run(file)


def killed(run: Run, lot: random.Random, most: int, seconds: float) -> tuple[int, list[str]]:
    """How often a run was killed until it ended, and what went wrong."""
    kills, wrong = 0, list[str]()
    while True:
        process = run.start(*(["--resume"] if kills else []))
        try:
            status = process.wait(lot.uniform(0.0, seconds) if kills < most else 600.0)
        except subprocess.TimeoutExpired:
            if kills == most:
                wrong.append("it did not end")
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            if kills > most:
                return kills, wrong
            continue
        if status == 0:
            return kills, wrong
        text, begun = run.output(), (run.file.parent / "run/run.lock").exists()
        if not begun and run.start().wait(600.0) == 0:  # there was nothing to resume
            return kills, wrong
        wrong.append(f"status {status}: {text[-2000:]}")
        return kills, wrong


def remaining(run: Run, patience: float = 120.0) -> list[int]:
    """The processes that are still there after some time."""
    until = time.monotonic() + patience
    while (pids := run.processes()) and time.monotonic() < until:
        time.sleep(0.1)
    return pids


def drivers(
    folder: Path, kills: int, minutes: float, seed: int, seconds: float, backends: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """A row for each run that was killed again and again."""
    lot, until, killed_count, number = random.Random(seed), time.monotonic() + 60 * minutes, 0, 0
    expected = dict[tuple[str, int], Any]()
    while killed_count < kills and time.monotonic() < until:
        program, backend = ("synchronous", "asynchronous")[number % 2], backends[number // 2 % len(backends)]
        number += 1
        if (program, seed) not in expected:
            straight = configured(folder / f"straight {program}", program, "local", seed, STEPS, behind=False)
            if straight.start().wait() != 0:
                raise SystemExit(straight.output())
            expected[program, seed] = straight.results()
        every, behind = lot.choice((1, 2, 5)), lot.random() < 0.5
        run = configured(folder / str(number), program, backend, seed, every, behind)
        count, wrong = killed(run, lot, min(12, kills - killed_count), seconds)
        killed_count += count
        results = run.results() if not wrong else {}
        if pids := remaining(run):
            wrong.append(f"processes {pids} were left behind")
        metrics = results.get("metrics", [{}])
        trained = next((value for name, value in metrics[-1].items() if name.endswith("trained")), 0)
        yield {
            "program": program,
            "backend": backend,
            "checkpoints": f"every {every}{', behind' * behind}",
            "kills": count,
            "prompts lost": STEPS * ROWS - trained,
            "trained twice": sum(value for name, value in metrics[-1].items() if name.endswith("twice")),
            "same metrics": results.get("metrics") == expected[program, seed]["metrics"],
            "same decisions": results.get("decisions") == expected[program, seed]["decisions"],
            "same weights": results.get("states") == expected[program, seed]["states"],
            "wrong": "; ".join(wrong),
        }


def main(argv: Sequence[str] | None = None) -> None:
    """Kill, resume, compare and print."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.faults.killed_drivers", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=12.0, help="the longest time from a start to a kill (12)")
    parser.add_argument("--backends", nargs="+", default=["local", "ray"], choices=["local", "ray"])
    options = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in drivers(
            Path(folder), options.kills, options.minutes, options.seed, options.seconds, options.backends
        ):
            rows.append(row)
            print(row, flush=True)
    print(measure.markdown(list(rows[0]), [tuple(map(str, row.values())) for row in rows]))
    print(f"\n{measure.machine()}")


if __name__ == "__main__":
    main()
