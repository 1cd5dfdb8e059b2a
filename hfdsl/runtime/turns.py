"""Ranks of one process take turns: each runs until it ends, or waits for its peers in a collective.

A worked example, two ranks whose bodies gather a value from each other::

    turn of rank 0    all_gather(a): waits for rank 1
    turn of rank 1    all_gather(b): both values are there, so it runs to its end
    turn of rank 0    gets [a, b], and runs to its end

Why it is right. *The same in every run*: one rank runs at a time, and passes its turn on only where it waits or ends,
so the order does not depend on timing, and bodies of one group never run side by side. *No hang*: if rank 1 ends
without a gather, all remaining ranks wait, which ``Turns`` sees at once. *An interrupt ends bodies*: Ctrl-C raises
KeyboardInterrupt in the caller's thread, which raises it in the body that has the turn; the other ranks raise it where
they wait. Otherwise the body would run on, and abort the interpreter at its exit if it were in a C++ library then.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar
from weakref import finalize

from hfdsl.errors import HfError
from hfdsl.protocols.call import restore_streams, stream_states
from hfdsl.protocols.collectives import AxisGroup, copied, record_collective, refuse_without_peers

INTERRUPTED = 5.0
"""Seconds for which an interrupt waits for a body to end: it ends once its call of a library has returned."""

T = TypeVar("T")
_Tasks: TypeAlias = SimpleQueue[Callable[[], None] | None]


class Turns:
    """Runs ranks as threads, one at a time in rank order; a rank yields its turn while it waits.

    If every remaining rank waits, none can continue: that is an error at once, and not a hang. A rank keeps its
    thread from run to run, since libraries cache by thread: a new one makes cuDNN plan every attention again, 30 ms
    each.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._turn = 0
        self._waits: dict[int, Callable[[], bool]] = {}
        self._ended: set[int] = set()
        self._count = 0
        self._stuck: str | None = None
        self._interrupted = False
        self._gate = threading.Lock()
        self._in_body: int | None = None  # the rank in whose thread an interrupt may be raised
        self._tasks: list[_Tasks] = []
        self._threads: list[threading.Thread] = []
        self._stop = finalize(self, _stop_threads, self._tasks)

    def close(self) -> None:
        """End the threads; that of a rank whose body an interrupt did not end in time ends with the body."""
        self._stop()
        if len(self._ended) == self._count:
            for thread in self._threads:
                thread.join()

    def run(self, bodies: Sequence[Callable[[], T]]) -> list[T]:
        """Run all ranks; raise the first error after every rank has ended, or an interrupt, which ends them."""
        self._turn, self._count, self._stuck, self._interrupted, self._in_body = 0, len(bodies), None, False, None
        self._waits.clear()
        self._ended.clear()
        results: list[Any] = [None] * len(bodies)
        errors: dict[int, BaseException] = {}

        def run_rank(rank: int, body: Callable[[], T]) -> None:
            try:
                self._until(rank, lambda: True)
                try:
                    self._enter_body(rank)
                    results[rank] = body()
                finally:
                    self._enter_body(None)
            except BaseException as error:  # noqa: BLE001  # carried to the caller's thread
                errors[rank] = error
            finally:
                with self._condition:
                    self._ended.add(rank)
                    self._pass_on()
                    self._condition.notify_all()

        while len(self._tasks) < len(bodies):
            self._tasks.append(SimpleQueue())
            name = f"rank {len(self._threads)}"
            self._threads.append(threading.Thread(target=_run_tasks, args=self._tasks[-1:], name=name, daemon=True))
            self._threads[-1].start()
        try:
            for rank, body in enumerate(bodies):
                self._tasks[rank].put(partial(copy_context().run, partial(run_rank, rank, body)))
            with self._condition:
                self._condition.wait_for(lambda: len(self._ended) == len(bodies))
        except BaseException:
            self._interrupt()
            raise
        if errors:
            raise next(iter(errors.values()))  # ranks that wait for the one that failed fail after it
        return results

    def wait(self, rank: int, ready: Callable[[], bool]) -> None:
        """Let the other ranks run until ``ready``."""
        self._enter_body(None)
        states = stream_states()
        self._until(rank, ready)
        restore_streams(states)
        self._enter_body(rank)

    def _enter_body(self, rank: int | None) -> None:
        """Note the rank whose body runs; None outside of it and while it waits, where an error would break the locks.

        An error that another thread raises here comes once the gate has been left, so none comes later.
        """
        with self._gate:
            if rank is not None and self._interrupted:
                raise KeyboardInterrupt
            self._in_body = rank

    def _interrupt(self) -> None:
        """End the bodies: in the one that runs, raise KeyboardInterrupt."""
        with self._condition:
            self._interrupted = True
            self._condition.notify_all()
        with self._gate:
            ident = None if self._in_body is None else self._threads[self._in_body].ident
            if ident is not None:
                error = ctypes.py_object(KeyboardInterrupt)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), error)
        with self._condition:
            # The error may come while the rank notes that its body has ended.
            self._condition.wait_for(lambda: self._in_body in (None, *self._ended), timeout=INTERRUPTED)

    def _until(self, rank: int, ready: Callable[[], bool]) -> None:
        with self._condition:
            self._waits[rank] = ready
            if self._turn == rank and not ready():
                self._pass_on()
            self._condition.wait_for(lambda: self._interrupted or self._stuck or (self._turn == rank and ready()))
            if self._interrupted:
                raise KeyboardInterrupt
            if self._stuck and not ready():
                raise HfError("HF807", f"rank {rank} waits for its peers in a collective, but {self._stuck}")
            del self._waits[rank]

    def _pass_on(self) -> None:
        """Give the turn to the next runnable rank."""
        for offset in range(1, self._count + 1):
            candidate = (self._turn + offset) % self._count
            if candidate not in self._ended and self._waits.get(candidate, lambda: False)():
                self._turn = candidate
                self._condition.notify_all()
                return
            if candidate not in self._ended and candidate not in self._waits and candidate != self._turn:
                self._turn = candidate  # not started yet
                self._condition.notify_all()
                return
        if len(self._ended) < self._count:
            ended = ", ".join(map(str, sorted(self._ended))) or "none"
            self._stuck = f"every remaining rank waits too (ended: {ended})"
            self._condition.notify_all()


def _run_tasks(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # so that it is not kept alive while the thread waits for the next one


def _stop_threads(queues: list[_Tasks]) -> None:
    for tasks in queues:
        tasks.put(None)


class LocalCollectives:
    """The exchange of values between the ranks of a process group.

    A collective is known by its ranks and its position among theirs, so ``calls`` counts those of each rank; ``values``
    holds what its ranks have given so far.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.values: dict[tuple[tuple[int, ...], int], dict[int, Any]] = {}
        self.calls: Counter[tuple[tuple[int, ...], int]] = Counter()

    def group(self, ranks: tuple[int, ...], rank: int) -> AxisGroup:
        """The group of these ranks, as ``rank`` sees it."""
        return _LocalGroup(self, ranks, rank)

    def forget(self) -> None:
        """Drop all values; between steps no rank waits."""
        self.values.clear()
        self.calls.clear()


class _LocalGroup(AxisGroup):
    in_threads = True

    def __init__(self, collectives: LocalCollectives, ranks: tuple[int, ...], rank: int) -> None:
        self._collectives, self._ranks, self._rank = collectives, ranks, rank
        self.size, self.rank = len(ranks), ranks.index(rank)

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, in coordinate order; tensors are copies, as from another process."""
        endpoint = self._collectives, self._rank
        refuse_without_peers(endpoint)
        position = self._collectives.calls[self._ranks, self._rank]
        self._collectives.calls[self._ranks, self._rank] += 1
        values = self._collectives.values.setdefault((self._ranks, position), {})
        values[self._rank] = copied(value)
        self._collectives.turns.wait(self._rank, lambda: len(values) == len(self._ranks))
        return record_collective(endpoint, "gathered", [copied(values[rank]) for rank in self._ranks])
