"""Timelines: what every process does within a step and when, measured or predicted; and their files for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias, TypeVar

from hfdsl.plan.payloads import DRIVER_PROCESS, Payload, Process
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.rows import RowTable
from hfdsl.types.html import bars

K = TypeVar("K")

IntervalKind: TypeAlias = Literal["call", "fused", "wait", "driver"]
"""One node on a rank; several nodes in one call; waiting; work of the driver itself."""

# Named tuples: a step has very many of these, and they are cheaper to construct than frozen dataclasses.


class Interval(NamedTuple):
    """An activity of a process from ``start`` to ``stop``; ``rows`` are those of a call, if it has any."""

    process: Process
    kind: IntervalKind
    name: str
    start: float
    stop: float
    rows: int | None = None


class TimedTransfer(NamedTuple):
    """Columns that went from one process to another: ``bytes`` of them, between the times ``sent`` and ``arrived``.

    ``bytes`` is None in a prediction where no size is known.
    """

    source: Process
    target: Process
    name: str
    bytes: int | None
    sent: float
    arrived: float


class MemoryLevel(NamedTuple):
    """The bytes of columns that a process holds at a time."""

    process: Process
    time: float
    bytes: int


class QueueLoss(NamedTuple):
    """A decision of a queue under a version of the weights that loses groups, or trains them with a mask."""

    kind: Literal["drop", "refill", "mask", "lose"]
    version: int
    groups: int


class QueueSample(NamedTuple):
    """The groups in a queue at a time, between two stages of a plan, and what has just cost it groups.

    ``running`` groups have been dispatched and have not ended, ``ready`` ones have ended and have not been taken.
    """

    plan: str
    queue: str
    stages: tuple[int, int]
    time: float
    running: int
    ready: int
    losses: tuple[QueueLoss, ...] = ()


class Imbalance(NamedTuple):
    """The weight of a balanced node's heaviest chunk, pad rows included, over the mean of all its chunks.

    ``in_order`` is what it would have been with the rows in their order, ``balanced`` what it was.
    """

    in_order: float
    balanced: float


@dataclass(frozen=True, slots=True, repr=False)
class Timeline:
    """One step of a plan: intervals of every process, and what went from one to another.

    ``imbalances`` has an entry for each balanced node, unless its rows were best in their order. ``stages`` has the
    stage of each node of a program with queues, by its name.

    Times are in seconds; those of a run are since the epoch, by the clock of the host of each process. On one host they
    can be compared to the microsecond; between hosts they are as accurate as the cluster synchronizes its clocks.
    """

    plan: str
    number: int
    start: float
    stop: float
    intervals: tuple[Interval, ...]
    transfers: tuple[TimedTransfer, ...] = ()
    levels: tuple[MemoryLevel, ...] = ()
    imbalances: Mapping[str, Imbalance] = field(default_factory=dict)
    stages: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<timeline of step {self.number} of '{self.plan}': {self.seconds:.3g} s, {len(self.nodes)} nodes>"

    def _repr_html_(self) -> str:
        """For notebooks: a bar for each node, from its first rank's start to its last rank's end."""
        title = f"step {self.number} of '{self.plan}', {self.seconds:.3g} s"
        return bars(title, [(name, *ends) for name, ends in self.nodes.items()], self.seconds)

    @property
    def seconds(self) -> float:
        """The duration of the step."""
        return self.stop - self.start

    @property
    def calls(self) -> tuple[Interval, ...]:
        """Every rank's part of every node."""
        return tuple(interval for interval in self.intervals if interval.kind == "call")

    @property
    def nodes(self) -> dict[str, tuple[float, float]]:
        """For each node its first rank's start and its last rank's end, counted from the start of the step.

        >>> step = Timeline("flow", 0, 10.0, 12.0, (Interval(("pool", 0), "call", "role.f", 10.5, 11.5),))
        >>> step.nodes, step.seconds
        ({'role.f': (0.5, 1.5)}, 2.0)
        """
        ends = _ends((call.name, call) for call in self.calls)
        return {name: (start - self.start, stop - self.start) for name, (start, stop) in ends.items()}

    @property
    def overlaps(self) -> frozenset[tuple[str, str]]:
        """The pairs of nodes with ranks that worked at the same time, each in alphabetical order.

        >>> f, g = Interval(("a", 0), "call", "f", 0.0, 2.0), Interval(("b", 0), "call", "g", 1.0, 3.0)
        >>> sorted(Timeline("flow", 0, 0.0, 3.0, (f, g)).overlaps)
        [('f', 'g')]
        """
        pairs: set[tuple[str, str]] = set()
        running: list[Interval] = []
        for call in sorted(self.calls, key=lambda call: call.start):
            running = [earlier for earlier in running if earlier.stop > call.start]
            others = {earlier.name for earlier in running} - {call.name}
            pairs |= {(min(call.name, name), max(call.name, name)) for name in others}
            running.append(call)
        return frozenset(pairs)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as a trace that Perfetto and ``chrome://tracing`` open.

        Raises:
            OSError: where the file cannot be written.
        """
        with TraceFile(path) as file:
            file.add(self)


def _ends(calls: Iterable[tuple[K, Interval]]) -> dict[K, tuple[float, float]]:
    """For each key the start of its first call, and the end of its last one."""
    ends: dict[K, tuple[float, float]] = {}
    for key, call in calls:
        start, stop = ends.get(key, (call.start, call.stop))
        ends[key] = min(start, call.start), max(stop, call.stop)
    return ends


def node_stages(plan: Plan) -> dict[str, int]:
    """The stage of each call by its name; none without queues."""
    if plan.stage_of is not None:
        return {step.label: plan.stage_of.number for step in plan.steps}
    return {step.label: plan.split.of[step.node] for step in plan.steps} if plan.split.queues else {}


def node_labels(plan: Plan) -> dict[int, str]:
    """The names of a step's inputs and of the results of its calls."""
    return {node.id: node.label for node in plan.graph.inputs} | {step.node: step.label for step in plan.steps}


def payload_name(payload: Payload, labels: Mapping[int, str]) -> str:
    """The label of a payload: ``actor.generate (ids, mask)``."""
    columns: dict[int, dict[str, None]] = {}
    for column_slice in payload.slices:
        columns.setdefault(column_slice.node, {})[column_slice.column] = None
    named = ((labels[node], ", ".join(filter(None, names))) for node, names in columns.items())
    return ", ".join(f"{label} ({names})" if names else label for label, names in named)


def call_rows(step: Step, table: RowTable) -> int | None:
    """The rows of each rank of a step, pad rows included; None where ranks get whole values."""
    row_split = table.splits.get(step.node)
    return None if row_split is None else row_split.chunk_size


# -- traces: timelines in the JSON format of Perfetto and ``chrome://tracing``


TraceEvent: TypeAlias = dict[str, Any]
"""One entry of such a file."""


class TraceFile:
    """A trace that is written step by step: a process for each group of the plan, a thread for each of its ranks.

    Times in the file are microseconds since its first step, or the first decision of a queue. Between two stages of a
    program, a counter has the batches that have left the first and that the second has not begun with; it is written at
    the end. Of a dynamic queue, a counter has the groups instead, and each loss is an instant.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = fspath(path)
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115  # closed by close()
        self._pids: dict[str, int] = {}
        self._seen: set[Process] = set()
        self._heads: dict[tuple[str, Process, str, str], str] = {}
        self._flows = 0
        self._origin: float | None = None
        self._queued: dict[tuple[str, int], list[tuple[float, int]]] = {}  # by plan and stage, batches put and taken
        self._sampled: dict[tuple[str, str], tuple[int, int]] = {}  # by plan and queue, the groups counted last
        self._between = "[\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, timeline: Timeline) -> None:
        """Write a step; ``OSError`` with the file if it cannot be written."""
        if self._origin is None:
            self._origin = timeline.start
        self._write(self._events(timeline, self._origin))
        ends = _ends((timeline.stages[call.name], call) for call in timeline.calls if call.name in timeline.stages)
        for stage in ends.keys() & {before + 1 for before in ends}:
            (_, put_in), (taken, _) = ends[stage - 1], ends[stage]
            self._queued.setdefault((timeline.plan, stage), []).extend([(put_in, 1), (max(put_in, taken), -1)])

    def add_queue(self, sample: QueueSample) -> None:
        """Write the losses of a queue, and its groups if their numbers have changed; errors as for ``add``."""
        if self._origin is None:
            self._origin = sample.time
        self._write(self._sample_events(sample, self._origin))

    def close(self) -> None:
        """End the file; errors as for ``add``."""
        with self._naming(), self._file:
            self._write(self._queue_events(self._origin or 0.0))
            self._file.write("[]\n" if self._origin is None else "\n]\n")

    def _write(self, events: Iterable[str]) -> None:
        with self._naming():
            if text := ",\n".join(events):
                self._file.write(self._between + text)
                self._between = ",\n"

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from None

    def _events(self, timeline: Timeline, origin: float) -> Iterator[str]:
        def at(time: float) -> str:
            return f"{(time - origin) * 1e6:.3f}"

        head, step = self._head, f'"args":{{"plan":{json.dumps(timeline.plan)},"step":{timeline.number}'
        for process in dict.fromkeys((DRIVER_PROCESS, *(interval.process for interval in timeline.intervals))):
            if process not in self._seen:
                yield from self._name_events(process)
        began = f'"epoch":{timeline.start}}}}}'
        length = f'"ts":{at(timeline.start)},"dur":{timeline.seconds * 1e6:.3f}'
        yield f"{head('X', DRIVER_PROCESS, 'step', timeline.plan)},{length},{step},{began}"
        for interval in timeline.intervals:
            length = f'"ts":{at(interval.start)},"dur":{(interval.stop - interval.start) * 1e6:.3f}'
            rows = "" if interval.rows is None else f',"rows":{interval.rows}'
            stage = f',"stage":{timeline.stages[interval.name]}' if interval.name in timeline.stages else ""
            yield f"{head('X', interval.process, interval.kind, interval.name)},{length},{step}{rows}{stage}}}}}"
        for transfer in timeline.transfers:
            self._flows += 1
            sized = "" if transfer.bytes is None else f'"bytes":{transfer.bytes}'
            named = f'"id":{self._flows},"args":{{{sized}}}}}'
            # A flow starts in the slice that is open at the time: one microsecond before its producer ends.
            yield f'{head("s", transfer.source, "transfer", transfer.name)},"ts":{at(transfer.sent - 1e-6)},{named}'
            end = f'"bp":"e","ts":{at(transfer.arrived)}'
            yield f"{head('f', transfer.target, 'transfer', transfer.name)},{end},{named}"
        for level in timeline.levels:
            counted = f'"ts":{at(level.time)},"args":{{"bytes":{level.bytes}}}}}'
            yield f"{head('C', level.process, 'memory', f'bytes held by rank {level.process[1]}')},{counted}"

    def _queue_events(self, origin: float) -> Iterator[str]:
        """The batches in each queue, whenever their number changes."""
        for (plan, stage), changes in self._queued.items():
            count = 0
            name = f"batches in the queue from stage {stage - 1} to {stage} of {plan}"
            for time, change in sorted(changes, key=lambda each: (each[0], -each[1])):
                count += change
                counted = f'"ts":{(time - origin) * 1e6:.3f},"args":{{"batches":{count}}}}}'
                yield f"{self._head('C', DRIVER_PROCESS, 'queue', name)},{counted}"

    def _sample_events(self, sample: QueueSample, origin: float) -> Iterator[str]:
        if DRIVER_PROCESS not in self._seen:
            yield from self._name_events(DRIVER_PROCESS)
        at = f'"ts":{(sample.time - origin) * 1e6:.3f}'
        named = f'"plan":{json.dumps(sample.plan)},"queue":{json.dumps(sample.queue)}'
        for loss in sample.losses:
            lost = f'"version":{loss.version},"groups":{loss.groups}'
            yield f'{self._head("i", DRIVER_PROCESS, "loss", loss.kind)},"s":"p",{at},"args":{{{named},{lost}}}}}'
        key, groups = (sample.plan, sample.queue), (sample.running, sample.ready)
        if self._sampled.get(key) != groups:
            self._sampled[key] = groups
            (feeds, reads), (running, ready) = sample.stages, groups
            name = f"groups in '{sample.queue}' from stage {feeds} to {reads} of {sample.plan}"
            counted = f'"args":{{"running":{running},"ready":{ready}}}}}'
            yield f"{self._head('C', DRIVER_PROCESS, 'queue', name)},{at},{counted}"

    def _head(self, phase: str, process: Process, kind: str, name: str) -> str:
        """The prefix of an event; events of several steps share its encoding."""
        key = phase, process, kind, name
        if key not in self._heads:
            place = {"pid": self._pids[process[0]], "tid": process[1]}
            self._heads[key] = json.dumps({"ph": phase, "cat": kind, "name": name, **place})[:-1]
        return self._heads[key]

    def _name_events(self, process: Process) -> Iterator[str]:
        group, rank = process
        title = "driver" if process == DRIVER_PROCESS else None
        self._seen.add(process)
        if group not in self._pids:
            pid = self._pids[group] = len(self._pids)
            yield json.dumps({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title or group}})
        named = {"ph": "M", "name": "thread_name", "pid": self._pids[group], "tid": rank}
        yield json.dumps(named | {"args": {"name": title or f"rank {rank}"}})


def read_trace(text: str) -> tuple[Timeline, ...]:
    """The steps of a trace, each with its calls alone.

    Raises:
        ValueError: where the text is not a trace of hfdsl.
    """
    events = json.loads(text)
    if not isinstance(events, list) or not all(isinstance(event, dict) and "ph" in event for event in events):
        raise ValueError("no list of events")
    try:
        return tuple(_steps(events))
    except (KeyError, TypeError) as error:
        raise ValueError(f"an event without {error}") from None


def _steps(events: list[TraceEvent]) -> Iterator[Timeline]:
    groups = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    calls: dict[tuple[str, int], list[Interval]] = {}  # stages of a queue have plans and numbers of their own
    for event in (event for event in events if event.get("cat") == "call"):
        process, args = (groups[event["pid"]], event["tid"]), event["args"]
        start, stop = _times(event)
        interval = Interval(process, kind="call", name=event["name"], start=start, stop=stop, rows=args.get("rows"))
        calls.setdefault((args["plan"], args["step"]), []).append(interval)
    for event in (event for event in events if event.get("cat") == "step"):
        plan, number = event["args"]["plan"], event["args"]["step"]
        start, stop = _times(event)
        intervals = tuple(calls.get((plan, number), ()))
        yield Timeline(plan=plan, number=number, start=start, stop=stop, intervals=intervals)


def _times(event: Mapping[str, Any]) -> tuple[float, float]:
    return event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
