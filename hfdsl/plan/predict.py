"""Prediction: the timeline of a step, from the plan and the seconds of each node.

A worked example. An actor generates in 2 s and sends 4 MB to a judge on another host, which scores in 1 s. With these
few scores the actor updates in 3 s::

    generate                                           0      to 2
    copy to shared memory, 4 MB at 4 GB/s              2      to 2.001
    to the judge, 0.5 ms and 4 MB at 1.25 GB/s         2.001  to 2.0047
    score                                              2.0047 to 3.0047
    to the actor, 0.5 ms                               3.0047 to 3.0052
    update                                             3.0052 to 6.0052

Each of them waits for the one before, so all three calls are critical. One pass over the segments in the order of
submission gives all times: whatever a call waits for was submitted before it, and no process runs a call before an
earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType

from hfdsl.plan.memory import Measure
from hfdsl.plan.payloads import CALLER, DRIVER_PROCESS, DRIVER_RANK, Payload, PayloadKey, Process, planned_topology
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.plan.routes import Routes, phases
from hfdsl.plan.segments import Segment
from hfdsl.plan.timeline import Interval, TimedTransfer, Timeline, call_rows, node_labels, payload_name

BANDWIDTHS: Mapping[str, float] = MappingProxyType({"copy": 4e9, "network": 1.25e9, "gpu": 300e9})
"""Bytes per second: ``copy`` into shared memory, which takes the sender's time, ``network`` between two hosts, and
``gpu`` between two GPUs or within one, by NCCL or CUDA IPC."""

LATENCY_SECONDS = 0.0005
"""Time from the end of a call to the start of one that waits for it."""


@dataclass(frozen=True, slots=True)
class Duration:
    """The duration of a node on a rank; measured on ``rows`` rows, where given, and then proportional to them."""

    seconds: float
    rows: int | None = None

    def of(self, rows: int | None) -> float:
        """Seconds for another number of rows.

        >>> Duration(2.0, rows=4).of(2), Duration(2.0).of(2)
        (1.0, 2.0)
        """
        return self.seconds * rows / self.rows if rows is not None and self.rows else self.seconds


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted step; ``critical`` are the nodes of its critical path, in order.

    ``unsized`` are the columns whose transfers count as taking no time, since nothing declares their sizes.
    """

    timeline: Timeline
    critical: tuple[str, ...]
    unsized: tuple[str, ...] = ()


def durations(steps: Iterable[Timeline]) -> dict[str, Duration]:
    """Measure each node: the median over measured steps.

    Ranks that work together wait for the last of them to start, so a node takes from its last rank's start to its last
    rank's end, but no less than its fastest rank.
    """
    seconds: dict[str, list[float]] = {}
    rows: dict[str, int | None] = {}
    for step in steps:
        by_name: dict[str, list[Interval]] = {}
        for call in step.calls:
            by_name.setdefault(call.name, []).append(call)
        for name, calls in by_name.items():
            together = max(call.stop for call in calls) - max(call.start for call in calls)
            seconds.setdefault(name, []).append(max(together, min(call.stop - call.start for call in calls)))
            row_counts = [call.rows for call in calls if call.rows is not None]
            rows[name] = max(row_counts) if row_counts else None
    return {name: Duration(median(measured), rows[name]) for name, measured in seconds.items()}


def predict(
    plan: Plan,
    node_durations: Mapping[str, Duration],
    bandwidths: Mapping[str, float] = BANDWIDTHS,
    latency: float = LATENCY_SECONDS,
) -> Prediction:
    """The timeline of a step, where the sizes of the plan are known; it starts at 0.

    Every process runs its calls in the order of the plan, each as soon as its columns have arrived. What leaves a
    process is first copied to shared memory, and goes from there to other hosts; what goes directly stays until its
    reader fetches it. Filters are taken to keep all rows.

    Raises:
        KeyError: for a step that ``node_durations`` lacks.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Scores(hf.Batch):
    ...     reward: hf.f32[B]
    >>> class Judge(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def score(self, scores: Scores) -> Scores: ...
    >>> @hf.dataflow
    ... def judged(scores: Scores, judge: Judge) -> Scores:
    ...     return judge.score(scores)
    >>> judges = hf.ResourcePool([2], use_gpu=False, name="judges")
    >>> deployment = hf.Deployment(judge=hf.place(Judge, pool=judges))
    >>> prediction = predict(judged.compile(deployment, {B: 4}), {"judge.score": Duration(0.5)})
    >>> prediction.critical
    ('judge.score',)
    """
    return _Simulation(plan, node_durations, dict(BANDWIDTHS) | dict(bandwidths), latency).run()


@dataclass(frozen=True, slots=True)
class _Moment:
    """A time, the node whose end it waited for last, and when that began."""

    time: float = 0.0
    node: str | None = None
    before: _Moment | None = None

    def later(self, seconds: float) -> _Moment:
        return replace(self, time=self.time + seconds)

    def after(self, node: str, seconds: float) -> _Moment:
        return _Moment(self.time + seconds, node, self)

    @property
    def chain(self) -> tuple[str, ...]:
        """The nodes up to here, each waiting for the previous one."""
        nodes, moment = list[str](), self
        while moment.node is not None and moment.before is not None:
            nodes.append(moment.node)
            moment = moment.before
        return tuple(reversed(nodes))


def _last(moments: Iterable[_Moment]) -> _Moment:
    return max(moments, key=lambda moment: moment.time, default=_Moment())


@dataclass(slots=True)
class _Simulation:
    """One list schedule: segments in the order of submission, each call at the earliest time that its inputs allow."""

    plan: Plan
    node_durations: Mapping[str, Duration]
    bandwidths: Mapping[str, float]
    latency: float
    free: dict[Process, _Moment] = field(default_factory=dict)
    ended: dict[tuple[int, int], _Moment] = field(default_factory=dict)
    sent: dict[PayloadKey, tuple[Process, Payload, int | None, _Moment]] = field(default_factory=dict)
    unsized: dict[str, None] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)
    transfers: list[TimedTransfer] = field(default_factory=list)
    submitted: _Moment = field(default_factory=_Moment)  # nothing that follows is submitted before this

    def run(self) -> Prediction:
        plan, result = self.plan, _Moment()
        for phase in phases(plan, plan.dims):
            measure = Measure(plan, phase.routes.table, plan.dims)
            if not self.sent:
                self._send(phase.routes.driver_sends[CALLER], DRIVER_PROCESS, _Moment(), measure)
            for segment in phase.segments:
                self._segment(phase.routes, segment, measure)
            keys = phase.routes.result if phase.query is None else phase.routes.query_payloads[phase.query]
            arrived = self._arrival(keys, DRIVER_PROCESS, _Moment())
            if phase.query is None:
                result = arrived
            else:  # what follows is submitted once the driver has resolved the query
                self.submitted = _last((self.submitted, arrived))
        end = _last((result, *self.ended.values()))
        timeline = Timeline(
            plan=plan.name,
            number=0,
            start=0.0,
            stop=end.time,
            intervals=tuple(self.intervals),
            transfers=tuple(self.transfers),
        )
        return Prediction(timeline, end.chain, tuple(self.unsized))

    def _segment(self, routes: Routes, segment: Segment, measure: Measure) -> None:
        receives, ends = routes.receives[segment.number], []
        gathered = self._arrival(receives.get(DRIVER_RANK, ()), DRIVER_PROCESS, self.submitted)
        for i, rank in enumerate(segment.ranks):
            process = segment.group, rank
            before = segment.after[i] if segment.after else None
            now = _last((
                gathered,
                self._arrival(receives.get(rank, ()), process, self.submitted),
                self.free.get(process, _Moment()),
                *([self.ended[before]] if before else []),
            ))  # fmt: skip  # what a call waits for, one a line
            for step in (step for step in segment.steps if rank in step.ranks):
                rows = call_rows(step, routes.table)
                began, now = now, now.after(step.label, self.node_durations[step.label].of(rows))
                self.intervals.append(
                    Interval(process=process, kind="call", name=step.label, start=began.time, stop=now.time, rows=rows)
                )
            sends = routes.tasks[segment.number][rank].sends
            self.free[process] = self.ended[segment.number, rank] = self._send(sends, process, now, measure)
            ends.append(self.free[process])
        if segment.custom:  # the driver collects the results, and sends what it has collected
            self.submitted = self._send(routes.driver_sends[segment.number], DRIVER_PROCESS, _last(ends), measure)
        if not self.plan.optimize.overlap and segment.group != DRIVER:
            self.submitted = _last((self.submitted, *ends))

    def _send(self, payloads: Iterable[Payload], process: Process, now: _Moment, measure: Measure) -> _Moment:
        """The time at which a process has sent these payloads; it copies those that do not go directly one by one."""
        for payload in payloads:
            sizes = {measure.name(part): measure.size(part) for part in payload.slices}
            self.unsized |= dict.fromkeys(name for name, size in sizes.items() if size is None)
            known_sizes = [size for size in sizes.values() if size is not None]
            size = sum(known_sizes) if known_sizes else None
            now = now if payload.direct else now.later((size or 0) / self.bandwidths["copy"])
            self.sent[payload.key] = process, payload, size, now
        return now

    def _arrival(self, keys: Iterable[PayloadKey], target: Process, earliest: _Moment) -> _Moment:
        """The arrival time of the last of these payloads."""
        host_of, last, labels = planned_topology(self.plan).host_of, earliest, node_labels(self.plan)
        for key in keys:
            source, payload, size, sent = self.sent[key]
            link = "gpu" if payload.direct else "network" if host_of(source) != host_of(target) else None
            arrived = sent.later(self.latency + ((size or 0) / self.bandwidths[link] if link else 0.0))
            name = payload_name(payload, labels)
            self.transfers.append(
                TimedTransfer(source=source, target=target, name=name, bytes=size, sent=sent.time, arrived=arrived.time)
            )
            last = _last((last, arrived))
        return last
