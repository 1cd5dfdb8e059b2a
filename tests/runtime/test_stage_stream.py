"""Stages whose queue decides while they run, against a model that steps through time second by second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import HfError
from hfdsl.protocols.queueing import Late, needed_places
from hfdsl.runtime.decisions import Decision, from_lines
from hfdsl.runtime.running import Running
from hfdsl.runtime.schedule import QueueSpec
from hfdsl.testing import check_decisions, check_stream
from tests.nightly import examples
from tests.runtime.stage_programs import (
    B,
    GivenSeconds,
    chained,
    deciding,
    filtered,
    prompts,
    returning_both,
    stage_deployment,
    unmasked,
)

Row = tuple[int, int, int, int]
"""A row that was trained: its prompt, version and update, and how many of its tokens were not masked."""


@dataclass(frozen=True)
class Case:
    """A queue, and how long calls take: by step, and of generation by rank."""

    late: Late
    lag: int
    group: int
    dispatch: int
    batch: int
    generation: tuple[tuple[int, int], ...]
    updates: tuple[int, ...]
    steps: int

    @property
    def spec(self) -> QueueSpec:
        return QueueSpec("queue", self.lag, self.late, self.batch, self.dispatch)

    @property
    def seconds(self) -> Mapping[str, GivenSeconds]:
        generation = GivenSeconds(self.generation)
        return {"engine.generate": generation, "actor.update": GivenSeconds([(s,) for s in self.updates])}

    def launched(self, backend: Any = "local", retries: hf.Retries | None = None) -> Running:
        rows = None if self.batch == self.dispatch else self.batch * self.group
        program = deciding.given(lag=self.lag, late=self.late, group=self.group, rows=rows)
        plan = program.compile(stage_deployment(), dims={B: self.dispatch})
        return plan.launch(backend, seed=3, deadline=120, retries=retries)

    def loader(self) -> Any:
        return prompts(self.steps, self.dispatch)


@st.composite
def cases(draw: st.DrawFn, lates: Sequence[Late] = ("wait", "drop", "refill", "mask")) -> Case:
    lag, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    late = draw(st.sampled_from(lates))
    dispatch = 2 * draw(st.integers(1, 3))
    batch = draw(st.integers(1, 6)) if late == "wait" else draw(st.sampled_from([dispatch, *range(1, 7)]))
    follows = late == "wait" and batch == dispatch  # such stages follow each other step by step, and decide nothing
    while follows or needed_places(dispatch, batch, 1, lag, late) > (lag + 1) * batch:
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
    )


STRAGGLER = Case("drop", 1, 1, 2, 2, ((1, 1), (1, 9), (1, 1), (1, 1)), (1,), 8)


def modeled(case: Case) -> list[Row]:
    """The rows that are trained, by plain lists and one second after another."""
    free, trained, version = [0, 0], [0], 0
    flight: list[dict[str, Any]] = []
    rows: list[Row] = []
    waiting = list(range(case.steps * case.dispatch))
    steps = count()
    again: list[int] = []
    for now in range(10_000):
        changed = True
        while changed:
            changed = False
            room = (case.lag + 1) * case.batch - len(flight)
            enough = len(again) + len(waiting) >= case.dispatch
            if room >= case.dispatch and enough and (case.late == "wait" or min(free) <= now):
                chosen, (again, waiting) = (
                    (again + waiting)[: case.dispatch],
                    (
                        again[case.dispatch :],
                        waiting[max(0, case.dispatch - len(again)) :],
                    ),
                )
                durations = case.generation[next(steps) % len(case.generation)]
                free = [max(now, free[r], trained[version]) + durations[r] for r in (0, 1)]
                half = case.dispatch // 2
                flight += [{"p": p, "v": version, "end": free[i >= half]} for i, p in enumerate(chosen)]
                changed = True
            elif trained[version] <= now:
                ready = [g for g in flight if g["end"] <= now]
                if case.late == "wait":
                    ready = flight[: next((i for i, g in enumerate(flight) if g["end"] > now), len(flight))]
                late = [g for g in ready if version - g["v"] > case.lag]
                if case.late in ("drop", "refill") and late:
                    flight = [g for g in flight if g not in late]
                    again += [g["p"] for g in late] if case.late == "refill" else []
                    ready, changed = [g for g in ready if g not in late], True
                if len(ready) >= case.batch:
                    taken = ready[: case.batch]
                    flight, changed = [g for g in flight if g not in taken], True
                    for g in taken:
                        tokens = 0 if g in late else 1 + g["p"] % 3
                        rows += [(g["p"], g["v"], version, tokens)] * case.group
                    trained.append(now + case.updates[version % len(case.updates)])
                    version += 1
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


@settings(max_examples=examples(12), deadline=None)
@given(cases())
@example(STRAGGLER)
@example(Case("refill", 2, 1, 2, 2, ((8, 1),), (3,), 8))  # groups are dropped after the loader has ended
def test_a_run_trains_on_the_rows_of_the_model_and_its_log_repeats_it(case: Case) -> None:
    with TemporaryDirectory() as folder:
        log, again = Path(folder, "log"), Path(folder, "again")
        with case.launched() as running:
            results = list(running.stream(case.loader(), log=log, seconds=case.seconds))
            assert running.decisions == len(decisions(log))
            assert running.steps == len(results)
        assert rows_of(results) == modeled(case)
        check_decisions(case.spec, decisions(log))
        with case.launched() as running:
            assert bits(list(running.stream(case.loader(), replay=log, log=again))) == bits(results)
        assert again.read_text() == log.read_text()


def test_a_group_that_is_late_is_dropped_masked_or_dispatched_again() -> None:
    trained: dict[Late, list[Row]] = {}
    lates: list[Late] = ["drop", "refill", "mask", "wait"]
    for late in lates:
        case = Case(late, 1, 1, 2, 2, STRAGGLER.generation, (1,), 12)
        with case.launched() as running:
            trained[late] = rows_of(list(running.stream(case.loader(), seconds=case.seconds)))
    prompts_of = {late: [row[0] for row in rows] for late, rows in trained.items()}
    staleness = [update - version for rows in trained.values() for _, version, update, tokens in rows if tokens]
    assert max(staleness) == 1
    assert prompts_of["wait"] == sorted(prompts_of["wait"])
    assert set(range(max(prompts_of["drop"]) + 1)) > set(prompts_of["drop"]), "some prompts are never trained"
    assert any(not tokens for *_, tokens in trained["mask"])
    again = [p for p, version, *_ in trained["refill"] if version > trained_version(trained["wait"], p)]
    assert again, "some prompts are trained under newer weights, since they were dispatched again"


@settings(max_examples=examples(6), deadline=None)
@given(cases(), st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1))
def test_a_queue_that_waits_needs_no_log(case: Case, others: list[tuple[int, int]]) -> None:
    case = replace(case, late="wait", batch=max(case.batch, case.dispatch + 1))
    results = []
    for seconds in (case.seconds, {"engine.generate": GivenSeconds(others)}):
        with case.launched() as running:
            results.append(bits(list(running.stream(case.loader(), seconds=seconds))))
    assert results[0] == results[1]


@settings(max_examples=examples(8), deadline=None)
@given(cases(), st.integers(1, 4), st.booleans())
def test_a_resumed_run_loses_no_prompt_and_trains_none_twice(case: Case, results: int, virtual: bool) -> None:
    seconds = case.seconds if virtual else None
    with case.launched() as running:
        straight = list(running.stream(case.loader()))
    loader, before = iter(case.loader()), list[Any]()
    with TemporaryDirectory() as folder, case.launched() as running:
        for trained in running.stream(loader, seconds=seconds, log=Path(folder, "log")):
            before.append(trained)
            if len(before) == results:
                break
        state = Path(folder, "state")
        state.mkdir()
        running.save(state)
        made = running.decisions
        with case.launched() as resumed:
            resumed.load(state)
            assert (resumed.decisions, resumed.steps) == (made, len(before))
            after = list(resumed.stream(loader, log=Path(folder, "log")))
        log = decisions(Path(folder, "log"))
        check_decisions(case.spec, log)
    rows = rows_of([*before, *after])
    assert [row[2] for row in rows] == sorted(row[2] for row in rows)
    prompt = {g: p for d in log if d.kind == "dispatch" for g, p in zip(d.groups, d.prompts, strict=True)}
    assert [row[0] for row in rows] == [
        prompt[g] for d in log if d.kind == "take" for g in d.groups for _ in range(case.group)
    ]
    if not virtual:
        assert bits([*before, *after]) == bits(straight)


@settings(max_examples=examples(24), deadline=None)
@given(cases(["refill"]), st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=4))
@example(Case("refill", 1, 1, 2, 2, ((7, 4),), (2,), 10), [(4, True), (1, False), (1, True)])
def test_every_prompt_is_dispatched_in_order_and_trained_once_whenever_a_run_is_saved(
    case: Case, stops: list[tuple[int, bool]]
) -> None:
    loader, results = iter(case.loader()), list[Any]()
    with TemporaryDirectory() as folder, ExitStack() as runs:
        log, running = Path(folder, "log"), runs.enter_context(case.launched())
        for stop, (taken, saves) in enumerate(stops):
            results += islice(running.stream(loader, seconds=case.seconds, log=log), taken)
            if saves:
                state = Path(folder, str(stop))
                state.mkdir()
                running.save(state)
                running = runs.enter_context(case.launched())
                running.load(state)
        results += running.stream(loader, seconds=case.seconds, log=log)
        [queue] = running.queues
        made = decisions(log)
    dispatched = [prompt for decision in made if decision.kind == "dispatch" for prompt in decision.prompts]
    trained = [number for number, *_ in rows_of(results)][:: case.group]
    left = [group.prompt for group in queue.groups.values()] + list(queue.again)
    first_not_dispatched = max(dispatched) + 1
    assert list(dict.fromkeys(dispatched)) == list(range(first_not_dispatched)), "prompts come in order"
    assert sorted(trained + left) == list(range(first_not_dispatched)), "none is lost or trained twice"
    assert 0 <= case.steps * case.dispatch - first_not_dispatched < case.dispatch - len(queue.again), "none is skipped"


@pytest.mark.parametrize("late", ["drop", "refill", "mask", "wait"])
def test_interruptions_change_no_result(late: Late) -> None:
    case = Case(late, 2, 2, 4, 6, ((1, 1),), (1,), 9)
    check_stream(case.launched, case.loader(), tries=2)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (unmasked, "sets response_mask or loss_mask to zero, and no call behind it reads one"),
        (returning_both, "the program returns a value from in front of it"),
        (filtered, "a filter in front of it makes the number of its rows unknown"),
        (chained, "the program has 2 queues"),
    ],
)
def test_what_no_run_can_follow_is_refused_at_the_launch(program: Any, reason: str) -> None:
    plan = program.compile(stage_deployment(), dims={B: 4})
    with pytest.raises(HfError, match=rf"HF765: the queue in line \d+ of .* decides while it runs, and .*{reason}"):
        plan.launch()


def test_a_batch_of_another_size_is_refused_and_breaks_nothing() -> None:
    case = Case("drop", 1, 1, 4, 4, ((1, 1),), (1,), 3)
    program = deciding.given(lag=1, late="drop")
    with program.compile(stage_deployment()).launch() as running:
        with pytest.raises(HfError, match=r"HF765: a batch of the loader .* puts 2 groups into 'queue', .* in 4"):
            list(running.stream([*case.loader(), *prompts(1, 2)]))
        list(running.stream(case.loader()))
        assert running.steps == 6


def test_ray_takes_groups_as_they_end_and_repeats_them(ray_cluster: Any, tmp_path: Path) -> None:
    lates: list[Late] = ["drop", "mask"]
    for late in lates:
        case, log = Case(late, 2, 2, 4, 4, ((1, 1),), (1,), 6), tmp_path / late
        with case.launched("ray") as running:
            results = list(running.stream(case.loader(), log=log))
        check_decisions(case.spec, decisions(log))
        with case.launched() as running:
            assert bits(list(running.stream(case.loader(), replay=log))) == bits(results)


def trained_version(rows: list[Row], prompt: int) -> int:
    return next((version for number, version, *_ in rows if number == prompt), 10**6)
