"""The Ray backend: processes are worker groups, and payloads travel from worker to worker as object references."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import WeakSet

import ray
from ray.exceptions import GetTimeoutError

from hfdsl.deploy.deployment import ProcessGroup, processes_per_slot
from hfdsl.deploy.pools import ResourcePool
from hfdsl.errors import DeadlineError, HfError, RoleError
from hfdsl.plan.payloads import ColumnSlice, Payload, Process, Topology
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.plan.rows import RowTable
from hfdsl.protocols.worker import RankContext
from hfdsl.runtime.backend import Submission, do_nothing, files_by_role
from hfdsl.runtime.cluster import connect
from hfdsl.runtime.direct_groups import DirectGroups, send_direct
from hfdsl.runtime.executor import Executor
from hfdsl.runtime.failures import PATIENCE_SECONDS, Called, late_ranks, lost_process
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
from hfdsl.runtime.rank_process import RankProcess
from hfdsl.runtime.relay import FAILURE_POLL_SECONDS, as_completed
from hfdsl.runtime.relay_client import Relays, RemoteHandle, relays_pay
from hfdsl.runtime.serialization import deserialized, payload_class, serialized
from hfdsl.runtime.store import PayloadContent, bytes_of
from hfdsl.runtime.verification import DTypes, VerifiedSync
from hfdsl.single_controller.group import RayWorkerGroup
from hfdsl.single_controller.pool import RayResourcePool, merge_resource_pool, split_resource_pool
from hfdsl.single_controller.roles import RayClassWithInitArgs
from hfdsl.single_controller.waiting import fetch, succeeded

if TYPE_CHECKING:
    from hfdsl.runtime.digests import Digests

FORGET_SECONDS = 5.0
"""The time in which a process ends what it does in a step that is to be repeated; one that takes longer is replaced."""

SAVED_REPLY_SECONDS = 60.0
"""The time in which an idle process says whether its files are written."""


class Copied(NamedTuple):
    """References to the copy of a rank's states: whether it exists, which is small, and the copy itself."""

    done: Any
    states: Any


class RayBackend:
    """Lowers a plan onto worker groups.

    A handle is an ``ObjectRef``, the bytes of a small payload, an ``InlineResult``, or the ``RemoteHandle`` of a relay.
    The driver fetches only what it returns, what resolves a query, and what custom protocols work on.

    Ranks are called one by one, past the group's own ``_submit``: that one makes a message of a role's method and its
    arguments, with an entry per rank. Here each rank has a request of its own, with references of its own that Ray must
    see as arguments to wait for them, and returns several objects.

    Raises:
        ResourceError: HF502, HF505 where the cluster cannot hold the pools.
        RoleError: HF806 where a role's constructor raises.
        HfError: HF807 where the cluster's address is known, and nothing answers there.
    """

    launched: ClassVar[WeakSet[RayBackend]] = WeakSet()
    """The backends of this process that still exist, closed or not: tests look here for what a launch left behind."""

    def __init__(self, plan: Plan, seed: int, timeout: float, deadline: float, worker_env: Mapping[str, str]) -> None:
        self._deadline, self._step_end, self._copy_end = deadline, 0.0, 0.0
        self._plans, self._seed, self._worker_env = [plan], seed, worker_env
        self._owns_cluster = not ray.is_initialized()
        self._processes_per_slot, self._process_groups = processes_per_slot(plan.groups), plan.groups
        self._pools: dict[str, RayResourcePool] = {}
        self._groups: dict[str, RayWorkerGroup] = {}
        self._payload_class = payload_class(plan)
        self._pending: list[Any] = []  # the acknowledgments of calls that have not been looked at
        self._acknowledged: dict[Any, list[Any]] = {}  # those that have arrived, by handle
        self._called: dict[Any, tuple[Process, Called]] = {}  # by the binary ID of an acknowledgment's reference
        self._sent_table: tuple[RowTable, Any] | None = None  # the last one, and its reference in the object store
        self.driver = Executor(plan=plan, group=DRIVER, roles=(), context=RankContext(), seed=seed, collectives=None)
        self._direct_groups = DirectGroups(plan)
        self._relayed_plans: set[str] = set()
        self._relays: Relays | None = None
        self.launched.add(self)
        try:
            if self._owns_cluster:
                connect()
            for group in plan.groups:
                self._start_group(group, timeout)
            self.begin()
            self._connect()
        except BaseException:
            self.close()
            raise

    def _start_group(self, group: ProcessGroup, timeout: float) -> None:
        """Start the processes of a group, with its roles."""
        patience = self._deadline + PATIENCE_SECONDS
        process = RayClassWithInitArgs(RankProcess, self._plans[0], group.name, group.roles, self._seed, patience)
        self._groups[group.name] = RayWorkerGroup(
            self._pool(group.pool, timeout),
            self._direct_groups.prepare(group.name, process),
            worker_env=self._worker_env,
            timeout=timeout,
            deadline=None,  # a step has one; roles that load large models may take what they take
        )

    def _connect(self) -> None:
        """Find out where the processes are, link those that read each other's tensors, and start relays."""
        self._hosts = {name: self._call_all(workers, "host") for name, workers in self._workers.items()}
        self._direct_groups.join(self._workers, self._deadline + PATIENCE_SECONDS)
        for plan in self._plans:
            self._direct_groups.prepare_plan(plan)
            self._start_relays(plan)

    @property
    def _workers(self) -> dict[str, Sequence[Any]]:
        return {name: group.workers for name, group in self._groups.items()}

    @property
    def _every_worker(self) -> list[Any]:
        return [worker for group in self._groups.values() for worker in group.workers]

    def _call_all(self, workers: Sequence[Any], method: str, *args: Any) -> list[Any]:
        """What a method of ``RankProcess`` returns in these processes; HF807 where the deadline passed."""
        refs = [getattr(worker, method).remote(*args) for worker in workers]
        values = self._wait_for_all(refs, "processes")
        return [values[ref] for ref in refs]

    def _pool(self, pool: ResourcePool, timeout: float) -> RayResourcePool:
        """The pool as placement groups; merged and split pools share those of the pools that they are made of."""
        if pool.name not in self._pools:
            if pool.part_of:
                parent, start = pool.part_of
                remaining = parent.world_size - start - pool.world_size
                sizes = [size for size in (start, pool.world_size, remaining) if size]
                self._pools[pool.name] = split_resource_pool(self._pool(parent, timeout), sizes)[1 if start else 0]
            elif pool.parts:
                self._pools[pool.name] = merge_resource_pool(*(self._pool(part, timeout) for part in pool.parts))
            else:
                self._pools[pool.name] = RayResourcePool(
                    pool.processes,
                    pool.use_gpu,
                    f"{pool.name}-{secrets.token_hex(3)}",
                    self._processes_per_slot,
                    timeout=timeout,
                )
        return self._pools[pool.name]

    def add(self, plan: Plan) -> None:
        """Send every process another plan of the same deployment; HF807 where one does not take it in time."""
        self.driver.add(plan)
        self.begin()
        self._call_all(self._every_worker, "add", plan)
        self._plans.append(plan)
        self._direct_groups.prepare_plan(plan)
        self._start_relays(plan)

    def _start_relays(self, plan: Plan) -> None:
        """Have relays call the ranks of a plan, if that pays; they know the calls of one step at a time."""
        if not plan.steps_in_flight and relays_pay(plan, self._hosts, self._direct_groups.linked):
            self._relayed_plans.add(plan.name)
            self._relays = self._relays or Relays(self._workers, self._hosts, self._time_left)

    def topology(self, plan: Plan) -> Topology:
        """The hosts, and the groups that need no object store between them.

        The driver counts as a host of its own, so that it never receives what only workers read.
        """
        return Topology(
            lambda process: self._hosts[process[0]][process[1]] if process[0] in self._hosts else DRIVER,
            self._direct_groups.groups,
            self._direct_groups.reaches,
            self._direct_groups.unreachable,
            self._direct_groups.exchanging,
        )

    # -- a step --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a step: its deadline runs from now."""
        self._step_end = time.monotonic() + self._deadline
        self._acknowledged.clear()
        pending = {ref.binary() for ref in self._pending}
        self._called = {key: called for key, called in self._called.items() if key in pending}
        if self._relays is not None:
            self._relays.begin()

    def _time_left(self) -> float:
        return max(0.0, self._step_end - time.monotonic())

    def put(self, plan: Plan, content: PayloadContent) -> Any:
        """A payload of the driver: in the object store or, where it is small, as bytes that travel with calls."""
        payload = self._payload_class(content)
        if bytes_of(content) <= SMALL_PAYLOAD_BYTES and len(small := serialized(payload)) <= RAY_ARGUMENT_BYTES:
            return small
        return ray.put(payload)

    def run(self, submission: Submission) -> Sequence[tuple[Any, Sequence[Any]]]:
        """Submit a segment: the handles of each rank's acknowledgment and payloads.

        Ray starts a rank's part when all its arguments exist. It runs the calls of one actor in the order of their
        submission, so what is submitted in program order cannot deadlock: whatever a call waits for was submitted
        before it.
        """
        if self._relays is not None and submission.call.plan in self._relayed_plans:
            return self._relays.run(submission, self._table)
        workers = self._groups[submission.segment.group].workers
        handles: list[tuple[Any, Sequence[Any]]] = []
        called = Called.of(submission.segment, submission.call.step)
        for i, rank in enumerate(submission.segment.ranks):
            worker, spec, payloads = workers[rank], submission.specs[i], submission.payloads[i]
            spec_arguments = () if spec is None else (spec.task, self._table(spec))
            dispatched = () if submission.dispatched is None else (submission.dispatched[i],)
            modes = [self._send_mode(payload) for payload in submission.sends[i]]
            request = RankRequest(submission.call, len(payloads), spec is not None, bool(dispatched), modes)
            # One return value for the acknowledgment, and one for each payload in the object store.
            stored = len(modes) - modes.count(DIRECT) - modes.count(INLINE)
            run = worker.run.options(num_returns=1 + stored) if stored else worker.run
            refs = run.remote(request.to_wire(), *payloads, *spec_arguments, *dispatched, *submission.after[i])
            acknowledgment, *objects = refs if stored else (refs,)
            # Right after the call, so that no other call of this process comes between it and its broadcast.
            if any(payload.broadcast for payload in submission.sends[i]):
                worker.broadcast.remote()
            handles.append((acknowledgment, self._handles(worker, acknowledgment, objects, modes)))
            self._called[acknowledgment.binary()] = (submission.segment.group, rank), called
        self._pending += [acknowledgment for acknowledgment, _ in handles]
        return handles

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
        """Wait until every rank has done its part; the first failure is raised at once, even while others still run.

        Raises:
            RoleError: HF806 where a body raised or a process died.
            HfError: HF807 where the deadline passed.
        """
        with self._naming_losses():
            replies = (
                self._relays.submit([*acknowledgments, *wanted], self._time_left()) if self._relays is not None else {}
            )
            meanwhile()
            refs = [handle for handle in acknowledgments if not isinstance(handle, RemoteHandle)]
            for ready in as_completed(refs, self._time_left()):
                self._acknowledged |= zip(ready, fetch(ready), strict=True)
            if self._relays is not None:
                self._relays.receive(replies)
                remote = [handle for handle in acknowledgments if isinstance(handle, RemoteHandle)]
                self._acknowledged |= {handle: handle.value for handle in remote if handle.value is not None}
        self._check_late(len(acknowledgments), acknowledgments, self._acknowledged, "parts of the step")
        self._pending = [handle for handle in self._pending if handle not in self._acknowledged]
        return [Acknowledgment.from_wire(self._acknowledged[handle]).result for handle in acknowledgments]

    def get(self, handles: Sequence[Any]) -> list[Any]:
        """The payloads, in this process.

        Raises:
            RoleError: HF806 where the body that makes one raised.
            HfError: HF807 where the deadline passed.
        """
        sources = [
            handle.acknowledgment if isinstance(handle, InlineResult) else handle
            for handle in handles
            if not isinstance(handle, bytes)
        ]
        missing = [source for source in dict.fromkeys(sources) if source not in self._acknowledged]
        while True:
            try:
                with self._naming_losses():
                    values = self._acknowledged | dict(zip(missing, self._fetched(missing), strict=True))
                return [_content(handle, values) for handle in handles]
            except GetTimeoutError:
                if not self._time_left():
                    late = f"a value did not arrive within {self._deadline:g} s; launch(..., deadline=...) sets this"
                    raise DeadlineError("HF807", late + self._late_ranks()) from None
            # The rank that makes a value may wait for one that has failed: look at what has ended.
            if self._pending:
                with self._naming_losses():
                    ended, pending = ray.wait(self._pending, num_returns=len(self._pending), timeout=0)
                    fetch(ended)
                self._pending = pending

    def _fetched(self, handles: Sequence[Any]) -> list[Any]:
        """Acknowledgments and payloads, within the time after which ``get`` looks for failures."""
        local = self._relays.get(handles) if self._relays is not None else handles
        refs = [value for value in local if isinstance(value, ray.ObjectRef)]
        fetched = dict(zip(refs, fetch(refs, min(self._time_left(), FAILURE_POLL_SECONDS)), strict=True))
        return [deserialized(fetched[value] if isinstance(value, ray.ObjectRef) else value) for value in local]

    def references(self) -> Iterator[Any]:
        """The references that it holds between steps: to the last step's acknowledgments, and to its row table."""
        yield from (ref for ref in (*self._pending, *self._acknowledged) if isinstance(ref, ray.ObjectRef))
        if self._sent_table is not None:
            yield self._sent_table[1]
        if self._relays is not None:
            yield from self._relays.references()

    # -- states and recordings -----------------------------------------------------------------------------------------

    def _wait_for_all(self, refs: Sequence[Any], what: str) -> dict[Any, Any]:
        """The values of references; the first failure is raised at once."""
        values: dict[Any, Any] = {}
        with self._naming_losses():
            for ready in as_completed(refs, self._time_left()):
                values |= zip(ready, fetch(ready), strict=True)
        self._check_late(len(refs), refs, values, what)
        return values

    def _check_late(self, total: int, refs: Sequence[Any], values: Mapping[Any, Any], what: str) -> None:
        if late := sum(ref not in values for ref in refs):
            raise DeadlineError(
                "HF807",
                f"{late} of {total} {what} were not done after {self._deadline:g} s; a body may wait for a peer, "
                f"or the step needs longer: launch(..., deadline=...){self._late_ranks()}",
            )

    @contextmanager
    def _naming_losses(self) -> Iterator[None]:
        """Within this, an error that a dead process causes is one that names it."""
        try:
            yield
        except RoleError as error:
            if (lost := lost_process(error, self._workers, self._running())) is not None:
                raise lost from error
            raise

    def _running(self) -> dict[Process, Called]:
        """The first call that each process has not ended, or in which it failed; relays alone know those of theirs."""
        running: dict[Process, Called] = {}
        done = {ref.binary() for ref in self._acknowledged if isinstance(ref, ray.ObjectRef)}
        ended = ray.wait(self._pending, num_returns=len(self._pending), timeout=0)[0] if self._pending else []
        done |= {ref.binary() for ref in ended if succeeded(ref)}
        for key, (process, called) in self._called.items():
            if key not in done:
                running.setdefault(process, called)
        return running

    def _late_ranks(self) -> str:
        """What the ranks that have not answered do."""
        processes = {
            (name, rank): process
            for name, group in self._groups.items()
            for rank, process in enumerate(group.hf_processes)
        }
        return late_ranks(processes, self._running())

    def save(self, folder: str, background: bool) -> None:
        """All ranks at once; HF806 where a role's ``state()`` raises, HF807 where the deadline passed."""
        self.begin()
        self._wait_for_all([worker.save.remote(folder, background) for worker in self._every_worker], "states")

    def saved(self, folder: str, wait: float) -> dict[str, list[dict[str, str]]] | None:
        """The files of all ranks; HF906 where one cannot be written, HF807 where a rank does not answer in time."""
        self.begin()
        self._step_end = min(self._step_end, time.monotonic() + wait + SAVED_REPLY_SECONDS)
        refs_by_group = [[worker.saved.remote(folder, wait) for worker in group] for group in self._workers.values()]
        files = self._wait_for_all([ref for refs in refs_by_group for ref in refs], "states")
        return files_by_role([files[ref] for ref in refs] for refs in refs_by_group)

    def load(self, folder: str, saved: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        """Load the states of all ranks; errors as for ``save``."""
        self.begin()
        loading = []
        for group in self._process_groups:
            roles = [role for role in group.roles if role in saved]
            for rank, worker in enumerate(self._groups[group.name].workers):
                loading.append(worker.load.remote(folder, {role: dict(saved[role][rank]) for role in roles}))
        self._wait_for_all(loading, "states")

    def save_queues(
        self, folder: str, plan: str, pending: Mapping[int, Mapping[tuple[str, int], Sequence[Any]]]
    ) -> dict[str, list[dict[str, str]]]:
        """All ranks at once, each when it has the payloads; HF807 where the deadline passed."""
        self.begin()
        refs_by_group = {}
        for group, workers in self._workers.items():
            refs = []
            for rank, worker in enumerate(workers):
                handles = {step: by_rank.get((group, rank), ()) for step, by_rank in pending.items()}
                counts = [[step, len(payloads)] for step, payloads in handles.items()]
                payloads = [handle for payloads in handles.values() for handle in payloads]
                refs.append(worker.save_queues.remote(folder, plan, counts, *payloads))
            refs_by_group[group] = refs
        files = self._wait_for_all([ref for refs in refs_by_group.values() for ref in refs], "queues")
        return {group: [files[ref] for ref in refs] for group, refs in refs_by_group.items()}

    def load_queues(self, folder: str, plan: str, files: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        """All ranks at once; HF807 where the deadline passed."""
        self.begin()
        self._wait_for_all(
            [
                worker.load_queues.remote(folder, plan, dict(file))
                for group, workers in self._workers.items()
                for worker, file in zip(workers, files[group], strict=True)
            ],
            "queues",
        )

    # -- recovery ------------------------------------------------------------------------------------------------------

    def lost(self, wait: float) -> dict[str, list[int]]:
        """The ranks whose process is gone, by process group; one that is busy for so many seconds is not."""
        asked = {
            worker.host.remote(): (group, rank)
            for group, workers in self._workers.items()
            for rank, worker in enumerate(workers)
        }
        lost: dict[str, list[int]] = {}
        for ready in as_completed(list(asked), wait):
            for ref in ready:
                group, rank = asked[ref]
                try:
                    fetch([ref])
                except HfError:
                    lost.setdefault(group, []).append(rank)
            if lost:
                break  # the others may wait for them
        return {group: sorted(ranks) for group, ranks in lost.items()}

    def copy_states(self) -> dict[str, list[Copied]]:
        """References to the states of every rank; the processes copy them before their next call."""
        self._copy_end = time.monotonic() + self._deadline
        copies = {
            group: [Copied(*worker.copy_states.options(num_returns=2).remote()) for worker in workers]
            for group, workers in self._workers.items()
        }
        if self._relays is not None:  # what relays submit next may come before what this process submitted now
            self.begin()
            self._wait_for_all([copy.done for ranks in copies.values() for copy in ranks], "states")
        return copies

    def copied(self, copies: Mapping[str, Sequence[Copied]], wait: float) -> bool:
        """Whether all copies exist; HF806, HF908 where one cannot be made, HF807 where one takes too long."""
        refs = [copy.done for ranks in copies.values() for copy in ranks]
        ready, late = ray.wait(refs, num_returns=len(refs), timeout=wait)
        fetch(ready)
        if late and time.monotonic() > self._copy_end:
            self._check_late(len(refs), refs, dict.fromkeys(ready), "copies of states")
        return not late

    def rebuild(self, lost: Mapping[str, Sequence[int]], *, everything: bool, wait: float) -> None:
        """Replace the groups of lost ranks, and those that do not end the step or are linked with one of these.

        With ``everything`` all are replaced.

        Raises:
            ResourceError: HF504 where the cluster has no room for them in time.
            RoleError: HF806 where a role's constructor raises.
        """
        if self._relays is not None:
            self._relays.close()
            self._relays = None
        self._relayed_plans.clear()
        self._pending.clear()
        self._acknowledged.clear()
        self._sent_table = None
        self.driver.forget_step()
        replaced = set(self._groups) if everything else self._linked(set(lost))
        for name in replaced:
            self._groups[name].shutdown()  # first, so that what others wait for ends
        for name in self._linked(self._unresponsive(set(self._groups) - replaced)):
            self._groups[name].shutdown()
            replaced.add(name)
        if replaced & self._direct_groups.linked:
            self._direct_groups.close()
            self._direct_groups = DirectGroups(self._plans[0])
        for group in self._process_groups:
            if group.name in replaced:
                self._start_group(group, wait)
        self.begin()
        started = [worker for name in sorted(replaced) for worker in self._workers[name]]
        for plan in self._plans[1:]:
            self._call_all(started, "add", plan)
        self._connect()

    def _linked(self, groups: set[str]) -> set[str]:
        """These groups, and with one that is linked all that are: links are made for all of them at once."""
        linked = self._direct_groups.linked
        return groups | linked if groups & linked else set(groups)

    def _unresponsive(self, groups: set[str]) -> set[str]:
        """The groups of which some process does not forget its step in time: it waits for one that was lost."""
        asked = {worker.forget_step.remote(): name for name in groups for worker in self._workers[name]}
        unresponsive = set(asked.values())
        for name in groups:
            refs = [ref for ref, group in asked.items() if group == name]
            try:
                fetch(refs, FORGET_SECONDS)
            except (HfError, GetTimeoutError):
                continue
            unresponsive.discard(name)
        return unresponsive

    def restore(self, copies: Mapping[str, Sequence[Copied]]) -> None:
        """Load the copies into all ranks.

        Raises:
            RoleError: HF806 where ``load_state()`` raises, or a copy is lost.
            HfError: HF807 where the deadline passed.
        """
        self.begin()
        pairs = [pair for name, workers in self._workers.items() for pair in zip(workers, copies[name], strict=True)]
        self._wait_for_all([worker.restore.remote(copy.states) for worker, copy in pairs], "states")

    def record(self, folder: str | None) -> None:
        """Have every process write the calls of the next steps; HF807 where one is not ready in time."""
        self.driver.record(folder)
        self.begin()
        self._call_all(self._every_worker, "record", folder)

    def digests(self, sync: VerifiedSync, role: str, dtypes: DTypes | None, exported: bool) -> list[Digests | None]:
        """All ranks at once; HF806 where a role's ``held_weights()`` raises, HF807 where the deadline passed."""
        group = next(group for group in self._process_groups if role in group.roles)
        self.begin()
        return self._call_all(self._groups[group.name].workers, "digests", sync, role, dtypes, exported)

    def digest_exports(self, wanted: Mapping[VerifiedSync, DTypes]) -> None:
        """Have every process digest what the next steps export; HF807 where one is not ready in time."""
        self.begin()
        self._call_all(self._every_worker, "digest_exports", wanted)

    def close(self) -> None:
        """End the processes and give the slots back; a cluster that this backend started ends too."""
        self._direct_groups.close()
        if self._relays is not None:
            self._relays.close()
        for group in self._groups.values():
            group.shutdown()
        for pool in self._pools.values():
            pool.shutdown()
        self._groups.clear()
        self._pools.clear()
        if self._owns_cluster and ray.is_initialized():
            ray.shutdown()


def _content(handle: Any, values: Mapping[Any, Any]) -> Any:
    """The payload that a handle stands for, from acknowledgments and payloads by handle."""
    if isinstance(handle, InlineResult):
        _, inline = values[handle.acknowledgment]
        return {ColumnSlice(node, chunk, column, None): value for node, chunk, column, value in inline[handle.index]}
    return deserialized(handle) if isinstance(handle, bytes) else values[handle]
