"""Interrupts (Ctrl-C) that wait until Ray has started: ``ray.init`` crashes the interpreter where one arrives in it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def delayed_interrupts() -> Iterator[None]:
    """Within this, a SIGINT of the main thread waits for the end; then its handler runs, once for all that arrived.

    By default that raises KeyboardInterrupt. Signals that Python does not handle, and other threads, are left alone.

    >>> before = signal.signal(signal.SIGINT, signal.default_int_handler)
    >>> try:
    ...     with delayed_interrupts():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("started")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    started
    interrupted
    >>> _ = signal.signal(signal.SIGINT, before)
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    arrived = list[int]()

    def note(number: int, _: FrameType | None) -> None:
        arrived.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            signal.raise_signal(signal.SIGINT)
