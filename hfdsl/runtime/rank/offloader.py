"""The offloader of a process: moves parts of workers to host memory, and back before a call that uses them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hfdsl.plan.offloading import OffloadSchedule, RolePart, offload_schedule
from hfdsl.plan.plan import Plan, Step
from hfdsl.protocols.offloading import PARTS, Part, parts_of, parts_used
from hfdsl.runtime.rank.role_errors import role_error


class Offloader:
    """Moves the parts of one process's workers to the host and back, following the process's plans."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._schedules: dict[str, OffloadSchedule] = {}
        self._workers: dict[str, Any] = {}
        self._on_host: set[RolePart] = set()

    def add(self, plan: Plan) -> None:
        """Add another plan of the same deployment."""
        self._schedules[plan.name] = offload_schedule(plan)

    def moves(self, role: str) -> bool:
        """Whether some plan moves parts of a role."""
        return any(moved == role for schedule in self._schedules.values() for moved, _ in schedule.parts)

    def built(self, role: str, worker: Any) -> None:
        """Register a new worker; it makes room for the next one if some plan moves it.

        Raises:
            RoleError: HF806 if ``offload()`` raises; so do the other methods, and where ``onload()`` does.
        """
        self._workers[role] = worker
        self._offload([part for part in self._movable() if part[0] == role], None)

    def begin(self, plan: str, step_number: int) -> None:
        """Begin a step of a plan: offload what another plan left on the GPU."""
        self._offload(self._schedules[plan].at_start, step_number)

    def before(self, step: Step, step_number: int) -> None:
        """Load the parts that the next step uses."""
        if self._on_host and step.role is not None:
            used = parts_used(getattr(self._workers[step.role], step.signature.name))
            declared = parts_used(step.signature.body)
            self._onload([(step.role, part) for part in PARTS if part in used or part in declared], step_number)

    def after(self, plan: str, node: int, step_number: int) -> None:
        """Offload the parts that stay idle after this step."""
        self._offload(self._schedules[plan].after.get(node, ()), step_number)

    @contextmanager
    def all_of(self, role: str) -> Iterator[None]:
        """Within this context, all parts of one role are loaded, and of other roles only parts that never move."""
        movable = self._movable()
        self._offload([part for part in movable if part[0] != role], None)
        self._onload([(role, part) for part in parts_of(type(self._workers[role]))], None)
        yield
        self._offload([part for part in movable if part[0] == role], None)

    def _movable(self) -> list[RolePart]:
        ever = {part for schedule in self._schedules.values() for part in schedule.parts if part[0] in self._workers}
        return sorted(ever, key=lambda part: (part[0], PARTS.index(part[1])))

    def _offload(self, parts: Iterable[RolePart], step_number: int | None) -> None:
        for role, part in parts:
            if role in self._workers and (role, part) not in self._on_host:
                self._call(role, "offload", part, step_number)
                self._on_host.add((role, part))

    def _onload(self, parts: Iterable[RolePart], step_number: int | None) -> None:
        for role, part in parts:
            if (role, part) in self._on_host:
                self._call(role, "onload", part, step_number)
                self._on_host.discard((role, part))

    def _call(self, role: str, method: str, part: Part, step_number: int | None) -> None:
        worker = self._workers[role]
        try:
            getattr(worker, method)(part)
        except BaseException as error:  # noqa: BLE001  # the user's code may raise anything
            raise role_error(f"{role}.{method}({part!r})", self._rank, step_number, error) from None
