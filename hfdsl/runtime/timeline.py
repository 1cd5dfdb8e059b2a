"""What a step leaves behind: notes that cost next to nothing to take, read as a timeline where somebody asks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from hfdsl.plan.payloads import DRIVER_PROCESS, DRIVER_RANK, Payload, PayloadKey, Process
from hfdsl.plan.plan import DRIVER, Plan, Step
from hfdsl.plan.routes import Routes
from hfdsl.plan.rows import RowTable
from hfdsl.plan.timeline import (
    Imbalance,
    Interval,
    IntervalKind,
    MemoryLevel,
    Timeline,
    Transfer,
    call_rows,
    node_labels,
    payload_name,
)
from hfdsl.runtime.executor import Ran


@dataclass(slots=True)
class Notes:
    """What the driver writes down while a step runs.

    ``gave`` are payloads, each with the time and its bytes; ``routes`` those by which each segment was submitted;
    ``results`` what the driver has learnt: which rows filters keep, and what rows weigh.
    """

    start: float = field(default_factory=time.time)
    intervals: list[Interval] = field(default_factory=list)
    gave: list[tuple[Payload, float, int]] = field(default_factory=list)
    routes: dict[int, Routes] = field(default_factory=dict)
    results: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @contextmanager
    def doing(self, what: str, kind: IntervalKind = "driver") -> Iterator[None]:
        """The driver does something."""
        start = time.time()
        yield
        self.intervals.append(Interval(DRIVER_PROCESS, kind, what, start, time.time()))


@dataclass(frozen=True, slots=True)
class Record:
    """A step that is over: ``calls`` are the (segment, rank) whose parts ``ran``, ``routes`` the last ones."""

    plan: Plan
    number: int
    stop: float
    notes: Notes
    routes: Routes
    calls: tuple[tuple[int, int], ...]
    ran: tuple[Ran, ...]


RESULT = "reads the result"


def timeline(record: Record) -> Timeline:
    """The record, read."""
    notes, made = record.notes, _made(record)
    steps = {step.label: step for step in record.plan.steps}
    intervals, transfers, levels = list(notes.intervals), list[Transfer](), list[MemoryLevel]()
    free: dict[Process, float] = {}
    for (number, rank), one in zip(record.calls, record.ran, strict=True):
        process, found = (one.group, one.rank), notes.routes[number]
        keys = found.receives[number].get(one.rank if rank == DRIVER_RANK else rank, ())
        taken = [made[key].to(process, one.start) for key in keys]
        transfers += taken
        intervals += _work(steps, one, found.table)
        if one.group == DRIVER:
            continue
        levels.append(MemoryLevel(process, one.stop, one.held))
        since = free.get(process, notes.start)
        if since < one.start:
            intervals.append(Interval(process, "wait", _cause(taken, since), since, one.start))
        free[process] = max(since, one.stop)
    intervals += [Interval(process, "wait", "waits for the end", since, record.stop) for process, since in free.items()]
    for keys, arrived in _read_by_driver(record):
        transfers += [made[key].to(DRIVER_PROCESS, arrived) for key in keys]
    return Timeline(
        plan=record.plan.name,
        number=record.number,
        start=notes.start,
        stop=record.stop,
        intervals=tuple(intervals),
        transfers=tuple(transfers),
        levels=tuple(levels),
        imbalances=dict(_imbalances(record)),
    )


def _imbalances(record: Record) -> Iterator[tuple[str, Imbalance]]:
    splits = record.routes.table.splits
    for step in record.plan.steps:
        row_split = splits.get(step.node) if step.balance is not None else None
        if row_split is not None and row_split.partition is not None:
            yield step.label, Imbalance(*row_split.partition.imbalance(step.chunks))


class _Made(NamedTuple):
    """A payload that was given."""

    name: str
    maker: Process
    sent: float
    bytes: int

    def to(self, target: Process, arrived: float) -> Transfer:
        return Transfer(
            source=self.maker, target=target, name=self.name, bytes=self.bytes, sent=self.sent, arrived=arrived
        )


def _made(record: Record) -> dict[PayloadKey, _Made]:
    labels = node_labels(record.plan)
    given: list[tuple[Payload, Process, float, int]]
    given = [(payload, DRIVER_PROCESS, time, size) for payload, time, size in record.notes.gave]
    for (number, rank), ran in zip(record.calls, record.ran, strict=True):
        task = record.notes.routes[number].tasks[number][ran.rank if rank == DRIVER_RANK else rank]
        sizes = zip(task.sends, ran.given, strict=False)  # what a pair of functions collects is given as it is
        given += [(payload, (ran.group, ran.rank), ran.stop, size) for payload, size in sizes]
    return {
        payload.key: _Made(payload_name(payload, labels), maker, sent, size) for payload, maker, sent, size in given
    }


def _read_by_driver(record: Record) -> Iterator[tuple[tuple[PayloadKey, ...], float]]:
    """What the driver read, and when it was there: the arguments of pairs of functions, and the result."""
    begun: dict[int, float] = {}
    for (number, _), ran in zip(record.calls, record.ran, strict=True):
        begun.setdefault(number, ran.start)
    for number, found in record.notes.routes.items():
        yield found.receives[number].get(DRIVER_RANK, ()), begun[number]
    yield from ((record.routes.result, interval.stop) for interval in record.notes.intervals if interval.name == RESULT)


def _cause(taken: list[Transfer], since: float) -> str:
    """What a process waited for: what came last or, where all was there, the driver."""
    last = max(taken, key=lambda transfer: transfer.sent, default=None)
    if last is None or last.sent <= since or last.source == DRIVER_PROCESS:
        return "waits for the driver"
    return f"waits for {last.name}"


def _work(steps: Mapping[str, Step], ran: Ran, table: RowTable) -> Iterator[Interval]:
    process = ran.group, ran.rank
    if len(ran.done) > 1:
        yield Interval(process, "fused", " + ".join(done.label for done in ran.done), ran.start, ran.stop)
    for done in ran.done:
        rows = call_rows(steps[done.label], ran.rank, table)
        yield Interval(process=process, kind="call", name=done.label, start=done.start, stop=done.stop, rows=rows)
