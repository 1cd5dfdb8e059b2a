"""The process of a rank under Ray: an executor behind an actor, and its payloads that have not been sent yet."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray

from hfdsl.plan.payloads import ColumnSlice
from hfdsl.plan.plan import Plan
from hfdsl.protocols.worker import RankContext, Worker
from hfdsl.runtime.messages import (
    DIRECT,
    INLINE,
    RELAYED,
    SMALL_PAYLOAD_BYTES,
    Acknowledgment,
    RankRequest,
    SegmentSpec,
    SendMode,
)
from hfdsl.runtime.rank.begun_calls import NO_STEP, CallNote, NotePlace
from hfdsl.runtime.rank.body_hooks import BodyHook, BodyMoment
from hfdsl.runtime.rank.executor import Executor
from hfdsl.runtime.rank.process_groups import ProcessCollectives
from hfdsl.runtime.rank.role_errors import sending
from hfdsl.runtime.rank.store import PayloadContent, bytes_of
from hfdsl.runtime.saving.state_files import FlatState
from hfdsl.runtime.saving.store_files import read_payloads
from hfdsl.runtime.transports.serialization import (
    PickledValue,
    StateCopy,
    content_of,
    deserialized,
    payload_class,
    pickle_content,
    serialized,
)
from hfdsl.runtime.verification.verified_syncs import DTypes, VerifiedSync

if TYPE_CHECKING:
    from hfdsl.runtime.digests import Digests
    from hfdsl.runtime.weights.exchange import Exported, PendingExchange


def queued(plan: str) -> str:
    """The name of a plan's queued data among the states of roles; no role can have it."""
    return f"<queues of {plan}>"


class RankProcess(Worker):
    """One process of a plan: an executor behind an actor."""

    def __init__(self, plan: Plan, group: str, seed: int, patience: float) -> None:
        context = RankContext.from_env()
        collectives = ProcessCollectives(
            context.rank, context.world_size, context.master_addr, context.master_port, patience
        )
        self._executor = Executor(
            plan=plan,
            group=group,
            roles=(),
            context=context,
            seed=seed,
            collectives=collectives,
            own_process=True,
        )
        self._note = CallNote()
        self._executor.body_hooks.add("begins", self._note.begin)
        self._payload_class = payload_class(plan)
        self._direct: deque[PickledValue] = deque()
        self._broadcasts: deque[tuple[PickledValue, list[int]]] = deque()
        self._sender = "", context.rank, 0  # the calls whose results are broadcast, this rank, and the step
        self._exchanges: dict[tuple[int, ...], list[Exported]] = {}
        self._failed: Exception | None = None
        self._failed_in: tuple[str, int] | None = None  # the plan and the step of what failed

    def construct(self, role: str) -> bool:
        """Build the worker of a role; return whether it keeps a state."""
        self._begin_outside(role, "__init__")
        return self._executor.workers.construct(role)

    def add(self, plan: Plan) -> None:
        """Add another plan of the same deployment."""
        self._executor.add(plan)

    def take_state(self, role: str, copies: bool) -> None:
        """Keep a worker's state for the next ``save`` or ``copy_states``."""
        self._begin_outside(role, "state")
        self._executor.take_state(role, copies)

    def save(self, folder: str) -> None:
        """Begin to write the kept states."""
        self._executor.workers.save(folder)

    def saved(self, folder: str, wait: float) -> dict[str, dict[str, str]] | None:
        """The files of the kept states."""
        return self._executor.workers.saved(folder, wait)

    def load(self, role: str, folder: str, file: dict[str, str] | None) -> None:
        """Load a worker's state."""
        self._begin_outside(role, "load_state")
        self._executor.load(folder, {} if file is None else {role: file}, (role,))

    def save_queues(self, folder: str, plan: str, counts: list[list[int]], *payloads: Any) -> dict[str, str]:
        """Write this process's data of steps in progress; ``counts`` has the number of payloads of each."""
        contents = iter([content_of(deserialized(payload)) for payload in payloads])
        return self._executor.stores.save(
            folder, plan, {step: [next(contents) for _ in range(count)] for step, count in counts}
        )

    def load_queues(self, folder: str, plan: str, file: dict[str, str]) -> None:
        """Read the data of steps in progress again."""
        self._executor.stores.load(folder, plan, file)

    def copy_states(self) -> tuple[None, StateCopy]:
        """The kept states, copied on their way to the object store; None confirms the copy.

        Beside them is what this process holds of steps in progress.
        """
        queues = {queued(plan): copy for plan, copy in self._executor.stores.copies().items()}
        return None, StateCopy({**self._executor.workers.copy_states(), **queues})

    def read_payloads(
        self, folder: str, file: dict[str, str], wanted: Sequence[tuple[int, Sequence[Sequence[ColumnSlice]]]]
    ) -> tuple[Any, ...]:
        """The payloads of these steps in a file of this plan's processes; None says that they have been read."""
        return None, *map(self._payload_class, read_payloads(folder, file, wanted))

    def restore_queues(
        self, plan: str, states: Mapping[str, FlatState], counts: list[list[int]], *payloads: Any
    ) -> None:
        """Continue with steps in progress; ``counts`` has the number of payloads that each still receives."""
        contents = iter([content_of(deserialized(payload)) for payload in payloads])
        pending = {step: [next(contents) for _ in range(count)] for step, count in counts}
        self._executor.stores.restore(plan, states.get(queued(plan)), pending)

    def restore(self, role: str, states: Mapping[str, FlatState]) -> None:
        """Load the copy of a worker's state."""
        self.forget_step()
        if role in states:
            self._begin_outside(role, "load_state")
            self._executor.workers.restore(role, states[role])

    def changed_in(self, plan: str, step: int) -> bool:
        """Whether a step may have changed a state here; all calls before this one have ended."""
        return self._executor.changed_in(plan, step)

    def forget_step(self, values: bool = True) -> None:
        """Drop the rest of a step that will be repeated: including ``values``, or all else."""
        self._direct.clear()
        self._broadcasts.clear()
        self._exchanges.clear()
        self._failed = None
        self._note.clear()
        self._executor.forget_step(values=values)

    def record(self, folder: str | None) -> None:
        """Write the calls of the next steps to a recording; with None stop."""
        self._executor.record(folder)

    def digests(self, sync: VerifiedSync, role: str, dtypes: DTypes | None, exported: bool) -> Digests | None:
        """The digests of a role's synced state on this rank: of its current value, or of the last one ``exported``."""
        return self._executor.digests(sync, role, dtypes, exported)

    def digest_exports(self, wanted: Mapping[VerifiedSync, DTypes]) -> None:
        """Digest what the next steps sync, as requested with their calls."""
        self._executor.digest_exports(wanted)

    def at_bodies(self, moment: BodyMoment, hook: BodyHook) -> None:
        """Call a hook, too, whenever a body begins, or after it has ended."""
        self._executor.body_hooks.add(moment, hook)

    def of_worker(self, role: str, function: Callable[[Any], Any], method: str) -> Any:
        """The result of a function for the worker of a role."""
        self._begin_outside(role, method)
        return self._executor.of_worker(role, function, method)

    def host(self) -> str:
        """Ray's ID of this process's node."""
        return str(ray.get_runtime_context().get_node_id())

    def note(self) -> NotePlace | None:
        """The place where others can read which call this process began last."""
        return self._note.place

    def _begin_outside(self, role: str, method: str) -> None:
        """Note that a call of a role outside of steps begins."""
        self._note.begin(*NO_STEP, f"{role}.{method}")

    def run(self, request: list[Any], *arguments: Any) -> Any:
        """Run this rank's part of a segment, once Ray has fetched the arguments that ``RankRequest`` lists.

        Returns the acknowledgment, and beside it the payloads that leave through the object store. Those that leave
        otherwise wait here for ``next_direct`` and ``broadcast``, which the driver has submitted after this call.
        """
        call, payload_count, has_spec, has_dispatched, modes, has_queued, digests = RankRequest.from_wire(request)
        payloads, others = arguments[:payload_count], iter(arguments[payload_count:])
        spec = SegmentSpec(task=next(others), table=next(others)) if has_spec else None
        dispatched = next(others) if has_dispatched else None
        queued = pickle.loads(next(others)) if has_queued else ()
        self._executor.synced_digests.active = digests
        if self._failed is not None and self._failed_in == (call.plan, call.step):
            raise self._failed  # peers that wait in that call must not meet this rank in another one
        try:
            contents = [content_of(deserialized(payload)) for payload in payloads]
            exchanges = any(isinstance(mode, list) for mode in modes)
            result, sends = self._executor.run(call, spec, contents, dispatched, queued, exchanges=exchanges)
            self._sender = "' and '".join(called.label for called in result.calls), result.rank, call.step
            inline, stored = self._send(sends, modes)
        except Exception as error:
            # The calls that send queued payloads come after this one, and must fail as it does, not send stale data.
            self._failed, self._failed_in = error, (call.plan, call.step)
            raise
        acknowledgment = Acknowledgment(result, inline).to_wire()
        return (acknowledgment, *stored) if stored else acknowledgment

    def arrive(self, request: list[Any], *arguments: Any) -> Any:
        """Receive weights while another call may run, in a separate thread; arguments are as for ``run``."""
        call, payload_count, has_spec, *_ = RankRequest.from_wire(request)
        payloads, others = arguments[:payload_count], iter(arguments[payload_count:])
        spec = SegmentSpec(task=next(others), table=next(others)) if has_spec else None
        result = self._executor.arrivals.arrive(call, spec, [content_of(deserialized(payload)) for payload in payloads])
        return Acknowledgment(result, []).to_wire()

    def _send(self, sends: Sequence[PayloadContent], modes: Sequence[SendMode]) -> tuple[list[Any], list[Any]]:
        """Send payloads with the acknowledgment or through the object store; queue all others."""
        inline, stored = list[Any](), list[Any]()
        for content, mode in zip(sends, modes, strict=True):
            if mode == INLINE:
                inline.append([[key.node, key.chunk, key.column, value] for key, value in content.items()])
            elif mode == DIRECT:
                self._direct.append(pickle_content(content))
            elif isinstance(mode, list):
                stored.append(self._queue_exchange(content, mode) or self._queue_broadcast(content, mode))
            else:
                payload = self._payload_class(content)
                stored.append(
                    serialized(payload) if mode == RELAYED and bytes_of(content) <= SMALL_PAYLOAD_BYTES else payload
                )
        return inline, stored

    def _queue_broadcast(self, content: PayloadContent, ranks: list[int]) -> Any:
        """Queue a broadcast of tensors; return the message that its readers get first, through the object store."""
        from hfdsl.runtime.transports.broadcast import PendingBroadcast

        # No copy of tensors within objects, such as parameters: nothing runs here until all readers have them.
        value = pickle_content(content, copy=False)
        self._broadcasts.append((value, ranks))
        return PendingBroadcast.of(value, ranks)

    def _queue_exchange(self, content: PayloadContent, ranks: list[int]) -> PendingExchange | None:
        """Queue weights for their readers; return the messages that these get first, or None for other values."""
        from hfdsl.runtime.weights.exchange import Exported, PendingExchange

        exports = [value for value in content.values() if isinstance(value, Exported)]
        if not exports:
            return None
        self._exchanges.setdefault(tuple(ranks), []).extend(exports)
        return PendingExchange(tuple(content), tuple(ranks))

    def broadcast(self) -> list[list[Any]]:
        """Send what the last call queued; nothing else runs here until all readers have received it.

        Returns the reports of what was exported, where it is verified.

        Raises:
            HfError: what that call has raised; HF806 if something cannot be sent.
        """
        if self._failed is not None:
            raise self._failed
        import torch

        from hfdsl.runtime.transports.broadcast import send

        while self._broadcasts:
            with sending(*self._sender):
                send(*self._broadcasts.popleft())
        if self._exchanges:
            from hfdsl.runtime.weights.exchange import send_all

            exchanges, self._exchanges = self._exchanges, {}
            self._executor.synced_digests.begin_sent()
            send_all(exchanges)
        if torch.cuda.is_initialized():
            # The GPU still waits for readers: else the next call would seem to take as long as they need.
            torch.cuda.current_stream().synchronize()
        return [report.to_wire() for report in self._executor.synced_digests.take_sent()]

    def next_direct(self) -> Any:
        """The next direct payload; called once for each payload, after the call that made it.

        Raises:
            HfError: what that call has raised.
        """
        if self._failed is not None:
            raise self._failed
        return self._direct.popleft()
