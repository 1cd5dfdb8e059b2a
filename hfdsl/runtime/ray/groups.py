"""The worker groups of a Ray backend: their start, their links, further plans, and replacement after a loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from weakref import WeakSet

import ray
from ray.exceptions import GetTimeoutError

from hfdsl.deploy.deployment import ProcessGroup, processes_per_slot
from hfdsl.deploy.pools import devices
from hfdsl.errors import HfError
from hfdsl.plan.payloads import Topology
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.protocols.worker import RankContext
from hfdsl.runtime.failures import PATIENCE_SECONDS
from hfdsl.runtime.rank.executor import Executor
from hfdsl.runtime.ray.call_order import extra_threads
from hfdsl.runtime.ray.cluster import connect
from hfdsl.runtime.ray.direct_groups import DirectGroups
from hfdsl.runtime.ray.pools import Pools
from hfdsl.runtime.ray.rank_calls import RankCalls
from hfdsl.runtime.ray.rank_process import RankProcess
from hfdsl.runtime.ray.relay import as_completed
from hfdsl.runtime.ray.relay_client import GROUP, Relays, relays_pay
from hfdsl.runtime.ray.states import RayStates, same
from hfdsl.single_controller.group import RayWorkerGroup
from hfdsl.single_controller.ray_internals import shut_down
from hfdsl.single_controller.roles import RayClassWithInitArgs
from hfdsl.single_controller.start import THREADS_OPTION
from hfdsl.single_controller.waiting import fetch, succeeded

FORGET_SECONDS = 5.0
"""The time in which a process must end its work in a step to repeat; a slower process is replaced."""


class RayGroups(RayStates):
    """The part of a Ray backend that manages its processes.

    Raises:
        ResourceError: HF502, HF505 if the cluster cannot hold the pools.
        RoleError: HF806 if a role's constructor raises.
        HfError: HF807 if the cluster's address is known, and nothing answers there.
    """

    launched: ClassVar[WeakSet[RayGroups]] = WeakSet()
    """The backends of this process that still exist, closed or not, for tests that look for leftovers of a launch."""

    def __init__(self, plan: Plan, seed: int, timeout: float, deadline: float, worker_env: Mapping[str, str]) -> None:
        self._plans, self._seed, self._worker_env = [plan], seed, worker_env
        self._owns_cluster = not ray.is_initialized()
        self._pools = Pools(processes_per_slot(plan.groups))
        self._groups: dict[str, RayWorkerGroup] = {}
        self._keeps_state: dict[str, bool] = {}  # by role
        self._threads: dict[str, dict[str, int]] = {}  # by group, those beside the one of ordinary calls
        self._calls = RankCalls(plan, self._groups, deadline)
        self.driver = Executor(plan=plan, group=DRIVER, roles=(), context=RankContext(), seed=seed, collectives=None)
        self._direct_groups = DirectGroups(plan)
        self._sending = []
        self._relayed_plans: set[str] = set()
        self.launched.add(self)
        try:
            if self._owns_cluster:
                connect()
            self._start(plan.groups, timeout)
            self.begin()
            self._connect()
            self._direct_groups.check_transports(plan)
        except BaseException:
            self.close()
            raise

    def _start(self, groups: Sequence[ProcessGroup], timeout: float) -> None:
        """Start the processes of groups, all at the same time, and construct their roles.

        Roles on the same devices are constructed one after another, so that each can make room for the next.
        """
        for group in groups:
            process = RayClassWithInitArgs(RankProcess, self._plans[0], group.name, self._seed, self._patience)
            threads = self._threads[group.name] = extra_threads(self._plans[0].deployment, group)
            process.update_options({THREADS_OPTION: threads} if threads else {})
            self._groups[group.name] = RayWorkerGroup(
                self._pools.place(group.pool, timeout),
                self._direct_groups.prepare(group.name, process),
                worker_env=self._worker_env,
                timeout=timeout,
                deadline=None,  # the processes have ``timeout``; roles are constructed below
                wait=False,
            )
        for group in groups:
            self._groups[group.name].wait_until_up()
        roles = [[role for group in sharing for role in group.roles] for sharing in sharing_devices(groups)]
        for role, keeps in self._calls.in_turns(roles, self._construct):
            self._keeps_state[role] = any(keeps)

    def _construct(self, role: str) -> list[Any]:
        return self._calls.call_role(role, "__init__", "construct", partial(_alone, role))

    @property
    def _patience(self) -> float:
        """The time for which a rank waits for its peers: longer than any call may take."""
        return self._calls.longest + PATIENCE_SECONDS

    def _connect(self) -> None:
        """Find out where the processes are, link those that read each other's tensors, and start relays."""
        self._hosts = self._call_all("the start", "host", same())
        self._calls.read_notes()
        self._direct_groups.join(self._calls.workers, self._patience)
        for plan in self._plans:
            self._direct_groups.prepare_plan(plan)
            self._start_relays(plan)

    def add(self, plan: Plan) -> None:
        """Send every process another plan of the same deployment; HF807 for a process that does not take it in time."""
        self.driver.add(plan)
        self._calls.add(plan)
        self._call_all("taking another plan", "add", same(plan))
        self._plans.append(plan)
        self._direct_groups.prepare_plan(plan)
        self._direct_groups.check_transports(plan)
        self._start_relays(plan)

    def _start_relays(self, plan: Plan) -> None:
        """Have relays call the ranks of a plan if that pays off; a relay knows the calls of one step at a time."""
        if not plan.steps_in_flight and relays_pay(plan, self._hosts, self._direct_groups.linked):
            self._relayed_plans.add(plan.name)
            self._calls.relays = self._calls.relays or Relays(self._calls.workers, self._hosts, self._calls.time_left)

    def topology(self, plan: Plan) -> Topology:
        """The hosts, and the groups that need no object store between them.

        The driver counts as a host of its own, so that it never receives what only workers read.
        """
        return Topology(
            lambda process: self._hosts[process[0]][process[1]] if process[0] in self._hosts else DRIVER,
            self._direct_groups.groups,
            self._direct_groups.reaches,
            self._direct_groups.unreachable,
            self._direct_groups.exchanging,
        )

    # -- recovery ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _forget_calls(self) -> None:
        """Forget the calls of a step that will be repeated."""

    def lost_ranks(self, wait: float) -> dict[str, list[int]]:
        """The ranks whose processes are gone, by process group; one that is merely busy for ``wait`` seconds is not."""
        pending = {
            worker.host.remote(): (group, rank)
            for group, workers in self._calls.workers.items()
            for rank, worker in enumerate(workers)
        }
        for number, relay in enumerate(self._calls.relays.actors if self._calls.relays is not None else ()):
            pending[relay.share.remote([], False, [], [])] = (GROUP, number)
        lost: dict[str, list[int]] = {}
        for ready in as_completed(list(pending), wait):
            for ref in ready:
                group, rank = pending[ref]
                try:
                    fetch([ref])
                except HfError:
                    lost.setdefault(group, []).append(rank)
            if lost:
                break  # the others may wait for them
        return {group: sorted(ranks) for group, ranks in lost.items()}

    def rebuild(
        self, lost: Mapping[str, Sequence[int]], *, step: tuple[str, int] | None, everything: bool, wait: float
    ) -> Collection[str] | None:
        """Replace the groups of lost ranks, groups linked with them, and groups that do not end the step.

        Where all states are still those with which ``step`` began, since no role in the groups that are replaced keeps
        one, and no other process has changed one, it returns the groups whose processes still have its values. Else it
        returns None; all groups are replaced then with ``everything``.

        Raises:
            ResourceError: HF504 if the cluster has no room for them in time.
            RoleError: HF806 if a role's constructor raises.
        """
        if self._calls.relays is not None:
            self._calls.relays.close()
            self._calls.relays = None
            step = None  # calls that they have sent may begin later than ours
        self._relayed_plans.clear()
        self._forget_calls()
        self._calls.forget()
        self.driver.forget_step()
        replaced = self._linked(set(lost) & self._groups.keys())
        unchanged = step is not None and not self._keep_states(replaced)
        if everything and not unchanged:
            replaced = set(self._groups)
        for name in replaced:
            self._groups[name].shutdown()  # first, so that what others wait for ends
        hosts = self._hosts
        unresponsive, changed = self._end_step(set(self._groups) - replaced, step)
        late = self._linked(unresponsive) - replaced
        unchanged = unchanged and not changed and not self._keep_states(late)
        if everything and not unchanged:
            late = set(self._groups) - replaced
        for name in late:
            self._groups[name].shutdown()
        replaced |= late
        if replaced & self._direct_groups.linked:
            self._direct_groups.close()
            self._direct_groups = DirectGroups(self._plans[0])
        self._start([group for group in self._plans[0].groups if group.name in replaced], wait)
        self.begin()
        for plan in self._plans[1:]:
            for name in sorted(replaced):
                self._calls.wait_for(self._calls.call_each(name, "taking another plan", "add", partial(_alone, plan)))
        self._connect()
        surviving = set(self._groups) - replaced
        keeps_values = unchanged and not self._direct_groups.linked and self._hosts == hosts
        for name in surviving:
            self._calls.call_each(name, "forgetting a step", "forget_step", lambda _: (not keeps_values,))
        return (surviving if keeps_values else ()) if unchanged else None

    def forget(self, groups: Collection[str]) -> None:
        """Have the processes of groups drop the values of a step that will be repeated."""
        for name in groups:
            self._calls.call_each(name, "forgetting a step", "forget_step")

    def succeeded(self, acknowledgments: Sequence[Any]) -> list[bool]:
        """The success of each call, for calls that have ended or never will."""
        return [succeeded(acknowledgment) for acknowledgment in acknowledgments]

    def _linked(self, groups: set[str]) -> set[str]:
        """These groups and, if one of them is linked, all linked ones, since links are made for all at once."""
        linked = self._direct_groups.linked
        return groups | linked if groups & linked else set(groups)

    def _keep_states(self, groups: Collection[str]) -> bool:
        """Whether some role in these groups keeps a state."""
        roles = [role for group in self._plans[0].groups if group.name in groups for role in group.roles]
        return any(self._keeps_state[role] for role in roles)

    def _end_step(self, groups: set[str], step: tuple[str, int] | None) -> tuple[set[str], bool]:
        """Wait for processes to end their calls: the groups that are late, and whether the others changed a state.

        A process that does not waits for one that was lost.
        """
        pending = {
            name: [worker.changed_in.remote(*(step or ("", -1))) for worker in self._calls.workers[name]]
            for name in groups
        }
        unresponsive, changed = set[str](), False
        for name, refs in pending.items():
            try:
                changed |= any(fetch(refs, FORGET_SECONDS))
            except (HfError, GetTimeoutError):
                unresponsive.add(name)
        return unresponsive, changed

    def close(self) -> None:
        """End the processes and release the slots; also end a cluster that this backend started."""
        self._direct_groups.close()
        if self._calls.relays is not None:
            self._calls.relays.close()
        for group in self._groups.values():
            group.shutdown()
        self._pools.close()
        self._calls.close_notes()
        self._groups.clear()
        if self._owns_cluster and ray.is_initialized():
            shut_down()


def sharing_devices(groups: Iterable[ProcessGroup]) -> list[list[ProcessGroup]]:
    """The groups in lists that have no device in common, each in the given order."""
    lists = list[tuple[set[tuple[str, int]], list[ProcessGroup]]]()
    for group in groups:
        used, sharing = set(devices(group.pool)), [group]
        for entry in [entry for entry in lists if not used.isdisjoint(entry[0])]:
            lists.remove(entry)
            used, sharing = used | entry[0], [*entry[1], *sharing]
        lists.append((used, sharing))
    return [sharing for _, sharing in lists]


def _alone(argument: Any, _: int) -> tuple[Any]:
    """The only argument of a call, for every rank."""
    return (argument,)
