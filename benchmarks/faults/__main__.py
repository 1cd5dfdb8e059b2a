"""What retries cost while nothing happens, and how long a run takes to continue after a process was killed.

``python -m benchmarks.faults``. The runs of the first table stand beside each other on one cluster of Ray's and step in
turn. The second kills one process a step, in the middle of its call.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch

import hfdsl as hf
from benchmarks.dataplane import measure
from hfdsl import Dispatch, f32, register
from hfdsl.errors import HfWarning

ROWS, RANKS, FOLDER = 64, 2, "BENCHMARK_FAULTS_FOLDER"


class B(hf.Dim):
    """Rows."""


class Rows(hf.Batch):
    x: f32[B]


class Scored(Rows):
    score: f32[B]


class Loss(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Trainer(hf.Worker):
    """Weights of so many MiB, replicated over its ranks, which average what they add in each step."""

    def __init__(self, mib: int) -> None:
        torch.set_num_threads(1)
        self.weights = torch.zeros(mib * 2**18)

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rows: Scored) -> Loss:
        die("trainer", self)
        step = self.axis("dp").all_reduce(rows.score.tensor.sum() * 1e-6)
        self.weights += step
        time.sleep(0.05)
        return Loss(loss=float(self.weights[:1].sum()))

    def state(self) -> Mapping[str, Any]:
        return {"weights": self.weights}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.weights = state["weights"].clone()


class Scorer(hf.Worker):
    """A role without state."""

    def __init__(self) -> None:
        torch.set_num_threads(1)

    @register(Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Scored:
        die("scorer", self)
        time.sleep(0.05)
        return Scored(x=rows.x, score=rows.x.tensor * 2)


def die(role: str, worker: hf.Worker) -> None:
    """Die here where a file says so, which is then gone."""
    file = Path(os.environ[FOLDER]) / role
    if worker.rank == 1 and file.exists():
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@hf.dataflow
def train(rows: Rows, trainer: Trainer, scorer: Scorer) -> Loss:
    return trainer.update(scorer.score(rows))


def deployment(mib: int, *, own_pools: bool) -> hf.Deployment:
    """Both roles in the same processes, or each in its own."""
    first = hf.ResourcePool([RANKS], use_gpu=False, name="first")
    second = hf.ResourcePool([RANKS], use_gpu=False, name="second") if own_pools else first
    return hf.Deployment(trainer=hf.place(Trainer, mib, pool=first), scorer=hf.place(Scorer, pool=second))


def batch() -> Rows:
    """The same rows in every step."""
    return Rows(x=torch.arange(ROWS, dtype=torch.float32))


def launch(stack: ExitStack, folder: Path, mib: int, retries: hf.Retries | None, *, own_pools: bool) -> Any:
    """A run, which ends with the stack."""
    plan = train.compile(deployment(mib, own_pools=own_pools))
    return stack.enter_context(plan.launch("ray", worker_env={FOLDER: str(folder)}, retries=retries))


def cost_of_copies(mibs: Sequence[int], times: int, folder: Path) -> str:
    """The time of a step without retries, and with copies after every step or every tenth."""
    cases = {
        "off": None,
        "every=1": hf.Retries(),
        "every=10": hf.Retries(every=10),
        "every=None": hf.Retries(every=None),
    }
    rows = []
    for mib in mibs:
        with ExitStack() as stack:
            runs = {name: launch(stack, folder, mib, retries, own_pools=True) for name, retries in cases.items()}
            seconds: dict[str, list[float]] = {name: [] for name in runs}
            for number in range(times + 2):
                for name, running in runs.items():
                    start = time.perf_counter()
                    running.step(batch())
                    if number >= 2:
                        seconds[name].append(time.perf_counter() - start)
        # The mean: with every=10 one step in ten waits for a copy.
        means = {name: statistics.fmean(values) * 1e3 for name, values in seconds.items()}
        more = [f"{measure.number(mean)} ({mean / means['off']:.2f}×)" for name, mean in means.items() if name != "off"]
        rows.append((f"{mib} MiB", measure.number(means["off"]), *more))
    return measure.markdown(["state a rank", "ms a step, off", *(f"`{name}`" for name in list(cases)[1:])], rows)


def time_to_recover(mib: int, times: int, folder: Path) -> str:
    """The seconds by which a step takes longer when it loses a process, beside those of the launch."""
    rows = []
    for own_pools, roles in ((True, ("scorer", "trainer")), (False, ("trainer",))):
        for role in roles:
            launches, steps, losses, repairs = list[float](), list[float](), list[float](), list[float]()
            for _ in range(times):
                with ExitStack() as stack:
                    start = time.perf_counter()
                    running = launch(stack, folder, mib, hf.Retries(), own_pools=own_pools)
                    running.step(batch())
                    launches.append(time.perf_counter() - start)
                    start = time.perf_counter()
                    running.step(batch())
                    steps.append(time.perf_counter() - start)
                    (folder / role).touch()
                    start = time.perf_counter()
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", HfWarning)
                        running.step(batch())
                    losses.append(time.perf_counter() - start)
                    repairs.append(running.recoveries[-1].seconds)
            launched, lost = statistics.median(launches), statistics.median(losses) - statistics.median(steps)
            name = f"rank 1 of `{role}`, {'a pool of its own' if own_pools else 'both roles in its process'}"
            seconds = (launched, lost, statistics.median(repairs))
            rows.append((name, *map(measure.number, seconds), f"{lost / launched:.2f}×"))
    head = ["killed", "launch and first step, s", "lost, s", "of it rebuilding, s", "lost, beside launch"]
    return measure.markdown(head, rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.faults", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 100, 400], help="sizes of state (1 100 400)")
    parser.add_argument("--steps", type=int, default=20, help="steps of each run (20)")
    parser.add_argument("--times", type=int, default=3, help="losses of each kind (3)")
    parser.add_argument("--store", type=int, default=3000, metavar="MIB", help="Ray's object store (3000)")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, measure.cluster(arguments.store):
        print(cost_of_copies(arguments.mib, arguments.steps, Path(folder)), flush=True)
        print(f"\n{time_to_recover(100, arguments.times, Path(folder))}")
    print(f"\n{RANKS} ranks a role; {measure.machine()}")


if __name__ == "__main__":
    main()
