"""Random faults: kill, stop, hang or raise, at a random call, rank, step and layout, or at a random moment.

``python -m benchmarks.faults.random_faults --faults 1000 --minutes 60 --seed 1`` prints a line a kind. A run loses
processes again and again and continues, also while it saves or loads, evaluates by ``also``, records a step or verifies
one (``acts.py``); what ends it (a hang, a stopped process, an exception, and with a queue also a
loss) is held against what was done to it, and the next run continues from what was saved before. Every result is
compared with that of the local backend, where nothing fails.

The runs are in a process of their own. One that says nothing for ``--patience`` seconds is ended, and the fault that it
was in counts as unended; the next process begins with another seed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.dataplane import measure
from benchmarks.faults.losses import losing, new
from benchmarks.faults.programs import FOLDER, LAYOUTS
from benchmarks.faults.runs import LAUNCH_SECONDS, EndedError, Fault, Program, asynchronous
from hfdsl.errors import HfWarning
from tests import fork_server


def child(seed: int, deadline: float) -> None:
    """Faults without end, a line of JSON each."""
    lot, events = random.Random(seed), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray and its workers print is no event
    os.environ |= measure.VARIABLES  # before the fork server imports Ray, which reads them then
    with tempfile.TemporaryDirectory() as place, fork_server.install(), measure.cluster(200):
        os.environ[FOLDER] = str(new(Path(place) / "none"))  # where local runs look for faults
        faults = new(Path(place) / "faults")
        warnings.simplefilter("ignore", HfWarning)
        for number in count():
            name = lot.choice(("ppo", "synced", "queued"))
            program = Program(name, lot.choice(LAYOUTS[name]), lot, faults, deadline)
            runs = asynchronous if name == "queued" and lot.random() < 0.3 else losing
            with suppress(EndedError):
                for event in runs(program, new(Path(place) / f"saves {number}")):
                    line = json.dumps({"doing": event} if isinstance(event, str) else asdict(event))
                    print(line, file=events, flush=True)


def run(faults: int, seconds: float, seed: int, deadline: float, patience: float) -> Iterator[Fault]:
    """Faults in processes of their own, until there are so many or the time is up."""
    until, fault_count = time.monotonic() + seconds, 0
    while fault_count < faults and time.monotonic() < until:
        command = [sys.executable, "-m", __spec__.name, "--child", str(seed), "--deadline", str(deadline)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        lines: queue.Queue[str | None] = queue.Queue()
        notes: list[str] = []
        threading.Thread(target=read, args=(process.stdout, lines), daemon=True).start()
        threading.Thread(target=notes.extend, args=(process.stderr,), daemon=True).start()
        doing = "start"
        try:
            while fault_count < faults and time.monotonic() < until:
                try:
                    line = lines.get(timeout=patience)
                except queue.Empty:
                    yield unended(doing, f"nothing for {patience:g} s, seed {seed}")
                    fault_count += 1
                    break
                if line is None:
                    process.wait(patience)
                    yield unended(doing, f"status {process.returncode}, seed {seed}: {''.join(notes[-30:])}")
                    fault_count += 1
                    break
                event: dict[str, Any] = json.loads(line) if line.startswith("{") else {"doing": doing}
                if "doing" in event:
                    doing = event["doing"]
                else:
                    fault_count += event["kind"] != "nothing"
                    yield Fault(**event)
        finally:
            for sent in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, sent)
                    process.wait(30)
        seed += 1_000_003


def unended(doing: str, error: str) -> Fault:
    """What a process was doing when it said no more."""
    return Fault(
        program="", layout="", kind=doing.partition(" in step")[0].strip(), where="", step=-1, unended=True, error=error
    )


def read(stream: Any, lines: queue.Queue[str | None]) -> None:
    """Lines, and None at the end."""
    for line in stream:
        lines.put(line)
    lines.put(None)


def table(faults: Sequence[Fault]) -> str:
    """A row for each kind."""
    rows = []
    keys = Counter((fault.program, fault.act, fault.kind) for fault in faults)
    for (program, act, kind), times in sorted(keys.items()):
        those = [fault for fault in faults if (fault.program, fault.act, fault.kind) == (program, act, kind)]
        rows.append(
            (
                program,
                act,
                kind,
                str(times),
                str(sum(fault.lost != 0 for fault in those)),
                str(sum(fault.trained_twice != 0 for fault in those)),
                str(sum(fault.wrong_bits for fault in those)),
                str(sum(bool(fault.wrong_culprit.strip()) for fault in those)),
                str(sum(fault.unended for fault in those)),
                quantiles([fault.named for fault in those]),
                quantiles([fault.recovered for fault in those]),
            )
        )
    head = [
        "program",
        "act",
        "kind",
        "faults",
        "prompts lost",
        "trained twice",
        "wrong bits",
        "wrong culprit",
        "unended",
    ]
    return measure.markdown([*head, "s to the error", "s to continue"], rows)


def quantiles(values: Sequence[float | None]) -> str:
    """The median, and the longest."""
    measured = [value for value in values if value is not None]
    return f"{statistics.median(measured):.2f}, at most {max(measured):.2f}" if measured else "-"


def main(argv: Sequence[str] | None = None) -> None:
    """Run, and print what is wrong as it happens, and a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.faults.random_faults", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds of each call (10)")
    parser.add_argument(
        "--patience", type=float, default=LAUNCH_SECONDS + 120, help="seconds after which a fault is unended (360)"
    )
    parser.add_argument("--log", type=Path, help="a file for every fault, a line of JSON each")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child is not None:
        child(options.child, options.deadline)
        return
    faults = list[Fault]()
    for fault in run(options.faults, options.minutes * 60, options.seed, options.deadline, options.patience):
        if fault.kind == "nothing" and not (fault.wrong_bits or fault.wrong_culprit.strip()):
            continue
        faults.append(fault)
        if options.log is not None:
            with options.log.open("a") as log:
                log.write(json.dumps(asdict(fault)) + "\n")
        if fault.wrong_bits or fault.wrong_culprit.strip() or fault.unended or fault.lost or fault.trained_twice:
            print(fault, flush=True)
    print(table(faults))
    print(f"\n{measure.machine()}")


if __name__ == "__main__":
    main()
