"""The batches of a loader, one at a time, with a timeout, so that a hanging loader does not hang the run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from hfdsl.errors import HfError

END: Final = object()
"""The return value of ``next`` once the loader has ended."""


class BatchSource(Protocol):
    """The source of a stream's batches."""

    def next(self) -> Any:
        """The next batch, or ``END``."""
        ...


class LoaderThread:
    """Reads one batch at a time from a loader, in a separate thread, without reading ahead.

    >>> source = LoaderThread(iter([1]), seconds=60.0, waiting=lambda: "queue 'scored'")
    >>> source.next(), source.next() is END, source.next() is END
    (1, True, True)
    """

    def __init__(self, loader: Iterable[Any], seconds: float, waiting: Callable[[], str]) -> None:
        self._seconds, self._waiting = seconds, waiting
        self._asks: SimpleQueue[bool] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._ended = False
        context = copy_context()
        threading.Thread(
            target=context.run, args=(_serve, iter(loader), self._asks, self._answers), name="loader", daemon=True
        ).start()

    def next(self) -> Any:
        """The next batch, or ``END``.

        Raises:
            HfError: HF764 if the loader gives none in time; whatever the loader raises.
        """
        if self._ended:
            return END
        self._asks.put(True)
        try:
            batch, error = self._answers.get(timeout=self._seconds)
        except Empty:
            self._ended = True
            text = f"the loader yielded no batch for {self._seconds:g} s ({self._waiting()}); stream(..., timeout=...)"
            raise HfError("HF764", text) from None
        self._ended = batch is END or error is not None
        if error is not None:
            raise error
        return batch

    def close(self) -> None:
        """End the thread once the loader returns."""
        self._ended = True
        self._asks.put(False)


def _serve(
    loader: Iterator[Any], asks: SimpleQueue[bool], answers: SimpleQueue[tuple[Any, BaseException | None]]
) -> None:
    while asks.get():
        try:
            answers.put((next(loader, END), None))
        except BaseException as error:  # noqa: BLE001  # carried to the thread that asked
            answers.put((END, error))
