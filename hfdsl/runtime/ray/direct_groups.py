"""The process groups of a Ray backend that are linked at launch to exchange tensors directly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from hfdsl.errors import ResourceError
from hfdsl.plan.edges import direct_pairs, required_pairs
from hfdsl.plan.payloads import Process
from hfdsl.plan.plan import Plan
from hfdsl.plan.segments import dependencies
from hfdsl.plan.transports import broadcasts, exchanges, keeps_mapped
from hfdsl.single_controller.roles import RayClassWithInitArgs
from hfdsl.single_controller.start import TENSOR_TRANSPORT_OPTION
from hfdsl.single_controller.waiting import fetch


class DirectGroups:
    """The groups whose processes need no object store between them; other groups have no overhead.

    Those of ``groups`` read each other's tensors, those of ``exchanging`` send each other weights by schedule.
    """

    def __init__(self, plan: Plan) -> None:
        self.groups = frozenset(name for pair in direct_pairs(plan) for name, _ in pair)
        together = exchanges(plan, dependencies(plan)).values()
        self.exchanging = frozenset(name for participants in together for name, _ in participants)
        self.unreachable = frozenset[tuple[str, str]]()
        """The (producer, reader) groups in which some process cannot reach another."""
        self._ranks: dict[Process, int] = {}
        self._links: Any = None
        self._keeps_mapped = keeps_mapped(plan)
        if self.groups:
            from hfdsl.runtime.transports.direct import register  # late: it loads torch

            register()

    @property
    def linked(self) -> frozenset[str]:
        """All linked groups."""
        return self.groups | self.exchanging

    def prepare(self, group: str, role_class: RayClassWithInitArgs) -> RayClassWithInitArgs:
        """The class of a group's processes; Ray must know at their creation that their tensors will travel."""
        if group in self.groups:
            role_class.update_options({TENSOR_TRANSPORT_OPTION: True})
        return role_class

    def join(self, workers: Mapping[str, Sequence[Any]], deadline: float) -> None:
        """Link the processes.

        Raises:
            RoleError: HF806 if one of them fails.
        """
        actors = {(name, rank): worker for name in sorted(self.linked) for rank, worker in enumerate(workers[name])}
        if actors:
            from hfdsl.runtime.transports.direct import Links

            self._ranks = {process: rank for rank, process in enumerate(actors)}
            reading = {process: rank for process, rank in self._ranks.items() if process[0] in self.groups}
            self._links = Links(list(actors.values()), deadline, self._keeps_mapped, reading.values())
            separate = (pair for pair in product(reading, reading) if not self.reaches(*pair))
            self.unreachable = frozenset((producer[0], reader[0]) for producer, reader in separate)

    def prepare_plan(self, plan: Plan) -> None:
        """Connect the processes of a plan's broadcasts and exchanges before its first step.

        From the first plan on whose roles return memory, no process keeps that of others mapped.

        Raises:
            RoleError: HF806 if one of them fails.
        """
        if self._links is None:
            return
        if self._keeps_mapped and not keeps_mapped(plan):
            self._keeps_mapped = False
            fetch(self._links.unmap_after_transfers())
        waits = dependencies(plan)
        together = (*broadcasts(plan, waits, self.groups).values(), *exchanges(plan, waits, self.exchanging).values())
        if together:
            from hfdsl.runtime.transports.broadcast import connect

            ranks_of_each = [tuple(self.ranks(processes)) for processes in together]
            fetch([actor.__ray_call__.remote(connect, ranks_of_each) for actor in self._links.actors])

    def check_transports(self, plan: Plan) -> None:
        """Check that processes reach the readers of roles that are placed with ``transport="cuda ipc"``.

        Readers that were not linked are those of a plan that was added; they use the object store.

        Raises:
            ResourceError: HF524.
        """
        for role, (producer, reader) in sorted(required_pairs(plan)):
            if {producer, reader} <= self._ranks.keys() and not self.reaches(producer, reader):
                (group, rank), (reading, reading_rank) = producer, reader
                raise ResourceError(
                    "HF524",
                    f"role '{role}' sends by CUDA IPC, but rank {reading_rank} of '{reading}' cannot read the memory "
                    f"of rank {rank} of '{group}': they are on different nodes, or their GPUs have no path to each "
                    "other; leave out transport=: each reader then uses a transport that reaches it",
                )

    def reaches(self, producer: Process, reader: Process) -> bool:
        """Whether a process could read another one's memory without the object store when they were linked."""
        return producer == reader or (self._ranks[producer], self._ranks[reader]) in self._links.reached

    def ranks(self, processes: Iterable[Process]) -> list[int]:
        """The ranks of processes in the links."""
        return [self._ranks[process] for process in processes]

    def close(self) -> None:
        """Forget the processes."""
        if self._links is not None:
            self._links.close()


def send_direct(worker: Any) -> Any:
    """A reference to the next direct payload of a process; its tensors stay there until a reader is called with it."""
    from hfdsl.runtime.transports.direct import TRANSPORT

    return worker.next_direct.options(tensor_transport=TRANSPORT).remote()
