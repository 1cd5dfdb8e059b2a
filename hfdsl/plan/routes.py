"""Routes: for known rows, which payloads each call sends and receives, and which steps are one call.

An example, which ``tests/plan/test_worked_example.py`` checks. ``actor`` has two ranks on one host, ``judge`` one rank
on another; a step has four rows::

    rollout = actor.generate(prompts)
    old = actor.log_probs(rollout.ids)
    scores = judge.score(rollout.ids)
    advantages = centered(scores)                  # a function: it runs where its input is, in the judge's process
    return actor.update(rollout, old, advantages)

Each line is a call of one process. It receives payloads, keeps what its process reads again, sends payloads when it
ends, and drops values after their last reader in its process::

    call                         receives  keeps    sends                drops
    caller                                          P0 = prompt[0:4]
    generate on actor 0          P0        rollout  P1 = ids[0:2]        prompts
    generate on actor 1          P0        rollout  P2 = ids[0:2]        prompts
    log_probs on actor 0                   old
    log_probs on actor 1                   old
    score + centered on judge 0  P1 P2     scores   P3 = advantage[0:4]  rollout, scores
    update on actor 0            P3                 P4 = loss            rollout, old, advantages
    update on actor 1            P3                 P5 = loss            rollout, old, advantages
    driver                       P4 P5

- P0 goes to the actor's host once, and both ranks read their two rows of it there. So does P3.
- Rows 0 and 1 of ``rollout`` are its chunk 0, made by rank 0; rows 2 and 3 are chunk 1. A payload counts rows within
  their chunk, so P1 and P2 both have ``ids[0:2]``.
- The mask never leaves: only ``update`` reads it, in the process that made it. Nor does ``old``.
- ``scores`` never leave either: ``score`` and ``centered`` are one call, as ``hfdsl.plan.segments`` argues.
- The judge drops its copy of the ids, P1 and P2, after ``score``. The actor's ranks keep the rollout until
  ``update``, its last reader there.
- P4 and P5 are metrics, which only the driver reads: they are ``inline``, in the replies of the calls.

Why this is right:

- Complete. A value that a step reads is either made in its own process, which keeps it, or is added to ``RemoteReads``.
  The payloads of a chunk hold the union of these, and a process receives every payload with some of the rows it reads.
- Once. ``RemoteReads.slices`` yields disjoint rows, so each row of a column leaves its process once per channel. A
  process receives a payload with the first step that reads it, and later steps find it in the store.
- In time. A value that a step reads is made by an earlier step, in program order, and segments keep that order.
- Not dropped early. The steps of a process run in program order, so a value can go after the last step that reads it
  there. A value that a step may read whose rows still depend on a query is kept.
- Stable. Routes are computed again after each runtime query, while segments of the earlier routes are running. Their
  payloads do not change: columns whose readers depend on a query leave whole, in all of these routes alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hfdsl.plan.channels import RoutingContext
from hfdsl.plan.deliveries import DeliveryPlan, pack_payloads
from hfdsl.plan.payloads import (
    CALLER,
    DRIVER_PROCESS,
    DRIVER_RANK,
    Payload,
    PayloadKey,
    Topology,
    planned_topology,
)
from hfdsl.plan.plan import Plan
from hfdsl.plan.rows import RowTable, most_rows, row_table
from hfdsl.plan.segments import Segment, Task, segments


@dataclass(frozen=True, slots=True)
class Routes:
    """Who sends what to whom, for one set of sizes.

    ``tasks[segment][rank]`` is what a rank does, ``receives[segment][rank]`` what it receives before. A segment whose
    protocol is a pair of functions has its arguments sent to the driver instead. ``driver_sends[segment]`` are the
    payloads that the driver makes once the segment has ended: of the caller's inputs, and of what such functions
    collect. ``query_payloads[query]`` and ``result`` are what the driver receives to resolve a query, and to return.
    ``early_queries`` are to be resolved before the first call, from the caller's inputs alone. ``pending_payloads`` may
    get more readers once further queries are resolved.
    """

    table: RowTable
    segments: tuple[Segment, ...]
    tasks: Mapping[int, Mapping[int, Task]]
    receives: Mapping[int, Mapping[int, tuple[PayloadKey, ...]]]
    driver_sends: Mapping[int, tuple[Payload, ...]]
    query_payloads: Mapping[int, tuple[PayloadKey, ...]]
    early_queries: tuple[int, ...]
    result: tuple[PayloadKey, ...]
    pending_payloads: frozenset[PayloadKey]


@dataclass(frozen=True, slots=True)
class Hints:
    """Facts known only at run time: the steps measured as short, and the inputs that are small.

    ``short_steps`` take less time than a call. ``inline_inputs`` are values of the driver's that are cut for every
    process separately, since what each process reads travels with its call.
    """

    short_steps: frozenset[int] = frozenset()
    inline_inputs: frozenset[int] = frozenset()


def compute_routes(plan: Plan, table: RowTable, topology: Topology, hints: Hints = Hints()) -> Routes:
    """Who sends what to whom, for one set of sizes.

    A step that waits for an unresolved runtime query, a filter or the weights that balance its rows, is left out. A
    value that it reads leaves its process whole, since the readers of each row are not known yet.
    """
    context = RoutingContext.of(plan, table, topology, hints.inline_inputs)
    received = {
        step: frozenset(
            read.node for process, reads in by_process.items() for read in reads if not context.in_place(process, read)
        )
        for step, by_process in context.reads.items()
    }
    in_order = segments(plan, context.dependencies, received, hints.short_steps)
    segment_of = {step.node: segment.number for segment in in_order for step in segment.steps}
    outgoing = pack_payloads(context, segment_of | {node.id: CALLER for node in plan.graph.inputs})
    deliveries = DeliveryPlan(context, outgoing)
    receives: dict[int, dict[int, tuple[PayloadKey, ...]]] = {segment.number: {} for segment in in_order}
    for step in context.ready:
        by_rank = receives[segment_of[step.node]]
        for process, reads in context.reads[step.node].items():
            rank = DRIVER_RANK if step.custom else process[1]
            by_rank[rank] = (*by_rank.get(rank, ()), *deliveries.receive(process, step.node, reads))
    from_driver = {segment.number for segment in in_order if segment.custom} | {CALLER}
    return Routes(
        table=table,
        segments=in_order,
        tasks={segment.number: deliveries.tasks(segment) for segment in in_order},
        receives=receives,
        driver_sends={number: outgoing.of(number, DRIVER_PROCESS) for number in from_driver},
        query_payloads={query: deliveries.keys(DRIVER_PROCESS, reads) for query, reads in context.query_reads.items()},
        early_queries=tuple(
            query for query in context.query_reads if query in context.dependencies.early_queries - table.resolved
        ),
        result=deliveries.keys(DRIVER_PROCESS, context.result),
        pending_payloads=frozenset(
            payload.key
            for payload in outgoing.all_payloads
            if any(part.node in context.pending_values for part in payload.slices)
        ),
    )


@dataclass(frozen=True, slots=True)
class Phase:
    """Routes, the segments that are submitted with them, and the query that the driver resolves then, if there is one.

    The phases of a step are its segments in the order of submission; the result of each query decides those after it.
    """

    routes: Routes
    segments: tuple[Segment, ...]
    query: int | None


def phases(
    plan: Plan,
    sizes: Mapping[Any, int],
    topology: Topology | None = None,
    query_results: Mapping[int, tuple[int, ...]] | None = None,
    hints: Hints | None = None,
) -> Iterator[Phase]:
    """The phases of a step, for sizes that give every value its number of rows.

    ``actor.imitate(hf.filter(rollout, judge.accept(rollout.ids).keep))`` has two phases. The first submits ``generate``
    and ``accept``, and its query is the filter: the driver reads the judge's column. Routes are then computed again,
    with the rows that are kept, and the second phase submits ``imitate``.

    ``topology`` says where processes are, by default as the pools have it. ``query_results`` are the rows that filters
    keep, by default all, and row weights, by default equal. ``hints`` are what a run has measured.
    """
    results = most_rows(plan, sizes) if query_results is None else query_results
    resolved: dict[int, tuple[int, ...]] = {}
    submitted: set[int] = set()
    while True:
        current = compute_routes(
            plan, row_table(plan, sizes, resolved), topology or planned_topology(plan), hints or Hints()
        )
        if current.early_queries:
            resolved |= {query: results[query] for query in current.early_queries}
            continue
        new = tuple(segment for segment in current.segments if segment.number not in submitted)
        submitted |= {segment.number for segment in new}
        query = next((query for query in current.query_payloads if query not in resolved), None)
        yield Phase(routes=current, segments=new, query=query)
        if query is None:
            return
        resolved[query] = results[query]
