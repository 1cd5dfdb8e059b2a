"""Runs that fail at random, and what comes of it: each is held against a run in which nothing fails."""

from __future__ import annotations

import os
import random
import re
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hfdsl as hf
from benchmarks.faults.programs import CALLS, FOLDER, ROWS, compiled, prompts
from hfdsl.errors import HfError

LOSSES = ("SIGKILL", "SIGSEGV", "exit", "killed from outside", "two killed")
"""After these a run with retries goes on."""

ENDS = ("SIGSTOP", "hang", "raise", "stopped from outside")
"""These end a run."""

CHAIN_STEPS = 40
"""The steps after which a program begins again, with another seed."""

FAULTS_PER_RUN = 12

LAUNCH_SECONDS = 240.0
"""The deadline of a step, beside those of its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What was done to a run, and what came of it; seconds until the error or the next result, and until it went on."""

    program: str
    layout: str
    kind: str
    where: str
    step: int
    named: float | None = None
    recovered: float | None = None
    wrong_bits: bool = False
    wrong_culprit: str = ""
    trained_twice: int = 0
    lost: int = 0
    unended: bool = False
    error: str = ""


class EndedError(Exception):
    """A run has ended that was to go on; the next one starts from the beginning."""


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
        found = {}
        for file in self.folder.glob("pid *"):
            _, role, rank = file.name.split()
            if text := file.read_text():
                found[int(text)] = (self.group_of[role], int(rank))
        return found

    def place(self, how: str) -> str:
        """Have a random call fail."""
        label = self.lot.choice(CALLS[self.name])
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
    return map(running.step, batches) if program == "ppo" else running.stream(batches)


def seen(result: Any) -> tuple[float, float]:
    """The numbers that are compared bit for bit."""
    return result.loss.value, result.weight.value


# -- steps with retries ------------------------------------------------------------------------------------------------


def synchronous(program: Program, saves: Path) -> Iterator[Fault | str]:
    """Runs of a synchronous program, each from what the one before has saved: faults, and what is about to be done."""
    lot, step, saved, number = program.lot, 0, None, 0
    while step < CHAIN_STEPS:
        every = lot.choice((1, 3, None))
        yield f"launch {program.name} {program.layout} every={every}"
        with program.launch(hf.Retries(every=every, attempts=5)) as running:
            if saved is not None:
                running.load(saved)
                step = running.steps
            started = time.monotonic()
            yield from losses(program, running, saved is None)
            step, number = running.steps, number + 1
            saved = saves / f"{program.seed} {number}"
            saved.mkdir()
            running.save(saved)
            yield from end(program, running, started)


def losses(program: Program, running: Any, first: bool) -> Iterator[Fault | str]:
    """Steps that lose processes, and go on."""
    lot, usual, unnamed = program.lot, list[float](), dict[int, tuple[str, int]]()
    if first:
        running.step(prompts(0))
    for _ in range(lot.randint(FAULTS_PER_RUN // 2, FAULTS_PER_RUN)):
        step, quiet = running.steps, len(usual) < 2
        kind, where, thread, moment = lot.choice(LOSSES), "", None, list[int]()
        before = program.pids()
        if quiet:
            kind = ""
        elif kind == "killed from outside":
            thread, moment = program.strike(signal.SIGKILL, 2 * statistics.median(usual))
        else:
            times = 2 if kind == "two killed" else 1
            where = " and ".join({program.place("SIGKILL" if times == 2 else kind): "" for _ in range(times)})
        yield f"{kind or 'nothing'} {where} in step {step} of {program.name} {program.layout}"
        known, start = len(running.recoveries), time.monotonic()
        try:
            result = running.step(prompts(step))
        except HfError as error:
            yield Fault(
                program=program.name,
                layout=program.layout,
                kind=kind,
                where=where,
                step=step,
                wrong_culprit="it ended the run",
                error=str(error),
            )
            raise EndedError from None
        seconds = time.monotonic() - start
        if thread is not None:
            thread.join()
            if moment and len(running.recoveries) == known:  # it died after its part of the step
                start = time.monotonic()
                step, result = step + 1, running.step(prompts(step + 1))
                seconds = time.monotonic() - start
            where = " ".join(f"{group} {rank}" for group, rank in (before.get(pid, ("new", 0)) for pid in moment))
        unnamed |= {pid: before[pid] for pid in moment if pid in before}
        recoveries = running.recoveries[known:]
        if quiet and not recoveries:
            usual.append(seconds)
            if not any(program.checked(step, result).values()):
                continue
        yield Fault(
            program=program.name,
            layout=program.layout,
            kind=kind or "nothing",
            where=where,
            step=step,
            recovered=seconds - statistics.median(usual) if recoveries and usual else None,
            wrong_culprit=" ".join(culprits(program, recovered, before | unnamed, where) for recovered in recoveries),
            error="; ".join(recovered.cause for recovered in recoveries),
            **program.checked(step, result),
        )


def culprits(program: Program, recovered: Any, pids: Mapping[int, tuple[str, int]], where: str) -> str:
    """What a recovery says of a process that was not made to fail."""
    placed = set()
    for part in filter(None, where.split(" and ")):
        label, _, rank = part.rpartition(" ")
        role = label.removeprefix("end of ").partition(".")[0]
        placed.add((program.group_of.get(role, role), int(rank)))
    named = {(group, rank) for group, ranks in recovered.lost.items() for rank in ranks}
    gone = {place for pid, place in pids.items() if not alive(pid)}
    wrong = named - placed - gone
    if wrong or not named:
        return f"named {sorted(named)} where {where}: {recovered.cause}"
    return ""


def alive(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- what ends a run ---------------------------------------------------------------------------------------------------


def end(program: Program, running: Any, started: float) -> Iterator[Fault | str]:
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
    """Runs of a program with a queue: each loses a process, and the next one goes on from what was saved."""
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
    """With the seconds that the run before it took to go on."""
    return Fault(**{**asdict(fault), "recovered": seconds})


def take(steps: Iterator[Any], count: int) -> Iterator[Any]:
    """So many of them."""
    for _, result in zip(range(count), steps, strict=False):
        yield result
