"""Python stacks of ranks that are late, read from outside of their processes.

A process that hangs cannot answer a call, and methods must run on the main thread, so no second thread takes calls.
Instead each process, at its start, lets ``faulthandler`` write all its stacks into a file in memory on a signal; this
works within C code, too, such as a collective that a peer never enters. A caller whose deadline has passed runs a task
on the node of each late rank, which sends the signal and reads the file by ``/proc/PID/fd/FILE``. Before any signal is
sent, the name of that file tells whether the process is still the same.

If this is not possible (no Linux, a stopped process, a lost node), there is no stack, and the error says so.
"""

from __future__ import annotations

import faulthandler
import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

DUMP_SIGNAL = getattr(signal, "SIGRTMAX", 0) - 2
"""A real-time signal, which libraries do not use."""

DUMP_SECONDS = 2.0
"""The seconds for a process to write its stacks."""

READ_SECONDS = 15.0
"""The seconds for a node to start the task that reads them."""

THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+) ", re.MULTILINE)
FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Frame:
    """A line on a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class WatchedProcess:
    """A process with the file of its stacks."""

    node: str
    pid: int
    file: int
    token: str
    thread: int

    @property
    def path(self) -> Path:
        """The path of the file in memory for other processes of the user."""
        return Path(f"/proc/{self.pid}/fd/{self.file}")


def watched() -> WatchedProcess | None:
    """Let others read the stacks of this process; None if the system does not support it."""
    if not hasattr(os, "memfd_create") or DUMP_SIGNAL < 1:
        return None
    token = f"hfdsl-{secrets.token_hex(8)}"
    file = os.memfd_create(token)
    faulthandler.register(DUMP_SIGNAL, file=file, all_threads=True)
    node = ray.get_runtime_context().get_node_id()
    return WatchedProcess(node, os.getpid(), file, token, threading.get_ident())


def stacks(processes: Mapping[int, WatchedProcess | None]) -> dict[int, tuple[Frame, ...]]:
    """The frames of the thread that runs methods, innermost first, by rank, for the ranks that answer."""
    by_node: dict[str, dict[int, WatchedProcess]] = {}
    for rank, process in processes.items():
        if process is not None:
            by_node.setdefault(process.node, {})[rank] = process
    refs = [_read_on(node, ranks) for node, ranks in by_node.items()]
    if not refs:
        return {}
    ready, _ = ray.wait(refs, num_returns=len(refs), timeout=READ_SECONDS)
    texts: dict[int, str] = {}
    for ref in ready:
        try:
            texts |= ray.get(ref)
        except RayError:  # the node is gone: its ranks have no stacks
            continue
    return {rank: parse(text, processes[rank].thread) for rank, text in texts.items()}  # type: ignore[union-attr]  # its rank has a process


def _read_on(node: str, processes: Mapping[int, WatchedProcess]) -> Any:
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    task: Any = ray.remote(_read).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
    return task.remote(dict(processes))


def _read(processes: Mapping[int, WatchedProcess]) -> dict[int, str]:
    """The written stacks of processes on this node."""
    offsets = {rank: process.path.stat().st_size for rank, process in processes.items() if _is_there(process)}
    for rank in offsets:
        os.kill(processes[rank].pid, DUMP_SIGNAL)
    return {rank: _text_after(processes[rank].path, size) for rank, size in offsets.items()}


def _is_there(process: WatchedProcess) -> bool:
    try:
        return process.token in str(process.path.readlink())
    except OSError:  # it ended, or belongs to another user
        return False


def _text_after(path: Path, offset: int) -> str:
    """The text after an offset, once no more arrives."""
    until = time.monotonic() + DUMP_SECONDS
    last_size = offset
    while time.monotonic() < until:
        time.sleep(0.02)
        try:
            size = path.stat().st_size
        except OSError:
            return ""
        if size == last_size and size > offset:
            break
        last_size = size
    with path.open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace")


def parse(text: str, thread: int) -> tuple[Frame, ...]:
    r"""The frames of one thread in the output of ``faulthandler``.

    >>> parse('Thread 0x0a (most recent call first):\n  File "a.py", line 3 in f\n', 10)
    (Frame(file='a.py', line=3, function='f'),)
    """
    heads = list(THREAD.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    blocks = {int(head[1], 16): text[head.end() : end] for head, end in zip(heads, ends, strict=False)}
    return tuple(Frame(file, int(line), function) for file, line, function in FRAME.findall(blocks.get(thread, "")))


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Ranks in words, for a message.

    >>> ranks_in_words([1]), ranks_in_words([0, 1, 2, 5])
    ('rank 1', 'ranks 0-2, 5')
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(start) if start == stop else f"{start}-{stop}" for start, stop in runs)
    return f"rank{'s' if len(runs) > 1 or (runs and runs[0][0] != runs[0][1]) else ''} {text}"


def grouped(texts: Mapping[int, str]) -> Sequence[str]:
    """One line for all ranks with the same text."""
    by_text: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        by_text.setdefault(text, []).append(rank)
    return [f"{ranks_in_words(ranks)}: {text}" for text, ranks in by_text.items()]
