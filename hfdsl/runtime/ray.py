"""The Ray backend: processes are worker groups; pieces travel from worker to worker as object references."""

from __future__ import annotations

import pickle
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar
from weakref import WeakSet

import ray
from ray.exceptions import GetTimeoutError

from hfdsl.deploy.deployment import processes_per_slot
from hfdsl.deploy.pools import ResourcePool
from hfdsl.errors import HfError
from hfdsl.plan.payloads import ColumnSlice, Payload, Topology
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.plan.rows import RowTable
from hfdsl.protocols.worker import RankContext, Worker
from hfdsl.runtime.backend import DIRECT, RELAYED, STORED, TOLD, Call, Told, by_role, nothing
from hfdsl.runtime.cluster import connect
from hfdsl.runtime.executor import Executor, Lesson, Order, Ran
from hfdsl.runtime.joined import Joined, shipped
from hfdsl.runtime.packing import Packed, Pickled, opened, sealed
from hfdsl.runtime.process_groups import ProcessCollectives
from hfdsl.runtime.relay import PATIENCE, Held, Relays, pays, waited
from hfdsl.runtime.store import SMALL, Content, bytes_of
from hfdsl.single_controller.calls import fetch
from hfdsl.single_controller.group import RayWorkerGroup
from hfdsl.single_controller.pool import RayResourcePool, merge_resource_pool, split_resource_pool
from hfdsl.single_controller.roles import RayClassWithInitArgs

ANSWER = 60.0  # seconds in which an idle process tells whether its files are written
INLINE = 96 * 1024
"""Bytes of an argument above which Ray puts it into the object store by itself."""


class RankProcess(Worker):
    """One process of a plan: an executor behind an actor."""

    def __init__(self, plan: Plan, group: str, roles: tuple[str, ...], seed: int, deadline: float) -> None:
        context = RankContext.from_env()
        collectives = ProcessCollectives(
            context.rank, context.world_size, context.master_addr, context.master_port, deadline
        )
        self._executor = Executor(plan, group, roles, context, seed, collectives, own_process=True)
        self._packing = packing(plan)
        self._to_ship: deque[Any] = deque()
        self._to_spread: deque[tuple[Any, list[int]]] = deque()
        self._failed: Exception | None = None

    def add(self, plan: Plan) -> None:
        """Learn another plan of the same deployment."""
        self._executor.add(plan)

    def save(self, folder: str, behind: bool) -> None:
        """Begin to write what this process's workers keep."""
        self._executor.save(folder, behind)

    def saved(self, folder: str, wait: float) -> dict[str, dict[str, str]] | None:
        """Where it is."""
        return self._executor.saved(folder, wait)

    def load(self, folder: str, saved: dict[str, dict[str, str]]) -> None:
        """Give them back what was saved."""
        self._executor.load(folder, saved)

    def record(self, folder: str | None) -> None:
        """Write the calls of the next steps into a recording; with None no more."""
        self._executor.record(folder)

    def where(self) -> str:
        """The node that this process runs on."""
        return node_here()

    def run(self, order: list[Any], *brought: Any) -> Any:
        """This rank's part of a segment; Ray has brought the payloads, and whatever has to end before, when it starts.

        The order and the acknowledgement are lists of plain values, which Ray sends without pickling them: an argument
        costs as much as the body of a small call. ``ways`` says of each payload how it leaves (``_way``).
        """
        *told, payloads, taught, given, ways = order
        rest = iter(brought[payloads:])
        lesson = Lesson(next(rest), next(rest)) if taught else None
        try:
            contents = [opened(_arrived(payload)) for payload in brought[:payloads]]
            ran, gives = self._executor.run(Order(*told), lesson, contents, next(rest) if given else None)
            stored, told = list[Any](), list[Any]()
            for content, way in zip(gives, ways, strict=True):
                if way == DIRECT:
                    self._to_ship.append(sealed(content))
                elif way == TOLD:
                    told.append([[cut.node, cut.chunk, cut.column, value] for cut, value in content.items()])
                else:
                    stored.append(self._stored(content, way))
        except Exception as error:
            self._failed = error
            raise
        answer = [ran.packed(), told]
        return (answer, *stored) if stored else answer

    def _stored(self, content: Content, way: Any) -> Any:
        """What of a payload goes through the object store: all, or where it is broadcast what its readers are told."""
        if way in (STORED, RELAYED):
            packed = self._packing(content)
            return _dumped(packed) if way == RELAYED and bytes_of(content) <= SMALL else packed
        from hfdsl.runtime.spread import announced

        payload = sealed(content, copy=False)
        self._to_spread.append((payload, way))
        return announced(payload, way)

    def spread(self) -> None:
        """Broadcast what the last call has announced; nothing else runs here before all readers have it.

        Raises:
            HfError: what that call has raised.
        """
        if self._failed is not None:
            raise self._failed
        from hfdsl.runtime.spread import send

        while self._to_spread:
            send(*self._to_spread.popleft())

    def ship(self) -> Any:
        """The next of the payloads that go directly; it is called once for each of them, after the call that made it.

        Raises:
            HfError: what that call has raised.
        """
        if self._failed is not None:
            raise self._failed
        return self._to_ship.popleft()


def _dumped(packed: Any) -> bytes:
    return bytes(ray.cloudpickle.dumps(packed))  # type: ignore[no-untyped-call]  # of Ray


def _arrived(payload: Any) -> Any:
    return pickle.loads(payload) if isinstance(payload, bytes) else payload


def _content(handle: Any, found: Mapping[Any, Any]) -> Any:
    """The payload that a handle stands for."""
    if isinstance(handle, Told):
        _, told = found[handle.acknowledged]
        return {ColumnSlice(node, chunk, column, None): value for node, chunk, column, value in told[handle.place]}
    return _arrived(handle) if isinstance(handle, bytes) else found[handle]


def packing(plan: Plan) -> type[Packed] | type[Pickled]:
    """How payloads of a plan travel."""
    return Packed if plan.optimize.zero_copy else Pickled


def node_here() -> str:
    """The node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


class RayBackend:
    """Lowers a plan onto worker groups. A handle is an ``ObjectRef``; the driver never fetches what it does not return.

    Raises:
        ResourceError: HF502, HF505 where the cluster cannot hold the pools.
        RoleError: HF806 where a role's constructor raises.
        HfError: HF807 where the cluster's address is known, and nobody answers there.
    """

    launched: ClassVar[WeakSet[RayBackend]] = WeakSet()
    """Those of this process."""

    def __init__(self, plan: Plan, seed: int, timeout: float, deadline: float, worker_env: Mapping[str, str]) -> None:
        self._deadline, self._until = deadline, 0.0
        self._owns_cluster = not ray.is_initialized()
        self._depth, self._processes = processes_per_slot(plan.groups), plan.groups
        self._pools: dict[str, RayResourcePool] = {}
        self._groups: dict[str, RayWorkerGroup] = {}
        self._packing = packing(plan)
        self._asked: list[Any] = []  # what the calls of this step acknowledge
        self._answers: dict[Any, list[Any]] = {}  # what of it has come
        self._told: tuple[RowTable, Any] | None = None  # the rows that were told last, in the object store
        self.driver = Executor(plan, DRIVER, (), RankContext(), seed, None)
        self._joined = Joined(plan)
        self._relayed: set[str] = set()
        self._relays: Relays | None = None
        self.launched.add(self)
        try:
            if self._owns_cluster:
                connect()
            for group in plan.groups:
                process = RayClassWithInitArgs(RankProcess, plan, group.name, group.roles, seed, deadline)
                self._groups[group.name] = RayWorkerGroup(
                    self._pool(group.pool, timeout),
                    self._joined.prepare(group.name, process),
                    worker_env=worker_env,
                    timeout=timeout,
                )
            self._nodes = {
                name: fetch([worker.where.remote() for worker in group.workers]) for name, group in self._groups.items()
            }
            self._joined.join({name: group.workers for name, group in self._groups.items()}, deadline)
            self._joined.warm(plan)
            self._relay(plan)
        except BaseException:
            self.close()
            raise

    def _pool(self, pool: ResourcePool, timeout: float) -> RayResourcePool:
        """The pool as placement groups; merged and split pools share those of the pools that they are made of."""
        if pool.name not in self._pools:
            if pool.part_of:
                parent, start = pool.part_of
                rest = parent.world_size - start - pool.world_size
                sizes = [size for size in (start, pool.world_size, rest) if size]
                self._pools[pool.name] = split_resource_pool(self._pool(parent, timeout), sizes)[1 if start else 0]
            elif pool.parts:
                self._pools[pool.name] = merge_resource_pool(*(self._pool(part, timeout) for part in pool.parts))
            else:
                self._pools[pool.name] = RayResourcePool(
                    pool.processes,
                    pool.use_gpu,
                    f"{pool.name}-{secrets.token_hex(3)}",
                    self._depth,
                    timeout=timeout,
                )
        return self._pools[pool.name]

    def add(self, plan: Plan) -> None:
        """Teach every process another plan of the same deployment."""
        self.driver.add(plan)
        fetch([worker.add.remote(plan) for group in self._groups.values() for worker in group.workers])
        self._joined.warm(plan)
        self._relay(plan)

    def _relay(self, plan: Plan) -> None:
        """Have relays call the ranks of a plan, if that pays."""
        if pays(plan, self._nodes, self._joined.groups):
            self._relayed.add(plan.name)
            workers = {name: group.workers for name, group in self._groups.items()}
            self._relays = self._relays or Relays(workers, self._nodes, self._left)

    def topology(self, plan: Plan) -> Topology:
        """The nodes, the driver apart, so that it is brought nothing that only workers read; and the joined groups."""
        return Topology(
            lambda process: self._nodes[process[0]][process[1]] if process[0] in self._nodes else DRIVER,
            self._joined.groups,
            self._joined.reaches,
            self._joined.apart,
        )

    def put(self, plan: Plan, content: Content) -> Any:
        """A payload of the driver's: in the object store, or as bytes that go along with calls where there are few."""
        packed = self._packing(content)
        if bytes_of(content) <= SMALL and len(small := _dumped(packed)) <= INLINE:
            return small
        return ray.put(packed)

    def run(self, call: Call) -> Sequence[tuple[Any, Sequence[Any]]]:
        """Submit a segment: references to what a rank acknowledges and gives; it starts when its payloads exist."""
        if self._relays is not None and call.order.plan in self._relayed:
            return self._relays.run(call, self._table)
        workers, order = self._groups[call.segment.group].workers, call.order
        outcomes: list[tuple[Any, Sequence[Any]]] = []
        for i, rank in enumerate(call.segment.ranks):
            lesson, brought = call.lessons[i], call.payloads[i]
            taught = () if lesson is None else (lesson.task, self._table(lesson))
            direct = () if call.direct is None else (call.direct[i],)
            ways = [self._way(one) for one in call.gives[i]]
            told = [*order.packed(), len(brought), bool(taught), bool(direct), ways]
            stored = len(ways) - ways.count(DIRECT) - ways.count(TOLD)
            run = workers[rank].run.options(num_returns=1 + stored) if stored else workers[rank].run
            refs = run.remote(told, *brought, *taught, *direct, *call.after[i])
            acknowledged, *objects = refs if stored else (refs,)
            if any(one.broadcast for one in call.gives[i]):
                workers[rank].spread.remote()
            outcomes.append((acknowledged, self._handles(workers[rank], acknowledged, objects, ways)))
        self._asked += [acknowledged for acknowledged, _ in outcomes]
        return outcomes

    def _way(self, payload: Payload) -> Any:
        """How a payload leaves its process; a direct or broadcast one stays there until ``ship`` or ``spread``."""
        if payload.broadcast:
            return self._joined.ranks(payload.broadcast)
        return DIRECT if payload.direct else TOLD if payload.inline else STORED

    def _handles(self, worker: Any, acknowledged: Any, objects: Sequence[Any], ways: Sequence[Any]) -> list[Any]:
        stored, told = iter(objects), count()
        return [
            shipped(worker) if way == DIRECT else Told(acknowledged, next(told)) if way == TOLD else next(stored)
            for way in ways
        ]

    def _table(self, lesson: Lesson) -> Any:
        """The rows, sent once for all ranks and segments."""
        if self._told is None or self._told[0] is not lesson.table:
            self._told = lesson.table, ray.put(lesson.table)
        return self._told[1]

    def done(
        self, acknowledged: Sequence[Any], wanted: Sequence[Any] = (), meanwhile: Callable[[], None] = nothing
    ) -> list[Ran]:
        """Wait until every rank has done its part; the first failure is raised at once, whoever still waits for whom.

        Raises:
            RoleError: HF806 where a body raised or a process died.
            HfError: HF807 where the deadline passed.
        """
        answers = self._relays.ask([*acknowledged, *wanted], self._left()) if self._relays is not None else {}
        meanwhile()
        for ready in waited([one for one in acknowledged if not isinstance(one, Held)], self._left()):
            self._answers |= zip(ready, fetch(ready), strict=True)
        if self._relays is not None:
            self._relays.take(answers)
            self._answers |= {one: one.value for one in acknowledged if isinstance(one, Held) and one.value is not None}
        if late := sum(one not in self._answers for one in acknowledged):
            raise HfError(
                "HF807",
                f"{late} of {len(acknowledged)} parts of the step were not done after "
                f"{self._deadline:g} s; a body may wait for a peer, or the step needs longer: "
                "launch(..., deadline=...)",
            )
        return [Ran.unpacked(self._answers[one][0]) for one in acknowledged]

    def _all(self, refs: Sequence[Any], what: str) -> dict[Any, Any]:
        """The values of references; the first failure is raised at once."""
        values: dict[Any, Any] = {}
        for ready in waited(refs, self._left()):
            values |= zip(ready, fetch(ready), strict=True)
        if late := len(refs) - len(values):
            raise HfError(
                "HF807",
                f"{late} of {len(refs)} {what} were not done after {self._deadline:g} s; a body may wait for a peer, "
                "or the step needs longer: launch(..., deadline=...)",
            )
        return values

    def save(self, folder: str, behind: bool) -> None:
        """All ranks at once; HF806 where a role's ``state()`` raises, HF807 where the deadline passed."""
        self.begin()
        self._all([w.save.remote(folder, behind) for one in self._groups.values() for w in one.workers], "states")

    def saved(self, folder: str, wait: float) -> dict[str, list[dict[str, str]]] | None:
        """What all have written; HF906 where one cannot, HF807 where one does not answer in time."""
        self.begin()
        self._until = min(self._until, time.monotonic() + wait + ANSWER)
        asked = [[w.saved.remote(folder, wait) for w in group.workers] for group in self._groups.values()]
        answers = self._all([ref for refs in asked for ref in refs], "states")
        return by_role([answers[ref] for ref in refs] for refs in asked)

    def load(self, folder: str, saved: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        """The same back; errors as for ``save``."""
        self.begin()
        asked = []
        for group in self._processes:
            own = [role for role in group.roles if role in saved]
            for rank, worker in enumerate(self._groups[group.name].workers):
                asked.append(worker.load.remote(folder, {role: dict(saved[role][rank]) for role in own}))
        self._all(asked, "states")

    def record(self, folder: str | None) -> None:
        """Have every process write the calls of the next steps; it returns when all know."""
        self.driver.record(folder)
        fetch([worker.record.remote(folder) for group in self._groups.values() for worker in group.workers])

    def begin(self) -> None:
        """A step begins: its deadline runs from now."""
        self._until = time.monotonic() + self._deadline
        self._asked.clear()
        self._answers.clear()
        if self._relays is not None:
            self._relays.begin()

    def held(self) -> Iterator[Any]:
        """The references that it holds between steps: to what the last one acknowledged, and to its rows."""
        yield from (one for one in (*self._asked, *self._answers) if isinstance(one, ray.ObjectRef))
        if self._told is not None:
            yield self._told[1]
        if self._relays is not None:
            yield from self._relays.lent()

    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def get(self, handles: Sequence[Any]) -> list[Any]:
        """The payloads, here.

        Raises:
            RoleError: HF806 where the body that makes one raised.
            HfError: HF807 where the deadline passed.
        """
        asked = [one.acknowledged if isinstance(one, Told) else one for one in handles if not isinstance(one, bytes)]
        missing = [one for one in dict.fromkeys(asked) if one not in self._answers]
        while True:
            try:
                there = self._relays.get(missing) if self._relays is not None else missing
                refs = [one for one in there if isinstance(one, ray.ObjectRef)]
                came = dict(zip(refs, fetch(refs, min(self._left(), PATIENCE)), strict=True))
                values = [_arrived(came[one] if isinstance(one, ray.ObjectRef) else one) for one in there]
                found = self._answers | dict(zip(missing, values, strict=True))
                return [_content(handle, found) for handle in handles]
            except GetTimeoutError:
                if not self._left():
                    told = f"a value did not arrive within {self._deadline:g} s; launch(..., deadline=...) sets this"
                    raise HfError("HF807", told) from None
            ended, self._asked = ray.wait(self._asked, num_returns=len(self._asked), timeout=0)
            fetch(ended)  # the rank that makes a value may wait for one that has failed

    def close(self) -> None:
        """End the processes and give the slots back; a cluster that this backend started ends too."""
        self._joined.close()
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
