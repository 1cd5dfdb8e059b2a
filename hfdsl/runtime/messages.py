"""Messages between the driver and the ranks: the calls of segments, and their replies.

Ray pickles every object among the arguments of a call, named tuples too, which costs 25 us each; lists of plain values
it sends without. So what travels with every call becomes a list (``to_wire``) and is read again (``from_wire``), and
what is sent once, the ``SegmentSpec``, is pickled. The lists are::

    RankRequest      [SegmentCall, payloads, has_spec, has_dispatched, modes, has_queued, digests]
    SegmentCall      [plan, routing, segment, step, [[steps, ...], ...], [[node, stop, version], ...], in_flight]
    in_flight        [[node, version, schedule, beside, before], ...]
    Acknowledgment   [SegmentResult, inline]
    SegmentResult    [group, rank, start, stop, [CallResult, ...], payload_bytes, held_bytes, peak_bytes]
    CallResult       [label, rank, start, stop, absent, [[decode step, version], ...], [DigestReport, ...]]
    inline           for each inline payload, its column slices: [[node, chunk, column, value], ...]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from hfdsl.plan.rows import RowTable
from hfdsl.plan.segments import Task
from hfdsl.runtime.verification.digest_report import DigestReport

SendMode: TypeAlias = str | list[int]
"""The way of a payload out of its process: one of the words below or, for a broadcast, the participating ranks."""

STORED: Final = "stored"
"""Through the object store."""

RELAYED: Final = "relayed"
"""As ``STORED``, or as bytes for a small payload, which relays pass on without loading it."""

DIRECT: Final = "direct"
"""Without the object store: tensors stay in place until a reader copies them."""

INLINE: Final = "inline"
"""With the acknowledgment of the call; only for numbers that the driver reads."""

SMALL_PAYLOAD_BYTES: Final = 64 * 1024
"""The size up to which sending a payload with every call is cheaper than the object store."""

RAY_ARGUMENT_BYTES: Final = 96 * 1024
"""The size above which Ray puts an argument into the object store by itself; pickled small payloads stay below it."""

RAY_STORED_BYTES: Final = 128 * 1024
"""The size from which Ray certainly keeps a call's result in the object store, and not with the caller.

Ray 2.60 frees what the caller keeps where the caller's reference is the last to go, and never where a borrower's is.
"""


class WeightsInFlight(NamedTuple):
    """The weights that may arrive while a call of ``node`` runs.

    For a load, ``version`` is the version that it loads. Its ``schedule`` is empty if the calls have schedules, since
    they may need a version after newer ones have arrived.

    For a call that takes weights between tokens, ``version`` is the oldest one that it may begin with. ``beside`` says
    whether it may run beside other calls. A ``schedule`` has [rank, at, version] for each version that a rank takes:
    ``at`` is a decode step or, as a float, a share of the call's time.

    ``before`` is the version of a role whose processes were sent no weights in flight yet.
    """

    node: int
    version: int
    schedule: Sequence[Sequence[Any]] | None
    beside: bool
    before: int


class SegmentCall(NamedTuple):
    """A segment of a plan in a step of the run, both by number; its routes are those with the ID ``routing``.

    If the plan has queues, ``stage_steps`` says for each stage how many steps of every stage had been submitted before
    this step's stage was; it is empty for a stage that has not been submitted. If a stage steps on its own,
    ``row_versions`` has the versions of the rows that it took from queues: for each run of rows, the node of their
    queue, their end and their version. ``in_flight`` says which weights arrive while calls of the segment run.
    """

    plan: str
    routing: int
    segment: int
    step: int
    stage_steps: Sequence[Sequence[int]] = ()
    row_versions: Sequence[Sequence[int]] = ()
    in_flight: Sequence[WeightsInFlight] = ()


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """The routes of a segment for one rank, which it needs to run its calls; sent with the first call."""

    task: Task
    table: RowTable


class RankRequest(NamedTuple):
    """The call of one rank.

    Its arguments follow it in this order: ``payloads`` payloads, the spec's task and table if there is a spec, the
    arguments that a dispatch function returned if there are any, the recipe that joins the last payloads if they come
    from a queue, then anything that merely has to end first. ``modes`` says how each payload leaves the rank; with
    ``digests`` the rank reports the digests of the syncs that are verified.
    """

    call: SegmentCall
    payloads: int
    has_spec: bool
    has_dispatched: bool
    modes: Sequence[SendMode]
    has_queued: bool = False
    digests: bool = False

    def to_wire(self) -> list[Any]:
        """Convert to plain values."""
        *names, stage_steps, row_versions, in_flight = self.call
        call = [*names, *([list(entry) for entry in entries] for entries in (stage_steps, row_versions, in_flight))]
        return [call, self.payloads, self.has_spec, self.has_dispatched, self.modes, self.has_queued, self.digests]

    @classmethod
    def from_wire(cls, values: Sequence[Any]) -> RankRequest:
        """Convert from plain values."""
        call, *others = values
        segment_call = SegmentCall(*call)
        in_flight = [WeightsInFlight(*entry) for entry in segment_call.in_flight]
        return cls(segment_call._replace(in_flight=in_flight), *others)


@dataclass(frozen=True, slots=True)
class CallResult:
    """One rank's call of one node; times are seconds since the epoch, ``absent`` the columns that it omitted.

    ``taken`` has the versions of weights in flight that it took, each with the decode step before which it took them;
    ``reports`` has the digests of what it exported or loaded in an exchange.
    """

    label: str
    rank: int
    start: float
    stop: float
    absent: tuple[str, ...] = ()
    taken: tuple[tuple[int, int], ...] = ()
    reports: tuple[DigestReport, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """The result of one rank's part of a segment.

    ``payload_bytes`` are those of its payloads, in the order of its task; ``held_bytes`` those of the values that the
    process holds now, ``peak_bytes`` the most that it has held in this step so far.
    """

    group: str
    rank: int
    start: float
    stop: float
    calls: tuple[CallResult, ...]
    payload_bytes: tuple[int, ...]
    held_bytes: int
    peak_bytes: int

    def to_wire(self) -> list[Any]:
        """Convert to plain values."""
        calls = [
            [
                *(call.label, call.rank, call.start, call.stop, list(call.absent), [list(load) for load in call.taken]),
                [report.to_wire() for report in call.reports],
            ]
            for call in self.calls
        ]
        sizes = list(self.payload_bytes)
        return [self.group, self.rank, self.start, self.stop, calls, sizes, self.held_bytes, self.peak_bytes]

    @classmethod
    def from_wire(cls, values: Sequence[Any]) -> SegmentResult:
        """Convert from plain values."""
        group, rank, start, stop, calls, sizes, held_bytes, peak_bytes = values
        return cls(
            group=group,
            rank=rank,
            start=start,
            stop=stop,
            calls=tuple(
                CallResult(
                    label=label,
                    rank=caller,
                    start=begun,
                    stop=ended,
                    absent=tuple(absent),
                    taken=tuple((at, version) for at, version in taken_versions),
                    reports=tuple(map(DigestReport.from_wire, reports)),
                )
                for label, caller, begun, ended, absent, taken_versions, reports in calls
            ),
            payload_bytes=tuple(sizes),
            held_bytes=held_bytes,
            peak_bytes=peak_bytes,
        )


class Acknowledgment(NamedTuple):
    """A rank's reply to a call, apart from its payloads: its result, and the content of each inline payload."""

    result: SegmentResult
    inline: list[list[list[Any]]]

    def to_wire(self) -> list[Any]:
        """Convert to plain values."""
        return [self.result.to_wire(), self.inline]

    @classmethod
    def from_wire(cls, values: Sequence[Any]) -> Acknowledgment:
        """Convert from plain values."""
        result, inline = values
        return cls(SegmentResult.from_wire(result), inline)


@dataclass(frozen=True, slots=True)
class InlineResult:
    """The handle of an inline payload: that of the acknowledgment which contains it, and its position there."""

    acknowledgment: Any
    index: int
