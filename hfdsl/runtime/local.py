"""The local backend: all ranks in this process, one after another; a rank rests only while it waits for its peers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

from hfdsl.errors import HfError
from hfdsl.plan.plan import DRIVER, Plan, Step
from hfdsl.plan.reading import Piece
from hfdsl.protocols.call import swap_streams
from hfdsl.protocols.collectives import AxisGroup, copied
from hfdsl.protocols.worker import RankContext
from hfdsl.runtime.executor import Done, Executor, Order

T = TypeVar("T")


class Turns:
    """Runs ranks as threads of which one at a time is awake, in rank order; a rank passes its turn on while it waits.

    If every rank that is left waits, none can go on: that is told instead of waited for.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._turn = 0
        self._waits: dict[int, Callable[[], bool]] = {}
        self._over: set[int] = set()
        self._count = 0
        self._stuck: str | None = None

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

        threads = [
            threading.Thread(target=copy_context().run, args=(rank, i, body), name=f"rank {i}", daemon=True)
            for i, body in enumerate(bodies)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
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


class _LocalGroup(AxisGroup):
    def __init__(
        self, turns: Turns, board: dict[tuple[tuple[int, ...], int], dict[int, Any]], ranks: tuple[int, ...], rank: int
    ) -> None:
        self._turns, self._board, self._ranks, self._me = turns, board, ranks, rank
        self._calls = 0
        self.size, self.rank = len(ranks), ranks.index(rank)

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, in coordinate order; tensors are copies, as they would be from another process."""
        slot = self._board.setdefault((self._ranks, self._calls), {})
        slot[self._me] = copied(value)
        self._calls += 1
        self._turns.wait(self._me, lambda: len(slot) == len(self._ranks))
        return [slot[rank] for rank in self._ranks]


class _LocalCollectives:
    """The groups of one role: one board on which its ranks leave values for each other."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._board: dict[tuple[tuple[int, ...], int], dict[int, Any]] = {}
        self._groups: dict[tuple[tuple[int, ...], int], _LocalGroup] = {}

    def group(self, ranks: tuple[int, ...], rank: int) -> AxisGroup:
        """The group of these ranks, seen from ``rank``; always the same one, since it counts its calls."""
        return self._groups.setdefault((ranks, rank), _LocalGroup(self._turns, self._board, ranks, rank))

    def forget(self) -> None:
        """Drop what was left on the board: between steps nobody waits."""
        self._board.clear()
        self._groups.clear()


class LocalBackend:
    """Simulates every process of a plan in this one. A handle is the piece itself."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self._turns = {group.name: Turns() for group in plan.groups}
        self._collectives = {name: _LocalCollectives(turns) for name, turns in self._turns.items()}
        self._executors: dict[str, list[Executor]] = {DRIVER: [Executor(plan, (), RankContext(), seed, None)]}
        for group in plan.groups:
            nodes = [(slot, size) for size in group.pool.processes for slot in range(size)]
            contexts = [RankContext(rank, len(nodes), slot, size) for rank, (slot, size) in enumerate(nodes)]
            self._executors[group.name] = self._turns[group.name].run(
                [lambda c=c, g=group: Executor(plan, g.roles, c, seed, self._collectives[g.name]) for c in contexts]  # type: ignore[misc]  # c and g are bound per rank by their defaults
            )
            self._collectives[group.name].forget()

    def add(self, plan: Plan) -> None:
        """Teach every executor another plan of the same deployment."""
        for executor in (e for group in self._executors.values() for e in group):
            executor.add(plan)

    def put(self, piece: Piece) -> Any:
        """A piece of the driver's."""
        return piece

    def run(
        self,
        step: Step,
        order: Order,
        sources: Sequence[Mapping[tuple[int, int], Any]],
        direct: Sequence[Mapping[str, Any]] | None,
    ) -> list[tuple[Done, Any]]:
        """One (done, piece) a rank."""
        executors = self._executors[step.group]

        def body(index: int) -> Callable[[], tuple[Done, Any]]:
            executor, given = executors[step.ranks[index]], direct[index] if direct is not None else None
            return lambda: executor.run(order, sources[index], given)

        bodies = [body(i) for i in range(len(step.ranks))]
        if step.role is None:
            return [one() for one in bodies]  # a function has no peers to wait for
        try:
            return self._turns[step.group].run(bodies)
        finally:
            self._collectives[step.group].forget()

    def done(self, acknowledged: Sequence[Any]) -> list[Done]:
        """Nothing is under way: every step ended before the next began."""
        return list(acknowledged)

    def get(self, handles: Sequence[Any]) -> list[Piece]:
        """The pieces."""
        return list(handles)

    def close(self) -> None:
        """Drop the workers."""
        self._executors.clear()
