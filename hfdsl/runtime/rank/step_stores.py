"""The stores of a process: that of the running step, and those of steps in progress behind queues.

A worked example, a plan of which two steps may be in flight. ``begin`` is called before each call of a step::

    begin    stores afterward    what the call finds
    0        0                   nothing
    1        0, 1                nothing: values of step 0 lie beside it
    0        0, 1                what earlier calls of step 0 have left
    2        1, 2                nothing; step 0 has ended, since only two are in flight
    -        1, 2                a copy or a file has both, with the payloads that this process has still to receive

Why it is right. *No stale values*: each step has a store of its own; the steps of a plan without queues run one after
another in one store, which is emptied at the first call of each. If a stream has begun such a step, the driver holds
its inputs in a store of its own, too, since a file may need them. *Bounded*: a store is dropped when a step begins that
could not be in flight beside its own. *Complete*: this process's part of a step is what its store holds, and the
payloads that were sent to it and not received; the caller of a save or restore passes the latter, by the number of the
step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from hfdsl.runtime.rank.store import PayloadContent, Store
from hfdsl.runtime.saving.state_files import FlatState
from hfdsl.runtime.saving.store_files import fill_stores, flat_stores, read_stores, write_stores


class StepStores:
    """The stores of a process, by plan and step; ``current`` is that of the running step."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.current = self._shared = Store()  # the latter of all steps that run one after another
        self._in_flight: dict[tuple[str, int], Store] = {}
        self._step: tuple[str, int] | None = None

    def is_in(self, plan: str, number: int) -> bool:
        """Whether this step is the last one begun or continued."""
        return self._step == (plan, number)

    def begin(self, plan: str, number: int, steps_in_flight: int) -> bool:
        """Begin or continue a step of a plan; return whether it is new."""
        step = plan, number
        if step == self._step:
            return False
        self._step = step
        if step in self._in_flight:
            self.current = self._in_flight[step]
            return False
        ended = [
            (name, step_number)
            for name, step_number in self._in_flight
            if name == plan and step_number <= number - max(1, steps_in_flight)
        ]
        for earlier in ended:
            del self._in_flight[earlier]
        if steps_in_flight:
            self.current = self._in_flight[step] = Store()
        else:
            self.current = self._shared
            self.current.clear()
        return True

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within this context, calls of other steps may run."""
        held = self._step, self.current
        try:
            yield
        finally:
            self._step, self.current = held

    def forget_steps(self) -> None:
        """Forget the steps in progress, since states of another step are loaded."""
        self._in_flight.clear()
        self._step = None

    def clear(self) -> None:
        """Drop all values."""
        self.current.clear()
        self.forget_steps()

    def of(self, plan: str, number: int) -> Store:
        """The store of a step in progress."""
        return self._in_flight[plan, number]

    # -- copies and files ----------------------------------------------------------------------------------------------

    def save(self, folder: str, plan: str, pending: Mapping[int, Sequence[PayloadContent]]) -> dict[str, str]:
        """Write this process's data of steps in progress, with payloads that it has not received yet.

        Raises:
            CheckpointError: HF906 if the file cannot be written, HF908 if a queue holds a value that no file can hold.
        """
        stores = {number: self._in_flight.get((plan, number), Store()) for number in pending}
        return write_stores(
            folder, self._group, plan, {number: (stores[number], payloads) for number, payloads in pending.items()}
        )

    def load(self, folder: str, plan: str, file: Mapping[str, str]) -> None:
        """Read the file of ``save``; HF906 for any other file."""

        def new_store(number: int) -> Store:
            self._in_flight[plan, number] = Store()
            return self._in_flight[plan, number]

        read_stores(folder, file, new_store)

    def copies(self) -> dict[str, FlatState]:
        """Copies of this process's data of steps in progress, by plan; HF908 for queued objects that no copy can hold.

        What it has not received yet is on its way elsewhere.
        """
        steps: dict[str, dict[int, tuple[Store, Sequence[PayloadContent]]]] = {}
        for (plan, number), store in self._in_flight.items():
            steps.setdefault(plan, {})[number] = store, ()
        return {plan: flat_stores(plan, stores) for plan, stores in steps.items()}

    def restore(self, plan: str, copied: FlatState | None, pending: Mapping[int, Sequence[PayloadContent]]) -> None:
        """Continue with these steps: with the copied data of this process, and the payloads not received yet."""
        stores: dict[int, Store] = {}
        if copied is not None:
            fill_stores(copied, lambda number: stores.setdefault(number, Store()))
        for number, payloads in pending.items():
            self._in_flight[plan, number] = stores.get(number, Store())
            for content in payloads:
                self._in_flight[plan, number].receive(content)
