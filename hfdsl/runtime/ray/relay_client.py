"""The driver's side of relays: collects the calls of a step, and requests values from relays when they are awaited.

``hfdsl.runtime.ray.relay`` begins with an example of both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import ray
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hfdsl.errors import HfError
from hfdsl.plan.plan import Plan
from hfdsl.runtime.backend import Submission
from hfdsl.runtime.messages import INLINE, RELAYED, InlineResult, RankRequest, SegmentSpec, SendMode
from hfdsl.runtime.ray.relay import ACKNOWLEDGMENT, FAILURE_POLL_SECONDS, Relay, RelayCall, ReturnKey, as_completed
from hfdsl.single_controller.waiting import fetch

MIN_RANKS, MIN_RANKS_PER_HOST = 16, 4
"""The numbers of ranks, in total and per host, from which relays pay off: see benchmarks/dataplane/relay.py."""

GROUP = "the relays"
"""The name of all relays in messages, as if they were a group of ranks; no group of roles can have it."""

START_SECONDS = 60.0
"""The time in which all relays must start; each is a process without GPUs or state."""


def relays_pay(plan: Plan, hosts: Mapping[str, Sequence[str]], direct_groups: Collection[str]) -> bool:
    """Whether relays call the ranks of a plan whose processes are on these hosts.

    They do not where the driver has to call ranks itself: for a custom protocol, and for tensors from GPU to GPU, whose
    references only the caller of their producer may pass on.
    """
    groups = [group.name for group in plan.groups]
    if plan.optimize.relay is False or any(step.custom for step in plan.steps):
        return False
    if any(name in direct_groups for name in groups):
        return False
    ranks = Counter(host for name in groups for host in hosts[name])
    many = len(ranks) > 1 and ranks.total() >= max(MIN_RANKS, MIN_RANKS_PER_HOST * len(ranks))
    return plan.optimize.relay is True or many


@dataclass(eq=False, slots=True)
class Outbox:
    """Requests for the next call of a relay, in the current step.

    >>> outbox = Outbox(relay=None)
    >>> ids = RemoteHandle(outbox, ReturnKey(segment=1, rank=0, place=1))  # the first payload of rank 0
    >>> outbox.calls.append(RelayCall("critic", 0, ["the request"], [outbox.argument(ids)]))
    >>> del ids  # its last reader has been submitted
    >>> outbox.to_wire()
    (True, [['critic', 0, ['the request'], [[1, 0, 1]]]], [[1, 0, 1]])
    >>> outbox.to_wire()  # nothing is sent twice
    (False, [], [])
    """

    relay: Any
    new_step: bool = True
    calls: list[RelayCall] = field(default_factory=list)
    dropped: list[ReturnKey] = field(default_factory=list)
    shared: dict[Any, int] = field(default_factory=dict)  # what ``Relay.share`` returned, with its position

    def to_wire(self) -> tuple[Any, ...]:
        """The collected requests as the arguments of ``Relay._submit``; empties the outbox."""
        calls, dropped = [list(call) for call in self.calls], [list(key) for key in self.dropped]
        arguments = self.new_step, calls, dropped, *self.shared
        self.new_step, self.calls, self.dropped, self.shared = False, [], [], {}
        return arguments

    def argument(self, value: Any) -> Any:
        """An argument of a rank, in the form for its relay."""
        if not isinstance(value, RemoteHandle):
            return value
        if value.value is not None:
            return value.value
        if value.outbox is self:
            return list(value.key)
        if value.shared is None:
            raise RuntimeError(f"{value.key} is of another relay, which was not asked to share it")
        return [self.shared.setdefault(value.shared.references, len(self.shared)), value.shared.place]


class SharedReference(NamedTuple):
    """The place of a reference to another relay's value: an entry in the result of that relay's ``share``."""

    references: Any
    place: int


@dataclass(eq=False, slots=True)
class RemoteHandle:
    """A handle of an acknowledgment or payload whose reference a relay holds.

    The relay keeps the reference as long as the driver has this. ``value`` is there once the relay returned it,
    ``shared`` once other relays read it.
    """

    outbox: Outbox
    key: ReturnKey
    value: Any = None
    shared: SharedReference | None = None

    def __del__(self) -> None:
        self.outbox.dropped.append(self.key)


class Relays:
    """The relays of a cluster, one per host; they receive a step's calls when a result is awaited."""

    def __init__(
        self, workers: Mapping[str, Sequence[Any]], hosts: Mapping[str, Sequence[str]], time_left: Callable[[], float]
    ) -> None:
        self._time_left = time_left
        by_host: dict[str, dict[str, dict[int, Any]]] = {}
        for group, actors in workers.items():
            for rank, (host, actor) in enumerate(zip(hosts[group], actors, strict=True)):
                by_host.setdefault(host, {}).setdefault(group, {})[rank] = actor
        self._relays = [self._start(host, ranks) for host, ranks in by_host.items()]
        self._relay_of: dict[tuple[str, int], int] = {}  # by group and rank, the position of its relay
        for position, groups in enumerate(by_host.values()):
            self._relay_of |= {(group, rank): position for group, ranks in groups.items() for rank in ranks}
        self._acknowledgments: list[RemoteHandle] = []
        self.begin()
        try:  # returns once they are up
            fetch([relay.share.remote([], True, [], []) for relay in self._relays], START_SECONDS)
        except GetTimeoutError:
            self.close()
            late = f"relays did not start within {START_SECONDS:g} s"
            raise HfError("HF807", f"{late}; hf.Optimize(relay=False) does without them") from None

    def _start(self, host: str, ranks: Mapping[str, Mapping[int, Any]]) -> Any:
        where = NodeAffinitySchedulingStrategy(host, soft=False)
        return ray.remote(Relay).options(num_cpus=0, scheduling_strategy=where).remote(ranks)

    @property
    def actors(self) -> Sequence[Any]:
        """The relay actors."""
        return self._relays

    def begin(self) -> None:
        """Begin a step."""
        self._acknowledgments.clear()
        self._outboxes = [Outbox(relay) for relay in self._relays]

    def references(self) -> Iterator[Any]:
        """The references that the last step has sent to relays."""
        for outbox in self._outboxes:
            yield from outbox.shared
        yield from (handle.shared.references for handle in self._acknowledgments if handle.shared is not None)

    def run(
        self, submission: Submission, table: Callable[[SegmentSpec], Any], digests: bool = False
    ) -> Sequence[tuple[RemoteHandle, Sequence[Any]]]:
        """Submit a segment, as ``RayBackend.run`` does."""
        segment = submission.segment
        # What has a value has ended.
        after = [[handle for handle in handles if handle.value is None] for handles in submission.after]
        outboxes = [self._outboxes[self._relay_of[segment.group, rank]] for rank in segment.ranks]
        reads = zip(outboxes, submission.payloads, after, strict=True)
        self._share((outbox, handle) for outbox, payloads, before in reads for handle in (*payloads, *before))
        handles = []
        for i, (rank, outbox) in enumerate(zip(segment.ranks, outboxes, strict=True)):
            spec, payloads = submission.specs[i], submission.payloads[i]
            spec_arguments = () if spec is None else (spec.task, table(spec))
            modes = [INLINE if payload.inline else RELAYED for payload in submission.sends[i]]
            request = RankRequest(
                call=submission.call,
                payloads=len(payloads),
                has_spec=spec is not None,
                has_dispatched=False,
                modes=modes,
                digests=digests,
            )
            arguments = [outbox.argument(value) for value in (*payloads, *spec_arguments, *after[i])]
            outbox.calls.append(RelayCall(segment.group, rank, request.to_wire(), arguments))
            handles.append(_handles(outbox, segment.number, rank, modes))
        self._acknowledgments += [acknowledgment for acknowledgment, _ in handles]
        return handles

    def _share(self, reads: Iterable[tuple[Outbox, Any]]) -> None:
        """Have relays share the references that ranks of other relays read."""
        missing: dict[Outbox, dict[RemoteHandle, None]] = {}
        for outbox, handle in reads:
            elsewhere = isinstance(handle, RemoteHandle) and handle.outbox is not outbox
            if elsewhere and handle.value is None and handle.shared is None:
                missing.setdefault(handle.outbox, {})[handle] = None
        for outbox, handles in missing.items():
            references = outbox.relay.share.remote([list(handle.key) for handle in handles], *outbox.to_wire())
            for place, handle in enumerate(handles):
                handle.shared = SharedReference(references, place)

    def submit(self, wanted: Sequence[Any], seconds: float) -> dict[Any, list[RemoteHandle]]:
        """Send all outboxes, and have relays wait this long for the wanted values; return the handles of each reply.

        Values that are here already are not asked for.
        """
        by_outbox: dict[Outbox, list[RemoteHandle]] = {outbox: [] for outbox in self._outboxes if outbox.calls}
        for handle in wanted:
            if isinstance(handle, RemoteHandle) and handle.value is None:
                by_outbox.setdefault(handle.outbox, []).append(handle)
        replies = {}
        for outbox, handles in by_outbox.items():
            keys = [list(handle.key) for handle in handles]
            replies[outbox.relay.wait_for.remote(keys, seconds, *outbox.to_wire())] = handles
        return replies

    def receive(self, replies: Mapping[Any, Sequence[RemoteHandle]]) -> bool:
        """Wait for replies, and set the value of each handle; return whether all have one.

        Raises:
            RoleError: HF806 if a body raised or a process died.
        """
        # Longer than the relays wait: a reply comes only once, and one that is missed would lose its references.
        for ready in as_completed(list(replies), self._time_left() + FAILURE_POLL_SECONDS):
            for ref, values in zip(ready, fetch(ready), strict=True):
                for handle, value in zip(replies[ref], values, strict=True):
                    handle.value = value
        return all(handle.value is not None for handles in replies.values() for handle in handles)

    def get(self, handles: Sequence[Any]) -> list[Any]:
        """The values of handles that need no relay: bytes, and references.

        Raises:
            RoleError: HF806 if a body raised or a process died.
            GetTimeoutError: where no time is left.
        """
        while not self.receive(self.submit(handles, min(self._time_left(), FAILURE_POLL_SECONDS))):
            if not self._time_left():
                raise GetTimeoutError
            # The rank that produces a value may wait for one that has failed.
            self.receive(self.submit(self._acknowledgments, 0))
        return [handle.value if isinstance(handle, RemoteHandle) else handle for handle in handles]

    def close(self) -> None:
        """End the relays."""
        for relay in self._relays:
            ray.kill(relay)


def _handles(outbox: Outbox, segment: int, rank: int, modes: Sequence[SendMode]) -> tuple[RemoteHandle, list[Any]]:
    """The handles of a call's acknowledgment and payloads."""
    acknowledgment, index = RemoteHandle(outbox, ReturnKey(segment, rank, ACKNOWLEDGMENT)), count()
    payloads = [
        InlineResult(acknowledgment, next(index))
        if mode == INLINE
        else RemoteHandle(outbox, ReturnKey(segment, rank, place))
        for place, mode in enumerate(modes, 1)
    ]
    return acknowledgment, payloads
