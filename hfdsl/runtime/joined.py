"""The processes of a Ray backend that are joined at launch, so that they send each other tensors directly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hfdsl.plan.edges import direct_pairs
from hfdsl.plan.payloads import Process
from hfdsl.plan.plan import Plan
from hfdsl.plan.segments import dependencies
from hfdsl.plan.transports import broadcasts, keeps_mapped
from hfdsl.single_controller.calls import fetch
from hfdsl.single_controller.roles import RayClassWithInitArgs
from hfdsl.single_controller.start import TENSORS


class Joined:
    """The groups between whose processes a plan needs no object store; what they do not send so pays nothing for it."""

    def __init__(self, plan: Plan) -> None:
        self.groups = frozenset(name for pair in direct_pairs(plan) for name, _ in pair)
        self.apart = frozenset[tuple[str, str]]()
        """The groups of which not every process reaches every other."""
        self._ranks: dict[Process, int] = {}
        self._links: Any = None
        self._keeps = keeps_mapped(plan)
        if self.groups:
            from hfdsl.runtime.direct import register  # late: it loads torch

            register()

    def prepare(self, group: str, given: RayClassWithInitArgs) -> RayClassWithInitArgs:
        """The class of a group's processes; Ray has to know when it makes them that their tensors are to travel."""
        if group in self.groups:
            given.update_options({TENSORS: True})
        return given

    def join(self, workers: Mapping[str, Sequence[Any]], deadline: float) -> None:
        """Let the processes know each other.

        Raises:
            RoleError: HF806 where one of them fails.
        """
        actors = {(name, rank): worker for name in self.groups for rank, worker in enumerate(workers[name])}
        if actors:
            from hfdsl.runtime.direct import Links

            self._ranks = {process: rank for rank, process in enumerate(actors)}
            self._links = Links(list(actors.values()), deadline, self._keeps)
            self.apart = frozenset((a[0], b[0]) for a in actors for b in actors if not self.reaches(a, b))

    def warm(self, plan: Plan) -> None:
        """Prepare for a plan: who are going to be told something together are connected, so that no step pays for it.

        From the first plan on whose roles give memory back, nobody keeps that of others mapped.

        Raises:
            RoleError: HF806 where one of them fails.
        """
        if self._links is None:
            return
        if self._keeps and not keeps_mapped(plan):
            self._keeps = False
            fetch(self._links.keep_nothing())
        together = broadcasts(plan, dependencies(plan), self.groups)
        if together:
            from hfdsl.runtime.spread import meet

            groups = [tuple(self.ranks(everybody)) for everybody in together.values()]
            fetch([actor.__ray_call__.remote(meet, groups) for actor in self._links.actors])

    def reaches(self, maker: Process, reader: Process) -> bool:
        """Whether one reads what another makes without the object store; they did so when they were joined."""
        return maker == reader or (self._ranks[maker], self._ranks[reader]) in self._links.reached

    def ranks(self, processes: Iterable[Process]) -> list[int]:
        """The numbers by which processes know each other."""
        return [self._ranks[process] for process in processes]

    def close(self) -> None:
        """Forget the processes."""
        if self._links is not None:
            self._links.close()


def shipped(worker: Any) -> Any:
    """A reference to the next direct payload of a process; its tensors stay there until a reader is called with it."""
    from hfdsl.runtime.direct import TRANSPORT

    return worker.ship.options(tensor_transport=TRANSPORT).remote()
