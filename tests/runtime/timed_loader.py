"""A loader that takes seconds on a virtual clock, beside processes whose calls do.

A worked example. The loader takes 4 s for a batch and is asked for one at 1 s, while a call runs until 3 s::

    ended_or([call])    at 3 s: the call; the driver may begin what needs no prompts
    ended_or([next])    at 5 s: nothing has ended, and the loader delivers

The thread of the loader reads each batch at once; the clock decides when the driver sees it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from hfdsl.plan.plan import Plan
from hfdsl.runtime.loading import LoaderThread
from hfdsl.runtime.queues import running_stream
from hfdsl.runtime.queues.durations import CallSeconds
from tests.runtime.losing_backend import LosingBackend, Losses
from tests.runtime.timed_backend import TimedBackend, TimedCall


class WakingBackend(TimedBackend):
    """A backend whose waits also end when the loader delivers."""

    def __init__(self, plan: Plan, seed: int, seconds: Mapping[str, CallSeconds]) -> None:
        super().__init__(plan, seed, seconds)
        self.delivers = math.inf

    @property
    def now(self) -> float:
        """The time."""
        return self._now

    def ended_or(
        self, awaited: Collection[TimedCall], others: Collection[TimedCall], happened: Callable[[], bool]
    ) -> list[TimedCall]:
        """Go on to the next end of an awaited call, or to the delivery."""
        self.go_on(min(self.delivers, *(call.end for call in awaited)))
        return [call for call in (*awaited, *others) if call.end <= self._now]

    def go_on(self, until: float) -> None:
        """Go on to a time, unless it has passed."""
        self._now = max(self._now, until)


class WakingLosingBackend(LosingBackend):
    """A backend that loses processes, whose calls end at once: the driver waits for the loader alone."""

    def __init__(self, plan: Plan, seed: int, losses: Losses) -> None:
        super().__init__(plan, seed, losses)
        self.now, self.delivers = 0.0, math.inf

    def ended(self, awaited: Collection[Any], others: Collection[Any] = ()) -> Sequence[Any]:
        """All of them."""
        return [*awaited, *others]

    def ended_or(
        self, awaited: Collection[Any], others: Collection[Any], happened: Callable[[], bool]
    ) -> Sequence[Any]:
        """All of them."""
        return [*awaited, *others]

    def drop(self, calls: Sequence[Any]) -> None:
        """Calls keep their own results."""

    def go_on(self, until: float) -> None:
        """Go on to a time, unless it has passed."""
        self.now = max(self.now, until)


class TimedLoader(LoaderThread):
    """A loader that takes these seconds for its batches, one after another and again from the first."""

    def __init__(
        self,
        backend: WakingBackend | WakingLosingBackend,
        batch_seconds: Iterator[float],
        loader: Iterable[Any],
        seconds: float,
        waiting: Callable[[], str],
        earlier: LoaderThread | None = None,
    ) -> None:
        self._backend, self._batch_seconds = backend, batch_seconds
        super().__init__(loader, seconds, waiting, earlier)

    def ask(self) -> None:
        """Begin to read a batch."""
        reading = self._reading
        super().ask()
        if self._reading is not reading:
            self._backend.delivers = self._backend.now + next(self._batch_seconds)

    @property
    def pending(self) -> bool:
        """Whether the batch has not come at this time."""
        return self._reading is not None and self._backend.delivers > self._backend.now

    def wait(self) -> None:
        """Go on to the delivery; that of a loader that hangs is never."""
        if self._backend.delivers == math.inf:  # and the thread does hang
            self._deadline = 0.0
        else:
            self._backend.go_on(self._backend.delivers)
        super().wait()


@contextmanager
def loader_takes(
    seconds: Callable[[], Iterator[float]], launches: Callable[..., WakingBackend | WakingLosingBackend]
) -> Iterator[Callable[..., WakingBackend | WakingLosingBackend]]:
    """Within this context, the loader takes these seconds; yields the function that launches such backends."""
    backends = list[WakingBackend | WakingLosingBackend]()

    def launch(plan: Plan, seed: int, **_: Any) -> WakingBackend | WakingLosingBackend:
        backends.append(launches(plan, seed))
        return backends[-1]

    def loader(*arguments: Any) -> TimedLoader:
        return TimedLoader(backends[-1], seconds(), *arguments)

    with mock.patch.object(running_stream, "LoaderThread", loader):
        yield launch
