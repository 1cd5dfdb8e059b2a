"""Relays: one process per node calls the ranks there, so that the driver makes one call per node, not one per rank.

A worked example. Two nodes with a relay each; actor rank 0 is on the first, critic rank 0 on the second, and the critic
reads the four rows that the actor makes. The driver's side only collects what to submit (``Relays.run``); names stand
for what a rank's call will return: (segment, rank, place), where place 0 is the acknowledgment and payloads follow::

    driver                                           relay of node 1              relay of node 2
    run(segment 1, actor)      outbox 1: 1 call
    run(segment 2, critic)     share (1, 0, 1)  -->  calls the actor, keeps
      reads a payload of                             (1, 0, 0) and (1, 0, 1);
      another relay                                  returns [reference] at once
                               outbox 2: 1 call,
                               with answer 0, place 0
    done([critic's ack.])      answer (2, 0, 0)  ---------------------------->    calls the critic with that reference,
                                                                                  waits, returns its acknowledgment
                               drops (1, 0, 1), once nobody holds its handle, with the next call to relay 1

So a step costs the driver one call a node, ``answer``, and one more, ``share``, for every relay that another one reads
from. Values never pass through a relay or the driver: what ``share`` returns is a reference, nested in a list, so that
Ray hands it over without fetching what it stands for.

Why it is right. *No deadlock*: ``share`` returns without waiting for ranks, and references to results that do not exist
yet are legal arguments, so a relay never waits for another relay; only ``answer`` waits, with a timeout, and only for
ranks. A relay runs one method at a time, so a waiting ``answer`` would block later submissions; therefore the driver
submits all that it knows before it waits. *Once*: a name is submitted once, because the outbox is emptied when it is
sent, and a call's reference is kept under one name. *Dropped after the last reader*: the driver's ``RemoteHandle``
lives as long as a reader is planned; when it is deleted, its name goes to the relay with the next call, and the relay
lets go of the reference. A rank that has been called keeps its own reference until it has run. References to small
values that were shared are kept one step longer: see ``RAY_STORED_BYTES``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

import ray
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hfdsl.plan.plan import Plan
from hfdsl.runtime.backend import Submission
from hfdsl.runtime.messages import (
    INLINE,
    RAY_STORED_BYTES,
    RELAYED,
    SMALL_PAYLOAD_BYTES,
    Acknowledgment,
    InlineResult,
    RankRequest,
    SegmentSpec,
)
from hfdsl.single_controller.calls import fetch

FAILURE_POLL_SECONDS = 1.0
"""How often a wait for all ranks looks for a failure among those that have ended."""

MIN_RANKS, MIN_RANKS_PER_NODE = 16, 4
"""Relays pay from so many ranks in all, and per node on average: see benchmarks/dataplane/relay.py."""

ACKNOWLEDGMENT = 0
"""The place of the acknowledgment among what a rank's call returns; its payloads follow."""

Name: TypeAlias = tuple[int, int, int]
"""A reference that a relay holds: the segment, the rank, and the place among what the call returns."""


class Relay:
    """The actor: it holds the references to what its ranks return in a step.

    Values stay with the ranks, but for small ones that the driver wants; these are bytes, which nobody unpacks here.
    References to small ones that other processes have too are kept for a step longer, so that those here go last.
    """

    def __init__(self, ranks: Mapping[str, Mapping[int, Any]]) -> None:
        self._ranks = ranks
        self._refs: dict[Name, Any] = {}
        self._shared: set[Name] = set()
        self._payload_bytes: dict[tuple[int, int], Sequence[int]] = {}  # of what ranks have made in this step
        self._kept: list[Any] = []  # since this step
        self._kept_before: list[Any] = []  # since the step before

    def _submit(
        self, new_step: bool, calls: Sequence[Sequence[Any]], dropped: Sequence[Sequence[int]], *shared: Any
    ) -> None:
        """Call ranks.

        Of the arguments of a call, a list of three is the name of a reference here, and one of two is a place in
        ``shared``, the answers of other relays. With ``new_step`` a step begins; what is ``dropped`` has no more
        readers.
        """
        if new_step:
            for name in list(self._refs):
                self._drop(name)
            self._shared.clear()
            self._payload_bytes.clear()
            self._kept, self._kept_before = [], self._kept
        for group, rank, request_on_wire, arguments in calls:
            request = RankRequest.from_wire(request_on_wire)
            places = [ACKNOWLEDGMENT, *(place for place, mode in enumerate(request.modes, 1) if mode == RELAYED)]
            values = [self._resolve(value, shared) if type(value) is list else value for value in arguments]
            refs = self._ranks[group][rank].run.options(num_returns=len(places)).remote(request_on_wire, *values)
            for place, ref in zip(places, refs if len(places) > 1 else [refs], strict=True):
                self._refs[request.call.segment, rank, place] = ref
        for unused in dropped:
            self._drop(_name(unused))

    def _drop(self, name: Name) -> None:
        ref = self._refs.pop(name, None)
        if ref is not None and name in self._shared and self._may_be_inlined(name):
            self._kept.append(ref)

    def _may_be_inlined(self, name: Name) -> bool:
        segment, rank, place = name
        sizes = self._payload_bytes.get((segment, rank))
        return place == ACKNOWLEDGMENT or sizes is None or sizes[place - 1] < RAY_STORED_BYTES

    def _share(self, name: Name) -> Any:
        self._shared.add(name)
        return self._refs[name]

    def _resolve(self, name: Sequence[int], shared: Sequence[Any]) -> Any:
        return self._refs[_name(name)] if len(name) == 3 else shared[name[0]][name[1]]

    def share(self, names: Sequence[Sequence[int]], *submission: Any) -> list[Any]:
        """References for ranks of other nodes; does not wait for what is submitted before."""
        self._submit(*submission)
        return [self._share(_name(name)) for name in names]

    def answer(self, names: Sequence[Sequence[int]], seconds: float, *submission: Any) -> list[Any]:
        """The values of these names after this many seconds at the latest; None for what does not exist yet.

        A payload that is not small is answered as its reference, which the relay no longer keeps.

        Raises:
            RoleError: HF806 where a body raised or a process died; the first failure, even while others still run.
        """
        self._submit(*submission)
        asked = [_name(name) for name in names]
        acknowledgment_of = {name: (*name[:2], ACKNOWLEDGMENT) for name in asked}
        pending = {self._refs[acknowledgment]: acknowledgment for acknowledgment in acknowledgment_of.values()}
        values: dict[Name, Any] = {}
        for ready in waited(list(pending), seconds):
            values |= zip((pending[ref] for ref in ready), fetch(ready), strict=True)
        # A payload exists when its call is acknowledged, and the acknowledgment says how large it is.
        done = {name: acknowledgment for name, acknowledgment in acknowledgment_of.items() if acknowledgment in values}
        for segment, rank, _ in dict.fromkeys(done.values()):
            result = Acknowledgment.from_wire(values[segment, rank, ACKNOWLEDGMENT]).result
            self._payload_bytes[segment, rank] = result.payload_bytes
        acknowledged = frozenset(values)
        small = [name for name in done if name not in acknowledged and self._is_small(name)]
        values |= zip(small, fetch([self._refs[name] for name in small]), strict=True)
        answers = [
            None if name not in done else values[name] if name in values else self._share(name) for name in asked
        ]
        for name in done.keys() - acknowledged:
            self._drop(name)
        return answers

    def _is_small(self, name: Name) -> bool:
        segment, rank, place = name
        return self._payload_bytes[segment, rank][place - 1] <= SMALL_PAYLOAD_BYTES


def _name(name: Sequence[int]) -> Name:
    segment, rank, place = name
    return segment, rank, place


def waited(refs: Sequence[Any], seconds: float) -> Iterator[list[Any]]:
    """What has ended, in batches, for this many seconds; polled, since a rank may wait for one that has failed."""
    until, pending = time.monotonic() + seconds, list(refs)
    while pending:
        left = max(0.0, until - time.monotonic())
        ready, pending = ray.wait(
            pending, num_returns=len(pending), timeout=min(left, FAILURE_POLL_SECONDS), fetch_local=False
        )
        yield ready
        if not left:
            return


# -- the driver's side


def pays(plan: Plan, nodes: Mapping[str, Sequence[str]], direct_groups: Collection[str]) -> bool:
    """Whether relays call the ranks of a plan, whose processes are on these nodes.

    They do not where the driver has to call ranks itself: for a protocol that is a pair of functions, and for tensors
    from GPU to GPU, whose references only the caller of their producer may pass on.
    """
    groups = [group.name for group in plan.groups]
    linked = any(name in direct_groups for name in groups)
    if plan.optimize.relay is False or linked or any(step.custom for step in plan.steps):
        return False
    ranks = Counter(node for name in groups for node in nodes[name])
    many = len(ranks) > 1 and ranks.total() >= max(MIN_RANKS, MIN_RANKS_PER_NODE * len(ranks))
    return plan.optimize.relay is True or many


@dataclass(eq=False, slots=True)
class Outbox:
    """What a relay will be sent with the next call, in the current step.

    >>> outbox = Outbox(relay=None)
    >>> ids = RemoteHandle(outbox, (1, 0, 1))  # of segment 1, rank 0: its first payload
    >>> outbox.calls.append(["critic", 0, ["the request"], [outbox.argument(ids)]])
    >>> del ids  # its last reader has been submitted
    >>> outbox.submission()
    (True, [['critic', 0, ['the request'], [[1, 0, 1]]]], [[1, 0, 1]])
    >>> outbox.submission()  # nothing is sent twice
    (False, [], [])
    """

    relay: Any
    new_step: bool = True
    calls: list[list[Any]] = field(default_factory=list)
    dropped: list[Name] = field(default_factory=list)
    shared: dict[Any, int] = field(default_factory=dict)

    def submission(self) -> tuple[Any, ...]:
        """Everything that was collected, as the arguments of ``Relay._submit``."""
        collected = self.new_step, self.calls, [list(name) for name in self.dropped], *self.shared
        self.new_step, self.calls, self.dropped, self.shared = False, [], [], {}
        return collected

    def argument(self, value: Any) -> Any:
        """An argument of a rank, as its relay is sent it."""
        if not isinstance(value, RemoteHandle):
            return value
        if value.value is not None:
            return value.value
        if value.outbox is self:
            return list(value.name)
        answer, place = value.shared
        return [self.shared.setdefault(answer, len(self.shared)), place]


@dataclass(eq=False, slots=True)
class RemoteHandle:
    """The handle of an acknowledgment or payload to which a relay holds the reference; ``value`` once it answered.

    The relay keeps the reference as long as the driver has this. ``shared`` is where ranks of other relays find it.
    """

    outbox: Outbox
    name: Name
    value: Any = None
    shared: Any = None

    def __del__(self) -> None:
        self.outbox.dropped.append(self.name)


class Relays:
    """The relays of a cluster, one a node. What a step submits is sent to them when somebody waits for something."""

    def __init__(
        self, workers: Mapping[str, Sequence[Any]], nodes: Mapping[str, Sequence[str]], time_left: Callable[[], float]
    ) -> None:
        self._time_left = time_left
        by_node: dict[str, dict[str, dict[int, Any]]] = {}
        for group, actors in workers.items():
            for rank, (node, actor) in enumerate(zip(nodes[group], actors, strict=True)):
                by_node.setdefault(node, {}).setdefault(group, {})[rank] = actor
        self._relays = [self._start(node, ranks) for node, ranks in by_node.items()]
        self._relay_of = {(g, r): i for i, ranks in enumerate(by_node.values()) for g, of in ranks.items() for r in of}
        self._acknowledgments: list[RemoteHandle] = []
        self.begin()
        fetch([relay.share.remote([], True, [], []) for relay in self._relays])  # returns once they are up

    def _start(self, node: str, ranks: Mapping[str, Mapping[int, Any]]) -> Any:
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        return ray.remote(Relay).options(num_cpus=0, scheduling_strategy=where).remote(ranks)

    def begin(self) -> None:
        """Begin a step."""
        self._acknowledgments.clear()
        self._outboxes = [Outbox(relay) for relay in self._relays]

    def references(self) -> Iterator[Any]:
        """The references that the last step has sent to relays."""
        for outbox in self._outboxes:
            yield from outbox.shared
        yield from (handle.shared[0] for handle in self._acknowledgments if handle.shared is not None)

    def run(
        self, submission: Submission, table: Callable[[SegmentSpec], Any]
    ) -> Sequence[tuple[RemoteHandle, Sequence[Any]]]:
        """Submit a segment, as ``RayBackend.run`` does."""
        segment = submission.segment
        # What has a value has ended.
        after = [[handle for handle in handles if handle.value is None] for handles in submission.after]
        outboxes = [self._outboxes[self._relay_of[segment.group, rank]] for rank in segment.ranks]
        received = zip(outboxes, submission.payloads, after, strict=True)
        self._share((outbox, handle) for outbox, payloads, before in received for handle in (*payloads, *before))
        handles = []
        for i, (rank, outbox) in enumerate(zip(segment.ranks, outboxes, strict=True)):
            spec, payloads = submission.specs[i], submission.payloads[i]
            spec_arguments = () if spec is None else (spec.task, table(spec))
            modes = [INLINE if payload.inline else RELAYED for payload in submission.sends[i]]
            request = RankRequest(submission.call, len(payloads), spec is not None, False, modes)
            arguments = [outbox.argument(value) for value in (*payloads, *spec_arguments, *after[i])]
            outbox.calls.append([segment.group, rank, request.to_wire(), arguments])
            acknowledgment, index = RemoteHandle(outbox, (segment.number, rank, ACKNOWLEDGMENT)), count()
            sends = [
                InlineResult(acknowledgment, next(index))
                if mode == INLINE
                else RemoteHandle(outbox, (segment.number, rank, place))
                for place, mode in enumerate(modes, 1)
            ]
            handles.append((acknowledgment, sends))
        self._acknowledgments += [acknowledgment for acknowledgment, _ in handles]
        return handles

    def _share(self, wanted: Iterable[tuple[Outbox, Any]]) -> None:
        """Ask relays for the references that ranks of other relays read."""
        missing: dict[Outbox, dict[RemoteHandle, None]] = {}
        for outbox, handle in wanted:
            elsewhere = isinstance(handle, RemoteHandle) and handle.outbox is not outbox
            if elsewhere and handle.value is None and handle.shared is None:
                missing.setdefault(handle.outbox, {})[handle] = None
        for outbox, handles in missing.items():
            answer = outbox.relay.share.remote([list(handle.name) for handle in handles], *outbox.submission())
            for place, handle in enumerate(handles):
                handle.shared = answer, place

    def ask(self, wanted: Sequence[Any], seconds: float) -> dict[Any, list[RemoteHandle]]:
        """Send everything that is to be submitted, and ask for what is wanted; relays answer within these seconds."""
        asked: dict[Outbox, list[RemoteHandle]] = {outbox: [] for outbox in self._outboxes if outbox.calls}
        for handle in wanted:
            if isinstance(handle, RemoteHandle) and handle.value is None:
                asked.setdefault(handle.outbox, []).append(handle)
        return {
            outbox.relay.answer.remote(
                [list(handle.name) for handle in handles], seconds, *outbox.submission()
            ): handles
            for outbox, handles in asked.items()
        }

    def take(self, answers: Mapping[Any, Sequence[RemoteHandle]]) -> bool:
        """Wait for answers, and give each handle its value; whether all have one.

        Raises:
            RoleError: HF806 where a body raised or a process died.
        """
        # Longer than the relays wait: an answer comes only once, and one that is missed would lose its references.
        for ready in waited(list(answers), self._time_left() + FAILURE_POLL_SECONDS):
            for ref, values in zip(ready, fetch(ready), strict=True):
                for handle, value in zip(answers[ref], values, strict=True):
                    handle.value = value
        return all(handle.value is not None for handles in answers.values() for handle in handles)

    def get(self, handles: Sequence[Any]) -> list[Any]:
        """Handles as they are without relays: bytes, and references.

        Raises:
            RoleError: HF806 where a body raised or a process died.
            GetTimeoutError: where no time is left.
        """
        while not self.take(self.ask(handles, min(self._time_left(), FAILURE_POLL_SECONDS))):
            if not self._time_left():
                raise GetTimeoutError
            self.take(self.ask(self._acknowledgments, 0))  # the rank that makes a value may wait for one that failed
        return [handle.value if isinstance(handle, RemoteHandle) else handle for handle in handles]

    def close(self) -> None:
        """End the relays."""
        for relay in self._relays:
            ray.kill(relay)
