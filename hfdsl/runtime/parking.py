"""Parking: which parts of this process's workers lie on the host; a part comes back before a call that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hfdsl.plan.offloading import OffloadSchedule, RolePart, offload_schedule
from hfdsl.plan.plan import Plan, Step
from hfdsl.protocols.offloading import PARTS, Part, parts_of, parts_used
from hfdsl.runtime.failing import role_error


class Parking:
    """The workers of one process whose parts go to the host, as the plans of the process say."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._schedules: dict[str, OffloadSchedule] = {}
        self._workers: dict[str, Any] = {}
        self._away: set[RolePart] = set()

    def add(self, plan: Plan) -> None:
        """Learn another plan of the same deployment."""
        self._schedules[plan.name] = offload_schedule(plan)

    def built(self, role: str, worker: Any) -> None:
        """A worker was made; it gives room to the next one where some plan moves it.

        Raises:
            RoleError: HF806 where ``offload()`` raises; so do the others here, and where ``onload()`` does.
        """
        self._workers[role] = worker
        self._offload([one for one in self._movable() if one[0] == role], None)

    def begin(self, plan: str, number: int) -> None:
        """A step of a plan begins; what another plan has left on the GPU goes."""
        self._offload(self._schedules[plan].at_start, number)

    def before(self, step: Step, number: int) -> None:
        """A step is next: what it uses has to be there."""
        if self._away and step.role is not None:
            used = parts_used(getattr(self._workers[step.role], step.signature.name))
            declared = parts_used(step.signature.body)
            self._onload([(step.role, part) for part in PARTS if part in used or part in declared], number)

    def after(self, plan: str, node: int, number: int) -> None:
        """A step is over."""
        self._offload(self._schedules[plan].after.get(node, ()), number)

    @contextmanager
    def all_of(self, role: str) -> Iterator[None]:
        """Within this, all of one role is there, and of the others what is never moved."""
        movable = self._movable()
        self._offload([one for one in movable if one[0] != role], None)
        self._onload([(role, part) for part in parts_of(type(self._workers[role]))], None)
        yield
        self._offload([one for one in movable if one[0] == role], None)

    def _movable(self) -> list[RolePart]:
        ever = {one for each in self._schedules.values() for one in each.parts if one[0] in self._workers}
        return sorted(ever, key=lambda one: (one[0], PARTS.index(one[1])))

    def _offload(self, parts: Any, number: int | None) -> None:
        for role, part in parts:
            if role in self._workers and (role, part) not in self._away:
                self._ask(role, "offload", part, number)
                self._away.add((role, part))

    def _onload(self, parts: Any, number: int | None) -> None:
        for role, part in parts:
            if (role, part) in self._away:
                self._ask(role, "onload", part, number)
                self._away.discard((role, part))

    def _ask(self, role: str, method: str, part: Part, number: int | None) -> None:
        worker = self._workers[role]
        try:
            getattr(worker, method)(part)
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            raise role_error(f"{role}.{method}({part!r})", self._rank, number, error) from None
