"""Turns within a process: one call at a time, except for the bodies of calls that may run concurrently.

A worked example. Calls 0 and 1 may run beside each other; 2 is an ordinary call, such as the sync of an evaluation::

    call 0    turn [body aside            ] turn
    call 1         turn [body aside  ] turn
    call 2                                       turn

A call has its turn while it receives its inputs, and again when its result is stored; a body that may run beside others
yields the turn meanwhile. So only such bodies overlap, and nothing else in a process needs to know about threads.

An ordinary call has the process to itself: it begins when no body is aside. The order in which calls begin is up to the
caller (``hfdsl.runtime.ray.call_order``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class CallTurns:
    """The turns of the calls of one process.

    >>> turns = CallTurns()
    >>> with turns.beside(), turns.aside(), turns.beside():
    ...     print("two calls")
    two calls
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._taken = False
        self._aside = 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """The turn of a call that runs alone in the process."""
        self._take(aside=0)
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """The turn of a call whose body may run beside others."""
        self._take()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within a turn, yield it to other calls, and take it again at the end."""
        self._aside += 1
        self._leave()
        try:
            yield
        finally:
            self._take()
            self._aside -= 1

    def _take(self, aside: int | None = None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._taken and aside in (None, self._aside))
            self._taken = True

    def _leave(self) -> None:
        with self._changed:
            self._taken = False
            self._changed.notify_all()
