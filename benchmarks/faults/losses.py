"""Runs that lose processes at random, whatever they do, and continue: each beside a run that loses none."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hfdsl as hf
from benchmarks.faults.acts import Act, Side, acts, recordings_differ
from benchmarks.faults.programs import Metrics
from benchmarks.faults.runs import CHAIN_STEPS, FAULTS_PER_RUN, EndedError, Fault, Program, alive, end, seen
from hfdsl.errors import HfError

IN_CALLS = ("SIGKILL", "SIGSEGV", "exit", "two killed")
"""Losses at a call of what the run does."""

ANYWHERE = ("killed from outside", "killed before")

STRIKE_SECONDS = 0.5
"""Within this time of an act without calls a process is killed."""


def losing(program: Program, folder: Path) -> Iterator[Fault | str]:
    """Runs of a program, each from what the one before has saved: faults, and what is about to be done."""
    lot, saved = program.lot, None
    with program.plan.launch("local", seed=program.seed) as straight:
        undisturbed, number = Side(straight, new(folder / "undisturbed")), 0
        while straight.steps < CHAIN_STEPS and number < CHAIN_STEPS:
            every, number = lot.choice((1, 3, None)), number + 1
            yield f"launch {program.name} {program.layout} every={every}"
            with program.launch(hf.Retries(every=every, attempts=5)) as running:
                run = Side(running, new(folder / f"run {number}"))
                if saved is None:
                    run.save()
                    undisturbed.save()
                else:
                    run.saves.append(saved)
                    run.load(saved)
                    undisturbed.saves = undisturbed.saves[-1:]
                yield from losses(program, run, undisturbed)
                run.save()
                undisturbed.save()
                saved = run.saves[-1]
                if program.name != "queued":
                    yield from end(program, running)


def new(folder: Path) -> Path:
    """A folder, and those that it is in."""
    folder.mkdir(parents=True)
    return folder


def losses(program: Program, run: Side, undisturbed: Side) -> Iterator[Fault | str]:
    """Acts in which processes are lost, after two in which none is."""
    lot, usual, unnamed = program.lot, list[float](), dict[int, tuple[str, int]]()
    step, *_ = choices = acts(program.name)
    for _ in range(lot.randint(FAULTS_PER_RUN // 2, FAULTS_PER_RUN)):
        quiet = len(usual) < 2
        act = step if quiet else lot.choice(choices)
        kind = "" if quiet else lot.choice((*IN_CALLS, *ANYWHERE) if act.calls else ANYWHERE)
        before = program.pids()
        where, thread, moment = struck(program, act, kind, statistics.median(usual) if usual else 0.0)
        unnamed |= {pid: before[pid] for pid in moment if pid in before}
        yield f"{kind or 'nothing'} {where} in {act.name} {run.running.steps} of {program.name} {program.layout}"
        earlier, start, seconds = len(run.running.recoveries), time.monotonic(), 0.0
        wrong: dict[str, Any] = {}
        try:
            wrong = done(program, act, run, undisturbed)
            seconds = time.monotonic() - start
            if thread is not None:
                thread.join()
            if moment and len(run.running.recoveries) == earlier:  # it died after its part
                start = time.monotonic()
                wrong |= {name: value for name, value in done(program, step, run, undisturbed).items() if value}
                seconds = time.monotonic() - start
        except (HfError, AssertionError) as error:
            wrong = {"wrong_culprit": "it ended the run", "error": str(error)}
        if thread is not None:
            thread.join()
            where = " and ".join(f"{group} {rank}" for group, rank in (before.get(pid, ("new", 0)) for pid in moment))
            unnamed |= {pid: before[pid] for pid in moment if pid in before}
        recoveries = run.running.recoveries[earlier:]
        if quiet and not recoveries and not any(wrong.values()):
            usual.append(seconds)
            continue
        ended = "wrong_culprit" in wrong
        misnamed = " ".join(culprits(program, recovered, before | unnamed, where) for recovered in recoveries)
        yield Fault(
            **{
                "program": program.name,
                "layout": program.layout,
                "kind": kind or "nothing",
                "where": where,
                "step": run.running.steps,
                "act": act.name,
                "recovered": seconds - statistics.median(usual) if recoveries and usual and not ended else None,
                "wrong_culprit": misnamed,
                "error": "; ".join(recovered.cause for recovered in recoveries),
            }
            | wrong
        )
        if ended:
            raise EndedError


def struck(program: Program, act: Act, kind: str, usual: float) -> tuple[str, threading.Thread | None, list[int]]:
    """Have an act lose processes: where, and which ones by signals from outside, sent by a thread."""
    if kind == "killed from outside":
        thread, moment = program.strike(signal.SIGKILL, 2 * usual if act.calls else STRIKE_SECONDS)
        return "", thread, moment
    if kind == "killed before":
        pids = program.pids()
        pid = program.lot.choice(sorted(filter(alive, pids)))
        os.kill(pid, signal.SIGKILL)
        group, rank = pids[pid]
        return f"{group} {rank}", None, [pid]
    times = 2 if kind == "two killed" else 1 if kind else 0
    how = "SIGKILL" if kind == "two killed" else kind
    return " and ".join({program.place(how, act.calls): "" for _ in range(times)}), None, []


def done(program: Program, act: Act, run: Side, undisturbed: Side) -> dict[str, Any]:
    """Do the same in both runs; what is wrong with what the first gave."""
    choice = program.lot.random()
    expected = act.do(undisturbed, choice)
    step = run.running.steps
    value = act.do(run, choice)
    if act.name == "load":
        step = run.running.steps
        return {"wrong_bits": step != undisturbed.running.steps}
    if not isinstance(value, Metrics):
        return {"wrong_bits": value != expected}
    checked = program.checked(step, value)
    checked["wrong_bits"] |= seen(value) != seen(expected)
    if act.name == "recorded step" and (difference := recordings_differ(run, undisturbed, choice)):
        return {**checked, "wrong_bits": True, "error": difference}
    return checked


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
