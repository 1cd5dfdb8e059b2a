"""The reads of a step that are still to come: by calls that have not been submitted, by queries, and by the result.

A worked example, with the program and the keys of ``hfdsl.runtime.step``. Before the filter has run, generate has been
submitted, and accept is about to be::

    unsubmitted_reads    (1, 0, 0) and (1, 1, 0), by accept, and (2, 0, 0) and (2, 1, 0), by the filter's query
    possible_reads       (1, 0, 0) and (1, 1, 0), each by both ranks of update: the query decides which rows they read
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from hfdsl.graph.columns import columns_read
from hfdsl.plan.payloads import DRIVER_PROCESS, DRIVER_RANK, PayloadKey, Process
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.plan.routes import Routes


def unsubmitted_reads(routes: Routes, submitted: Collection[int], resolved: Collection[int]) -> Iterator[PayloadKey]:
    """All reads that the routes know of, except by ``submitted`` segments and ``resolved`` queries."""
    for segment, by_rank in routes.receives.items():
        for keys in by_rank.values() if segment not in submitted else ():
            yield from keys
    for query, keys in routes.query_payloads.items():
        yield from keys if query not in resolved else ()
    yield from routes.result


def future_readers(plan: Plan, routes: Routes, submitted: Collection[int]) -> dict[Process, dict[PayloadKey, None]]:
    """The payloads that each process will read, or may read, in the order of these reads."""
    keys: dict[Process, dict[PayloadKey, None]] = {}
    for segment in routes.segments:
        for rank, received in routes.receives[segment.number].items() if segment.number not in submitted else ():
            by_driver = segment.group == DRIVER or rank == DRIVER_RANK
            process = DRIVER_PROCESS if by_driver else (segment.group, rank)
            keys.setdefault(process, {}).update(dict.fromkeys(received))
    for process, key in possible_reads(plan, routes):
        keys.setdefault(process, {})[key] = None
    driver_keys = [key for payloads in (routes.result, *routes.query_payloads.values()) for key in payloads]
    keys.setdefault(DRIVER_PROCESS, {}).update(dict.fromkeys(driver_keys))
    return keys


def possible_reads(plan: Plan, routes: Routes) -> Iterator[tuple[Process, PayloadKey]]:
    """The payloads that calls may read once queries of later stages have results, by the processes of these calls.

    Which rows a rank will read is not known yet, so every rank of such a call gets all of them.
    """
    routed = {step.node for segment in routes.segments for step in segment.steps}
    sent = [payload for tasks in routes.tasks.values() for task in tasks.values() for payload in task.sends]
    sent += [payload for payloads in routes.driver_sends.values() for payload in payloads]
    pending = [payload for payload in sent if payload.key in routes.pending_payloads]
    for step in plan.steps:
        if step.node in routed:
            continue
        read = set(columns_read(plan.graph, step.node))
        by_driver = step.group == DRIVER or step.custom is not None
        processes = [DRIVER_PROCESS] if by_driver else [(step.group, rank) for rank in step.ranks]
        for payload in pending:
            if any((part.node, part.column) in read for part in payload.slices):
                yield from ((process, payload.key) for process in processes)
