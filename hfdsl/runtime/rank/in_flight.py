"""Weights in flight: they arrive in a process while one of its calls runs, and are loaded between two of its tokens.

A worked example, a call of eight tokens that was dispatched under version 2; versions 3 and 4 arrive while it runs::

    token              0  1  2  3  4  5  6  7
    arrives                    3     4
    load before        2        3     4           each at once, between two tokens
    sampled under      2  2  2  3  3  4  4  4
    taken              (0, 2), (3, 3), (5, 4)     in the log of the run, by which a replay loads them again

Several calls may be in progress at a time (``concurrent_calls``), such as those whose rows an engine samples in one
batch. A version is loaded when all of them are between two tokens. Call 1 was dispatched under version 3, and joins::

    token of call 0    0  1  2  3  4  5  6  7
    token of call 1             0  1  2  3  4  5  6  7
    load before        2        3     4
    taken by call 1    (0, 3), (2, 4)

A load in flight does not run as a call of its own. It arrives in a second thread that Ray gives the process, beside the
thread of its calls, or on the virtual clock of the local backend. Then it waits for the next token of a call, or for
the next call.

Why it is right. *Atomic*: a load runs in the thread of a call, when every call in progress is between two of its tokens
or has not begun with its first, so that no token reads weights of two versions. *Bound*: before its body begins, a call
waits for the version that it was dispatched under, and the version of a role only grows, whichever call loads it; so
the oldest token of a call is no older than its dispatch. *No deadlock*: the calls that make a version run on other
processes, were submitted before the calls that wait for it, and wait for nothing that was submitted later; a call that
has asked for weights waits for others until they ask again, and within a token no call waits for another one. *Replay*:
with a schedule a call loads exactly what it says, and waits for it; such calls run one after another. *Beside an
evaluation*: between two calls, its sync loads weights that are at least as new as all that have arrived, so the arrived
ones are counted but no longer loaded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from threading import Condition
from typing import Any, Final, TypeAlias

from hfdsl.errors import CheckpointError, HfError
from hfdsl.graph.body_checks import inputs_unchanged
from hfdsl.graph.program import RoleCall
from hfdsl.plan.concurrency import concurrent_calls
from hfdsl.plan.plan import Plan, Step
from hfdsl.protocols.call import Call, WeightLoads, in_call, seeded
from hfdsl.protocols.state import effects_of
from hfdsl.runtime.messages import SegmentCall, WeightsInFlight
from hfdsl.runtime.rank.role_errors import role_error

CallKey: TypeAlias = tuple[str, int, int]
"""A call of a process: its plan, its step and its node."""

LoadedAt: TypeAlias = tuple[int, int]
"""A decode step, and the version sampled with from there on."""

PATIENCE: Final = 600.0
"""The seconds for which a call waits for a version that was submitted before it."""


ROUNDING: Final = 1e-9
"""The tolerance when a share of the decode steps stands for a whole number."""


@dataclass(frozen=True, slots=True)
class InFlightSync:
    """A sync in flight between two stages: the ``loads``, and the ``calls`` that take the weights between tokens.

    At most ``at_once`` calls of the first stage may be in progress in a process. If the first stage ``shares`` another
    role with the second, which changes it between calls, its calls come before these changes.
    """

    calls: tuple[Step, ...]
    loads: tuple[Step, ...]
    at_once: int = 1
    shares: bool = False

    def of_dispatch(
        self, version: int, first: int, schedules: Mapping[int, Sequence[Sequence[Any]] | None]
    ) -> list[WeightsInFlight]:
        """The weights for a dispatch's calls under a version, after a sync that sent the ``first`` version."""
        scheduled = [(step.node, schedules.get(step.node)) for step in self.calls]
        return [
            WeightsInFlight(node, version, schedule, self.at_once > 1 and not schedule, before=first)
            for node, schedule in scheduled
        ]

    def of_update(self, update: int, *, scheduled: bool) -> list[WeightsInFlight]:
        """The weights for an update's loads; where calls are ``scheduled``, they may need any version."""
        schedule: list[list[Any]] | None = [] if scheduled else None
        return [WeightsInFlight(step.node, update + 1, schedule, beside=False, before=update) for step in self.loads]


def in_flight_sync(producer: Plan, consumer: Plan) -> InFlightSync:
    """The sync in flight between two stages."""
    loads = tuple(step for step in consumer.steps if consumer.loads_in_flight(step))
    during = {(step.role, op.during) for step in loads if isinstance(op := consumer.node(step.node).op, RoleCall)}
    calls = tuple(step for step in producer.steps if (step.role, step.signature.name) in during)
    others = {step.role for step in producer.steps} - {step.role for step in calls}
    changed = {step.role for step in consumer.steps if not consumer.loads_in_flight(step) and _changes_state(step)}
    at_once = max((concurrent_calls(producer, step) for step in calls), default=1)
    return InFlightSync(calls, loads, at_once, shares=not others.isdisjoint(changed))


def _changes_state(step: Step) -> bool:
    kinds = {effect.kind for effect in effects_of(step.signature.body)}
    return step.role is not None and not kinds.isdisjoint({"loads", "writes"})


def runs_beside(call: SegmentCall) -> bool:
    """Whether a segment may run concurrently with others of its kind."""
    return any(weights.beside for weights in call.in_flight)


@dataclass(slots=True)
class ArrivedWeights:
    """The versions that have arrived for a role in one process; ``version`` is the last one loaded."""

    role: str
    version: int
    _waiting: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque)
    _sampling: set[TokenLoads] = field(default_factory=set)  # the calls that are at a token
    _changed: Condition = field(default_factory=Condition)

    def add(self, version: int, load: Callable[[], None], *, supersedes: bool = False) -> None:
        """Add a version that has arrived, with the function that loads it.

        If it ``supersedes`` those that wait, no call will load them, and their memory is freed.
        """
        with self._changed:
            if supersedes:
                self._drop_waiting()
            self._waiting.append((version, load))
            self._changed.notify_all()

    def take(self, least: int, most: int | None = None, calls: Iterable[TokenLoads] = ()) -> int:
        """Load the newest version that has arrived, up to ``most``; wait for one that is ``least`` or newer.

        It also waits for all calls that are at a token, except these ``calls``, which then begin their next token.

        Raises:
            HfError: HF807 if none arrives, or another call does not end its token.
            CheckpointError: HF761 if a version newer than ``most`` was loaded.
        """
        with self._changed:
            self._end_tokens(calls)
            if most is not None and self.version > most:
                text = f"a call takes version {most} of the weights of '{self.role}', which has version {self.version}"
                raise CheckpointError("HF761", f"{text}; a log can be repeated only from the step at which it begins")
            awaited = least if most is None else most
            if not self._changed.wait_for(lambda: self._may_begin(awaited, most), PATIENCE):
                raise self._late(awaited, most)
            load: Callable[[], None] | None = None
            while self._waiting and (most is None or self._waiting[0][0] <= most):
                self.version, load = self._waiting.popleft()
            if load is not None:
                load()  # of several versions the newest alone, and no call begins with a token meanwhile
            self._sampling.update(calls)
            return self.version

    def leave(self, call: TokenLoads) -> None:
        """Note that a call has ended."""
        with self._changed:
            self._end_tokens([call])

    def _end_tokens(self, calls: Iterable[TokenLoads]) -> None:
        self._sampling.difference_update(calls)
        self._changed.notify_all()

    def _may_begin(self, awaited: int, most: int | None) -> bool:
        """Whether a token may begin: the version that it waits for has arrived, and is loaded or can be loaded."""
        newest = self._newest(most)
        return newest >= awaited and (newest == self.version or not self._sampling)

    def _late(self, awaited: int, most: int | None) -> HfError:
        newest = self._newest(most)
        if newest < awaited:
            text = f"version {awaited} of the weights of '{self.role}' has not arrived after {PATIENCE:g} s"
            return HfError("HF807", f"{text}; it has version {newest}")
        text = f"a call of '{self.role}' has asked for no weights for {PATIENCE:g} s"
        return HfError("HF807", f"{text}, while version {newest} waits to be loaded; it asks before each token")

    def supersede(self) -> None:
        """Note that weights newer than all arrived ones were loaded, so the arrived versions need no load."""
        with self._changed:
            self._drop_waiting()

    def _drop_waiting(self) -> None:
        self._waiting = deque((version, _nothing) for version, _ in self._waiting)

    def _newest(self, most: int | None) -> int:
        arrived = [version for version, _ in self._waiting if most is None or version <= most]
        return max([self.version, *arrived])


class TokenLoads:
    """The loads within one call; see ``WeightLoads``. ``taken`` lists the loaded versions with their decode steps."""

    def __init__(self, arrived: ArrivedWeights, first: int, schedule: Sequence[tuple[float, int]] | None) -> None:
        self._arrived, self._first, self._schedule = arrived, first, schedule
        self.taken: list[LoadedAt] = []

    def begin(self) -> None:
        """Before the body: wait for the version that the call was dispatched under, and load it."""
        self.note(0, self._arrived.take(self._first, self._most(0, 1)))

    def before(self, step: int, steps: int, beside: Sequence[tuple[WeightLoads, int]] = ()) -> int:
        """The version of the weights for one of ``steps`` decode steps; loads a new version."""
        calls = [self, *(loads for loads, _ in beside if isinstance(loads, TokenLoads))]
        version = self._arrived.take(self._first, self._most(step, steps), calls)
        for loads, at in ((self, step), *beside):
            loads.note(at, version)
        return version

    def end(self) -> None:
        """Note that the call has ended."""
        self._arrived.leave(self)

    def _most(self, step: int, steps: int) -> int | None:
        """The version scheduled for a decode step."""
        if self._schedule is None:
            return None
        return max([self._first, *(version for at, version in self._schedule if is_due(at, step, steps))])

    def note(self, step: int, version: int) -> None:
        """Record the version of the weights for a decode step."""
        if not self.taken or self.taken[-1][1] != version:
            if self.taken and self.taken[-1][0] == step:
                self.taken.pop()  # no token was sampled under it
            self.taken.append((step, version))


def is_due(at: float, step: int, steps: int) -> bool:
    """Whether a load scheduled at a decode step, or at a float share of the call's steps, is due before ``step``.

    >>> is_due(2, 2, 6), is_due(5 / 7, 4, 7), is_due(5 / 7, 5, 7)
    (True, False, True)
    """
    return at <= step if isinstance(at, int) else at * steps <= step + ROUNDING


class InFlight:
    """The weights in flight of one process: those that have arrived for each role, and the call that takes them."""

    def __init__(self, rank: int, *, own_process: bool) -> None:
        self._rank, self._own_process = rank, own_process
        self._arrived: dict[tuple[str, str], ArrivedWeights] = {}  # by dataflow, which counts its versions, and role
        self._loads: dict[CallKey, TokenLoads] = {}  # of the calls in progress

    def begun(self, call: SegmentCall, step: Step, dataflow: str) -> TokenLoads | None:
        """The weights that arrive while a call of a step runs; None if none do."""
        weights = _in_flight(call, step)
        if weights is None or step.role is None or loads_state(step):
            return None
        of_rank = [(at, version) for rank, at, version in weights.schedule or () if rank == self._rank]
        arrived = self._arrived.setdefault((dataflow, step.role), ArrivedWeights(step.role, weights.before))
        return TokenLoads(arrived, weights.version, of_rank or None)

    @contextmanager
    def taking(self, key: CallKey, call: Call) -> Iterator[None]:
        """Within this context, a call has weights as new as its dispatch, and takes those that arrive."""
        if not isinstance(call.loads, TokenLoads):
            yield
            return
        self._loads[key] = call.loads
        try:
            call.loads.begin()
            yield
        finally:
            call.loads.end()

    def pop_loads(self, key: CallKey) -> tuple[LoadedAt, ...]:
        """Remove and return the loads that an ended call took."""
        loads = self._loads.pop(key, None)
        return () if loads is None else tuple(loads.taken)

    def arriving(
        self, call: SegmentCall, step: Step, current: Call, body: Callable[..., Any], arguments: dict[str, Any]
    ) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The body and arguments of a step; if its weights are in flight, the body registers their arrival."""
        if step.role is None or not loads_state(step):
            return body, arguments
        weights = _in_flight(call, step)
        if weights is None:
            self._arrived.pop((current.dataflow, step.role), None)  # its versions are counted from these weights on
            for arrived in self._of(step.role):
                arrived.supersede()
            return body, arguments
        own_arguments = arguments if self._own_process else deepcopy(arguments)  # else they are the trainer's memory
        load = partial(_loaded, step.label, current, body, own_arguments)
        arrived = self._arrived.setdefault((current.dataflow, step.role), ArrivedWeights(step.role, weights.before))
        return partial(arrived.add, weights.version, load, supersedes=weights.schedule is None), {}

    def settle(self, role: str) -> None:
        """Load the weights that have arrived for a role."""
        for arrived in self._of(role):
            arrived.take(0)

    def _of(self, role: str) -> list[ArrivedWeights]:
        return [arrived for (_, of_role), arrived in self._arrived.items() if of_role == role]

    def forget(self) -> None:
        """Drop the weights that have arrived, since other states will be loaded."""
        self._arrived.clear()


def _nothing() -> None:
    """Load nothing."""


def _loaded(label: str, call: Call, body: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Load weights as a separate call within the one that takes them.

    Raises:
        RoleError: HF806 if the body raises.
    """
    with in_call(call), seeded(call), inputs_unchanged(label, arguments):
        try:
            body(**arguments)
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            raise role_error(label, call.rank, call.step, error) from None


def loads_state(step: Step) -> bool:
    """Whether a step loads a state."""
    return any(effect.kind == "loads" for effect in effects_of(step.signature.body))


def _in_flight(call: SegmentCall, step: Step) -> WeightsInFlight | None:
    return next((weights for weights in call.in_flight if weights.node == step.node), None)
