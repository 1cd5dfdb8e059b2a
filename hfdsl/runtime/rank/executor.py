"""The executor: one rank of a process group, with a worker of each role there and the values that it produced.

A worked example, with the program and the numbers of ``hfdsl.runtime.step``: two actor ranks, two critic ranks, and a
filter that keeps the rows 0, 2 and 3. The routes give every rank a ``Task`` for each segment. Nodes are 0 for prompts,
1 for generate, 2 for accept, 3 for the filter, 4 for update. Rows are counted within a chunk, and ranges exclude their
end. ``keeps`` are the nodes whose results stay in the store, ``drops`` those that nothing here reads any more::

    segment  rank  receives     runs            sends                  keeps  drops
    1        0     (-1, -1, 0)  actor.generate  (1, 0, 0): rows 0:2    1      0
    1        1     (-1, -1, 1)  actor.generate  (1, 1, 0): rows 0:2    1      0
    2        0     (1, 0, 0)    critic.accept   (2, 0, 0): rows 0:2    -      1
    2        1     (1, 1, 0)    critic.accept   (2, 1, 0): rows 0:2    -      1
    4        0     (1, 1, 0)    actor.update    (4, 0, 0): rows 0:2    -      1
    4        1     (1, 0, 0)    actor.update    (4, 1, 0): rows 0:1    -      1

Follow actor rank 0. In segment 1 it stores the payload with its two prompts (``Store.receive``), reads the argument of
``generate`` from the store, runs the body, keeps the result, which is chunk 0 of node 1, slices it into the payload
(1, 0, 0), and drops the prompts. In segment 4 it runs ``update`` on the rows 0 and 2 of the rollout. It reads row 0
from its own result, by reference; row 2 is row 0 of chunk 1, which rank 1 produced and which came with (1, 1, 0). Then
no later step reads node 1, and both chunks are dropped. Rank 1 runs ``update`` on row 3 and, because two ranks cannot
share three rows evenly, on row 0 again as padding; of its two results only the first is sent.

Why it is right. *Order*: a process runs its calls one after another in the order of their submission, which is program
order; so a role's state changes in program order, whatever the timing. Only bodies that change no state may overlap
(``call_turns``). *Once*: each payload is an argument of one call of a process, which stores it until the step after
which the task drops it. *No stale values*: every step has a store of its own (``step_stores``). *No hidden sharing*:
readers in this process get a value by reference and others a view of it, so a body that writes into its arguments is an
error (``inputs_unchanged``), and so is one that writes into its result later (``StoredValue.read``,
``Store.check_watched``). *The same numbers everywhere*: random streams are seeded by call, from (seed, step, call,
rank), so it does not matter which process or thread runs a body.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from hfdsl.errors import ResourceError, RoleError, WiringError
from hfdsl.graph.body_checks import inputs_unchanged
from hfdsl.graph.program import Input
from hfdsl.graph.value_checks import check_finite_arguments, check_finite_result
from hfdsl.plan.payloads import ColumnSlice
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.reading import Reader, to_columns
from hfdsl.plan.rows import RowTable
from hfdsl.protocols.call import Call, in_call
from hfdsl.protocols.collectives import Collectives
from hfdsl.protocols.ranges import RowRanges
from hfdsl.protocols.worker import RankContext
from hfdsl.runtime.messages import CallResult, SegmentCall, SegmentResult, SegmentSpec
from hfdsl.runtime.queues.rows import QueuedRows, received
from hfdsl.runtime.rank.arguments import call_arguments, undelivered
from hfdsl.runtime.rank.arrivals import Arrivals
from hfdsl.runtime.rank.body_hooks import BodyHooks
from hfdsl.runtime.rank.body_results import detached, planned_widths, result_columns
from hfdsl.runtime.rank.call_turns import CallTurns
from hfdsl.runtime.rank.in_flight import InFlight, runs_beside
from hfdsl.runtime.rank.role_errors import role_error
from hfdsl.runtime.rank.role_workers import RoleWorkers
from hfdsl.runtime.rank.state_changes import StateChanges
from hfdsl.runtime.rank.step_bodies import StepBodies
from hfdsl.runtime.rank.step_calls import call_of_step, row_name
from hfdsl.runtime.rank.step_stores import StepStores
from hfdsl.runtime.rank.store import PayloadContent, Store, StoredValue, UndeliveredError, bytes_of, slice_payload
from hfdsl.runtime.saving.recording import Recorder
from hfdsl.runtime.verification.rank_digests import RankDigests, rank_digests
from hfdsl.runtime.verification.verified_syncs import DTypes, VerifiedSync, states
from hfdsl.runtime.weights.held_boxes import HeldBoxes
from hfdsl.runtime.weights.syncs import exchanging, exported_columns, whole_columns
from hfdsl.types.batches import Batch, rebuild
from hfdsl.types.dims import Size

if TYPE_CHECKING:
    from hfdsl.runtime.digests import Digests

T = TypeVar("T")


class Executor:
    """One rank of a process group, or the driver. ``run`` does this rank's part of a segment.

    It builds the workers of ``roles``; others are built by ``workers.construct``. With ``own_process``, no other rank
    draws random numbers in this process, so their streams need not be restored.
    """

    def __init__(
        self,
        plan: Plan,
        group: str,
        roles: tuple[str, ...],
        context: RankContext,
        seed: int,
        collectives: Collectives | None,
        *,
        own_process: bool = False,
    ) -> None:
        self._own_process = own_process
        self._group, self._rank, self._seed = group, context.rank, seed
        self._plans: dict[str, Plan] = {}
        self._exchanging: dict[str, frozenset[int]] = {}
        self._widths: dict[tuple[str, int], Mapping[Any, Size]] = {}  # by step, of its result's dims
        self._steps: dict[tuple[str, int], Step] = {}
        self.workers = RoleWorkers(plan.deployment, context, seed, collectives)
        self.stores = StepStores(group)
        self.add(plan)
        self._specs: dict[tuple[str, int, int], tuple[SegmentSpec, Reader]] = {}
        self._changes = StateChanges(self.workers)
        self.synced_digests = RankDigests()
        self._bodies = StepBodies(
            rank=context.rank,
            deployment=plan.deployment,
            workers=self.workers,
            collectives=collectives,
            digests=self.synced_digests,
            own_process=own_process,
        )
        self.in_flight = InFlight(context.rank, own_process=own_process)
        self.arrivals = Arrivals(
            group=group,
            rank=context.rank,
            plans=self._plans,
            steps=self._steps,
            workers=self.workers,
            in_flight=self.in_flight,
            call_of=self._current,
        )
        self._turns = CallTurns()
        self.body_hooks = BodyHooks()
        for role in roles:
            self.workers.construct(role)

    @property
    def store(self) -> Store:
        """The values of the running step."""
        return self.stores.current

    def add(self, plan: Plan) -> None:
        """Add another plan of the same deployment, whose steps run on the same workers."""
        self._plans[plan.name] = plan
        self._exchanging[plan.name] = exchanging(plan)
        self.workers.offloader.add(plan)
        self._steps |= {(plan.name, step.node): step for step in plan.steps}
        self._widths |= {(plan.name, step.node): planned_widths(plan, step) for step in plan.steps}

    # -- states and recordings -----------------------------------------------------------------------------------------

    def load(self, folder: str, saved: Mapping[str, Mapping[str, str]], roles: Iterable[str]) -> None:
        """Load the states of these roles' workers, between steps; errors as for ``RoleWorkers.load``."""
        with self._turns.alone():
            self.stores.forget_steps()
            self.in_flight.forget()
            for role in roles:
                self.workers.load(role, folder, saved.get(role))

    def take_state(self, role: str, copies: bool) -> None:
        """Keep a worker's state, with the weights that have arrived; errors as for ``RoleWorkers.take_state``."""
        with self._turns.alone():
            self.in_flight.settle(role)
            self.workers.take_state(role, copies)

    def inputs_of(self, plan: str, number: int) -> dict[int, Batch]:
        """The caller's inputs of a step in progress, by node; only on the driver."""
        values = {node: value for node, _, value in self.stores.of(plan, number).own_values()}
        nodes = {node.id: node.op for node in self._plans[plan].graph.inputs if isinstance(node.op, Input)}
        return {node: rebuild(op.record, dict(values[node].columns)) for node, op in nodes.items()}

    def changed_in(self, plan: str, step: int) -> bool:
        """Whether a step may have changed a state here."""
        return self._changes.may_be_of((plan, step))

    def forget_step(self, *, values: bool = True) -> None:
        """Drop the specs, which new processes lack, and the ``values`` of a step that will be repeated."""
        self._specs.clear()
        if values:
            self.stores.clear()
            self.synced_digests.forget()
            self._changes.forget()

    def record(self, folder: str | None) -> None:
        """Write the calls of the next steps to a recording; with None stop."""
        self._bodies.recorder = None if folder is None else Recorder.of(folder, self._rank)

    def digests(self, sync: VerifiedSync, role: str, dtypes: DTypes | None, exported: bool) -> Digests | None:
        """The digests of a role's synced state on this rank: of its current value, or of the last one ``exported``.

        Raises:
            RoleError: HF806 if ``held_weights()`` raises.
        """
        if exported:
            return self.synced_digests.last_export(sync)

        def digest(_: str, worker: Any) -> Digests | None:
            start = Call(self._seed, 0, -1, self._rank)
            with in_call(start):
                places = HeldBoxes.of(self._steps.values(), role, sync.state)
                return rank_digests(worker, sync.state, self._rank, dtypes, places)

        digests: Digests | None = self.workers.call(role, "held_weights", digest)
        return digests

    def digest_exports(self, wanted: Mapping[VerifiedSync, DTypes]) -> None:
        """Digest what the next steps export in these syncs, and what they load bucket by bucket."""
        self.synced_digests.want(wanted)

    def of_worker(self, role: str, function: Callable[[Any], T], method: str) -> T:
        """The result of a function for the worker of a role, outside of any step.

        Raises:
            RoleError: HF806 if it raises, with ``method`` as the role's method that it called.
        """
        with self._turns.alone(), in_call(Call(self._seed, 0, -1, self._rank)):
            result: T = self.workers.call(role, method, lambda _, worker: function(worker))
            return result

    # -- steps ---------------------------------------------------------------------------------------------------------

    def put_local(self, node: int, producer: str, value: Any) -> None:
        """Store a value that no step here produced: an input, or the result of a collect function."""
        self.store.put(node, 0, StoredValue.of(producer, detached(to_columns(value))))

    def begin(self, plan: str, step_number: int, *, held: bool = False) -> None:
        """Begin a step of a plan, unless it has begun; if it is ``held``, other steps leave its values as they are."""
        if self.stores.begin(plan, step_number, max(self._plans[plan].steps_in_flight, held)):
            self.workers.offloader.begin(plan, step_number)
            # Routes below zero were those of one step alone; what is still to run of it comes with its spec.
            self._specs = {key: spec for key, spec in self._specs.items() if key[1] >= 0}

    def run(
        self,
        call: SegmentCall,
        spec: SegmentSpec | None,
        payloads: Sequence[PayloadContent],
        dispatched: Mapping[str, Any] | None = None,
        queued: Sequence[QueuedRows] = (),
        *,
        exchanges: bool = False,
    ) -> tuple[SegmentResult, list[PayloadContent]]:
        """Run this rank's part of a segment: receive payloads, run bodies, keep values read here, return the rest.

        ``dispatched`` are arguments that a custom dispatch function made for this rank; its result is returned whole.
        ``queued`` says how the last payloads, which come from a queue, are joined. If the process ``exchanges`` weights
        afterwards, their digests are taken then.

        Raises:
            RoleError: HF806 if a body raises.
            WiringError: HF805 if it returns anything other than it declares, HF703 if it writes into its arguments.
            ResourceError: HF518 if it reads a value that the backend has not delivered.
            HfError: HF807 if it waits for peers that never arrive.
        """
        with self._turns.beside() if runs_beside(call) else self._turns.alone():
            return self._run(call, spec, payloads, dispatched, queued, exchanges)

    def _run(
        self,
        call: SegmentCall,
        spec: SegmentSpec | None,
        payloads: Sequence[PayloadContent],
        dispatched: Mapping[str, Any] | None,
        queued: Sequence[QueuedRows],
        exchanges: bool,
    ) -> tuple[SegmentResult, list[PayloadContent]]:
        start = time.time()
        self.begin(call.plan, call.step)
        spec, reader = self._spec(call, spec)
        task = spec.task
        for content in received(self._plans, payloads, queued):
            self.store.receive(content)
        sent_nodes = {part.node for payload in task.sends for part in payload.slices}
        values: dict[int, StoredValue] = {}
        calls: list[CallResult] = []
        for node in task.steps:
            step, began = self._steps[call.plan, node], time.time()
            columns = self._run_step(call, step, reader, dispatched, exchanges)
            if node in task.keeps or node in sent_nodes or step.custom:
                values[node] = StoredValue.of(step.label, columns)
            if node in task.keeps:
                self.store.put(node, step.layout.holders.index(self._rank), values[node])
            for read_last_here in task.drops.get(node, ()):
                self.store.drop(read_last_here)
            self.workers.offloader.after(call.plan, node, call.step)
            calls.append(self._call_result(call, step, began, columns))
            self.body_hooks.call("ended", call.plan, call.step, step.label)
        # What earlier calls of this step shared may be read at any time, so no body may have written into it; what this
        # call shares is watched from now on.
        self.store.check_watched()
        for payload in task.sends:
            if payload.direct:
                self.store.watch(payload, values)
        sends = [_whole(values)] if dispatched is not None else [slice_payload(sent, values) for sent in task.sends]
        result = SegmentResult(
            group=self._group,
            rank=self._rank,
            start=start,
            stop=time.time(),
            calls=tuple(calls),
            payload_bytes=tuple(map(bytes_of, sends)),
            held_bytes=self.store.bytes,
            peak_bytes=self.store.peak_bytes,
        )
        return result, sends

    def _run_step(
        self, call: SegmentCall, step: Step, reader: Reader, dispatched: Mapping[str, Any] | None, exchanges: bool
    ) -> dict[str, Any]:
        """Run a step of a segment: the columns of its result, or what other processes read of weights it exports."""
        index = step.ranks.index(self._rank)
        self.body_hooks.call("begins", call.plan, call.step, step.label)
        self.workers.offloader.before(step, call.step)
        try:
            arguments = dict(dispatched) if dispatched is not None else call_arguments(step, index, reader)
        except UndeliveredError as missing:
            raise undelivered(self._plans[call.plan], step, self._rank, missing) from None
        try:
            columns = self._call_body(call, step, index, arguments, reader.table, exchanges)
            if step.parts:
                exchanged = step.node in self._exchanging[call.plan]
                return exported_columns(step, self._rank, columns, exchanged=exchanged)
            if self._rank in step.layout.holders and states(step, "exports"):
                return whole_columns(step, self._rank, columns, self.workers.held_weights(step))
        except RoleError:  # raised in the body, which may be a WiringError too: it has the body's lines
            raise
        except WiringError as error:  # about what the body did: name its place in the source
            place = self._plans[call.plan].body_span(step)
            raise WiringError(error.code, f"{error.message} ({place})") from None
        return columns

    def _call_result(self, call: SegmentCall, step: Step, began: float, columns: Mapping[str, Any]) -> CallResult:
        """The result of a call that has just ended, for the driver."""
        return CallResult(
            label=step.label,
            rank=self._rank,
            start=began,
            stop=time.time(),
            absent=tuple(name for name, value in columns.items() if value is None),
            taken=self.in_flight.pop_loads((call.plan, call.step, step.node)),
            reports=tuple(self.synced_digests.reported()),
        )

    def _spec(self, call: SegmentCall, spec: SegmentSpec | None) -> tuple[SegmentSpec, Reader]:
        """The spec sent now or with an earlier call, and a reader of the store by its rows.

        Raises:
            ResourceError: HF518 if the backend has sent none.
        """
        key = (call.plan, call.routing, call.segment)
        if spec is not None:
            plan = self._plans[call.plan]
            self._specs[key] = spec, Reader(plan.graph.nodes, plan.layouts, spec.table, self._read)
        if key not in self._specs:
            text = f"rank {self._rank} of '{self._group}' gets calls of '{call.plan}' without their routes"
            raise ResourceError("HF518", f"{text}: a backend of your own passes Submission.specs to Executor.run")
        return self._specs[key]

    def _read(self, node: int, column: str, chunk: int, rows: RowRanges | None) -> Any:
        """Read rows of a value of the running step."""
        return self.store.read(node, column, chunk, rows)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Within this context, other calls have their turns."""
        with self.stores.aside(), self._turns.aside():
            yield

    def _current(self, call: SegmentCall, step: Step, index: int, table: RowTable) -> Call:
        """The call of a step."""
        plan = self._plans[call.plan]
        loads = self.in_flight.begun(call, step, plan.dataflow)
        return call_of_step(plan, call, step, index, table, rank=self._rank, seed=self._seed, loads=loads)

    def _call_body(
        self,
        call: SegmentCall,
        step: Step,
        index: int,
        arguments: dict[str, Any],
        table: RowTable,
        exchanges: bool,
    ) -> dict[str, Any]:
        """Run the body of a step and return its columns."""
        current = self._current(call, step, index, table)
        current_row = row_name(current)
        if step.role is not None:
            self._changes.note(step.role, step.signature.name, (call.plan, call.step))
        body, arguments, arriving = self._bodies.function(step, current, arguments)
        beside = self._aside() if runs_beside(call) else nullcontext()
        check_finite_arguments(step.label, step.signature, arguments, current_row)
        body, arguments = self.in_flight.arriving(call, step, current, body, arguments)
        calling = self._bodies.calling(step, current, beside_others=runs_beside(call))
        with calling, inputs_unchanged(step.label, arguments):
            try:
                with beside, self.in_flight.taking((call.plan, call.step, step.node), current):
                    result = body(**arguments)
                if self.synced_digests.active and step.role is not None:
                    self.synced_digests.take(
                        step,
                        self.workers[step.role],
                        result,
                        arriving,
                        exchanged=step.node in self._exchanging[call.plan],
                        leaves=exchanges,
                    )
            except RoleError:
                raise
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) and step.role is None and not self._own_process:
                    raise  # Ctrl-C: functions run in the caller's main thread
                raise role_error(step.label, self._rank, call.step, error) from None
        presence = self._plans[call.plan].presence.get(step.node, {})
        columns = result_columns(step, index, table, presence, arguments, result, self._widths[call.plan, step.node])
        if step.custom is not None or self._rank in step.layout.holders:  # others are never looked at
            check_finite_result(step.label, step.signature, columns, current_row)
        return columns


def _whole(values: Mapping[int, StoredValue]) -> PayloadContent:
    """The results of a step with a custom protocol, for the driver."""
    return {
        ColumnSlice(node, 0, name, None): column
        for node, value in values.items()
        for name, column in value.columns.items()
    }
