"""A model of programs with several dynamic queues: plain lists, one second after another.

The three programs of ``network_programs``. Each queue is a list of groups; a group knows its prompt, the version of its
dispatch, the version of its samples, and when it ends. Ranks are numbers: when each is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Any, Literal, TypeAlias

from hypothesis import assume
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.protocols.queueing import Late, needed_places
from hfdsl.runtime.queues.links import TRAINER, QueueLink, QueueLinks
from hfdsl.runtime.running import Running
from hfdsl.runtime.schedule import QueueSpec
from tests.runtime.network_programs import Critic, Library, Reader, beside, joined, pages, series
from tests.runtime.stage_programs import Actor, B, Engine, GivenSeconds, Judge, prompts

CORRECTED_LAG = 8
"""The lag that the updates of these programs correct for."""

Shape = Literal["series", "beside", "joined"]

Group: TypeAlias = dict[str, Any]

Row: TypeAlias = tuple[int, int, int]
"""A row that was trained: prompt, version of its samples, update."""

Durations: TypeAlias = tuple[tuple[int, int], ...]
"""Seconds of a call by step and rank."""


@dataclass(frozen=True)
class Network:
    """A program with two queues, and how long calls take; ``judging`` is that of the library in "joined"."""

    shape: Shape
    lates: tuple[Late, Late]
    lags: tuple[int, int]
    dispatch: int
    batches: tuple[int, int]
    generation: Durations
    judging: Durations
    updates: tuple[int, ...]
    fits: tuple[int, ...]
    steps: int
    group: int = 1
    drops: int | None = None

    @property
    def specs(self) -> tuple[QueueSpec, QueueSpec]:
        """The queues, as laws take them."""
        in_front = self.shape == "series"
        put_in = self.batches[0] if in_front else self.dispatch
        sizes = zip(("queue1", "queue2"), self.lags, self.lates, self.batches, (self.dispatch, put_in), strict=True)
        first, second = (
            QueueSpec(name=name, lag=lag, late=late, batch=batch, dispatch=count)
            for name, lag, late, batch, count in sizes
        )
        return replace(first, trains=not in_front), replace(second, loses=self.drops is not None)

    @property
    def links(self) -> QueueLinks:
        """The stages between which the queues are."""
        links: dict[Shape, tuple[QueueLink, QueueLink]] = {
            "series": (QueueLink(0, 1), QueueLink(1, TRAINER)),
            "beside": (QueueLink(0, TRAINER), QueueLink(0, TRAINER)),
            "joined": (QueueLink(0, TRAINER), QueueLink(1, TRAINER)),
        }
        return QueueLinks(links[self.shape])

    @property
    def seconds(self) -> Mapping[str, GivenSeconds]:
        """Of all calls that take any."""
        generation, judging = GivenSeconds(self.generation), GivenSeconds(self.judging)
        updates, fits = (GivenSeconds([(s,) for s in seconds]) for seconds in (self.updates, self.fits))
        if self.shape == "joined":
            return {"engine.generate": generation, "library.lines": judging, "actor.read": updates}
        seconds = {"engine.generate": generation, "judge.score": judging, "actor.update": updates}
        return seconds | ({"critic.fit": fits} if self.shape == "beside" else {})

    def keeps(self, prompt: int) -> bool:
        """Whether the filter of "series" keeps a prompt."""
        return self.drops is None or not self.drops >> prompt % 7 & 1

    def compiled(self) -> CompiledPlan:
        """The plan."""
        options: dict[str, Any] = {"drops": self.drops} if self.shape == "series" else {}
        options |= {"lags": self.lags, "late": self.lates, "group": self.group, "rows": self._rows()}
        return compiled(self.shape, self.dispatch, **options)

    def _rows(self) -> tuple[int | None, int | None]:
        put_in = self.specs[1].dispatch
        first = None if self.batches[0] == self.dispatch else self.batches[0] * self.group
        return first, None if self.batches[1] == put_in else self.batches[1] * self.group

    def launched(self, backend: Any = "local", retries: hf.Retries | None = None) -> Running:
        """The program on its processes."""
        return self.compiled().launch(backend, seed=3, deadline=120, retries=retries)

    def loader(self) -> list[Any]:
        """Batches of prompts, with pages where they are read."""
        batches = prompts(self.steps, self.dispatch)
        if self.shape != "joined":
            return list(batches)
        return [list(both) for both in zip(batches, pages(self.steps, self.dispatch), strict=True)]


@lru_cache(maxsize=8)
def compiled(shape: Shape, dispatch: int, **options: Any) -> CompiledPlan:
    """The plan, which the launches of a test share: compiling takes a third of the time of a short run."""
    programs: dict[Shape, Any] = {"series": series, "beside": beside, "joined": joined}
    plan: CompiledPlan = programs[shape].given(**options).compile(deployment(shape), dims={B: dispatch})
    return plan


def deployment(shape: Shape) -> hf.Deployment:
    """Engine, judge and library have two ranks; who trains has one."""
    several: dict[str, Any] = {"engine": Engine, "judge": Judge}
    alone: dict[str, Any] = {"actor": Actor}
    if shape == "joined":
        several, alone = {**several, "library": Library}, {"actor": Reader}
    elif shape == "beside":
        alone["critic"] = Critic
    pools = {name: hf.ResourcePool([2], use_gpu=False, name=name) for name in several}
    pools |= {name: hf.ResourcePool([1], use_gpu=False, name=name) for name in alone}
    roles = {**several, **alone}
    return hf.Deployment(**{name: hf.place(role, pool=pools[name]) for name, role in roles.items()})


def modeled(case: Network) -> list[list[Row]]:
    """The rows that each update trains; of "beside" those of the actor, then those of the critic."""
    return _Model(case).run()


class _Model:
    def __init__(self, case: Network) -> None:
        self.case, self.now, self.version = case, 0, 0
        self.free = {"engine": [0, 0], "judge": [0, 0]}
        self.weights = [0]  # by version, when the engine can have it
        self.busy = 0  # until when an update takes
        self.queues: list[list[Group]] = [[], []]
        self.again: list[list[int]] = [[], []]
        count = case.steps * case.dispatch
        self.waiting = [list(range(count)), list(range(count))]  # prompts, and pages
        self.dispatches = [0, 0]
        self.trained: list[list[Row]] = []

    def run(self) -> list[list[Row]]:
        for self.now in range(2_000):
            while self._lose() or self._step_first() or self._step_second() or self._train():
                pass
        return self.trained

    def _lose(self) -> bool:
        """What the filter removes has ended."""
        remaining = [g for g in self.queues[1] if g["end"] > self.now or self.case.shape != "series" or self._keeps(g)]
        changed, self.queues[1] = len(remaining) < len(self.queues[1]), remaining
        return changed

    def _keeps(self, group: Group) -> bool:
        return self.case.keeps(group["p"])

    def _room(self, queue: int, count: int) -> bool:
        return len(self.queues[queue]) + count <= (self.case.lags[queue] + 1) * self.case.batches[queue]

    def _places_together(self) -> int:
        """As many as the lags together allow, or as no stage needs to wait for another."""
        case, left, put_in = self.case, 0, self.case.dispatch
        for queue, batch in enumerate(case.batches):
            drops = case.lates[queue] in ("drop", "refill") and case.lags[queue] > 0
            filtered = queue == 1 and case.drops is not None
            left += batch - (1 if drops or filtered else gcd(put_in, batch))
            put_in = batch
        taken_at_once = case.batches[0] - gcd(case.dispatch, case.batches[0])
        return max((sum(case.lags) + 1) * case.batches[1] - taken_at_once, case.dispatch + left)

    def _accepts(self, queues: Sequence[int], ranks: str) -> bool:
        return all(self.case.lates[q] == "wait" for q in queues) or min(self.free[ranks]) <= self.now

    def _step_first(self) -> bool:
        """The engine generates; in "beside" the judge rates at once, for the first queue alone."""
        case, fed = self.case, [0, 1] if self.case.shape == "beside" else [0]
        if not all(self._room(q, case.dispatch) for q in fed) or not self._accepts(fed, "engine"):
            return False
        if case.shape == "series" and sum(map(len, self.queues)) + case.dispatch > self._places_together():
            return False
        chosen = self._prompts(0, [0, 1] if case.shape == "series" else [0])
        if not chosen:
            return False
        generated = self._run("engine", case.generation, self.dispatches[0], self.weights[self.version])
        judged = (
            self._run("judge", case.judging, self.dispatches[0], generated) if case.shape == "beside" else generated
        )
        self.dispatches[0] += 1
        for q, ends in zip(fed, (judged, generated), strict=False):
            self.queues[q] += self._groups(chosen, [self.version] * len(chosen), ends, 2)
        return True

    def _step_second(self) -> bool:
        """In "series" the judge takes a batch and rates it; in "joined" the library reads pages."""
        case = self.case
        if case.shape == "beside" or not self._accepts([1], "judge"):
            return False
        if case.shape == "joined":
            chosen = self._prompts(1, [1]) if self._room(1, case.dispatch) else []
            if not chosen:
                return False
            ends = self._run("judge", case.judging, self.dispatches[1], 0)
            self.queues[1] += self._groups(chosen, [self.version] * len(chosen), ends, 2)
        else:
            dropped, groups = self._drop(0), self._ready(0)[: case.batches[0]]
            if len(groups) < case.batches[0] or not self._room(1, len(groups)):
                return dropped
            self.queues[0] = [g for g in self.queues[0] if g not in groups]
            ends = self._run("judge", case.judging, self.dispatches[1], 0)
            if case.drops is not None:
                ends = [max(ends)] * 2  # nothing of the score is there before the filter has run, which reads all ranks
            self.queues[1] += self._groups([g["p"] for g in groups], [g["v"] for g in groups], ends, 2)
        self.dispatches[1] += 1
        return True

    def _prompts(self, source: int, queues: Sequence[int]) -> list[int]:
        """Those of dropped groups, and then the loader's."""
        again = [p for q in queues for p in self.again[q]][: self.case.dispatch]
        new = self.case.dispatch - len(again)
        if new > len(self.waiting[source]):
            return []
        for q in queues:
            self.again[q] = [p for p in self.again[q] if p not in again]
        chosen, self.waiting[source] = again + self.waiting[source][:new], self.waiting[source][new:]
        return chosen

    def _run(self, ranks: str, seconds: Durations, step: int, ready: int | list[int]) -> list[int]:
        """When each rank ends a call."""
        durations, ready = seconds[step % len(seconds)], ready if isinstance(ready, list) else [ready, ready]
        ends = [max(self.now, self.free[ranks][r], ready[r]) + durations[r] for r in (0, 1)]
        self.free[ranks] = list(ends)
        return ends

    def _groups(self, chosen: list[int], sampled: list[int], ends: list[int], ranks: int) -> list[Group]:
        rows = len(chosen) * self.case.group
        half = -(-rows // ranks)
        return [
            {
                "p": p,
                "v": version,
                "d": self.version,
                "end": max(ends[row >= half] for row in range(i * self.case.group, (i + 1) * self.case.group)),
            }
            for i, (p, version) in enumerate(zip(chosen, sampled, strict=True))
        ]

    def _ready(self, queue: int) -> list[Group]:
        groups = self.queues[queue]
        if self.case.lates[queue] == "wait":
            groups = groups[: next((i for i, g in enumerate(groups) if g["end"] > self.now), len(groups))]
        return [g for g in groups if g["end"] <= self.now]

    def _late(self, queue: int, group: Group) -> bool:
        return bool(self.version - group["d"] > self.case.lags[queue])

    def _drop(self, queue: int) -> bool:
        late = [g for g in self._ready(queue) if self._late(queue, g)]
        if not late or self.case.lates[queue] not in ("drop", "refill"):
            return False
        self.queues[queue] = [g for g in self.queues[queue] if g not in late]
        self.again[queue] += [g["p"] for g in late] if self.case.lates[queue] == "refill" else []
        return True

    def _train(self) -> bool:
        case, queues = self.case, [1] if self.case.shape == "series" else [0, 1]
        if self.busy > self.now:
            return False
        changed = [self._drop(q) for q in queues]
        batches = {q: self._ready(q)[: case.batches[q]] for q in queues}
        if any(len(groups) < case.batches[q] for q, groups in batches.items()):
            return any(changed)
        for q, groups in batches.items():
            self.queues[q] = [g for g in self.queues[q] if g not in groups]
        rows = {
            q: [(g["p"], g["v"], self.version) for g in groups for _ in range(case.group)]
            for q, groups in batches.items()
        }
        self.trained.append(rows[1] if case.shape == "series" else rows[0] + rows[1])
        update = self.now + case.updates[self.version % len(case.updates)]
        fit = self.now + case.fits[self.version % len(case.fits)] if case.shape == "beside" else 0
        self.version += 1
        self.weights.append(update)
        self.busy = max(update, fit)
        return True


@st.composite
def networks(draw: st.DrawFn, shapes: Sequence[Shape] = ("series", "beside", "joined"), steps: int = 10) -> Network:
    """Small programs that a launch accepts, with a dynamic queue."""
    shape = draw(st.sampled_from(shapes))
    group = draw(st.sampled_from([1, 2])) if shape != "joined" else 1
    dispatch = 2 * draw(st.integers(1, 2))
    lates: tuple[Late, Late]
    drops = None
    if shape == "series":
        lates = draw(st.sampled_from(["drop", "refill"])), draw(st.sampled_from(["drop", "refill", "mask", "wait"]))
        first = draw(st.integers(1, 5))
        splits_evenly = first * group % 2 == 0  # over the ranks of the judge, whose filter pads no rows
        drops = draw(st.none() | st.integers(0, 2**7 - 2)) if lates[1] == "refill" and splits_evenly else None
        batches = first, draw(st.integers(1, 5))
    elif shape == "beside":
        lates = draw(st.sampled_from(["drop", "mask", "wait"])), draw(st.sampled_from(["drop", "wait"]))
        batches = (dispatch * draw(st.integers(1, 2)),) * 2
    else:
        lates = (
            draw(st.sampled_from(["refill", "mask", "wait"])),
            draw(st.sampled_from(["refill", "wait"])),
        )
        batches = (draw(st.integers(1, 5)),) * 2
    put_in = batches[0] if shape == "series" else dispatch
    lags = (
        draw(_lags(dispatch, batches[0], lates[0], loses=False)),
        draw(_lags(put_in, batches[1], lates[1], loses=drops is not None)),
    )
    if lates == ("wait", "wait") and batches == (dispatch, put_in):
        decides: Late = "refill" if shape == "joined" else "drop"
        lates = "wait", decides
        lags = lags[0], draw(_lags(put_in, batches[1], decides, loses=False))
    assume(shape != "series" or sum(lags) <= CORRECTED_LAG)
    seconds = st.integers(1, 9)
    ranks = st.lists(st.tuples(seconds, seconds), min_size=1, max_size=4).map(tuple)
    alone = st.lists(seconds, min_size=1, max_size=3).map(tuple)
    return Network(
        shape=shape,
        lates=lates,
        lags=lags,
        dispatch=dispatch,
        batches=batches,
        generation=draw(ranks),
        judging=draw(ranks),
        updates=draw(alone),
        fits=draw(alone),
        steps=draw(st.integers(1, steps)),
        group=group,
        drops=drops,
    )


def _lags(dispatch: int, batch: int, late: Late, *, loses: bool) -> st.SearchStrategy[int]:
    fits = (k for k in range(1, 20) if needed_places(dispatch, batch, 1, k, late, loses) <= (k + 1) * batch)
    least = next(fits)
    return st.integers(least, least + 2)
