"""Relays: one process a node calls the ranks there, so that the driver makes one call a node and not one a rank."""

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
from hfdsl.runtime.backend import RELAYED, TOLD, Call, Told
from hfdsl.runtime.executor import Lesson, Ran
from hfdsl.runtime.store import SMALL
from hfdsl.single_controller.calls import fetch

PATIENCE = 1.0
"""Seconds after which a wait for all ranks looks for a failure among those that have ended."""

RANKS, A_NODE = 16, 4
"""Relays pay from so many ranks on several nodes, so many of them on each: see benchmarks/dataplane/relay.py."""

ACKNOWLEDGED = 0
"""The place of what a rank acknowledges among what its call returns; its payloads come after it."""

INLINED = 128 * 1024
"""Bytes of a payload from which Ray surely keeps it in the object store, and not with the caller of what made it.

Ray 2.60 frees what the caller keeps where the caller's reference is the last to go, and never where a borrower's is.
"""

Name: TypeAlias = tuple[int, int, int]
"""A reference that a relay holds: the segment, the rank, and the place among what the call returns."""


class Relay:
    """The actor: it holds the references to what its ranks give in a step.

    Values stay with the ranks, but for small ones that the driver wants; these are bytes, which nobody unpacks here.
    References to small ones that others have too are kept for a step longer, so that those here go last.
    """

    def __init__(self, ranks: Mapping[str, Mapping[int, Any]]) -> None:
        self._ranks = ranks
        self._held: dict[Name, Any] = {}
        self._lent: set[Name] = set()
        self._given: dict[tuple[int, int], Sequence[int]] = {}  # the bytes of what ranks have given in this step
        self._left: list[Any] = []  # in this step
        self._left_before: list[Any] = []  # in the step before

    def _submit(
        self, fresh: bool, parts: Sequence[Sequence[Any]], dropped: Sequence[Sequence[int]], *lent: Any
    ) -> None:
        """Call ranks. Of their arguments a list of three is the name of what is held here, one of two what is lent.

        With ``fresh`` a step begins; what is ``dropped`` nobody takes any more. ``lent`` are answers of other relays.
        """
        if fresh:
            for held in list(self._held):
                self._leave(held)
            self._lent.clear()
            self._given.clear()
            self._left, self._left_before = [], self._left
        for group, rank, told, arguments in parts:
            places = [ACKNOWLEDGED, *(place for place, way in enumerate(told[-1], 1) if way == RELAYED)]
            values = [self._found(one, lent) if type(one) is list else one for one in arguments]
            refs = self._ranks[group][rank].run.options(num_returns=len(places)).remote(told, *values)
            for place, ref in zip(places, refs if len(places) > 1 else [refs], strict=True):
                self._held[told[2], rank, place] = ref
        for name in dropped:
            self._leave(_name(name))

    def _leave(self, name: Name) -> None:
        ref = self._held.pop(name, None)
        if ref is not None and name in self._lent and self._small(name):
            self._left.append(ref)

    def _small(self, name: Name) -> bool:
        segment, rank, place = name
        given = self._given.get((segment, rank))
        return place == ACKNOWLEDGED or given is None or given[place - 1] < INLINED

    def _lend(self, name: Name) -> Any:
        self._lent.add(name)
        return self._held[name]

    def _found(self, name: Sequence[int], lent: Sequence[Any]) -> Any:
        return self._held[_name(name)] if len(name) == 3 else lent[name[0]][name[1]]

    def lend(self, names: Sequence[Sequence[int]], *submission: Any) -> list[Any]:
        """References, for ranks of other nodes; what is submitted before is not waited for."""
        self._submit(*submission)
        return [self._lend(_name(name)) for name in names]

    def answer(self, names: Sequence[Sequence[int]], seconds: float, *submission: Any) -> list[Any]:
        """What has been acknowledged or given under these names after so many seconds; for what has not, None.

        A payload that is not small is answered as its reference, and held here no longer.

        Raises:
            RoleError: HF806 where a body raised or a process died; the first failure, whoever still waits.
        """
        self._submit(*submission)
        asked = [_name(name) for name in names]
        acknowledgements = {name: (*name[:2], ACKNOWLEDGED) for name in asked}
        pending = {self._held[one]: one for one in acknowledgements.values()}
        told: dict[Name, Any] = {}
        for ready in waited(list(pending), seconds):
            told |= zip((pending[ref] for ref in ready), fetch(ready), strict=True)
        known = {name: ack for name, ack in acknowledgements.items() if ack in told}
        self._given |= {(ack[0], ack[1]): Ran.unpacked(told[ack][0]).given for ack in known.values()}
        small = [
            name for name, ack in known.items() if name != ack and self._given[name[0], name[1]][name[2] - 1] <= SMALL
        ]
        values = told | dict(zip(small, fetch([self._held[name] for name in small]), strict=True))
        found = [None if n not in known else values[n] if n in values else self._lend(n) for n in asked]
        for name in known.keys() - told.keys():
            self._leave(name)
        return found


def _name(name: Sequence[int]) -> Name:
    segment, rank, place = name
    return segment, rank, place


def waited(refs: Sequence[Any], seconds: float) -> Iterator[list[Any]]:
    """What has ended, bunch by bunch, for so many seconds: looked at now and then, since one may wait for another."""
    until, pending = time.monotonic() + seconds, list(refs)
    while pending:
        left = max(0.0, until - time.monotonic())
        ready, pending = ray.wait(pending, num_returns=len(pending), timeout=min(left, PATIENCE), fetch_local=False)
        yield ready
        if not left:
            return


# -- the driver's side


def pays(plan: Plan, nodes: Mapping[str, Sequence[str]], joined: Collection[str]) -> bool:
    """Whether relays call the ranks of a plan, whose processes are on these nodes.

    They do not where the driver has to call ranks itself: for a protocol that is a pair of functions, and for what goes
    from GPU to GPU, whose references only the caller of its maker may hand on.
    """
    groups = [group.name for group in plan.groups]
    if plan.optimize.relay is False or any(name in joined for name in groups) or any(one.custom for one in plan.steps):
        return False
    ranks = Counter(node for name in groups for node in nodes[name])
    many = len(ranks) > 1 and ranks.total() >= max(RANKS, A_NODE * len(ranks))
    return plan.optimize.relay is True or many


@dataclass(eq=False, slots=True)
class Outbox:
    """What a relay is to be told with the next call, in the current step."""

    relay: Any
    fresh: bool = True
    parts: list[list[Any]] = field(default_factory=list)
    dropped: list[Name] = field(default_factory=list)
    lent: dict[Any, int] = field(default_factory=dict)

    def submission(self) -> tuple[Any, ...]:
        """Everything that has gathered."""
        gathered = self.fresh, self.parts, [list(name) for name in self.dropped], *self.lent
        self.fresh, self.parts, self.dropped, self.lent = False, [], [], {}
        return gathered

    def argument(self, value: Any) -> Any:
        """What a rank is called with, as a relay is told."""
        if not isinstance(value, Held):
            return value
        if value.value is not None:
            return value.value
        if value.outbox is self:
            return list(value.name)
        answer, place = value.lent
        return [self.lent.setdefault(answer, len(self.lent)), place]


@dataclass(eq=False, slots=True)
class Held:
    """What a rank acknowledges or gives, as a relay holds it; ``value`` once the driver has been answered.

    It is held for as long as the driver has this. ``lent`` is where ranks of other relays find it.
    """

    outbox: Outbox
    name: Name
    value: Any = None
    lent: Any = None

    def __del__(self) -> None:
        self.outbox.dropped.append(self.name)


class Relays:
    """The relays of a cluster, one a node. What a step submits goes to them when somebody waits for something."""

    def __init__(
        self, workers: Mapping[str, Sequence[Any]], nodes: Mapping[str, Sequence[str]], left: Callable[[], float]
    ) -> None:
        self._left = left
        by_node: dict[str, dict[str, dict[int, Any]]] = {}
        for group, actors in workers.items():
            for rank, (node, actor) in enumerate(zip(nodes[group], actors, strict=True)):
                by_node.setdefault(node, {}).setdefault(group, {})[rank] = actor
        self._relays = [self._start(node, ranks) for node, ranks in by_node.items()]
        self._of = {(g, r): i for i, ranks in enumerate(by_node.values()) for g, of in ranks.items() for r in of}
        self._asked: list[Held] = []
        self.begin()
        fetch([relay.lend.remote([], True, [], []) for relay in self._relays])  # once they are up

    def _start(self, node: str, ranks: Mapping[str, Mapping[int, Any]]) -> Any:
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        return ray.remote(Relay).options(num_cpus=0, scheduling_strategy=where).remote(ranks)

    def begin(self) -> None:
        """A step begins."""
        self._asked.clear()
        self._outboxes = [Outbox(relay) for relay in self._relays]

    def lent(self) -> Iterator[Any]:
        """The references that the last step has sent to relays."""
        for box in self._outboxes:
            yield from box.lent
        yield from (one.lent[0] for one in self._asked if one.lent is not None)

    def run(self, call: Call, table: Callable[[Lesson], Any]) -> Sequence[tuple[Held, Sequence[Any]]]:
        """Submit a segment, as ``RayBackend.run`` does."""
        group, number, order = call.segment.group, call.segment.number, call.order.packed()
        after = [[one for one in own if one.value is None] for own in call.after]
        boxes = [self._outboxes[self._of[group, rank]] for rank in call.segment.ranks]
        brought = zip(boxes, call.payloads, after, strict=True)
        self._lend((box, one) for box, payloads, own in brought for one in (*payloads, *own))
        outcomes = []
        for i, (rank, box) in enumerate(zip(call.segment.ranks, boxes, strict=True)):
            lesson, payloads = call.lessons[i], call.payloads[i]
            taught = () if lesson is None else (lesson.task, table(lesson))
            ways = [TOLD if payload.inline else RELAYED for payload in call.gives[i]]
            told = [*order, len(payloads), bool(taught), False, ways]
            box.parts.append([group, rank, told, [box.argument(one) for one in (*payloads, *taught, *after[i])]])
            acknowledged, numbers = Held(box, (number, rank, ACKNOWLEDGED)), count()
            outcomes.append(
                (
                    acknowledged,
                    [
                        Told(acknowledged, next(numbers)) if way == TOLD else Held(box, (number, rank, place))
                        for place, way in enumerate(ways, 1)
                    ],
                )
            )
        self._asked += [acknowledged for acknowledged, _ in outcomes]
        return outcomes

    def _lend(self, wanted: Iterable[tuple[Outbox, Any]]) -> None:
        """Have references ready for ranks of other relays."""
        away: dict[Outbox, dict[Held, None]] = {}
        for box, one in wanted:
            if isinstance(one, Held) and one.outbox is not box and one.value is None and one.lent is None:
                away.setdefault(one.outbox, {})[one] = None
        for box, held in away.items():
            answer = box.relay.lend.remote([list(one.name) for one in held], *box.submission())
            for i, one in enumerate(held):
                one.lent = answer, i

    def ask(self, wanted: Sequence[Any], seconds: float) -> dict[Any, list[Held]]:
        """Have everything submitted, and ask for what is wanted; relays answer after so many seconds at the latest."""
        asked: dict[Outbox, list[Held]] = {box: [] for box in self._outboxes if box.parts}
        for one in wanted:
            if isinstance(one, Held) and one.value is None:
                asked.setdefault(one.outbox, []).append(one)
        return {
            box.relay.answer.remote([list(one.name) for one in held], seconds, *box.submission()): held
            for box, held in asked.items()
        }

    def take(self, answers: Mapping[Any, Sequence[Held]]) -> bool:
        """Wait for answers, and give what was asked for its value; whether all have one.

        Raises:
            RoleError: HF806 where a body raised or a process died.
        """
        for ready in waited(list(answers), self._left() + PATIENCE):  # they are given once, so none may be missed
            for ref, values in zip(ready, fetch(ready), strict=True):
                for one, value in zip(answers[ref], values, strict=True):
                    one.value = value
        return all(one.value is not None for held in answers.values() for one in held)

    def get(self, handles: Sequence[Any]) -> list[Any]:
        """Handles as they are without relays: bytes, and references.

        Raises:
            RoleError: HF806 where a body raised or a process died.
            GetTimeoutError: where no time is left.
        """
        while not self.take(self.ask(handles, min(self._left(), PATIENCE))):
            if not self._left():
                raise GetTimeoutError
            self.take(self.ask(self._asked, 0))  # the rank that makes a value may wait for one that has failed
        return [handle.value if isinstance(handle, Held) else handle for handle in handles]

    def close(self) -> None:
        """End the relays."""
        for relay in self._relays:
            ray.kill(relay)
