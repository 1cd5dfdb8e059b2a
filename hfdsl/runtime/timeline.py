"""The log of a step, which is cheap to write, and its timeline, which is built on demand."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
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
    TimedTransfer,
    Timeline,
    call_rows,
    node_labels,
    node_stages,
    payload_name,
)
from hfdsl.runtime.messages import SegmentResult


@dataclass(slots=True)
class StepLog:
    """The driver's log of a running step.

    ``sent`` are the driver's payloads, each with the time and its bytes; ``routes`` those by which each segment was
    submitted; ``query_results`` the results of runtime queries, by node.
    """

    start: float = field(default_factory=time.time)
    intervals: list[Interval] = field(default_factory=list)
    sent: list[tuple[Payload, float, int]] = field(default_factory=list)
    routes: dict[int, Routes] = field(default_factory=dict)
    query_results: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def timed(self, label: str, kind: IntervalKind = "driver") -> Timed:
        """Record how long the driver takes for an activity, unless it raises."""
        return Timed(self, label, kind)


class Timed:
    """A context that records its duration; a class, since a step enters several, and a generator costs more."""

    __slots__ = ("_kind", "_label", "_log", "_start")

    def __init__(self, log: StepLog, label: str, kind: IntervalKind) -> None:
        self._log, self._label = log, label
        self._kind: IntervalKind = kind
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.time()

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            interval = Interval(DRIVER_PROCESS, self._kind, self._label, self._start, time.time())
            self._log.intervals.append(interval)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A completed step: ``results[i]`` is that of the (segment, rank) ``calls[i]``, ``routes`` are the last ones."""

    plan: Plan
    step_number: int
    stop: float
    log: StepLog
    routes: Routes
    calls: tuple[tuple[int, int], ...]
    results: tuple[SegmentResult, ...]


RESULT = "reads the result"


def timeline(record: StepRecord) -> Timeline:
    """The record as a timeline."""
    log, payloads = record.log, _payloads(record)  # without those that another run of this step had sent
    steps = {step.label: step for step in record.plan.steps}
    intervals, transfers, levels = list(log.intervals), list[TimedTransfer](), list[MemoryLevel]()
    idle_since: dict[Process, float] = {}
    for (segment, rank), result in zip(record.calls, record.results, strict=True):
        process, routes = (result.group, result.rank), log.routes[segment]
        keys = routes.receives[segment].get(result.rank if rank == DRIVER_RANK else rank, ())
        received = [payloads[key].to(process, result.start) for key in keys if key in payloads]
        transfers += received
        intervals += _call_intervals(steps, result, routes.table)
        if result.group == DRIVER:
            continue
        levels.append(MemoryLevel(process, result.stop, result.held_bytes))
        since = idle_since.get(process, log.start)
        if since < result.start:
            intervals.append(Interval(process, "wait", _wait_cause(received, since), since, result.start))
        idle_since[process] = max(since, result.stop)
    intervals += [
        Interval(process, "wait", "waits for the end", since, record.stop) for process, since in idle_since.items()
    ]
    for keys, arrived in _read_by_driver(record):
        transfers += [payloads[key].to(DRIVER_PROCESS, arrived) for key in keys if key in payloads]
    return Timeline(
        plan=record.plan.name,
        number=record.step_number,
        start=log.start,
        stop=record.stop,
        intervals=tuple(intervals),
        transfers=tuple(transfers),
        levels=tuple(levels),
        imbalances=dict(_imbalances(record)),
        stages=node_stages(record.plan),
    )


def _imbalances(record: StepRecord) -> Iterator[tuple[str, Imbalance]]:
    splits = record.routes.table.splits
    for step in record.plan.steps:
        row_split = splits.get(step.node) if step.balance is not None else None
        if row_split is not None and row_split.partition is not None:
            yield step.label, Imbalance(*row_split.partition.imbalance(step.chunks))


class _SentPayload(NamedTuple):
    """A payload that has left its process."""

    name: str
    producer: Process
    sent: float
    bytes: int

    def to(self, target: Process, arrived: float) -> TimedTransfer:
        return TimedTransfer(
            source=self.producer, target=target, name=self.name, bytes=self.bytes, sent=self.sent, arrived=arrived
        )


def _payloads(record: StepRecord) -> dict[PayloadKey, _SentPayload]:
    labels = node_labels(record.plan)
    sent: list[tuple[Payload, Process, float, int]]
    sent = [(payload, DRIVER_PROCESS, time, size) for payload, time, size in record.log.sent]
    for (segment, rank), result in zip(record.calls, record.results, strict=True):
        task = record.log.routes[segment].tasks[segment][result.rank if rank == DRIVER_RANK else rank]
        # Not strict: the result of a step with a custom protocol is sent as it is, by no task.
        sizes = zip(task.sends, result.payload_bytes, strict=False)
        sent += [(payload, (result.group, result.rank), result.stop, size) for payload, size in sizes]
    return {
        payload.key: _SentPayload(payload_name(payload, labels), producer, time, size)
        for payload, producer, time, size in sent
    }


def _read_by_driver(record: StepRecord) -> Iterator[tuple[tuple[PayloadKey, ...], float]]:
    """Transfers to the driver, with their arrival times: arguments of custom protocols, and the result."""
    started: dict[int, float] = {}
    for (segment, _), result in zip(record.calls, record.results, strict=True):
        started.setdefault(segment, result.start)
    for segment, routes in record.log.routes.items():
        yield routes.receives[segment].get(DRIVER_RANK, ()), started[segment]
    yield from ((record.routes.result, interval.stop) for interval in record.log.intervals if interval.name == RESULT)


def _wait_cause(received: list[TimedTransfer], since: float) -> str:
    """The cause of a process's wait: the payload that was sent last or, if all had been sent before, the driver."""
    last = max(received, key=lambda transfer: transfer.sent, default=None)
    if last is None or last.sent <= since or last.source == DRIVER_PROCESS:
        return "waits for the driver"
    return f"waits for {last.name}"


def _call_intervals(steps: Mapping[str, Step], result: SegmentResult, table: RowTable) -> Iterator[Interval]:
    process = result.group, result.rank
    if len(result.calls) > 1:
        yield Interval(process, "fused", " + ".join(call.label for call in result.calls), result.start, result.stop)
    for call in result.calls:
        rows = call_rows(steps[call.label], table)
        yield Interval(process=process, kind="call", name=call.label, start=call.start, stop=call.stop, rows=rows)
