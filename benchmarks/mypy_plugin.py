"""What the mypy plugin costs: the same generated program under mypy without it and with it, in turns.

    python benchmarks/mypy_plugin.py --roles 100 --rounds 15

Every role takes and gives columns and records; the program is valid, so both runs read and report the same. hfdsl and
the libraries come from a warm cache, Python's own compiled files too; the generated module is checked again each time.
Times are CPU times of the processes, which other programs on the machine change less than the clock.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

HEAD = """\
from __future__ import annotations
from typing import Literal, TypeVar
import hfdsl as hf
from hfdsl import Add, Dispatch, Mul, f32, i64, register

class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...
b = TypeVar("b")
t = TypeVar("t")

class Rollout(hf.Batch):
    ids: i64[B, Add[P, R]]
    log_probs: f32[B, R]
    double: f32[B, Mul[R, Literal[2]]]

@hf.function
def whiten(x: f32[b, t]) -> f32[b, t]: raise NotImplementedError
"""

ROLE = """
class Values{n}(hf.Batch):
    values: f32[B, R]

class Role{n}(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def make(self, rollout: Rollout) -> Values{n}: raise NotImplementedError
    @register(Dispatch.THREE_D_PROTO)
    def take(self, ids: i64[B, Add[P, R]], values: f32[B, R], scale: float = 1.0) -> Values{n}:
        raise NotImplementedError

@hf.dataflow
def flow{n}(rollout: Rollout, role: Role{n}) -> Values{n}:
    made = role.make(rollout)
    again = role.take(rollout.ids, made.values)
    white = Values{n}(values=whiten(again.values))
    return role.take(rollout.ids, whiten(white.values), scale=0.5)
"""


def program(roles: int) -> str:
    """A module with so many roles, each called three times, and with two calls of functions beside them."""
    return HEAD + "".join(ROLE.format(n=n) for n in range(roles))


def seconds(folder: Path, plugin: bool, text: str) -> float:
    """The CPU time of one run of mypy over the program."""
    (folder / "generated.py").write_text(text, encoding="utf-8")
    name = "with" if plugin else "without"
    config = folder / f"{name}.ini"
    config.write_text("[mypy]\nstrict = True\n" + ("plugins = hfdsl.tools.mypy_plugin\n" if plugin else ""), "utf-8")
    command = [sys.executable, "-m", "mypy", f"--config-file={config}", f"--cache-dir={folder / name}", "generated.py"]
    # Compiled files as an installed package has them, whatever the caller's Python is told about its own.
    settings = {"PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    before, others = _cpu_of_children(), {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.run(command, cwd=folder, env=others | settings, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(process.stdout + process.stderr)
    return _cpu_of_children() - before


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--roles", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    text = program(arguments.roles)
    with tempfile.TemporaryDirectory(prefix="hfdsl-mypy-") as name:
        folder = Path(name)
        for plugin in (False, True):
            seconds(folder, plugin, text)  # fills the cache
        times: dict[bool, list[float]] = {False: [], True: []}
        for number in range(arguments.rounds):
            for plugin in (False, True):
                times[plugin].append(seconds(folder, plugin, f"{text}\nROUND = {number}\n"))
    without, with_ = (statistics.median(times[plugin]) for plugin in (False, True))
    print(f"{arguments.roles} roles, {arguments.roles * 6} calls, median of {arguments.rounds} (least of them)")
    print(f"  mypy            {without:.2f} s ({min(times[False]):.2f})")
    print(f"  with the plugin {with_:.2f} s ({min(times[True]):.2f})")
    print(f"  ratio           {with_ / without:.2f} ({min(times[True]) / min(times[False]):.2f})")


if __name__ == "__main__":
    main()
