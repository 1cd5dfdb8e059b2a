"""Submissions: everything that a backend needs to run a segment, such as handles and the calls to wait for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hfdsl.plan.payloads import Payload
from hfdsl.plan.segments import Segment
from hfdsl.runtime.backend import Submission
from hfdsl.runtime.handles import HandleTable
from hfdsl.runtime.messages import SegmentCall
from hfdsl.runtime.queues.rows import QueueRead
from hfdsl.runtime.rank.in_flight import runs_beside
from hfdsl.runtime.recovery.called_rows import CalledRows
from hfdsl.runtime.step_routing import Routing


def submission_of(
    call: SegmentCall,
    segment: Segment,
    routing: Routing,
    *,
    handles: HandleTable,
    acknowledgments: Mapping[tuple[int, int], Any],
    delivered: Collection[int],
    sends: Sequence[Sequence[Payload]],
    arguments: Sequence[Mapping[str, Any]] | None,
    rows: CalledRows,
) -> Submission:
    """The submission of a segment, once all of its inputs have handles.

    The payloads of ``delivered`` segments have already reached their readers. ``arguments`` come from a dispatch
    function.
    """
    receives = routing.routes.receives[segment.number]
    payloads = [[handles[key] for key in receives.get(rank, ()) if key[0] not in delivered] for rank in segment.ranks]
    reads = [[handle for handle in received if isinstance(handle, QueueRead)] for received in payloads]
    return Submission(
        call=call,
        segment=segment,
        specs=routing.specs(segment, beside=runs_beside(call)),
        payloads=[
            [
                *(handle for handle in received if not isinstance(handle, QueueRead)),
                *(handle for read in from_queue for handle in read.handles),
            ]
            for received, from_queue in zip(payloads, reads, strict=True)
        ],
        queued=[[rows for read in from_queue for rows in read.rows] for from_queue in reads] if any(reads) else None,
        sends=sends,
        after=[
            [acknowledgments[before]] if before is not None and before[0] not in delivered else []
            for before in segment.after
        ],
        dispatched=arguments,
        rows=rows,
    )
