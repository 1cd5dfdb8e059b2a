"""A model of a dynamic queue: plain lists, one second after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, Literal

from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.protocols.queueing import Late, needed_places
from hfdsl.runtime.decisions import Decision, from_lines
from hfdsl.runtime.running import Running
from hfdsl.runtime.schedule import QueueSpec
from tests.runtime.stage_programs import (
    B,
    GivenSeconds,
    choosing,
    deciding,
    prompts,
    sampling,
    screening,
    stage_deployment,
)

Row = tuple[int, int, int, int]
"""A row that was trained: its prompt, version and update, and how many of its tokens were not masked."""

Program = Literal["deciding", "sampling", "choosing", "screening"]
"""Without a filter, with one of responses, and with one of prompts: by the engine, or by the judge."""

FILTERED: tuple[Program, ...] = ("sampling", "choosing", "screening")

SCREENING = 2
"""The seconds in which the judge filters prompts."""


@dataclass(frozen=True)
class Case:
    """A queue, and how long calls take: by step, and of generation by rank.

    A filter drops prompts whose number has a rest by seven with a bit in ``drops``. The loader takes ``reading``
    seconds, by batch.
    """

    late: Late
    lag: int
    group: int
    dispatch: int
    batch: int
    generation: tuple[tuple[int, int], ...]
    updates: tuple[int, ...]
    steps: int
    program: Program = "deciding"
    drops: int = 0
    reading: tuple[int, ...] = (0,)

    @property
    def spec(self) -> QueueSpec:
        return QueueSpec("queue", self.lag, self.late, self.batch, self.dispatch)

    @property
    def seconds(self) -> Mapping[str, GivenSeconds]:
        generate = "engine.generate" if self.program in ("deciding", "sampling") else "engine.answer"
        seconds = {
            generate: GivenSeconds(self.generation),
            "actor.update": GivenSeconds([(s,) for s in self.updates]),
        }
        return seconds | ({"judge.screen": GivenSeconds([(SCREENING,)])} if self.program == "screening" else {})

    def keeps(self, prompt: int) -> bool:
        return not self.drops >> prompt % 7 & 1

    def launched(self, backend: Any = "local", retries: hf.Retries | None = None) -> Running:
        rows = None if self.batch == self.dispatch else self.batch * self.group
        options: dict[str, Any] = {} if self.program == "deciding" else {"drops": self.drops}
        options |= {"lag": self.lag, "late": self.late, "group": self.group, "rows": rows}
        return compiled(self.program, self.dispatch, **options).launch(backend, seed=3, deadline=120, retries=retries)

    def loader(self) -> Any:
        return prompts(self.steps, self.dispatch)


@lru_cache(maxsize=8)
def compiled(program: Program, dispatch: int, **options: Any) -> CompiledPlan:
    """The plan, which the launches of a test share: compiling takes a third of the time of a short run."""
    programs: dict[Program, Any] = {
        "deciding": deciding,
        "sampling": sampling,
        "choosing": choosing,
        "screening": screening,
    }
    plan: CompiledPlan = programs[program].given(**options).compile(stage_deployment(), dims={B: dispatch})
    return plan


@st.composite
def cases(
    draw: st.DrawFn,
    lates: Sequence[Late] = ("wait", "drop", "refill", "mask"),
    filtered: Sequence[Program] = FILTERED,
) -> Case:
    lag, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    late = draw(st.sampled_from(lates))
    programs: list[Program] = ["deciding"] if late == "wait" else ["deciding", "deciding", *filtered]
    program = draw(st.sampled_from(programs))
    loses = program != "deciding"
    dispatch = 2 * draw(st.integers(1, 3))
    if late == "wait":
        batch = draw(st.integers(1, 6))
    else:  # behind a filter, only what is dispatched again fills a batch of a size of its own
        batch = draw(st.sampled_from([dispatch, *(range(1, 7) if late == "refill" or not loses else ())]))
    follows = late == "wait" and batch == dispatch  # such stages follow each other step by step, and decide nothing
    while follows or needed_places(dispatch, batch, 1, lag, late, loses) > (lag + 1) * batch:
        batch += 1
        follows = late == "wait" and batch == dispatch
    seconds = st.integers(1, 9)
    return Case(
        late=late,
        lag=lag,
        group=group,
        dispatch=dispatch,
        batch=batch,
        generation=tuple(draw(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=4))),
        updates=tuple(draw(st.lists(seconds, min_size=1, max_size=3))),
        steps=draw(st.integers(1, 10)),
        program=program,
        drops=draw(st.integers(0, 2**7 - 2)) if loses else 0,
    )


@dataclass
class ModelLoader:
    """The loader of a model; it is ``over`` once it has said that it has no batches left."""

    case: Case
    read: int = 0
    delivers: float = inf
    over: bool = False

    def ask(self, now: int) -> bool:
        """Whether it begins to read another batch."""
        if self.over or self.delivers < inf:
            return False
        self.delivers = now + self.case.reading[self.read % len(self.case.reading)]
        return True

    def delivered(self, now: int) -> list[int]:
        """The prompts that it has read by now."""
        if self.delivers > now:
            return []
        first, self.delivers = self.read * self.case.dispatch, inf
        self.over, self.read = self.read == self.case.steps, self.read + 1
        return [] if self.over else list(range(first, first + self.case.dispatch))


@dataclass
class ModelEngine:
    """The ranks of a model's engine: when they are free, when what they made is scored, and when filters have run."""

    case: Case
    steps: int = 0
    free: Sequence[int] = (0, 0)
    scored: Sequence[int] = (0, 0)
    filtered: int = 0

    def generate(self, chosen: list[int], now: int, weights: int) -> None:
        """Generate for these prompts, once the weights exist."""
        durations = self.case.generation[self.steps % len(self.case.generation)]
        starts = [max(now, self.free[r], weights) for r in (0, 1)]
        if self.case.program == "choosing":  # both ranks wait for the filter, which runs on them
            starts = [max(starts)] * 2
            self.filtered = max(starts)
        elif self.case.program == "screening":  # once both ranks have scored what the engine has made before
            self.filtered = max(now, *self.scored) + SCREENING
            starts = [max(self.filtered, start) for start in starts]
        self.steps += 1
        self.free = [starts[r] + durations[r] for r in (0, 1)]
        one_row = sum(map(self.case.keeps, chosen)) * self.case.group <= 1  # of rank 0, and both ranks score it
        self.scored = [self.free[0]] * 2 if one_row else self.free

    def ends(self, chosen: list[int]) -> list[int]:
        """When the groups of these prompts end: those that a filter of prompts drops when it has run."""
        if self.case.program == "sampling":  # it reads the responses of both ranks
            return [max(self.free)] * len(chosen)
        kept_groups = [p for p in chosen if self.case.keeps(p)]
        half = -(-len(kept_groups) * self.case.group // 2)  # rows of a rank
        end = {
            p: max(self.free[row >= half] for row in range(place * self.case.group, (place + 1) * self.case.group))
            for place, p in enumerate(kept_groups)
        }
        return [end.get(p, self.filtered) for p in chosen]


def modeled(case: Case) -> list[Row]:
    """The rows that are trained."""
    engine, trained, version = ModelEngine(case), [0], 0
    flight: list[dict[str, Any]] = []
    rows: list[Row] = []
    waiting: list[int] = []
    again: list[int] = []
    loader, lacks = ModelLoader(case), False
    for now in range(10_000):
        changed = True
        while changed:
            changed = False
            waiting += loader.delivered(now)
            room = (case.lag + 1) * case.batch - len(flight)
            enough = len(again) + len(waiting) >= case.dispatch
            lacks, free_rank = room >= case.dispatch and not enough, case.late == "wait" or min(engine.free) <= now
            idle = max(trained[version], engine.filtered) <= now  # new weights wait for what the old ones are to sample
            gone = [g for g in flight if g["end"] <= now and not case.keeps(g["p"])]
            if gone:
                flight, changed = [g for g in flight if g not in gone], True
            elif lacks and free_rank and loader.ask(now):
                changed = True
            elif room >= case.dispatch and enough and free_rank:
                chosen, (again, waiting) = (
                    (again + waiting)[: case.dispatch],
                    (
                        again[case.dispatch :],
                        waiting[max(0, case.dispatch - len(again)) :],
                    ),
                )
                engine.generate(chosen, now, trained[version])
                flight += [
                    {"p": p, "v": version, "end": end} for p, end in zip(chosen, engine.ends(chosen), strict=True)
                ]
                changed = True
            elif idle and not (lacks and case.late == "wait" and not loader.over):  # a dispatch that waits comes first
                ready = [g for g in flight if g["end"] <= now]
                if case.late == "wait":
                    ready = flight[: next((i for i, g in enumerate(flight) if g["end"] > now), len(flight))]
                late = [g for g in ready if version - g["v"] > case.lag]
                if case.late in ("drop", "refill") and late:
                    flight = [g for g in flight if g not in late]
                    again += [g["p"] for g in late] if case.late == "refill" else []
                    ready, changed = [g for g in ready if g not in late], True
                if len(ready) >= case.batch:
                    batch = ready[: case.batch]
                    flight, changed = [g for g in flight if g not in batch], True
                    for g in batch:
                        tokens = 0 if g in late else 1 + g["p"] % 3
                        rows += [(g["p"], g["v"], version, tokens)] * case.group
                    trained.append(now + case.updates[version % len(case.updates)])
                    version += 1
        if lacks:
            loader.ask(now)  # while processes are busy
    return rows


def rows_of(results: list[Any]) -> list[Row]:
    return [
        row
        for trained in results
        for row in zip(
            trained.number.tensor.tolist(),
            trained.version.tensor.tolist(),
            trained.update.tensor.tolist(),
            trained.unmasked.tensor.tolist(),
            strict=True,
        )
    ]


def bits(results: list[Any]) -> list[Any]:
    return [(trained.number.tensor.tolist(), trained.noise.tensor.tolist()) for trained in results]


def decisions(file: Path) -> list[Decision]:
    return from_lines(file.read_text())
