"""Recovery: a step that lost processes is repeated from a copy of all states, and gives the same values.

A copy is in host memory, or it is a saved state, or there is none yet and the constructors give the states again.

A worked example. An actor of two ranks trains; ``hf.Retries(every=2)``; rank 1 is killed within step 3 (``w`` is the
actor's state, and ``w2`` its value after two steps)::

    step       actor                    journal        copy
    launch     copies w0, continues     -              w0
    0          w0 -> w1                 step 0         w0
    1          w1 -> w2                 steps 0, 1     w0
               copies w2, continues     -              w2
    2          w2 -> w3                 step 2         w2
    3          rank 1 dies              step 2         w2
               both ranks are rebuilt, and load w2
    2 again    w2 -> w3
    3 again    w3 -> w4                 steps 2, 3
               copies w4                -              w4

Why it is right. *The same values*: a call's result depends on its arguments, on the states that it declares, and on
streams derived from seed, step, call and rank. The journal has the inputs of every step since the copy, the copy all
states, and the counters of steps go back with them, so each repeated call has the same inputs. Data that a role keeps
outside of ``state()`` starts as its constructor leaves it. *Once*: only the attempt that succeeds returns a result, and
what the failed one has sent is dropped with its handles. *A copy is of one step*: processes run calls in the order of
their submission, so a copy that is submitted between two steps sees all of the first and nothing of the second. It
replaces the one before it when all of it has arrived; until then the journal reaches back to the older one. *No step is
repeated in vain*: where a loss changes no state, only the step that it was in runs again (``rebuild``), and of this
step only what is lost (``ended_calls``). The processes that are gone kept none, and no other one has begun a call in
this step that may change one: each call that is not declared to read alone counts, before its body begins. That holds
for the states with which a step began, so not within a recovery that was itself cut short (``_is_current``). *An end*:
a step that loses processes more often than ``attempts`` allows ends the run with the first loss. A body that raises is
no loss: the error is the user's, and is raised at once; that of a call that ends its process every time at its third
death (``deaths``).
"""

from __future__ import annotations

import pickle
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from hfdsl.deploy.retries import Retries
from hfdsl.errors import HfWarning, LostProcessError, RoleError
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.queues.files import Rank
from hfdsl.runtime.rank.role_errors import raised_by_body
from hfdsl.runtime.recovery.deaths import Deaths

T = TypeVar("T")

LOSS_SECONDS = 20.0
"""The time in which Ray notices that a node is gone, if a value of one of its processes is lost."""

PEER_SECONDS = 3.0
"""The time in which Ray notices that a process is gone, if a peer that may have waited for it raised."""


@runtime_checkable
class RecoverableBackend(Backend, Protocol):
    """A backend that can lose and replace processes."""

    def lost_ranks(self, wait: float) -> Mapping[str, Sequence[int]]:
        """The ranks whose processes are gone, by process group, as far as known after ``wait`` seconds."""
        ...

    def copy_states(self, peers: bool) -> Any:
        """Have every process copy its workers' states before its next call; return the handle of the copies.

        With ``peers`` each is copied to another node, too.
        """
        ...

    def copied(self, copies: Any, wait: float) -> bool:
        """Whether all copies exist, within ``wait`` seconds.

        Raises:
            RoleError: HF806 if a role's ``state()`` raises or a process is lost.
        """
        ...

    def rebuild(
        self, lost: Mapping[str, Sequence[int]], *, step: tuple[str, int] | None, everything: bool, wait: float
    ) -> Collection[str] | None:
        """Replace the groups of lost ranks within ``wait`` seconds; other groups end the calls of their step.

        Where all states are still those with which ``step``, a plan and a number, began, it returns the groups whose
        processes still have its values. Else it returns None; all groups are replaced then with ``everything``.
        """
        ...

    def forget(self, groups: Collection[str]) -> None:
        """Have the processes of groups drop the values of a step that will be repeated."""

    def succeeded(self, acknowledgments: Sequence[Any]) -> Sequence[bool]:
        """The success of each call; after ``rebuild`` no call of the step is in progress."""
        ...

    def restore(self, copies: Any) -> None:
        """Load the copied states into all workers."""

    def restore_queues(self, plan: str, copies: Any, pending: Mapping[int, Mapping[Rank, Sequence[Any]]]) -> None:
        """Have every process continue with the steps in progress of a plan.

        It has what it held of them when the states were copied, and receives the payloads of these handles, by step.
        """


class RecoverableStream(Protocol):
    """The steps in progress of a plan with queues, which go back together with the states."""

    def copy(self) -> Callable[[Any], None]:
        """Remember the steps in progress; return the function that goes back to them, with the states of that time.

        Raises:
            HfError: what a step in progress raises.
        """
        ...

    def reset(self) -> None:
        """Go back to a time without steps in progress."""

    def repeat_rest(self) -> None:
        """After the journal, repeat the decisions made since the last result."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """A loss from which the run continued: ranks, step, number of steps repeated before it, and seconds."""

    lost: Mapping[str, Sequence[int]]
    plan: str
    step: int
    repeated_steps: int
    seconds: float
    cause: str


@dataclass(frozen=True, slots=True)
class Copy:
    """All states after a number of steps of each plan; without ``restore``, those that the constructors set.

    ``streams`` go back to what was in progress then, by plan; of others nothing was.
    """

    steps: dict[str, int]
    restore: Callable[[], None] | None
    streams: Mapping[str, Callable[[], None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """A committed step: its number, how to run it, and its inputs, pickled, since the caller may reuse their memory."""

    plan: str
    step: int
    run: Callable[[Any], object]
    inputs: bytes


@dataclass
class Recovery:
    """The copies and the journal of a run, and how it continues from them."""

    backend: RecoverableBackend
    retries: Retries
    steps: dict[str, int]
    """The number of committed steps of each plan, which goes back with a copy."""

    recoveries: list[Recovered] = field(default_factory=list)
    left: Collection[str] = ()
    """The groups whose processes still have the values of the step that is repeated."""

    generation: int = 0
    """The number of replacements of processes; messages to earlier processes no longer count."""

    streams: dict[str, RecoverableStream] = field(default_factory=dict)
    """The stream of each plan with steps in progress."""

    def __post_init__(self) -> None:
        self._copy = Copy(dict(self.steps), None)
        self._next_copy: tuple[Copy, Any] | None = None  # under way, with its handle
        self._journal: list[Entry] = []  # the steps since the copy
        self._deaths = Deaths()
        self._is_current = True  # the states are those after the committed steps, as far as the next one left them

    def begin(
        self, saved: Callable[[], None] | None = None, streams: Mapping[str, Callable[[], None]] | None = None
    ) -> None:
        """Begin with the current states: at launch, or after a load, which ``saved`` repeats.

        With copies in memory it returns when the first one exists.

        Raises:
            CheckpointError: HF908 if a role that trains has no state, or one that cannot be copied.
            HfError: HF806, HF807 if a role's ``state()`` raises or does not end.
        """
        self._next_copy, self._journal = None, []  # what was before a load leads to other states
        self._deaths = Deaths()
        self._adopt(Copy(dict(self.steps), saved, streams or {}))
        if self.retries.every is not None:
            self._begin_copy()
            while not self._adopt_next(wait=1.0):
                pass

    def go_back_to(
        self, steps: Mapping[str, int], load: Callable[[], None], streams: Mapping[str, Callable[[], None]]
    ) -> None:
        """Go back to a saved state from now on, unless there is a newer copy."""
        if all(steps.get(plan, count) >= count for plan, count in self._copy.steps.items()):
            # A plan that was added after the save goes back to its own first step here.
            first = {entry.plan: entry.step for entry in reversed(self._journal)}
            saved = {plan: count for plan, count in steps.items() if plan in self.steps}  # others are added later
            self._adopt(Copy(self.steps | first | saved, load, streams))

    def add(self, plan: str, steps: int) -> None:
        """Register another plan that runs from now on, with its number of steps so far."""
        for copy in (self._copy, self._next_copy[0] if self._next_copy else None):
            if copy is not None:
                copy.steps[plan] = steps

    def run(self, plan: str, attempt: Callable[[], T]) -> T:
        """Return the result of ``attempt``, repeated after every loss of processes.

        Raises:
            LostProcessError: HF840 if this step lost processes more often than the retries allow.
            RoleError: HF842 if the same call ends its process every time.
            HfError: what the step itself raises.
        """
        step, losses = self.steps[plan], list[tuple[Mapping[str, Sequence[int]], Exception]]()
        while True:
            try:
                if losses:
                    self._go_back(plan, step, *losses[-1])
                return attempt()
            except Exception as error:
                if raised_by_body(error):
                    raise
                lost = self.backend.lost_ranks(LOSS_SECONDS if isinstance(error, LostProcessError) else PEER_SECONDS)
                if not lost:
                    raise
                losses.append((lost, error))
                always_dies = self._deaths.add(getattr(error, "deaths", ()), plan, step)
                if always_dies is not None:
                    raise always_dies from error
                if len(losses) > self.retries.attempts:
                    first_lost, first = losses[0]
                    raise LostProcessError(
                        "HF840",
                        f"step {step} of '{plan}' lost processes {len(losses)} times, first "
                        f"{ranks_in_words(first_lost)}, and hf.Retries(attempts={self.retries.attempts}) allows no "
                        f"more: {_text(first)}",
                    ) from first

    def committed(self, plan: str, run: Callable[[Any], object], inputs: Any) -> None:
        """Register a completed step, and copy states when it is time.

        Raises:
            HfError: what a role's ``state()`` raises.
        """
        self._journal.append(Entry(plan, self.steps[plan] - 1, run, pickle.dumps(inputs)))
        self._adopt_next(wait=0.0)
        every = self.retries.every
        if every is not None and self._next_copy is None and len(self._journal) >= every:
            self._begin_copy()

    def _begin_copy(self) -> None:
        """Begin a copy; if a process is gone there is none, and recovery uses the previous copy."""
        try:
            go_back = {plan: stream.copy() for plan, stream in self.streams.items()}
            handle = self.backend.copy_states(self.retries.copies == "peers")
        except RoleError as error:
            if raised_by_body(error):
                raise
            return
        streams = {plan: partial(restore, handle) for plan, restore in go_back.items()}
        self._next_copy = Copy(dict(self.steps), lambda: self.backend.restore(handle), streams), handle

    def _adopt_next(self, wait: float) -> bool:
        """Replace the copy by the next one, once it is complete; return whether none is pending."""
        if self._next_copy is None:
            return True
        copy, handle = self._next_copy
        try:
            if not self.backend.copied(handle, wait):
                return False
        except LostProcessError:  # the next step finds out, and goes back to the copy before
            self._next_copy = None
            return True
        self._next_copy = None
        self._adopt(copy)
        return True

    def _adopt(self, copy: Copy) -> None:
        self._copy = copy
        self._journal = [entry for entry in self._journal if entry.step >= copy.steps.get(entry.plan, 0)]

    def _go_back(self, plan: str, step: int, lost: Mapping[str, Sequence[int]], cause: Exception) -> None:
        """Replace what was lost, load the copy, and repeat the steps since."""
        start = time.monotonic()
        self._next_copy = None
        self.generation += 1
        current = (plan, step) if self._is_current and not self.streams else None
        self._is_current = False
        surviving = self.backend.rebuild(
            lost, step=current, everything=self._copy.restore is None, wait=self.retries.wait
        )
        unchanged, self.left = surviving is not None, surviving or ()
        repeated = [] if unchanged else list(self._journal)
        if not unchanged:
            if self._copy.restore is not None:
                self._restore(self._copy.restore)
            self.steps |= self._copy.steps
            for name, stream in self.streams.items():
                self._copy.streams.get(name, stream.reset)()
        for entry in repeated:
            entry.run(pickle.loads(entry.inputs))
        for stream in self.streams.values():
            stream.repeat_rest()
        self._is_current = True
        recovered = Recovered(
            lost=lost,
            plan=plan,
            step=step,
            repeated_steps=len(repeated),
            seconds=time.monotonic() - start,
            cause=_text(cause),
        )
        self.recoveries.append(recovered)
        again = f", with {len(repeated)} steps repeated" if repeated else ""
        warnings.warn(
            HfWarning(
                "HF840",
                f"step {step} of '{plan}' lost {ranks_in_words(lost)}; the run continues after "
                f"{recovered.seconds:.1f} s{again}: {recovered.cause}",
            ),
            stacklevel=2,
        )

    def _restore(self, restore: Callable[[], None]) -> None:
        """Load the copy; HF840 if the copy itself is lost, with its node."""
        try:
            restore()
        except LostProcessError as error:
            if self.backend.lost_ranks(LOSS_SECONDS):
                raise  # the next attempt replaces these, too
            raise LostProcessError(
                "HF840",
                f"the copy of all states, made after {self._copied_steps()}, is lost: it was on the node that is gone "
                f"({_text(error)}). Launch again and load a checkpoint: running.load(folder), or hfdsl train --resume; "
                'hf.Retries(copies="peers") keeps a second copy on another node; with hf.Retries(every=None) and '
                "running.go_back_to(folder) a run goes back to files, which outlast a node",
            ) from error

    def _copied_steps(self) -> str:
        return ", ".join(f"{count} steps of '{plan}'" for plan, count in self._copy.steps.items())


def _text(error: Exception) -> str:
    """The first line of an error; the rest of Ray's report is in the error itself, the cause of the last one."""
    return str(getattr(error, "message", error)).partition("\n")[0]


def ranks_in_words(lost: Mapping[str, Sequence[int]]) -> str:
    """The lost ranks in words.

    >>> ranks_in_words({"actor": [1], "critic": [0, 2]})
    "rank 1 of 'actor' and ranks 0, 2 of 'critic'"
    """
    return " and ".join(
        f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} of '{group}'" for group, ranks in lost.items()
    )
