"""One step of a launched plan: the driver submits each segment once its inputs are submitted, and reads little.

A worked example. Two actor ranks, two critic ranks and four rows; the critic decides on which rows the actor trains::

    rollout = actor.generate(prompts)
    return actor.update(hf.filter(rollout, critic.accept(rollout)))

Generate, accept and update are segments of their own, and have the numbers of their nodes: 1, 2 and 4. A payload has
the key (segment, rank, position): the first payload that rank 1 sends from segment 2 is (2, 1, 0). Those of the caller,
which the driver sends, have -1 as segment and rank. The prompts are 1, -3, 2, 4; generate adds 1, accept wants positive
numbers, and update multiplies by 10. The driver calls its backend::

    put (-1, -1, 0)                              prompts, rows 0:2
    put (-1, -1, 1)                              prompts, rows 2:4
    run 1 on rank 0 of actor with (-1, -1, 0)    returns 2 -2, and sends them as (1, 0, 0)
    run 1 on rank 1 of actor with (-1, -1, 1)    returns 3 5, and sends them as (1, 1, 0)
    run 2 on rank 0 of critic with (1, 0, 0)     returns True False
    run 2 on rank 1 of critic with (1, 1, 0)     returns True True
    get (2, 0, 0), (2, 1, 0)                     the filter keeps the rows 0, 2, 3: new routes for what follows
    run 4 on rank 0 of actor with (1, 1, 0)      reads rows 0 and 2: row 0 is its own, row 2 comes from its peer
    run 4 on rank 1 of actor with (1, 0, 0)      reads row 3, which is its own, and row 0 again as padding
    get (4, 0, 0), (4, 1, 0)                     the result: 20 30 and 50

Until the filter has run, the readers of each row of the rollout are unknown. So (1, 0, 0) and (1, 1, 0) leave their
process whole, and the driver keeps their handles (``Routes.pending_payloads``); after it these have one reader each.

Why it is right. *No deadlock*: the driver waits for a query, for what its own segments and custom protocols read, and
at the end (without ``Optimize.overlap`` also after each segment). All that it waits for depends only on calls that it
has submitted before: what a call receives is sent by segments before it in program order, and processes run their calls
in the order of submission, so the earliest call that has not ended can always run.
*Once*: a segment is submitted when it first appears in the routes, and never again (``_submitted``); new routes change
only what has not been submitted, since the old ones leave out whatever a filter decides. *Handles are dropped after the
last reader*: every submission is counted (``HandleTable``), and after new routes the reads to come are counted again.
The backend keeps a payload for the calls that it was submitted with, so the driver need not wait for them. *A step is a
transaction*: an error leaves ``run`` before the step is counted, and breaks the run, since ranks may be anywhere within
the step. *Stages*: where a program has queues, the segments of one stage may be submitted long after those of another,
and those of other steps between them. The inputs of a segment are still submitted before it, since a stage is submitted
after those that feed it; handles are counted by step, so a payload waits in its queue until its reader is submitted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hfdsl.plan.payloads import CALLER, DRIVER_RANK, ColumnSlice, Payload, PayloadKey, Process
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.plan.routes import Routes
from hfdsl.plan.rows import RowTable
from hfdsl.plan.segments import Segment
from hfdsl.runtime.backend import Backend, do_nothing
from hfdsl.runtime.custom_protocol import GroupView, collected, dispatched
from hfdsl.runtime.driver_reads import DriverReads
from hfdsl.runtime.future_reads import future_readers, unsubmitted_reads
from hfdsl.runtime.handles import HandleTable
from hfdsl.runtime.messages import SegmentCall, SegmentResult, WeightsInFlight
from hfdsl.runtime.queues.files import SavedStep
from hfdsl.runtime.queues.rows import QueueRead
from hfdsl.runtime.rank.body_results import check_same_presence
from hfdsl.runtime.rank.store import OF_CALLER, bytes_of
from hfdsl.runtime.recovery.called_rows import CalledRows
from hfdsl.runtime.recovery.ended_calls import Replies, StepReplies
from hfdsl.runtime.step_routing import Routing, StepRouting
from hfdsl.runtime.submissions import submission_of
from hfdsl.runtime.timeline import RESULT, StepLog, StepRecord
from hfdsl.types.batches import Batch


class StepRun:
    """A step in progress: the handles of payloads still to be read, and of submitted calls.

    ``run`` does all of it. Where a program has queues, several steps are in progress: each is begun, its stages are
    submitted when their queues allow it, and the result and the record are fetched when they are wanted.
    """

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        routing: Routing,
        step_number: int,
        sizes: Mapping[Any, int],
        replies: StepReplies,
    ) -> None:
        self._plan, self._backend, self._step_number = plan, backend, step_number
        self.replies = replies
        self.prompts: Callable[[], Mapping[int, Sequence[int]]] = dict
        """By input, the prompts of its rows, if a stage orders them itself."""
        self._driver = backend.driver
        self._handles = HandleTable(drop=plan.optimize.liveness)
        self._reads = DriverReads(plan, backend, self._handles)
        self._acknowledgments: dict[tuple[int, int], Any] = {}  # by segment and rank, in the order of submission
        self._stages: set[int] = set()  # whose segments may be submitted
        self._stage_steps: list[tuple[int, ...]] = []  # of every stage when each was submitted; see ``SegmentCall``
        self._row_versions: Sequence[tuple[int, int, int]] = ()
        self._in_flight: Sequence[WeightsInFlight] = ()
        self._submitted: set[int] = set()
        self._deferred: list[Segment] = []  # of the driver: submitted, and not run before its results are read
        self._delivered: frozenset[int] = frozenset()  # segments whose payloads were loaded into stores with a queue
        self._log = StepLog()
        self._routing = StepRouting(plan, backend, routing, sizes, self._log)
        self._expect_reads()

    @property
    def routes(self) -> Routes:
        """The transfers of the step, as far as known."""
        return self._routing.routes

    @property
    def table(self) -> RowTable:
        """The number of rows of every value, as far as known."""
        return self.routes.table

    def run(self, inputs: Mapping[int, Batch], meanwhile: Callable[[], None]) -> tuple[Any, StepRecord]:
        """The dataflow's result, and the step's record; calls ``meanwhile`` when only waiting is left."""
        self.begin(inputs)
        for stage in range(self._plan.split.count):
            self.submit(stage)
        wanted = self._reads.missing(self.routes.result)
        results = self._wait(self._acknowledgments.values(), wanted, meanwhile)
        check_same_presence(self._plan, results)
        value = self._result()
        return value, self._record(results)

    def begin(
        self,
        inputs: Mapping[int, Batch],
        queue: Callable[[tuple[ColumnSlice, ...]], QueueRead] | None = None,
        *,
        held: bool = False,
    ) -> None:
        """Send the caller's inputs, except those from a ``queue``, which are read in place.

        The driver keeps those of a ``held`` step for a file, whatever else it does before the step continues.
        """
        self._begin_deadline()
        self._driver.begin(self._plan.name, self._step_number, held=held)
        for node, batch in inputs.items():
            self._driver.put_local(node, OF_CALLER, batch)
        while self.routes.early_queries:
            self._resolve(self.routes.early_queries[0])
        if queue is None:
            self._send_from_driver(CALLER)
            return
        for payload in self.routes.driver_sends[CALLER]:
            self._handles[payload.key] = queue(payload.slices)

    def submit(
        self,
        stage: int,
        stage_steps: Sequence[int] = (),
        row_versions: Sequence[tuple[int, int, int]] = (),
        *,
        wait: bool = True,
        in_flight: Sequence[WeightsInFlight] = (),
    ) -> None:
        """Submit the segments of a stage, once the stages that it reads from have been submitted.

        ``stage_steps`` are the steps of each stage that were submitted before, of which versions are counted;
        ``row_versions`` and ``in_flight`` are as in ``SegmentCall``.
        If it is to ``wait``, it waits for the runtime queries of earlier stages, and in the last stage for those of
        all stages.
        """
        if not self._driver.stores.is_in(self._plan.name, self._step_number):
            self._enter()
        self._stages.add(stage)
        self._row_versions, self._in_flight = row_versions, in_flight
        if stage_steps:
            self._stage_steps = self._stage_steps or [() for _ in stage_steps]
            self._stage_steps[stage] = tuple(stage_steps)
        last = len(self._stages) == self._plan.split.count
        self._submit_ready()
        stage_of = self._plan.split.of
        while unresolved := [query for query in self._routing.open_queries if last or stage_of[query] < stage]:
            if not wait:
                return
            self._resolve(unresolved[0])
            self._submit_ready()

    def submit_queried(self) -> None:
        """Wait for the runtime queries of the submitted stages, and submit the segments that wait for them."""
        self._enter()
        self._submit_ready()  # a save may have read what a filter keeps
        while ready_queries := self._ready_queries():
            self._resolve(ready_queries[0])
            self._submit_ready()

    def result(self) -> Any:
        """The dataflow's result, as soon as it exists; the rest of the step may continue."""
        self._enter()
        return self._result()

    def record(self, *, wait: bool = True) -> StepRecord:
        """The step's record, once all of it has ended; without ``wait`` it has ended already."""
        if wait:
            self._enter()
        results = self._wait(self._acknowledgments.values())
        check_same_presence(self._plan, results)
        return self._record(results)

    def pending(self) -> dict[Process, list[Any]]:
        """The handles of payloads still to be received, by group and rank, and of those that the driver reads.

        The caller's inputs are left out, since a run that continues with this step sends them again. It waits for the
        runtime queries of the submitted stages, which determine who receives what.
        """
        self._enter()
        while ready_queries := self._ready_queries():
            self._resolve(ready_queries[0])
        return {
            process: [self._handles[key] for key in keys if key in self._handles and key[0] != CALLER]
            for process, keys in future_readers(self._plan, self.routes, self._submitted).items()
        }

    def saved(self, number: int) -> SavedStep:
        """The data, beside its values, that a run needs to continue with this step."""
        return SavedStep(
            number=number,
            stages=tuple(sorted(self._stages)),
            submitted=tuple(sorted(self._submitted)),
            short_steps=tuple(sorted(self._routing.current.hints.short_steps)),
            queries=dict(self._routing.query_results),
            stage_steps=tuple(self._stage_steps),
        )

    def resume(self, saved: SavedStep) -> None:
        """After ``begin``, continue a step of an earlier run, whose values are in the stores of their readers."""
        self._stages, self._stage_steps = set(saved.stages), list(saved.stage_steps)
        if saved.queries:
            self._routing.follow(saved.queries)
        self._delivered, self._submitted = frozenset(saved.submitted), set(saved.submitted)
        self._skip_delivered()
        self._expect_reads()

    def _begin_deadline(self) -> None:
        self._backend.begin()

    def _enter(self) -> None:
        """Return to this step after another one."""
        if self._plan.steps_in_flight:
            self._backend.begin()
            self._driver.begin(self._plan.name, self._step_number)

    def _result(self) -> Any:
        with self._log.timed(RESULT):
            reader = self._reads.reader(self.routes.result, self.routes.table)
            value = self._reads.result(self._plan.graph.output, reader)
        self._driver.store.clear()
        return value

    def _record(self, results: Sequence[SegmentResult]) -> StepRecord:
        return StepRecord(
            plan=self._plan,
            step_number=self._step_number,
            stop=time.time(),
            log=self._log,
            routes=self.routes,
            calls=tuple(self._acknowledgments),
            results=tuple(results),
        )

    # -- segments ------------------------------------------------------------------------------------------------------

    def _submit_ready(self) -> None:
        """Submit every segment whose rows are known, in program order."""
        with self._log.timed("submits"):
            for segment in self.routes.segments:
                if segment.number not in self._submitted and self._plan.split.of[segment.number] in self._stages:
                    self._submit(segment)
            self._run_deferred()

    def _submit(self, segment: Segment) -> None:
        """Submit a segment; one of the driver's own runs only when its results are read."""
        self._submitted.add(segment.number)
        self._log.routes[segment.number] = self.routes
        if segment.group == DRIVER:
            self._deferred.append(segment)
            return
        receives = self.routes.receives[segment.number]
        deferred = {deferred_segment.number for deferred_segment in self._deferred}
        if segment.custom or any(key[0] in deferred for keys in receives.values() for key in keys):
            self._run_deferred()
        if segment.custom:
            self._submit_custom(segment)
        else:
            self._submit_to_ranks(segment)
        if not self._plan.optimize.overlap:
            self._wait([self._acknowledgments[segment.number, rank] for rank in segment.ranks])
        self._consume(receives)

    def _run_deferred(self) -> None:
        """Run the driver's own segments."""
        deferred, self._deferred = self._deferred, []
        for segment in deferred:
            receives = self.routes.receives[segment.number]
            contents = self._reads.fetch(receives.get(0, ()))
            (spec,) = self._routing.current.specs(segment)
            result, sends = self._driver.run(self._call(segment), spec, contents)
            self._acknowledgments[segment.number, DRIVER_RANK] = result
            for payload, content in zip(self.routes.tasks[segment.number][0].sends, sends, strict=True):
                self._handles[payload.key] = self._backend.put(self._plan, content)
            self._consume(receives)

    def _submit_to_ranks(self, segment: Segment) -> None:
        """Submit a segment of worker processes."""
        tasks = self.routes.tasks[segment.number]
        sends = [tasks[rank].sends for rank in segment.ranks]
        for payloads, handles in zip(sends, self._run(segment, sends), strict=True):
            for payload, handle in zip(payloads, handles, strict=True):
                self._handles[payload.key] = handle

    def _submit_custom(self, segment: Segment) -> None:
        """Run a step with a custom protocol: its functions get whole values, in the driver."""
        (step,) = segment.steps
        group = GroupView(self._plan.mesh(step.role or ""))
        keys = self.routes.receives[segment.number].get(DRIVER_RANK, ())
        arguments = dispatched(step, group, self._reads.reader(keys, self.routes.table))
        # Every rank sends its result to the driver as it is, so its payload names no columns.
        sends = [(Payload((segment.number, rank, 0), ()),) for rank in segment.ranks]
        outputs = self._reads.get([handle for (handle,) in self._run(segment, sends, arguments)])
        value = collected(self._plan, step, group, outputs, self.routes.table)
        self._driver.put_local(step.node, step.label, value)
        self._send_from_driver(segment.number)

    def _run(
        self,
        segment: Segment,
        sends: Sequence[Sequence[Payload]],
        arguments: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Sequence[Any]]:
        """Submit a segment; return the handles of each rank's payloads."""

        def run() -> Replies:
            submission = submission_of(
                self._call(segment),
                segment,
                self._routing.current,
                handles=self._handles,
                acknowledgments=self._acknowledgments,
                delivered=self._delivered,
                sends=sends,
                arguments=arguments,
                rows=CalledRows(self._plan, segment, self.table, self.prompts),
            )
            return self._backend.run(submission)

        handles = []
        for rank, (acknowledgment, sent) in zip(segment.ranks, self.replies.of(segment, run), strict=True):
            self._acknowledgments[segment.number, rank] = acknowledgment
            handles.append(sent)
        return handles

    def _call(self, segment: Segment) -> SegmentCall:
        nodes = {step.node for step in segment.steps}
        return SegmentCall(
            plan=self._plan.name,
            routing=self._routing.current.id,
            segment=segment.number,
            step=self._step_number,
            stage_steps=tuple(self._stage_steps),
            row_versions=self._row_versions,
            in_flight=[weights for weights in self._in_flight if weights.node in nodes],
        )

    def _wait(
        self, acknowledgments: Iterable[Any], wanted: Sequence[Any] = (), meanwhile: Callable[[], None] = do_nothing
    ) -> list[SegmentResult]:
        """The results of segments, once they have ended; the driver's own segments have results, not handles."""
        acknowledgments = list(acknowledgments)
        with self._log.timed("waits for processes", "wait"):
            remote = [handle for handle in acknowledgments if not isinstance(handle, SegmentResult)]
            results = iter(self._backend.done(remote, wanted, meanwhile))
        return [handle if isinstance(handle, SegmentResult) else next(results) for handle in acknowledgments]

    # -- payloads ------------------------------------------------------------------------------------------------------

    def _send_from_driver(self, segment: int) -> None:
        """Send the driver's payloads of a segment: from the caller's inputs, or from a collect function's result."""
        activity = "puts what it was given" if segment == CALLER else "puts what it collected"
        with self._log.timed(activity):
            for payload in self.routes.driver_sends[segment]:
                content = self._driver.store.extract(payload)
                self._handles[payload.key] = self._backend.put(self._plan, content)
                self._log.sent.append((payload, time.time(), bytes_of(content)))

    def _expect_reads(self) -> None:
        reads = unsubmitted_reads(self.routes, self._submitted, self._routing.query_results)
        self._handles.expect(reads, keep=self.routes.pending_payloads)

    def _consume(self, receives: Mapping[int, Sequence[PayloadKey]]) -> None:
        self._handles.consume([key for keys in receives.values() for key in keys])

    def _ready_queries(self) -> list[int]:
        """The runtime queries of the submitted stages that have no result, and whose values submitted calls make."""
        stage_of = self._plan.split.of
        return [
            query
            for query in self._routing.open_queries
            if stage_of[query] in self._stages
            and all(key[0] in {CALLER, *self._submitted} for key in self.routes.query_payloads[query])
        ]

    def _resolve(self, query: int) -> None:
        """Read the rows that a filter keeps, or row weights, and continue with the resulting routes."""
        self._routing.resolve(query, self._reads)
        self._skip_delivered()
        self._expect_reads()

    def _skip_delivered(self) -> None:
        """Have the driver receive nothing that was loaded into its store."""
        if self._delivered:
            received = (keys for by_rank in self.routes.receives.values() for keys in by_rank.values())
            payloads = (*received, *self.routes.query_payloads.values(), self.routes.result)
            self._reads.skip(key for keys in payloads for key in keys if key[0] in self._delivered)
