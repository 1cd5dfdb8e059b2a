"""What every backend does: run segments on ranks, and hand payloads on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hfdsl.plan.payloads import Payload, Topology
from hfdsl.plan.plan import Plan
from hfdsl.plan.segments import Segment
from hfdsl.runtime.executor import Executor, Lesson, Order, Ran
from hfdsl.runtime.store import Content


@dataclass(frozen=True, slots=True)
class Call:
    """A segment to be run: what each of its ranks is told and brought, in the order of ``segment.ranks``.

    ``payloads`` are handles, ``after`` what has to end first; ``gives`` are the payloads that are made; ``direct``
    are arguments that a dispatch function made.
    """

    order: Order
    segment: Segment
    lessons: Sequence[Lesson | None]
    payloads: Sequence[Sequence[Any]]
    gives: Sequence[Sequence[Payload]]
    after: Sequence[Sequence[Any]]
    direct: Sequence[Mapping[str, Any]] | None = None


STORED, RELAYED, DIRECT, TOLD = "stored", "relayed", "direct", "told"
"""How a payload leaves its process, in a word: relayed ones are stored too, but as bytes where they are small, which a
relay hands on unopened. One that is broadcast has the ranks that it goes to instead."""


@dataclass(frozen=True, slots=True)
class Told:
    """The handle of a payload of numbers, which come with the acknowledgement of the call that makes them."""

    acknowledged: Any
    place: int


def nothing() -> None:
    """What is done while there is nothing to do."""


class Backend(Protocol):
    """What runs the ranks. A handle stands for a payload, wherever it is; ``driver`` is this process itself."""

    driver: Executor

    def add(self, plan: Plan) -> None:
        """Teach every process another plan of the same deployment."""

    def topology(self, plan: Plan) -> Topology:
        """Where processes are, and which of them need no object store."""
        ...

    def put(self, plan: Plan, content: Content) -> Any:
        """A payload of the driver's."""

    def run(self, call: Call) -> Sequence[tuple[Any, Sequence[Any]]]:
        """Have every rank of a segment do its part: (acknowledgement, handles of its payloads), a pair a rank."""
        ...

    def done(
        self, acknowledged: Sequence[Any], wanted: Sequence[Any] = (), meanwhile: Callable[[], None] = nothing
    ) -> list[Ran]:
        """Wait until all these parts are done, and do something meanwhile; ``wanted`` payloads are fetched next."""
        ...

    def get(self, handles: Sequence[Any]) -> list[Content]:
        """The payloads, here."""
        ...

    def save(self, folder: str, behind: bool) -> None:
        """Have every process begin to write what its workers keep, ``behind`` the steps that come or before them."""
        ...

    def saved(self, folder: str, wait: float) -> dict[str, list[dict[str, str]]] | None:
        """By role, where the state of each rank is; None where one is not written after ``wait`` seconds."""
        ...

    def load(self, folder: str, saved: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        """Have every process give its workers back what was saved."""

    def record(self, folder: str | None) -> None:
        """Have every process, the driver too, write the calls of the next steps into a recording; with None no more."""

    def begin(self) -> None:
        """A step begins: its deadline runs from now."""

    def close(self) -> None:
        """End the processes."""


class Lowering(Protocol):
    """What makes the backend of a plan: a lowering of one's own, in the place of ``"local"`` or ``"ray"``."""

    def __call__(
        self, plan: Plan, *, seed: int, timeout: float, deadline: float, worker_env: Mapping[str, str]
    ) -> Backend:
        """Start the processes; the arguments are those of ``Plan.launch``."""
        ...


def by_role(groups: Iterable[Sequence[Mapping[str, dict[str, str]] | None]]) -> dict[str, list[dict[str, str]]] | None:
    """What the ranks of all groups have saved, role by role; None where one is not done."""
    found: dict[str, list[dict[str, str]]] = {}
    for ranks in groups:
        done = [one for one in ranks if one is not None]
        if len(done) < len(ranks):
            return None
        found |= {role: [one[role] for one in done] for role in done[0]}
    return found
