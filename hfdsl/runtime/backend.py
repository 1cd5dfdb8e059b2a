"""The backend interface: run segments on ranks and forward payloads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from hfdsl.plan.payloads import Payload, Topology
from hfdsl.plan.plan import Plan
from hfdsl.plan.segments import Segment
from hfdsl.runtime.messages import SegmentCall, SegmentResult, SegmentSpec
from hfdsl.runtime.queues.rows import QueuedRows
from hfdsl.runtime.rank.body_hooks import BodyHook, BodyMoment
from hfdsl.runtime.rank.executor import Executor
from hfdsl.runtime.rank.store import PayloadContent
from hfdsl.runtime.verification.digest_report import DigestReport
from hfdsl.runtime.verification.verified_syncs import DTypes, VerifiedSync

if TYPE_CHECKING:
    from hfdsl.runtime.digests import Digests
    from hfdsl.runtime.recovery.called_rows import CalledRows

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Submission:
    """A segment to run; every sequence has one entry for each of ``segment.ranks``, in their order.

    ``specs`` are what a rank must know to follow the call, None if it was sent before; ``payloads`` the handles that
    it receives; ``sends`` the payloads that it sends; ``after`` what has to end before it starts; ``dispatched`` the
    arguments that a dispatch function returned; ``queued`` how a rank joins its last payloads, which are from a queue;
    ``rows`` says which rows each has, should it die.
    """

    call: SegmentCall
    segment: Segment
    specs: Sequence[SegmentSpec | None]
    payloads: Sequence[Sequence[Any]]
    sends: Sequence[Sequence[Payload]]
    after: Sequence[Sequence[Any]]
    dispatched: Sequence[Mapping[str, Any]] | None = None
    queued: Sequence[Sequence[QueuedRows]] | None = None
    rows: CalledRows | None = None


def do_nothing() -> None:
    """The ``meanwhile`` of a caller with nothing to do."""


class Backend(Protocol):
    """Runs the ranks. A handle stands for a payload, wherever it is; ``driver`` is this process itself."""

    driver: Executor

    def add(self, plan: Plan) -> None:
        """Send every process another plan of the same deployment."""

    def topology(self, plan: Plan) -> Topology:
        """Where processes are, and which of them need no object store."""
        ...

    def put(self, plan: Plan, content: PayloadContent) -> Any:
        """A handle of a payload that the driver has."""

    def run(self, submission: Submission) -> Sequence[tuple[Any, Sequence[Any]]]:
        """Run a segment on its ranks: (acknowledgment, handles of its payloads) per rank."""
        ...

    def done(
        self, acknowledgments: Sequence[Any], wanted: Sequence[Any] = (), meanwhile: Callable[[], None] = do_nothing
    ) -> list[SegmentResult]:
        """Wait for the results; call ``meanwhile`` first. The caller gets the ``wanted`` payloads next."""
        ...

    def get(self, handles: Sequence[Any]) -> list[PayloadContent]:
        """Fetch the payloads into this process."""
        ...

    def save(self, folder: str, background: bool) -> None:
        """Have every process write its workers' states; in the ``background``, steps continue during the write."""
        ...

    def saved(self, folder: str, wait: float) -> dict[str, list[dict[str, str]]] | None:
        """The file of each rank's state, by role; None for one that is not written after ``wait`` seconds."""
        ...

    def load(self, folder: str, saved: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        """Have every process load its workers' states."""

    def record(self, folder: str | None) -> None:
        """Have every process, the driver included, write the calls of the next steps to a recording; stop with None."""

    def digests(self, sync: VerifiedSync, role: str, dtypes: DTypes | None, exported: bool) -> list[Digests | None]:
        """The digests of a synced state by rank of a role: of its current value, or of the last one ``exported``."""
        ...

    def digest_exports(self, wanted: Mapping[VerifiedSync, DTypes]) -> None:
        """Have every process digest what the next steps export in these syncs, and what they load as it arrives."""

    def sent_digests(self) -> list[DigestReport]:
        """The digests of weights sent in the step that has ended, unless its results include them."""
        ...

    def begin(self) -> None:
        """Begin a step and its deadline."""

    def close(self) -> None:
        """End the processes."""


@runtime_checkable
class PollingBackend(Backend, Protocol):
    """A backend that reports which calls have ended, so that a queue can be read out of dispatch order."""

    def ended(self, awaited: Collection[Any], others: Collection[Any] = ()) -> Sequence[Any]:
        """Wait until one of the ``awaited`` calls has ended; return all ended ones, ``others`` included, each once.

        There is a deadline from when one of them has ended last, and another one for what is read next. The backend
        keeps the results until it is to ``drop`` them.

        Errors as for ``done``, of any of the calls.
        """
        ...

    def drop(self, calls: Sequence[Any]) -> None:
        """Drop calls whose results are not read again."""


@runtime_checkable
class WakingBackend(PollingBackend, Protocol):
    """A polling backend that also wakes up for other events, such as prompts that a loader delivers."""

    def ended_or(
        self, awaited: Collection[Any], others: Collection[Any], happened: Callable[[], bool]
    ) -> Sequence[Any]:
        """As ``ended``, but return as well, perhaps without a call, soon after something else has ``happened``."""
        ...


@runtime_checkable
class InFlightBackend(PollingBackend, Protocol):
    """A polling backend that delivers weights to a process while a call runs there, in another thread.

    To a backend that is not polling, the calls of dispatches are submitted after the weights that they take.
    """

    @property
    def weights_in_flight(self) -> Literal[True]:
        """Declare it."""
        ...


@runtime_checkable
class HookedBackend(Backend, Protocol):
    """A backend whose ranks call hooks and functions of a test, with which it ends a process or reads its workers."""

    def at_bodies(self, group: str, rank: int, moment: BodyMoment, hook: BodyHook) -> None:
        """Have a rank call a hook, too, whenever a body begins there, or after it has ended."""

    def of_workers(self, role: str, function: Callable[[Any], T], method: str = "of_workers") -> list[T]:
        """The results of a function for the worker of a role on each rank; it may call peers.

        Raises:
            RoleError: HF806 if it raises, with ``method`` as the role's method that it called.
        """
        ...


class Lowering(Protocol):
    """A factory of backends: a user's own lowering, in place of ``"local"`` or ``"ray"``."""

    def __call__(
        self, plan: Plan, *, seed: int, timeout: float, deadline: float, worker_env: Mapping[str, str]
    ) -> Backend:
        """Start the processes; the arguments are those of ``CompiledPlan.launch``."""
        ...


def files_by_role(
    groups: Iterable[Sequence[Mapping[str, dict[str, str]] | None]],
) -> dict[str, list[dict[str, str]]] | None:
    """The files of all groups' ranks, by role; None for a rank that has not written its own."""
    files: dict[str, list[dict[str, str]]] = {}
    for ranks in groups:
        written = [files_of_rank for files_of_rank in ranks if files_of_rank is not None]
        if len(written) < len(ranks):
            return None
        files |= {role: [files_of_rank[role] for files_of_rank in written] for role in written[0]}
    return files
