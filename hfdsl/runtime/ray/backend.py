"""The Ray backend: processes are worker groups, and payloads travel from worker to worker as object references."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError

from hfdsl.errors import DeadlineError
from hfdsl.plan.payloads import ColumnSlice, Payload
from hfdsl.plan.plan import Plan
from hfdsl.plan.rows import RowTable
from hfdsl.runtime.backend import Submission, do_nothing
from hfdsl.runtime.messages import (
    DIRECT,
    INLINE,
    RAY_ARGUMENT_BYTES,
    SMALL_PAYLOAD_BYTES,
    STORED,
    Acknowledgment,
    InlineResult,
    RankRequest,
    SegmentResult,
    SegmentSpec,
    SendMode,
)
from hfdsl.runtime.rank.in_flight import loads_state, runs_beside
from hfdsl.runtime.rank.store import PayloadContent, bytes_of
from hfdsl.runtime.ray.call_order import ARRIVALS, BESIDE, CallOrder
from hfdsl.runtime.ray.direct_groups import send_direct
from hfdsl.runtime.ray.groups import RayGroups
from hfdsl.runtime.ray.rank_calls import LAUNCH
from hfdsl.runtime.ray.relay import FAILURE_POLL_SECONDS, as_completed
from hfdsl.runtime.ray.relay_client import RemoteHandle
from hfdsl.runtime.transports.serialization import deserialized, payload_class, serialized
from hfdsl.single_controller.waiting import fetch

EVENT_POLL_SECONDS = 0.02
"""How often a wait for calls looks whether something else has happened."""


class RayBackend(RayGroups):
    """Lowers a plan onto worker groups.

    A handle is an ``ObjectRef``, the bytes of a small payload, an ``InlineResult``, or the ``RemoteHandle`` of a relay.
    The driver fetches only what it returns, what resolves a query, and what custom protocols work on.

    Ranks are called one by one, past the group's own ``_submit``: that one makes a message of a role's method and its
    arguments, with an entry per rank. Here each rank has a request of its own, with references of its own that Ray must
    see as arguments to wait for them, and returns several objects.

    Raises:
        HfError: at launch, as ``RayGroups``.
    """

    weights_in_flight: Final = True

    def __init__(self, plan: Plan, seed: int, timeout: float, deadline: float, worker_env: Mapping[str, str]) -> None:
        self._payload_class = payload_class(plan)
        self._order = CallOrder()
        self._pending: dict[
            Any, Sequence[Any]
        ] = {}  # by acknowledgment that has not been looked at, the call's payloads
        self._sends: list[Any] = []  # calls that send to readers, and have not been seen to end
        self._acknowledged: dict[Any, list[Any]] = {}  # those that have arrived, by handle
        self._sent_table: tuple[RowTable, Any] | None = None  # the last one, and its reference in the object store
        super().__init__(plan, seed, timeout, deadline, worker_env)

    # -- a step --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a step and its deadline."""
        self._acknowledged.clear()
        self._begin_deadline()

    def _begin_deadline(self) -> None:
        """Begin a deadline: of a step or, if several are in progress, of the driver's wait."""
        self._calls.begin()
        self._sending.clear()
        if self._calls.relays is not None:
            self._calls.relays.begin()

    def put(self, plan: Plan, content: PayloadContent) -> Any:
        """Store a payload of the driver: in the object store or, if it is small, as bytes that travel with calls."""
        payload = self._payload_class(content)
        if bytes_of(content) <= SMALL_PAYLOAD_BYTES and len(small := serialized(payload)) <= RAY_ARGUMENT_BYTES:
            return small
        return ray.put(payload)

    def run(self, submission: Submission) -> Sequence[tuple[Any, Sequence[Any]]]:
        """Submit a segment; return the handles of each rank's acknowledgment and payloads.

        Ray starts a rank's part when all its arguments exist. It runs the calls of one actor in the order of their
        submission, so what is submitted in program order cannot deadlock: whatever a call waits for was submitted
        before it.
        """
        if self._calls.relays is not None and submission.call.plan in self._relayed_plans:
            relayed = self._calls.relays.run(submission, self._table, self._digests)
            self._calls.submitted(submission, [acknowledgment for acknowledgment, _ in relayed])
            return relayed
        workers = self._groups[submission.segment.group].workers
        handles = [
            self._call_rank(submission, index, workers[rank]) for index, rank in enumerate(submission.segment.ranks)
        ]
        acknowledgments = [acknowledgment for acknowledgment, _ in handles]
        self._calls.submitted(submission, acknowledgments)
        self._pending |= {
            acknowledgment: [payload for payload in payloads if isinstance(payload, ray.ObjectRef)]
            for acknowledgment, payloads in handles
        }
        return handles

    def _call_rank(self, submission: Submission, index: int, worker: Any) -> tuple[Any, Sequence[Any]]:
        """Call one rank of a segment, and then its broadcasts; return the handles of ``run``."""
        process = submission.segment.group, submission.segment.ranks[index]
        modes = [self._send_mode(payload) for payload in submission.sends[index]]
        request, arguments = self._request(submission, index, modes)
        if submission.call.in_flight and all(map(loads_state, submission.segment.steps)):
            # It runs beside the calls of the process, so it has no place in their order, and returns no payloads.
            arrive = worker.arrive.options(concurrency_group=ARRIVALS)
            acknowledgment, objects = arrive.remote(request.to_wire(), *arguments), []
        else:
            acknowledgment, *objects = self._run_in_order(process, worker, request, arguments)
        # Right after the call, so that no other call of this process comes between it and its broadcast.
        if any(payload.broadcast for payload in submission.sends[index]):
            sending = worker.broadcast.remote()
            self._sends.append(sending)
            if self._digests:
                self._sending.append(sending)
        return acknowledgment, self._handles(worker, acknowledgment, objects, modes)

    def _run_in_order(
        self, process: tuple[str, int], worker: Any, request: RankRequest, arguments: Sequence[Any]
    ) -> Sequence[Any]:
        """Have a process run a request after those that it must follow; return the references of its results."""
        beside = runs_beside(request.call)
        # One return value for the acknowledgment, and one for each payload in the object store.
        returns = 1 + len(request.modes) - request.modes.count(DIRECT) - request.modes.count(INLINE)
        run = worker.run.options(num_returns=returns) if returns > 1 else worker.run
        if beside:
            run = worker.run.options(num_returns=returns, concurrency_group=BESIDE)
        results = run.remote(request.to_wire(), *arguments, *self._order.before(process, beside=beside))
        references: Sequence[Any] = results if returns > 1 else (results,)
        if BESIDE in self._threads[process[0]]:
            self._order.submitted(process, references[0], beside=beside)
        return references

    def _request(
        self, submission: Submission, index: int, modes: Sequence[SendMode]
    ) -> tuple[RankRequest, Sequence[Any]]:
        """The request to one rank of a segment, and the arguments for which Ray waits."""
        spec, payloads = submission.specs[index], submission.payloads[index]
        spec_arguments = () if spec is None else (spec.task, self._table(spec))
        dispatched = () if submission.dispatched is None else (submission.dispatched[index],)
        recipes = submission.queued[index] if submission.queued is not None else ()
        queued = (pickle.dumps(recipes),) if recipes else ()  # Ray's own pickler takes several times as long
        request = RankRequest(
            call=submission.call,
            payloads=len(payloads),
            has_spec=spec is not None,
            has_dispatched=bool(dispatched),
            modes=modes,
            has_queued=bool(queued),
            digests=self._digests,
        )
        return request, (*payloads, *spec_arguments, *dispatched, *queued, *submission.after[index])

    def _send_mode(self, payload: Payload) -> SendMode:
        if payload.broadcast:
            return self._direct_groups.ranks(payload.broadcast)
        return DIRECT if payload.direct else INLINE if payload.inline else STORED

    def _handles(
        self, worker: Any, acknowledgment: Any, objects: Sequence[Any], modes: Sequence[SendMode]
    ) -> list[Any]:
        stored, index = iter(objects), count()
        return [
            send_direct(worker)
            if mode == DIRECT
            else InlineResult(acknowledgment, next(index))
            if mode == INLINE
            else next(stored)
            for mode in modes
        ]

    def _table(self, spec: SegmentSpec) -> Any:
        """The row table of a spec, sent once for all ranks and segments."""
        if self._sent_table is None or self._sent_table[0] is not spec.table:
            self._sent_table = spec.table, ray.put(spec.table)
        return self._sent_table[1]

    def done(
        self, acknowledgments: Sequence[Any], wanted: Sequence[Any] = (), meanwhile: Callable[[], None] = do_nothing
    ) -> list[SegmentResult]:
        """Wait until every rank has ended; raise the first failure at once, even while others still run.

        Raises:
            RoleError: HF806 if a body raised or a process died.
            HfError: HF807 if the deadline passed.
        """
        with self._calls.naming_losses():
            replies = self._submit_to_relays([*acknowledgments, *wanted])
            meanwhile()
            acknowledged = self._acknowledged
            refs = [ref for ref in acknowledgments if not isinstance(ref, RemoteHandle) and ref not in acknowledged]
            for ready in as_completed(refs, self._calls.time_left()):
                self._acknowledged |= zip(ready, fetch(ready), strict=True)
                self._calls.acknowledge(ready)
                self._check_sends()
                if not all(ref in self._acknowledged for ref in refs):
                    self._calls.check()
            if self._calls.relays is not None:
                while not self._calls.relays.receive(replies) and self._calls.time_left():
                    self._calls.check()
                    replies = self._submit_to_relays([*acknowledgments, *wanted])
                remote = [handle for handle in acknowledgments if isinstance(handle, RemoteHandle)]
                self._acknowledged |= {handle: handle.value for handle in remote if handle.value is not None}
        arrived = sum(handle in self._acknowledged for handle in acknowledgments)
        self._calls.check_step(len(acknowledgments), arrived, "parts of the step")
        self._drop_acknowledged()
        self._order.ended(self._acknowledged)
        return [Acknowledgment.from_wire(self._acknowledged[handle]).result for handle in acknowledgments]

    def ended(self, awaited: Collection[Any], others: Collection[Any] = ()) -> Sequence[Any]:
        """Wait until one of the ``awaited`` calls has ended; return all ended ones, ``others`` included, each once.

        A failure of others is seen within a second. Errors as for ``done``.
        """
        return self._ended(awaited, others, FAILURE_POLL_SECONDS, lambda: False)

    def ended_or(
        self, awaited: Collection[Any], others: Collection[Any], happened: Callable[[], bool]
    ) -> Sequence[Any]:
        """As ``ended``, but return as well, perhaps without a call, soon after something else has ``happened``."""
        return self._ended(awaited, others, EVENT_POLL_SECONDS, happened)

    def _ended(
        self, awaited: Collection[Any], others: Collection[Any], poll_seconds: float, happened: Callable[[], bool]
    ) -> Sequence[Any]:
        running, ended = dict.fromkeys((*awaited, *others)), list[Any]()
        with self._calls.naming_losses():
            self._begin_deadline()
            while not (any(call in awaited for call in ended) or happened()):
                self._check_sends()
                ready, _ = ray.wait(list(running), num_returns=len(running), timeout=0, fetch_local=False)
                if not any(call in awaited for call in ready):
                    seconds_left = self._calls.time_left()
                    ready += ray.wait(list(awaited), timeout=min(seconds_left, poll_seconds), fetch_local=False)[0]
                    if not ready:
                        self._calls.check()
                        if not seconds_left:
                            self._calls.check_step(len(awaited), 0, "parts of steps in progress")
                        continue
                self._acknowledged |= zip(ready, fetch(ready), strict=True)
                self._calls.acknowledge(ready)
                ended += ready
                for call in ready:
                    del running[call]
                self._begin_deadline()
        self._drop_acknowledged()
        self._order.ended(ended)
        return ended

    def drop(self, calls: Sequence[Any]) -> None:
        """Drop calls whose results are not read again."""
        for call in calls:
            self._acknowledged.pop(call, None)

    def _submit_to_relays(self, wanted: Sequence[Any]) -> dict[Any, list[RemoteHandle]]:
        """Have relays submit collected calls, and wait for values: in rounds, if calls have deadlines."""
        if self._calls.relays is None:
            return {}
        seconds = self._calls.time_left()
        in_rounds = any(self._calls.declares_deadlines(plan) for plan in self._relayed_plans)
        return self._calls.relays.submit(wanted, min(seconds, FAILURE_POLL_SECONDS) if in_rounds else seconds)

    def get(self, handles: Sequence[Any]) -> list[Any]:
        """Fetch the payloads into this process.

        Raises:
            RoleError: HF806 if the body that makes one raised.
            HfError: HF807 if the deadline passed.
        """
        sources = [
            handle.acknowledgment if isinstance(handle, InlineResult) else handle
            for handle in handles
            if not isinstance(handle, bytes)
        ]
        missing = [source for source in dict.fromkeys(sources) if source not in self._acknowledged]
        while True:
            try:
                with self._calls.naming_losses():
                    values = self._acknowledged | dict(zip(missing, self._fetched(missing), strict=True))
                return [_content(handle, values) for handle in handles]
            except GetTimeoutError:
                with self._calls.naming_losses():
                    self._check_sends()
                self._calls.check()
                if not self._calls.time_left():
                    late = f"a value did not arrive within {self._calls.seconds:g} s; {LAUNCH} sets this"
                    raise DeadlineError("HF807", late + self._calls.late_ranks()) from None
            # The rank that makes a value may wait for one that has failed: look at what has ended.
            if self._pending:
                with self._calls.naming_losses():
                    ended, _ = ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
                    fetch(ended)
                for acknowledgment in ended:
                    del self._pending[acknowledgment]

    def _fetched(self, handles: Sequence[Any]) -> list[Any]:
        """Fetch acknowledgments and payloads within the interval at which ``get`` checks for failures."""
        local = self._calls.relays.get(handles) if self._calls.relays is not None else handles
        refs = [value for value in local if isinstance(value, ray.ObjectRef)]
        fetched = dict(zip(refs, fetch(refs, min(self._calls.time_left(), FAILURE_POLL_SECONDS)), strict=True))
        return [deserialized(fetched[value] if isinstance(value, ray.ObjectRef) else value) for value in local]

    def _check_sends(self) -> None:
        """Raise the failure of a call that sends: its readers would wait, and be late."""
        if self._sends:
            ended, self._sends = ray.wait(self._sends, num_returns=len(self._sends), timeout=0, fetch_local=False)
            fetch(ended)

    def _drop_acknowledged(self) -> None:
        for acknowledgment in self._pending.keys() & self._acknowledged.keys():
            del self._pending[acknowledgment]

    def close(self) -> None:
        """End the processes, and release what they use."""
        self._ignore_failures()
        super().close()

    def _ignore_failures(self) -> None:
        """Have Ray print no failure of a pending call as unhandled: one failure ends a run or a step for all calls."""
        if ray.is_initialized():
            for acknowledgment, payloads in self._pending.items():
                acknowledgment.future().add_done_callback(partial(_handle_failure, payloads))
            for sending in self._sends:
                sending.future()

    def _forget_calls(self) -> None:
        self._ignore_failures()
        self._order.clear()
        self._pending.clear()
        self._sends.clear()
        self._acknowledged.clear()
        self._sent_table = None

    def references(self) -> Iterator[Any]:
        """The references held between steps: to the last step's acknowledgments and to its row table."""
        replies = (*self._pending, *self._sends, *self._acknowledged, *self._order)
        yield from (ref for ref in replies if isinstance(ref, ray.ObjectRef))
        yield from self._calls.references()
        if self._sent_table is not None:
            yield self._sent_table[1]
        if self._calls.relays is not None:
            yield from self._calls.relays.references()


def _handle_failure(payloads: Sequence[Any], ended: Future[Any]) -> None:
    """Look at the payloads of a call that has failed: they have its error."""
    if ended.exception() is not None:
        for payload in payloads:
            payload.future()


def _content(handle: Any, values: Mapping[Any, Any]) -> Any:
    """The payload of a handle, from acknowledgments and payloads by handle."""
    if isinstance(handle, InlineResult):
        _, inline = values[handle.acknowledgment]
        return {ColumnSlice(node, chunk, column, None): value for node, chunk, column, value in inline[handle.index]}
    return deserialized(handle) if isinstance(handle, bytes) else values[handle]
