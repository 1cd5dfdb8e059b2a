"""Interrupts (Ctrl-C) that wait until Ray has started, since one within ``ray.init`` crashes the interpreter."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def delayed_interrupts() -> Iterator[None]:
    """Delay SIGINT in the main thread to the end of this context, where its handler runs once for all that arrived.

    The default handler raises KeyboardInterrupt. Other threads and signals without a Python handler are unaffected.

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
