"""The processes of a launch, shared by all plans that run on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from hfdsl.errors import HfError
from hfdsl.plan.plan import Plan
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.loading import LoaderThread
from hfdsl.runtime.recovery.steps import Recovery
from hfdsl.runtime.verification.copies import SyncHistory
from hfdsl.runtime.verification.verified_syncs import VerifiedSync

T = TypeVar("T")


@dataclass
class Processes:
    """The processes that runs share: one failure breaks all runs, since ranks may be anywhere within a step.

    ``plans`` are those that run on them. ``steps`` counts the committed steps of each plan; ``restored`` those of plans
    that have not been added yet. With a ``recovery`` the run continues after a loss.
    """

    backend: Backend | None
    steps: dict[str, int]
    seed: int
    plans: list[Plan]
    restored: dict[str, int] = field(default_factory=dict)
    broken: str | None = None
    recovery: Recovery | None = None
    loaders: list[LoaderThread] = field(default_factory=list)
    """The loader threads of streams that have not ended."""

    syncs: SyncHistory = field(default_factory=SyncHistory)
    verifying: tuple[VerifiedSync, ...] = ()
    """The syncs whose exports are digested."""

    digesting_generation: int = 0
    """The generation of the processes that digest them."""

    recording: tuple[str, int] | None = None
    """The folder of a recording, and the generation of the processes that write it."""

    put_off: dict[str, Callable[[], None]] = field(default_factory=dict)
    """By plan, what submits the calls that its stream has put off: they come before those of other plans."""

    _busy: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _busy_with: str = ""

    @property
    def all_steps(self) -> dict[str, int]:
        """The number of committed steps of each plan, by the plan's name."""
        return self.restored | self.steps

    @property
    def generation(self) -> int:
        """The number of times that processes were replaced."""
        return self.recovery.generation if self.recovery is not None else 0

    def digest_exports(self, backend: Backend) -> None:
        """Have processes digest the exports of the next steps in the syncs under verification."""
        backend.digest_exports({sync: self.syncs.dtypes[sync] for sync in self.verifying})

    def forget_replaced(self, backend: Backend) -> None:
        """Forget the digests of processes if some of them have been replaced."""
        if self.digesting_generation != self.generation:
            self.digesting_generation = self.generation
            self.syncs.forget()
            self.digest_exports(backend)

    def continue_recording(self) -> None:
        """Have replacement processes continue the recording."""
        if self.recording is not None and self.backend is not None and self.recording[1] != self.generation:
            folder, _ = self.recording
            self.backend.record(folder)
            self.recording = folder, self.generation

    @contextmanager
    def alone(self, caller: str) -> Iterator[None]:
        """Within this context, no other thread steps, saves or loads here: concurrent calls would mix within one step.

        Raises:
            HfError: HF821 if another thread, or a body of the step itself, is within one.
        """
        if not self._busy.acquire(blocking=False):
            raise HfError("HF821", f"{caller} was called during {self._busy_with}, which has not returned")
        try:
            self._busy_with = f"{caller} in thread '{threading.current_thread().name}'"
            yield
        finally:
            self._busy.release()

    def submit_put_off(self, plan_name: str) -> None:
        """Before calls of a plan, submit those that streams of other plans have put off; errors as for their steps."""
        for name, submit in self.put_off.items():
            if name != plan_name:
                submit()

    def with_retries(self, plan_name: str, call: Callable[[], T]) -> T:
        """Run a call outside of steps and return its result; with retries, repeat it after a loss of processes.

        Raises:
            HfError: HF808 if a step has ended the run; what its processes lost is not replaced then.
        """
        if self.recovery is None:
            return call()
        self.usable_backend(plan_name)
        return self.recovery.run(plan_name, call)

    def usable_backend(self, plan_name: str) -> Backend:
        """The backend; an error if it can no longer be used.

        Raises:
            HfError: HF808 after the end, or after a failed step.
        """
        if self.backend is None:
            raise HfError("HF808", f"the run of '{plan_name}' is closed; launch the plan again")
        if self.broken:
            raise HfError(
                "HF808", f"the run of '{plan_name}' has been broken since {self.broken}; launch the plan again"
            )
        return self.backend

    def close(self) -> None:
        """End all processes, and the threads of loaders."""
        for loader in self.loaders:
            loader.close()
        if self.backend is not None:
            backend, self.backend = self.backend, None
            backend.close()
