"""The local backend: all ranks in this process, one after another; a rank rests only while it waits for its peers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar
from weakref import finalize

from hfdsl.errors import HfError
from hfdsl.plan.payloads import Topology, planned_topology
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.protocols.call import swap_streams
from hfdsl.protocols.collectives import AxisGroup, copied, noted, refuse_alone
from hfdsl.protocols.worker import RankContext
from hfdsl.runtime.backend import Call, by_role, nothing
from hfdsl.runtime.executor import Executor, Ran
from hfdsl.runtime.store import Content, Kept

T = TypeVar("T")
_Tasks: TypeAlias = SimpleQueue[Callable[[], None] | None]


class Turns:
    """Runs ranks as threads of which one at a time is awake, in rank order; a rank passes its turn on while it waits.

    If every rank that is left waits, none can go on: that is told instead of waited for. A rank keeps its thread from
    run to run, since libraries remember by thread: a new one makes cuDNN plan every attention again, 30 ms each.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._turn = 0
        self._waits: dict[int, Callable[[], bool]] = {}
        self._over: set[int] = set()
        self._count = 0
        self._stuck: str | None = None
        self._tasks: list[_Tasks] = []
        finalize(self, _end, self._tasks)

    def run(self, bodies: Sequence[Callable[[], T]]) -> list[T]:
        """Run all; the first error is raised after every rank has ended."""
        self._turn, self._count, self._stuck = 0, len(bodies), None
        self._waits.clear()
        self._over.clear()
        results: list[Any] = [None] * len(bodies)
        errors: dict[int, BaseException] = {}

        def rank(number: int, body: Callable[[], T]) -> None:
            try:
                self._until(number, lambda: True)
                results[number] = body()
            except BaseException as error:  # noqa: BLE001  # carried to the caller's thread
                errors[number] = error
            finally:
                with self._condition:
                    self._over.add(number)
                    self._pass_on()
                    self._condition.notify_all()

        while len(self._tasks) < len(bodies):
            self._tasks.append(SimpleQueue())
            threading.Thread(
                target=_work, args=self._tasks[-1:], name=f"rank {len(self._tasks) - 1}", daemon=True
            ).start()
        for number, body in enumerate(bodies):
            self._tasks[number].put(partial(copy_context().run, partial(rank, number, body)))
        with self._condition:
            self._condition.wait_for(lambda: len(self._over) == len(bodies))
        if errors:
            raise next(iter(errors.values()))  # those who wait for the one that failed fail after it
        return results

    def wait(self, number: int, ready: Callable[[], bool]) -> None:
        """Let the others run until ``ready``."""
        state = swap_streams(None)
        self._until(number, ready)
        swap_streams(state)

    def _until(self, number: int, ready: Callable[[], bool]) -> None:
        with self._condition:
            self._waits[number] = ready
            if self._turn == number and not ready():
                self._pass_on()
            self._condition.wait_for(lambda: self._stuck or (self._turn == number and ready()))
            if self._stuck and not ready():
                raise HfError("HF807", f"rank {number} waits for its peers in a collective, but {self._stuck}")
            del self._waits[number]

    def _pass_on(self) -> None:
        """Give the turn to the next rank that can use it."""
        for offset in range(1, self._count + 1):
            candidate = (self._turn + offset) % self._count
            if candidate not in self._over and self._waits.get(candidate, lambda: False)():
                self._turn = candidate
                self._condition.notify_all()
                return
            if candidate not in self._over and candidate not in self._waits and candidate != self._turn:
                self._turn = candidate  # not started yet
                self._condition.notify_all()
                return
        if len(self._over) < self._count:
            ended = ", ".join(map(str, sorted(self._over))) or "none"
            self._stuck = f"every rank that is left waits too (ended: {ended})"
            self._condition.notify_all()


def _work(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # nothing of it is held while the next one is waited for


def _end(threads: list[_Tasks]) -> None:
    for tasks in threads:
        tasks.put(None)


class _Board:
    """Where the ranks of one role leave values for each other; it counts what every rank has asked of a group."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.slots: dict[tuple[tuple[int, ...], int], dict[int, Any]] = {}
        self.calls: Counter[tuple[tuple[int, ...], int]] = Counter()

    def group(self, ranks: tuple[int, ...], rank: int) -> AxisGroup:
        """The group of these ranks, seen from ``rank``."""
        return _LocalGroup(self, ranks, rank)

    def forget(self) -> None:
        """Drop what was left: between steps nobody waits."""
        self.slots.clear()
        self.calls.clear()


class _LocalGroup(AxisGroup):
    in_threads = True

    def __init__(self, board: _Board, ranks: tuple[int, ...], rank: int) -> None:
        self._board, self._ranks, self._me = board, ranks, rank
        self.size, self.rank = len(ranks), ranks.index(rank)

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, in coordinate order; tensors are copies, as they would be from another process."""
        refuse_alone((self._board, self._me))
        number = self._board.calls[self._ranks, self._me]
        self._board.calls[self._ranks, self._me] += 1
        slot = self._board.slots.setdefault((self._ranks, number), {})
        slot[self._me] = copied(value)
        self._board.turns.wait(self._me, lambda: len(slot) == len(self._ranks))
        return noted((self._board, self._me), "gathered", [copied(slot[rank]) for rank in self._ranks])


class _Lent:
    """A payload that is handed on by reference: its reader has the makers' own memory."""

    def __init__(self, content: Content, makers: Mapping[int, str]) -> None:
        self._cuts = tuple(content)
        values: dict[int, dict[str, Any]] = {}
        for cut, rows in content.items():
            values.setdefault(cut.node, {})[cut.column] = rows
        self._kept = {node: Kept.of(makers[node], columns) for node, columns in values.items()}

    def read(self) -> Content:
        return {cut: self._kept[cut.node].read(cut.column) for cut in self._cuts}


class LocalBackend:
    """Simulates every process of a plan in this one."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self._turns = {group.name: Turns() for group in plan.groups}
        self._boards = {name: _Board(turns) for name, turns in self._turns.items()}
        self._executors: dict[str, list[Executor]] = {}
        self._roles = {group.name: group.roles for group in plan.groups}
        self.driver = Executor(plan, DRIVER, (), RankContext(), seed, None)
        self._makers: dict[str, dict[int, str]] = {}
        self.add(plan)
        for group in plan.groups:
            nodes = [(slot, size) for size in group.pool.processes for slot in range(size)]
            contexts = [RankContext(rank, len(nodes), slot, size) for rank, (slot, size) in enumerate(nodes)]
            self._executors[group.name] = self._turns[group.name].run(
                [
                    lambda c=c, g=group: Executor(plan, g.name, g.roles, c, seed, self._boards[g.name])  # type: ignore[misc]  # c and g are bound per rank by their defaults
                    for c in contexts
                ]
            )
            self._boards[group.name].forget()

    def add(self, plan: Plan) -> None:
        """Teach every executor another plan of the same deployment."""
        self._makers[plan.name] = {n.id: "the driver" for n in plan.graph.inputs}
        self._makers[plan.name] |= {step.node: step.label for step in plan.steps}
        for executor in (self.driver, *(e for group in self._executors.values() for e in group)):
            executor.add(plan)

    def topology(self, plan: Plan) -> Topology:
        """As the pools have it: a payload is cut here as it would be on a cluster."""
        return planned_topology(plan)

    def put(self, plan: Plan, content: Content) -> Any:
        """A payload of the driver's."""
        return _Lent(content, self._makers[plan.name])

    def run(self, call: Call) -> list[tuple[Ran, list[Any]]]:
        """Run a segment: what every rank acknowledges, and its payloads."""
        executors, segment = self._executors[call.segment.group], call.segment

        def body(index: int) -> Callable[[], tuple[Ran, list[Content]]]:
            rank = segment.ranks[index]
            payloads = [lent.read() for lent in call.payloads[index]]
            direct = call.direct[index] if call.direct is not None else None
            return lambda: executors[rank].run(call.order, call.lessons[index], payloads, direct)

        bodies = [body(i) for i in range(len(segment.ranks))]
        if all(step.role is None for step in segment.steps):
            outcomes = [one() for one in bodies]  # a function has no peers to wait for
        else:
            outcomes = self._together(segment.group, bodies)
        makers = self._makers[call.order.plan]
        return [(ran, [_Lent(content, makers) for content in given]) for ran, given in outcomes]

    def done(
        self, acknowledged: Sequence[Any], wanted: Sequence[Any] = (), meanwhile: Callable[[], None] = nothing
    ) -> list[Ran]:
        """Nothing is under way: every segment ended before the next began."""
        meanwhile()
        return list(acknowledged)

    def get(self, handles: Sequence[Any]) -> list[Content]:
        """The payloads."""
        return [lent.read() for lent in handles]

    def save(self, folder: str, behind: bool) -> None:
        """Rank after rank; one may ask its peers."""
        for group, executors in self._executors.items():
            self._together(group, [lambda e=e: e.save(folder, behind) for e in executors])  # type: ignore[misc]  # as above

    def saved(self, folder: str, wait: float) -> dict[str, list[dict[str, str]]] | None:
        """What all have written."""
        return by_role([e.saved(folder, wait) for e in executors] for executors in self._executors.values())

    def load(self, folder: str, saved: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        """The same back."""
        for group, executors in self._executors.items():
            own = {role: saved[role] for role in self._roles[group] if role in saved}
            parts = [{role: ranks[i] for role, ranks in own.items()} for i in range(len(executors))]
            pairs = zip(executors, parts, strict=True)
            self._together(group, [lambda e=e, p=p: e.load(folder, p) for e, p in pairs])  # type: ignore[misc]  # as above

    def record(self, folder: str | None) -> None:
        """Have every executor write the calls of the next steps into a recording."""
        for executor in (self.driver, *(e for group in self._executors.values() for e in group)):
            executor.record(folder)

    def _together(self, group: str, bodies: Sequence[Callable[[], T]]) -> list[T]:
        try:
            return self._turns[group].run(bodies)
        finally:
            self._boards[group].forget()

    def begin(self) -> None:
        """Nothing to wait for, hence no deadline."""

    def close(self) -> None:
        """Drop the workers."""
        self._executors.clear()
