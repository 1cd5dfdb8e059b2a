"""Schedules of a queue: its numbers, how long everything takes, and which groups are lost."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from hfdsl.protocols.queueing import DISCIPLINES, Late, needed_places
from hfdsl.runtime.schedule import QueueSpec
from hfdsl.runtime.simulation import Simulation, Slots, simulate
from hfdsl.testing.arguments import names_of, number_of


@dataclass(frozen=True, slots=True)
class QueueSchedule:
    """A queue with the times of everything around it, in whole seconds; group i has entry i modulo their number.

    ``slots`` generate at the same time; a filter loses the groups that ``lost`` says.
    """

    spec: QueueSpec
    slots: int
    seconds: tuple[int, ...]
    update_seconds: tuple[int, ...]
    lost: tuple[bool, ...] = (False,)
    updates: int = 6

    def simulate(self) -> Simulation:
        """The decisions of the queue."""
        return simulate(
            self.spec,
            Slots(self.slots, self._group_seconds, self._update_seconds),
            self.updates,
            lost=lambda number: self.lost[number % len(self.lost)],
        )

    def _group_seconds(self, number: int) -> float:
        return float(self.seconds[number % len(self.seconds)])

    def _update_seconds(self, update: int) -> float:
        return float(self.update_seconds[update % len(self.update_seconds)])


@st.composite
def schedules(draw: st.DrawFn, late: Late | None = None, losses: bool = True, slowest: int = 30) -> QueueSchedule:
    """Schedules of a small queue, with a long tail; with ``losses`` a filter loses up to two thirds of the groups.

    Raises:
        DefinitionError: HF921 for an unknown discipline, or ``slowest`` below 1.

    >>> from hypothesis import given, settings
    >>> from hfdsl.testing import check_decisions
    >>> @settings(max_examples=10)
    ... @given(schedules(late="drop"))
    ... def keep_the_laws(schedule: QueueSchedule) -> None:
    ...     check_decisions(schedule.spec, schedule.simulate().decisions)
    >>> keep_the_laws()
    """
    if late is not None:
        names_of("schedules", "late=", late, DISCIPLINES, "discipline")
    number_of("schedules", "slowest=", slowest)
    lag, batch = draw(st.integers(0, 4)), draw(st.integers(1, 4))
    lost = draw(st.lists(st.booleans(), max_size=6)) if losses else []
    lost_groups = (*lost, *(False for _ in range(1 + len(lost) // 2)))
    discipline: Late = draw(st.sampled_from(DISCIPLINES)) if late is None else late
    places = (lag + 1) * batch
    fits = [
        count
        for count in range(1, places + 1)
        if (count + batch - 1 if any(lost_groups) else needed_places(count, batch, 1, lag, discipline)) <= places
    ]
    short, long = st.integers(1, 5), st.integers(1, slowest)
    return QueueSchedule(
        spec=QueueSpec("scored", lag, discipline, batch, draw(st.sampled_from(fits))),
        slots=draw(st.integers(1, 8)),
        seconds=tuple(draw(st.lists(short | short | long, min_size=1, max_size=12))),
        update_seconds=tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))),
        lost=lost_groups,
    )
