"""The batches of a loader, one at a time, with a timeout, so that a hanging loader does not hang the run.

A worked example: a queue has a place, and the loader takes 50 ms for a batch; so does an update, in a process::

    driver            loader
    ask               reads 4
    begin update 2    |
    result 2          |
    next              batch 4

Of what a loader reads nothing is lost. A batch that it was asked for comes first in the next stream if this one is left
before it arrives, and a checkpoint waits for it. Ctrl-C may come between any two instructions of the driver: within
``wait``, while the driver sleeps, it leaves all as it is. Anywhere else in a stream it breaks the run, since a batch
may be taken and not dispatched.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeAlias

from hfdsl.errors import HfError

END: Final = object()
"""The return value of ``next`` once the loader has ended."""

ReadBatch: TypeAlias = tuple[Any, BaseException | None]
"""A batch or ``END``, and the error of the loader."""


class BatchSource(Protocol):
    """The source of a stream's batches."""

    def ask(self) -> None:
        """Have the next batch read, without waiting for it; do nothing if that has begun."""

    @property
    def pending(self) -> bool:
        """Whether a batch was asked for and has not come: ``next`` would wait."""
        ...

    def wait(self) -> None:
        """Wait for the batch that was asked for."""

    def next(self) -> Any:
        """The next batch, or ``END``."""
        ...


@dataclass(eq=False, slots=True)
class BatchRequest:
    """A batch that a loader was asked for; ``arrived`` gets an item after the ``answer``."""

    answer: ReadBatch | None = None
    arrived: SimpleQueue[None] = field(default_factory=SimpleQueue)


EXIT_SECONDS: Final = 5.0
"""How long the interpreter's exit waits for batches that are being read."""

_BEING_READ = set[BatchRequest]()


@atexit.register
def _wait_for_batches() -> None:
    """Wait for the batches that are being read: a thread in a C++ library then would abort the interpreter."""
    deadline = time.monotonic() + EXIT_SECONDS
    for request in list(_BEING_READ):
        with suppress(Empty):
            request.arrived.get(timeout=max(0.0, deadline - time.monotonic()))


class LoaderThread:
    """Reads one batch at a time from a loader, in a separate thread, each only once it was asked for.

    If an ``earlier`` loader was asked for a batch that has not been taken, this batch comes first. It ``sleeps``
    while the driver waits for a batch, so that an interrupt leaves all as it is.

    >>> source = LoaderThread(iter([1]), seconds=60.0, waiting=lambda: "queue 'scored'")
    >>> source.next(), source.next() is END, source.next() is END
    (1, True, True)
    """

    def __init__(
        self,
        loader: Iterable[Any],
        seconds: float,
        waiting: Callable[[], str],
        earlier: LoaderThread | None = None,
    ) -> None:
        self._loader, self._seconds, self._waiting = loader, seconds, waiting
        self.sleeps = False
        self._asks: SimpleQueue[BatchRequest | None] = SimpleQueue()
        self._reading: BatchRequest | None = None  # if a batch was asked for
        self._overdue: BatchRequest | None = None  # whose batch may still come after its time
        self._answer: ReadBatch | None = None  # that has come, and was not taken
        self._taken_over = self._ended = False
        self._deadline = 0.0
        if earlier is not None:
            self._take_over(earlier)
        context = copy_context()
        threading.Thread(target=context.run, args=(_serve, loader, self._asks), name="loader", daemon=True).start()

    def _take_over(self, earlier: LoaderThread) -> None:
        """Take over what an earlier loader was asked for; if it took too long, from the same iterator alone."""
        goes_on = earlier._loader is self._loader and isinstance(self._loader, Iterator)
        self._reading, self._taken_over = earlier._reading or (earlier._overdue if goes_on else None), True
        self._deadline = time.monotonic() + self._seconds
        answer = earlier._answer
        self._answer = None if answer is None or _is_end(answer) else answer

    def ask(self) -> None:
        """Have the loader read its next batch; do nothing if it has begun to, or has ended."""
        if self._reading is None and self._answer is None and not self._ended:
            self._deadline = time.monotonic() + self._seconds
            self._reading, self._taken_over = BatchRequest(), False
            self._asks.put(self._reading)

    @property
    def pending(self) -> bool:
        """Whether the loader is reading a batch, and has time left for it."""
        return self._reading is not None and self._reading.answer is None and time.monotonic() < self._deadline

    def wait(self) -> None:
        """Wait until the loader has read what it was asked for, or has taken too long, which ``next`` reports."""
        reading = self._reading
        self.sleeps = reading is not None and reading.answer is None
        if reading is None:
            return
        if self.sleeps:
            with suppress(Empty):
                reading.arrived.get(timeout=max(0.0, self._deadline - time.monotonic()))
            self.sleeps = False
        self._answer = reading.answer
        if self._answer is None:
            waited = f"the loader yielded no batch for {self._seconds:g} s ({self._waiting()})"
            text = f"{waited}; if it needs longer, set stream(..., timeout=...)"
            self._answer, self._overdue = (END, HfError("HF764", text)), reading
        if self._taken_over and _is_end(self._answer):
            self._answer = None  # the earlier loader has ended, and this one has not
        self._reading = None

    def next(self) -> Any:
        """The next batch, or ``END``.

        Raises:
            HfError: HF764 if the loader gives none in time; whatever the loader raises.
        """
        while self._answer is None:
            self.ask()
            if self._reading is None:
                return END
            self.wait()
        (batch, error), self._answer = self._answer, None
        self._ended = self._ended or batch is END
        if error is not None:
            raise error
        return batch

    @property
    def has_batch(self) -> bool:
        """Whether a batch has arrived and not been taken."""
        return self._answer is not None and self._answer[0] is not END

    def give_back(self, batch: Any) -> None:
        """Give back the batch that ``next`` has returned: ``next`` returns it again."""
        self._answer = batch, None

    def close(self) -> None:
        """Ask the loader for no more; the thread ends once it has returned what it was asked for."""
        self._ended = True
        self._asks.put(None)


def _is_end(answer: ReadBatch) -> bool:
    """Whether the loader has ended, without an error."""
    return answer[0] is END and answer[1] is None


def _serve(loader: Iterable[Any], asks: SimpleQueue[BatchRequest | None]) -> None:
    batches: Iterator[Any] | None = None
    while (reading := asks.get()) is not None:
        _BEING_READ.add(reading)
        try:
            batches = iter(loader) if batches is None else batches  # which may take long, too
            reading.answer = next(batches, END), None
        except BaseException as error:  # noqa: BLE001  # carried to the thread that asked
            reading.answer = END, error
        _BEING_READ.discard(reading)
        reading.arrived.put(None)
