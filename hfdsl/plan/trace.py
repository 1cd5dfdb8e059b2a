"""Traces: timelines in the JSON format of Perfetto and ``chrome://tracing``, written and read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hfdsl.plan.payloads import DRIVER_PROCESS, Process
from hfdsl.plan.timeline import Interval, Timeline

Event = dict[str, Any]


class TraceFile:
    """A trace under way: a row a group and in it a row a rank, for one step after another.

    Times in the file are microseconds since the start of its first step.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115  # closed by close()
        self._pids: dict[str, int] = {}
        self._seen: set[Process] = set()
        self._heads: dict[tuple[str, Process, str, str], str] = {}
        self._flows = 0
        self._origin: float | None = None
        self._between = "[\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, timeline: Timeline) -> None:
        """Write a step."""
        if self._origin is None:
            self._origin = timeline.start
        self._file.write(self._between + ",\n".join(self._events(timeline, self._origin)))
        self._between = ",\n"

    def close(self) -> None:
        """End the file."""
        self._file.write("[]\n" if self._origin is None else "\n]\n")
        self._file.close()

    def _events(self, timeline: Timeline, origin: float) -> Iterator[str]:
        def at(time: float) -> str:
            return f"{(time - origin) * 1e6:.3f}"

        head, step = self._head, f'"args":{{"step":{timeline.number}'
        for process in dict.fromkeys((DRIVER_PROCESS, *(interval.process for interval in timeline.intervals))):
            if process not in self._seen:
                yield from self._named(process)
        began = f'"epoch":{timeline.start}}}}}'
        length = f'"ts":{at(timeline.start)},"dur":{timeline.seconds * 1e6:.3f}'
        yield f"{head('X', DRIVER_PROCESS, 'step', timeline.plan)},{length},{step},{began}"
        for interval in timeline.intervals:
            length = f'"ts":{at(interval.start)},"dur":{(interval.stop - interval.start) * 1e6:.3f}'
            rows = "" if interval.rows is None else f',"rows":{interval.rows}'
            yield f"{head('X', interval.process, interval.kind, interval.name)},{length},{step}{rows}}}}}"
        for one in timeline.transfers:
            self._flows += 1
            named = f'"id":{self._flows},"args":{{"bytes":{one.bytes}}}}}'
            # A flow starts in the slice that is open at the time: one microsecond before its maker ends.
            yield f'{head("s", one.source, "transfer", one.name)},"ts":{at(one.sent - 1e-6)},{named}'
            yield f'{head("f", one.target, "transfer", one.name)},"bp":"e","ts":{at(one.arrived)},{named}'
        for level in timeline.levels:
            counted = f'"ts":{at(level.time)},"args":{{"bytes":{level.bytes}}}}}'
            yield f"{head('C', level.process, 'memory', f'bytes held by rank {level.process[1]}')},{counted}"

    def _head(self, phase: str, process: Process, kind: str, name: str) -> str:
        """The beginning of an event: what it has in common with those of other steps is put into JSON once."""
        key = phase, process, kind, name
        if key not in self._heads:
            place = {"pid": self._pids[process[0]], "tid": process[1]}
            self._heads[key] = json.dumps({"ph": phase, "cat": kind, "name": name, **place})[:-1]
        return self._heads[key]

    def _named(self, process: Process) -> Iterator[str]:
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
        ValueError: where the text is no trace of hfdsl.
    """
    events = json.loads(text)
    if not isinstance(events, list) or not all(isinstance(event, dict) and "ph" in event for event in events):
        raise ValueError("no list of events")
    try:
        return tuple(_steps(events))
    except (KeyError, TypeError) as error:
        raise ValueError(f"an event without {error}") from None


def _steps(events: list[Event]) -> Iterator[Timeline]:
    groups = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    calls: dict[int, list[Interval]] = {}
    for event in (one for one in events if one.get("cat") == "call"):
        process, args = (groups[event["pid"]], event["tid"]), event["args"]
        interval = Interval(process, "call", event["name"], *_times(event), args.get("rows"))
        calls.setdefault(args["step"], []).append(interval)
    for event in (one for one in events if one.get("cat") == "step"):
        number = event["args"]["step"]
        yield Timeline(event["name"], number, *_times(event), tuple(calls.get(number, ())))


def _times(event: Mapping[str, Any]) -> tuple[float, float]:
    return event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
