"""The local backend: all ranks in this process, one after another; a rank pauses only to wait for peers.

``turns`` begins with a worked example. Ranks are executors as on Ray, and payloads are cut as they would be there; only
a transfer is a reference.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hfdsl.graph.signatures import VALUE
from hfdsl.plan.payloads import Topology, planned_topology
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.protocols import role_facts
from hfdsl.protocols.worker import RankContext
from hfdsl.runtime.backend import Submission, do_nothing, files_by_role
from hfdsl.runtime.messages import SegmentResult
from hfdsl.runtime.queues.files import QueueFile, SavedPayloads
from hfdsl.runtime.rank.body_hooks import BodyHook, BodyMoment
from hfdsl.runtime.rank.executor import Executor
from hfdsl.runtime.rank.store import OF_CALLER, PayloadContent, StoredValue
from hfdsl.runtime.saving.store_files import read_payloads
from hfdsl.runtime.turns import LocalCollectives, Turns
from hfdsl.runtime.verification.digest_report import DigestReport
from hfdsl.runtime.verification.verified_syncs import DTypes, VerifiedSync

if TYPE_CHECKING:
    from hfdsl.runtime.digests import Digests

T = TypeVar("T")


class _LocalPayload:
    """A payload passed by reference: its reader gets the producer's own memory, of what is no batch a copy."""

    def __init__(self, content: PayloadContent, producers: Mapping[int, str]) -> None:
        self._keys = tuple(content)
        values: dict[int, dict[str, Any]] = {}
        for key, rows in content.items():
            values.setdefault(key.node, {})[key.column] = rows
        # Stored values, so that a producer which writes into them later is caught as on every backend (HF703).
        self._values = {node: StoredValue.of(producers[node], columns) for node, columns in values.items()}

    def read(self) -> PayloadContent:
        return {key: _arriving(key.column, self._values[key.node].read(key.column)) for key in self._keys}


def _arriving(column: str, value: Any) -> Any:
    """A value as its reader gets it: a load reads weights from the producer's memory, or keeps what it gets."""
    if hasattr(value, "arriving"):
        return value.arriving()
    return _apart(value, {}) if column == VALUE else value


def _apart(value: Any, copies: dict[int, Any]) -> Any:
    """A value with arrays of its own, as from another process; other objects are the same ones.

    ``copies`` are by the identity of what they are copies of, as tied weights are one array under several names.
    """
    if type(value) in (list, tuple):
        return type(value)(_apart(item, copies) for item in value)
    if type(value) in (dict, OrderedDict):
        apart = copy(value)
        apart.update((name, _apart(item, copies)) for name, item in value.items())
        return apart
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return value
    if id(value) not in copies:
        copies[id(value)] = value.detach().clone() if hasattr(value, "untyped_storage") else copy(value)
    return copies[id(value)]


class LocalBackend:
    """Simulates every process of a plan in this one."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self._turns = {group.name: Turns() for group in plan.groups}
        self._collectives = {name: LocalCollectives(turns) for name, turns in self._turns.items()}
        self._executors: dict[str, list[Executor]] = {}
        self._roles = {group.name: group.roles for group in plan.groups}
        places = plan.deployment.placements.values()
        self._has_engines = any(role_facts.samples_with.of(place) for place in places)
        self.driver = Executor(plan=plan, group=DRIVER, roles=(), context=RankContext(), seed=seed, collectives=None)
        self._producers: dict[str, dict[int, str]] = {}
        self.add(plan)
        for group in plan.groups:
            slots = [(slot, size) for size in group.pool.processes for slot in range(size)]
            contexts = [RankContext(rank, len(slots), slot, size) for rank, (slot, size) in enumerate(slots)]
            self._executors[group.name] = self._turns[group.name].run(
                [
                    partial(
                        Executor,
                        plan=plan,
                        group=group.name,
                        roles=group.roles,
                        context=context,
                        seed=seed,
                        collectives=self._collectives[group.name],
                    )
                    for context in contexts
                ]
            )
            self._collectives[group.name].forget()

    def _every_executor(self) -> Iterator[Executor]:
        yield self.driver
        for executors in self._executors.values():
            yield from executors

    def add(self, plan: Plan) -> None:
        """Register another plan of the same deployment with every executor."""
        self._producers[plan.name] = dict.fromkeys((node.id for node in plan.graph.inputs), OF_CALLER)
        self._producers[plan.name] |= {step.node: step.label for step in plan.steps}
        for executor in self._every_executor():
            executor.add(plan)

    def topology(self, plan: Plan) -> Topology:
        """The topology of the pools: a payload is sliced here as it would be on a cluster."""
        return planned_topology(plan)

    def put(self, plan: Plan, content: PayloadContent) -> Any:
        """A handle of a payload that the driver has."""
        return _LocalPayload(content, self._producers[plan.name])

    def run(self, submission: Submission) -> list[tuple[SegmentResult, list[Any]]]:
        """Run a segment: every rank's result and payloads."""
        segment = submission.segment
        bodies = [self._body(submission, index) for index in range(len(segment.ranks))]
        if all(step.role is None for step in segment.steps):
            outcomes = [run() for run in bodies]  # a function has no peers to wait for
        else:
            outcomes = self._together(segment.group, bodies)
        producers = self._producers[submission.call.plan]
        return [(result, [_LocalPayload(content, producers) for content in sends]) for result, sends in outcomes]

    def _body(self, submission: Submission, index: int) -> Callable[[], tuple[SegmentResult, list[PayloadContent]]]:
        """The part of one rank in a segment, with its payloads as they are now."""
        executor = self._executors[submission.segment.group][submission.segment.ranks[index]]
        payloads = [payload.read() for payload in submission.payloads[index]]
        dispatched = submission.dispatched[index] if submission.dispatched is not None else None
        queued = submission.queued[index] if submission.queued is not None else ()
        return partial(executor.run, submission.call, submission.specs[index], payloads, dispatched, queued)

    def done(
        self, acknowledgments: Sequence[Any], wanted: Sequence[Any] = (), meanwhile: Callable[[], None] = do_nothing
    ) -> list[SegmentResult]:
        """The results themselves; every segment ended before the next one began."""
        meanwhile()
        return list(acknowledgments)

    def get(self, handles: Sequence[Any]) -> list[PayloadContent]:
        """The contents of payloads."""
        return [payload.read() for payload in handles]

    def save(self, folder: str, background: bool) -> None:
        """Save all ranks, in turns, since a rank may call its peers."""
        for group, executors in self._executors.items():
            for role in self._roles[group]:
                self._together(group, [partial(executor.take_state, role, background) for executor in executors])
            for executor in executors:
                executor.workers.save(folder)

    def saved(self, folder: str, wait: float) -> dict[str, list[dict[str, str]]] | None:
        """The files of all ranks."""
        return files_by_role(
            [executor.workers.saved(folder, wait) for executor in group] for group in self._executors.values()
        )

    def load(self, folder: str, saved: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        """Load the states of all ranks."""
        for group, executors in self._executors.items():
            files = {role: saved[role] for role in self._roles[group] if role in saved}
            by_rank = [{role: ranks[rank] for role, ranks in files.items()} for rank in range(len(executors))]
            pairs = zip(executors, by_rank, strict=True)
            self._together(
                group, [partial(executor.load, folder, states, self._roles[group]) for executor, states in pairs]
            )

    def save_queues(
        self, folder: str, plan: str, pending: Mapping[int, Mapping[tuple[str, int], Sequence[Any]]]
    ) -> dict[str, list[dict[str, str]]]:
        """Save all ranks; errors as for ``StepStores.save``."""
        return {
            group: [
                executor.stores.save(
                    folder, plan, {step: self.get(by_rank.get((group, rank), ())) for step, by_rank in pending.items()}
                )
                for rank, executor in enumerate(executors)
            ]
            for group, executors in self._executors.items()
        }

    def read_payloads(self, folder: str, saved: Sequence[tuple[Plan, SavedPayloads, QueueFile]]) -> list[Sequence[Any]]:
        """Read them in this process; errors as for ``store_files.read_payloads``."""
        return [
            [self.put(plan, content) for content in read_payloads(folder, file, [(payloads.number, payloads.slices)])]
            for plan, payloads, file in saved
        ]

    def load_queues(self, folder: str, plan: str, files: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        """Load all ranks; errors as for ``StepStores.load``."""
        for group, executors in self._executors.items():
            for executor, file in zip(executors, files[group], strict=True):
                executor.stores.load(folder, plan, file)

    def at_bodies(self, group: str, rank: int, moment: BodyMoment, hook: BodyHook) -> None:
        """Have the executor of a rank call a hook, too, whenever a body begins there, or after it has ended."""
        self._executors[group][rank].body_hooks.add(moment, hook)

    def record(self, folder: str | None) -> None:
        """Have every executor write the calls of the next steps to a recording."""
        for executor in self._every_executor():
            executor.record(folder)

    def digests(self, sync: VerifiedSync, role: str, dtypes: DTypes | None, exported: bool) -> list[Digests | None]:
        """The digests of all ranks, taken in turns, since a rank may call its peers."""
        group = next(group for group, roles in self._roles.items() if role in roles)
        executors = self._executors[group]
        return self._together(
            group, [partial(executor.digests, sync, role, dtypes, exported) for executor in executors]
        )

    def digest_exports(self, wanted: Mapping[VerifiedSync, DTypes]) -> None:
        """Have every executor digest what the next steps export."""
        for executor in self._every_executor():
            executor.digest_exports(wanted)

    def sent_digests(self) -> list[DigestReport]:
        """No reports: within this process, all weights have been read when their call ends."""
        return []

    def of_workers(self, role: str, function: Callable[[Any], T], method: str = "of_workers") -> list[T]:
        """Call all ranks together; HF806 if the function raises."""
        group = next(group for group, roles in self._roles.items() if role in roles)
        return self._together(
            group, [partial(executor.of_worker, role, function, method) for executor in self._executors[group]]
        )

    def _together(self, group: str, bodies: Sequence[Callable[[], T]]) -> list[T]:
        try:
            return self._turns[group].run(bodies)
        finally:
            self._collectives[group].forget()

    def begin(self) -> None:
        """Set no deadline: nothing has to be waited for."""

    def close(self) -> None:
        """Drop the workers and their threads; engines' processes end even though workers are parts of cycles."""
        self._executors.clear()
        for turns in self._turns.values():
            turns.close()
        if self._has_engines:
            gc.collect()
