"""The Ray backend's operations between steps: saving, loading and copying states, recording, and digesting.

Roles are called one by one, each within its own deadline: see ``RankCalls.call_role``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import ray

from hfdsl.plan.deadlines import CallDeadline
from hfdsl.plan.plan import Plan
from hfdsl.runtime.backend import files_by_role
from hfdsl.runtime.queues.files import QueueFile, SavedPayloads
from hfdsl.runtime.rank.body_hooks import BodyHook, BodyMoment
from hfdsl.runtime.rank.executor import Executor
from hfdsl.runtime.ray.peer_copies import Copied, copied_to, live_nodes, peer_of
from hfdsl.runtime.ray.rank_calls import LAUNCH, RankCalls
from hfdsl.runtime.verification.digest_report import DigestReport
from hfdsl.runtime.verification.verified_syncs import DTypes, VerifiedSync
from hfdsl.single_controller.group import RayWorkerGroup
from hfdsl.single_controller.waiting import fetch

if TYPE_CHECKING:
    from hfdsl.runtime.digests import Digests

T = TypeVar("T")

RankArguments: TypeAlias = Callable[[str, int], Sequence[Any]]
"""The arguments of a call of each rank: a function of its group, or of a role there, and its number."""

SAVED_REPLY_SECONDS = 60.0
"""The time in which an idle process must report whether its files are written."""


def same(*arguments: Any) -> RankArguments:
    """Give every rank these arguments."""
    return lambda _group, _rank: arguments


class RayStates(ABC):
    """The part of a Ray backend that manages states."""

    driver: Executor
    _plans: list[Plan]
    _groups: dict[str, RayWorkerGroup]
    _calls: RankCalls
    _hosts: dict[str, list[str]]
    _digests = False
    """Whether the syncs of the next steps are verified."""

    _wanted: tuple[Any, ...] = ()
    """The verified syncs, and the groups whose processes know them."""

    _sending: list[Any]
    """The exchanges of this step that return digests."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a step, or an operation between two steps."""

    def at_bodies(self, group: str, rank: int, moment: BodyMoment, hook: BodyHook) -> None:
        """Have a process call a hook, too, whenever a body begins there, or after it has ended."""
        self.begin()
        fetch([self._groups[group].workers[rank].at_bodies.remote(moment, hook)], self._calls.time_left())

    def of_workers(self, role: str, function: Callable[[Any], T], method: str = "of_workers") -> list[T]:
        """Call all ranks at once; HF807 for a rank that is late."""
        self.begin()
        refs = self._calls.call_role(role, method, "of_worker", lambda _: (role, function, method))
        return list(self._calls.wait_for(refs))

    def _call_all(
        self, label: str, method: str, arguments: RankArguments, limit: CallDeadline | None = None
    ) -> dict[str, list[Any]]:
        """Call a method of ``RankProcess`` in every process, with arguments by group and rank; the results by group.

        Raises:
            HfError: HF807 for a process that is late.
        """
        calls = self._begin_calls(label, method, arguments, limit)
        results = iter(self._calls.wait_for([ref for refs in calls.values() for ref in refs]))
        return {name: [next(results) for _ in refs] for name, refs in calls.items()}

    def _begin_calls(
        self, label: str, method: str, arguments: RankArguments, limit: CallDeadline | None = None
    ) -> dict[str, list[Any]]:
        """Submit the calls of ``_call_all``, without waiting; the references by group."""
        return {
            name: self._calls.call_each(name, label, method, partial(arguments, name), limit) for name in self._groups
        }

    def _take_states(self, copies: bool) -> list[Any]:
        """Have every process keep its roles' states for its next call."""
        taking = [
            self._calls.call_role(role, "state", "take_state", partial(lambda role, _: (role, copies), role))
            for role in self._roles()
        ]
        return [ref for refs in taking for ref in refs]

    def save(self, folder: str, background: bool) -> None:
        """Save all ranks at once; HF806 if a role's ``state()`` raises, HF807 after a deadline."""
        self.begin()
        states = self._take_states(background)
        saving = self._begin_calls("a save", "save", same(folder))
        self._calls.wait_for([*states, *(ref for refs in saving.values() for ref in refs)])

    def saved(self, folder: str, wait: float) -> dict[str, list[dict[str, str]]] | None:
        """The files of all ranks; HF906 for one that cannot be written, HF807 for a rank that is late."""
        self.begin()
        limit = CallDeadline(min(self._calls.seconds, wait + SAVED_REPLY_SECONDS), LAUNCH)
        files = self._call_all("writing states", "saved", same(folder, wait), limit)
        return files_by_role(files.values())

    def load(self, folder: str, saved: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        """Load the states of all ranks; errors as for ``save``."""
        self.begin()
        self._load_states("load", lambda role, rank: (role, folder, dict(saved[role][rank]) if role in saved else None))

    def _load_states(self, method: str, arguments: RankArguments) -> None:
        """Call a method of ``RankProcess`` that loads the state of a role, with arguments by role and rank."""
        loading = [
            self._calls.call_role(role, "load_state", method, partial(arguments, role)) for role in self._roles()
        ]
        self._calls.wait_for([ref for refs in loading for ref in refs])

    def _roles(self) -> Iterator[str]:
        """All roles, those of a process in the order of their construction."""
        return (role for group in self._plans[0].groups for role in group.roles)

    def save_queues(
        self, folder: str, plan: str, pending: Mapping[int, Mapping[tuple[str, int], Sequence[Any]]]
    ) -> dict[str, list[dict[str, str]]]:
        """Save all ranks at once, each when it has the payloads; HF807 after a deadline."""
        self.begin()

        def arguments(group: str, rank: int) -> tuple[Any, ...]:
            counts, payloads = _payloads_of(pending, group, rank)
            return folder, plan, counts, *payloads

        return self._call_all("saving queues", "save_queues", arguments)

    def read_payloads(self, folder: str, saved: Sequence[tuple[Plan, SavedPayloads, QueueFile]]) -> list[Sequence[Any]]:
        """Have the ranks that wrote them read them at once, or others that there are; HF807 after a deadline."""
        self.begin()
        by_file: dict[tuple[Any, ...], list[SavedPayloads]] = {}
        for _, payloads, file in saved:
            if payloads.slices:
                by_file.setdefault((payloads.rank, *file.items()), []).append(payloads)
        read, handles = list[Any](), dict[int, Sequence[Any]]()
        for (rank, *file_items), of_file in by_file.items():
            wanted = [(payloads.number, payloads.slices) for payloads in of_file]
            count = sum(len(slices) for _, slices in wanted)
            arguments = folder, dict(file_items), wanted
            done, *contents = self._calls.call_rank(
                self._rank_of(*rank), "loading queues", "read_payloads", arguments, returns=1 + count
            )
            read.append(done)
            of_rank = iter(contents)
            handles |= {number: list(islice(of_rank, len(slices))) for number, slices in wanted}
        self._calls.wait_for(read)
        return [handles.get(payloads.number, ()) for _, payloads, _ in saved]

    def _rank_of(self, group: str, rank: int) -> tuple[str, int]:
        """A rank of an earlier run, or one in its place."""
        if group not in self._groups:
            group = next(iter(self._groups))
        return group, rank % len(self._groups[group].workers)

    def load_queues(self, folder: str, plan: str, files: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        """Load all ranks at once; HF807 after a deadline."""
        self.begin()
        self._call_all("loading queues", "load_queues", lambda group, rank: (folder, plan, dict(files[group][rank])))

    def copy_states(self, peers: bool) -> dict[str, list[Copied]]:
        """References to the states of all ranks, which processes copy before their next call."""
        pending = self._take_states(copies=False)
        copies = {
            name: [
                Copied(saved, states, node)
                for (saved, states), node in zip(
                    self._calls.call_each(name, "a copy of states", "copy_states", returns=2),
                    self._hosts[name],
                    strict=True,
                )
            ]
            for name in self._groups
        }
        if peers:
            nodes = sorted({node for hosts in self._hosts.values() for node in hosts})
            copies = {
                name: [copied_to(copy, peer) if (peer := peer_of(copy.node, nodes)) else copy for copy in ranks]
                for name, ranks in copies.items()
            }
        if self._calls.relays is not None:  # what relays submit next may come before what this process submitted now
            self.begin()
            self._calls.wait_for([*pending, *(copy.done for ranks in copies.values() for copy in ranks)])
        return copies

    def copied(self, copies: Mapping[str, Sequence[Copied]], wait: float) -> bool:
        """Whether all copies exist; HF806 or HF908 if one cannot be made, HF807 if one takes too long."""
        refs = [ref for ranks in copies.values() for copy in ranks for ref in copy.exists()]
        ready, late = ray.wait(refs, num_returns=len(refs), timeout=wait)
        with self._calls.naming_losses():
            fetch(ready)
            self._calls.check()
        return not late

    def restore(self, copies: Mapping[str, Sequence[Copied]]) -> None:
        """Load the copies into all ranks.

        Raises:
            RoleError: HF806 if ``load_state()`` raises, or a copy is lost.
            HfError: HF807 if a deadline passed.
        """
        self.begin()
        nodes = live_nodes()
        self._load_states(
            "restore", lambda role, rank: (role, copies[self._calls.group_of(role)][rank].reachable(nodes))
        )

    def restore_queues(
        self,
        plan: str,
        copies: Mapping[str, Sequence[Copied]],
        pending: Mapping[int, Mapping[tuple[str, int], Sequence[Any]]],
    ) -> None:
        """Restore all ranks at once; errors as for ``restore``."""
        self.begin()
        nodes = live_nodes()

        def arguments(group: str, rank: int) -> tuple[Any, ...]:
            counts, payloads = _payloads_of(pending, group, rank)
            return plan, copies[group][rank].reachable(nodes), counts, *payloads

        self._call_all("loading queues", "restore_queues", arguments)

    def record(self, folder: str | None) -> None:
        """Have every process write the calls of the next steps; HF807 for a process that is not ready in time."""
        self.driver.record(folder)
        self.begin()
        self._call_all("beginning to record", "record", same(folder))

    def digests(self, sync: VerifiedSync, role: str, dtypes: DTypes | None, exported: bool) -> list[Digests | None]:
        """The digests of all ranks at once; HF806 if a role's ``held_weights()`` raises, HF807 after a deadline."""
        self.begin()
        return self._calls.wait_for(
            self._calls.call_role(role, "held_weights", "digests", lambda _: (sync, role, dtypes, exported))
        )

    def digest_exports(self, wanted: Mapping[VerifiedSync, DTypes]) -> None:
        """Have every process digest what the next steps sync, without waiting, since its calls run in order.

        Processes keep what it is, and each call of a step says whether it is to be done.
        """
        self._digests = bool(wanted)
        request = dict(wanted), tuple(self._groups.values())
        if not wanted or request == self._wanted:
            return
        self._wanted = request
        for group in self._groups.values():
            for worker in group.workers:
                worker.digest_exports.remote(wanted)

    def sent_digests(self) -> list[DigestReport]:
        """The digests of the step's exchanges, once all have ended; HF806 for a failed one, HF807 after a deadline."""
        sending, self._sending = self._sending, []
        return [DigestReport.from_wire(report) for reports in self._calls.wait_for(sending) for report in reports]


def _payloads_of(
    pending: Mapping[int, Mapping[tuple[str, int], Sequence[Any]]], group: str, rank: int
) -> tuple[list[list[int]], list[Any]]:
    """The number of payloads that a rank still receives for each step, and their handles."""
    handles = {step: by_rank.get((group, rank), ()) for step, by_rank in pending.items()}
    counts = [[step, len(payloads)] for step, payloads in handles.items()]
    return counts, [handle for payloads in handles.values() for handle in payloads]
