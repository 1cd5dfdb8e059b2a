"""Runs that fail at random, and what comes of it: each is held against a run in which nothing fails."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hfdsl as hf
from benchmarks.faults.programs import CALLS, FOLDER, ROWS, compiled, prompts
from hfdsl.errors import HfError

ENDS = ("SIGSTOP", "hang", "raise", "stopped from outside")
"""These end a run."""

CHAIN_STEPS = 40
"""The steps after which a program begins again, with another seed."""

FAULTS_PER_RUN = 12

LAUNCH_SECONDS = 240.0
"""The deadline of a step, beside those of its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What was done to a run, and what came of it; seconds to the error or the next result, and until it continued."""

    program: str
    layout: str
    kind: str
    where: str
    step: int
    named: float | None = None
    recovered: float | None = None
    act: str = "step"
    wrong_bits: bool = False
    wrong_culprit: str = ""
    trained_twice: int = 0
    lost: int = 0
    unended: bool = False
    error: str = ""


class EndedError(Exception):
    """A run has ended that was to continue; the next one starts from the beginning."""


class Program:
    """A program in a layout: what it gives where nothing fails, and how it is made to fail."""

    def __init__(self, name: str, layout: str, lot: random.Random, folder: Path, deadline: float) -> None:
        self.name, self.layout, self.lot, self.folder, self.deadline = name, layout, lot, folder, deadline
        self.seed = lot.randrange(1000)
        self.plan = compiled(name, layout, deadline)
        self.group_of = {role: group.name for group in self.plan.groups for role in group.roles}
        with compiled(name, layout, None).launch("local", seed=self.seed) as running:
            self.expected = [seen(result) for result in results(name, running, 0, CHAIN_STEPS + FAULTS_PER_RUN)]

    def launch(self, retries: hf.Retries | None) -> Any:
        """A run without old faults."""
        for file in self.folder.iterdir():
            file.unlink()
        return self.plan.launch(
            "ray", seed=self.seed, worker_env={FOLDER: str(self.folder)}, retries=retries, deadline=LAUNCH_SECONDS
        )

    def pids(self) -> dict[int, tuple[str, int]]:
        """The processes that there are, each with its group and rank."""
        processes = {}
        for file in self.folder.glob("pid *"):
            _, role, rank = file.name.split()
            if text := file.read_text():
                processes[int(text)] = (self.group_of[role], int(rank))
        return processes

    def place(self, how: str, calls: Sequence[str] = ()) -> str:
        """Have one of these calls fail, of its own if there are none."""
        label = self.lot.choice(calls or CALLS[self.name])
        role = label.removeprefix("end of ").partition(".")[0]
        ranks = next(group for group in self.plan.groups if group.name == self.group_of[role]).pool.world_size
        rank = 0 if label == "actor.weights" else self.lot.randrange(ranks)
        (self.folder / f"{label} {rank}").write_text(how)
        return f"{label} {rank}"

    def strike(self, sent: signal.Signals, within: float) -> tuple[threading.Thread, list[int]]:
        """Have a random process get a signal at a random moment of the next so many seconds; which it was."""
        moment, choice, struck = self.lot.uniform(0, within), self.lot.random(), list[int]()

        def send() -> None:
            time.sleep(moment)
            pids = sorted(self.pids())
            pid = pids[int(choice * len(pids))]
            try:
                os.kill(pid, sent)
            except ProcessLookupError:
                return
            (self.folder / "struck").write_text(f"{time.time()} {pid}")
            struck.append(pid)

        thread = threading.Thread(target=send)
        thread.start()
        return thread, struck

    def struck(self) -> tuple[float, int]:
        """When a process was last made to fail, and which."""
        moment, pid = (self.folder / "struck").read_text().split()
        return float(moment), int(pid)

    def checked(self, step: int, result: Any) -> dict[str, Any]:
        """A result beside the one that it should be."""
        trained = (step + 1) * ROWS
        return {
            "wrong_bits": seen(result) != self.expected[step],
            "trained_twice": result.twice.value,
            "lost": trained - result.trained.value,
        }


def results(program: str, running: Any, first: int, stop: int) -> Iterator[Any]:
    """Those of a run from a step on."""
    batches = (prompts(step) for step in range(first, stop))
    return running.stream(batches) if program == "queued" else map(running.step, batches)


def seen(result: Any) -> tuple[float, float]:
    """The numbers that are compared bit for bit."""
    return result.loss.value, result.weight.value


def alive(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- what ends a run ---------------------------------------------------------------------------------------------------


def end(program: Program, running: Any) -> Iterator[Fault | str]:
    """A fault after which the run ends with an error that names the process."""
    kind, step = program.lot.choice(ENDS), running.steps
    yield from ended(program, running, kind, step, map(running.step, map(prompts, range(step, step + 8))))


def ended(program: Program, running: Any, kind: str, step: int, steps: Iterator[Any]) -> Iterator[Fault | str]:
    """Results until the error that a fault causes, and what is wrong with them, or with the error."""
    where, thread = "", None
    before, recovered = program.pids(), len(running.recoveries)
    if kind.endswith("outside"):
        sent = signal.SIGSTOP if kind.startswith("stopped") else signal.SIGKILL
        thread, _ = program.strike(sent, 0.3)
    else:
        where = program.place(kind)
    yield f"{kind} {where} in step {step} of {program.name} {program.layout}"
    wrong: dict[str, Any] = {}
    error: HfError | None = None
    try:
        for number, result in enumerate(steps, start=step):
            checked = program.checked(number, result)
            wrong = checked if any(checked.values()) else wrong
    except HfError as caught:
        error = caught
    now = time.time()
    if thread is not None:
        thread.join()
    struck, pid = program.struck() if (program.folder / "struck").exists() else (now, 0)
    for stopped in before:
        if alive(stopped) and kind in ("SIGSTOP", "stopped from outside"):
            os.kill(stopped, signal.SIGCONT)
    group, rank = before.get(pid, ("?", 0))
    yield Fault(
        program=program.name,
        layout=program.layout,
        kind=kind,
        where=where or f"{group} {rank}",
        step=step,
        named=now - struck,
        wrong_culprit=misnamed(error, kind, where, group, rank, pid),
        error=str(error) if error is not None else f"no error, {running.recoveries[recovered:]}",
        **wrong,
    )


def misnamed(error: HfError | None, kind: str, where: str, group: str, rank: int, pid: int) -> str:
    """What is wrong with an error, or nothing."""
    if error is None:
        return "" if not pid else "no error"
    label = where.removeprefix("end of ").rpartition(" ")[0]
    if kind == "raise":
        right = error.code == "HF806" and "bad numbers" in error.message and f"rank {rank}" in error.message
        return "" if right and label.partition(".")[0] in error.message else "another error"
    if kind in ("SIGKILL", "killed from outside", "exit"):
        return "" if error.code == "HF806" and f"rank {rank} of '{group}' died" in error.message else "another process"
    if error.code != "HF807":
        return "no deadline"
    listed = re.findall(r"^  rank (\d+) of '([^']*)'", error.message, re.MULTILINE)
    first = listed[0] if listed else None
    return "" if first == (str(rank), group) else f"first {first}"


# -- streams -----------------------------------------------------------------------------------------------------------


def asynchronous(program: Program, saves: Path) -> Iterator[Fault | str]:
    """Runs of a program with a queue: each loses a process, and the next one continues from what was saved."""
    lot, saved, first, number = program.lot, None, 0, 0
    while True:
        yield f"launch {program.name} {program.layout}"
        launched = time.monotonic()
        with program.launch(None) as running:
            if saved is not None:
                running.load(saved)
            step, begun = running.steps, [first - 1]
            if step >= CHAIN_STEPS:
                return
            stop = CHAIN_STEPS + FAULTS_PER_RUN

            def batches(first: int = first, stop: int = stop, begun: list[int] = begun) -> Iterator[Any]:
                for number in range(first, stop):
                    begun.append(number)
                    yield prompts(number)

            steps = running.stream(batches())
            for _ in range(lot.randint(1, 3)):
                checked = program.checked(running.steps, result := next(steps))
                if any(checked.values()):
                    yield Fault(
                        program=program.name,
                        layout=program.layout,
                        kind="resumed",
                        where="",
                        step=running.steps - 1,
                        error=str(seen(result)),
                        **checked,
                    )
            resumed = time.monotonic() - launched
            number += 1
            saved = saves / f"{program.seed} {number}"
            saved.mkdir()
            running.save(saved)
            first = begun[-1] + 1
            kind = lot.choice(("SIGKILL", "killed from outside", "exit", *ENDS))
            for event in ended(program, running, kind, running.steps, take(steps, stop - running.steps)):
                yield event if isinstance(event, str) else replaced(event, resumed)


def replaced(fault: Fault, seconds: float) -> Fault:
    """With the seconds that the run before it took to continue."""
    return Fault(**{**asdict(fault), "recovered": seconds})


def take(steps: Iterator[Any], count: int) -> Iterator[Any]:
    """So many of them."""
    for _, result in zip(range(count), steps, strict=False):
        yield result
