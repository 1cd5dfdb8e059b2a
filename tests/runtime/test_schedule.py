"""The decisions of a queue, against a model that steps through time second by second; its laws, and its log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hfdsl.errors import CheckpointError, DefinitionError, HfError, SizeError
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.decisions import Decision, from_lines, read_log, to_lines
from hfdsl.runtime.queues.decision_log import DecisionLog
from hfdsl.runtime.schedule import QueueSpec, QueueState, places_in_a_row
from hfdsl.runtime.simulation import Slots, simulate
from hfdsl.testing.queues import BrokenQueueError, broken_laws, check_decisions
from hfdsl.testing.strategies import QueueSchedule, schedules
from tests.nightly import examples
from tests.runtime.queue_search import never_stops, never_stops_in_a_row

many = settings(max_examples=examples(800), deadline=None)


def batches_second_by_second(s: QueueSchedule) -> list[tuple[list[int], list[int]]]:
    """The groups of every batch, with those that are masked, by a model of plain lists that knows no events."""
    lag, batch, dispatch, late = s.spec.lag, s.spec.batch, s.spec.dispatch, s.spec.late
    slots = [0] * s.slots  # when each is free
    trained = [0]  # by version, when its weights exist
    flight: list[dict[str, Any]] = []
    batches: list[tuple[list[int], list[int]]] = []
    number, now, good = 0, 0, list[dict[str, Any]]()
    while len(batches) < s.updates:
        changed = True
        while changed and len(batches) < s.updates:
            changed = False
            version = len(batches)
            ended = [g for g in flight if g["end"] <= now]
            if late == "wait":
                in_order = flight[: next((i for i, g in enumerate(flight) if g["end"] > now), len(flight))]
                good = [g for g in in_order if not g["lost"]][:batch]
                reach = flight.index(good[-1]) + 1 if len(good) == batch else len(in_order)
                used = len(flight) - sum(g["lost"] for g in flight[:reach])
            else:
                flight = [g for g in flight if not (g["lost"] and g["end"] <= now)]
                used = len(flight)
            if used + dispatch <= (lag + 1) * batch and (late == "wait" or min(slots) <= now):
                for _ in range(dispatch):
                    start = max(now, min(slots), trained[version])
                    slots[slots.index(min(slots))] = end = start + s.seconds[number % len(s.seconds)]
                    lost = s.lost[number % len(s.lost)]
                    flight.append({"n": number, "v": version, "end": end, "lost": lost})
                    number += 1
                changed = True
            elif trained[version] <= now:
                if late != "wait":
                    good = [g for g in flight if g in ended and not g["lost"]]
                    old = [g for g in good if version - g["v"] > lag]
                    if late != "mask" and old:
                        flight = [g for g in flight if g not in old]
                        good, changed = [g for g in good if g not in old], True
                    good = good[:batch]
                if len(good) == batch:
                    masked = [g["n"] for g in good if version - g["v"] > lag]
                    batches.append(([g["n"] for g in good], masked))
                    flight = (
                        flight[flight.index(good[-1]) + 1 :] if late == "wait" else [g for g in flight if g not in good]
                    )
                    trained.append(now + s.update_seconds[version % len(s.update_seconds)])
                    changed = True
        now += 1
    return batches


@many
@given(schedules())
def test_decisions_are_those_of_the_model(schedule: QueueSchedule) -> None:
    outcome = schedule.simulate()
    batches = [([g.number for g in batch.groups], sorted(batch.masked)) for batch in outcome.batches]
    assert batches == batches_second_by_second(schedule)


LATE_ONE_BY_ONE = QueueSchedule(QueueSpec("scored", 1, "drop", batch=4, dispatch=5), 5, (1, 1, 4), (1,))


@many
@given(schedules())
@example(LATE_ONE_BY_ONE)
@example(replace(LATE_ONE_BY_ONE, spec=QueueSpec("scored", 1, "wait", batch=4, dispatch=6)))
@example(replace(LATE_ONE_BY_ONE, spec=QueueSpec("scored", 2, "drop", batch=4, dispatch=6)))
def test_no_schedule_breaks_a_law_or_deadlocks(schedule: QueueSchedule) -> None:
    outcome = schedule.simulate()
    assert len(outcome.batches) == schedule.updates
    check_decisions(schedule.spec, outcome.decisions)
    assert max(outcome.staleness, default=0) <= schedule.spec.lag


@many
@given(schedules(late="wait"), st.integers(1, 8), st.lists(st.integers(1, 20), min_size=1), st.integers(1, 5))
def test_a_queue_that_waits_decides_the_same_whatever_the_times(
    schedule: QueueSchedule, slots: int, seconds: list[int], update: int
) -> None:
    slower = replace(schedule, slots=slots, seconds=tuple(seconds), update_seconds=(update,))
    first, second = (
        [decision for decision in s.simulate().decisions if decision.kind != "lose"] for s in (schedule, slower)
    )
    assert first == second


@given(schedules())
def test_a_log_is_read_as_it_was_written(schedule: QueueSchedule) -> None:
    decisions = list(schedule.simulate().decisions)
    assert from_lines(to_lines(decisions)) == decisions


@given(schedules(late="refill", losses=False))
def test_refilling_loses_no_prompt(schedule: QueueSchedule) -> None:
    """Of the prompts in order, what is neither trained nor waits to be dispatched again is on its way."""
    log = schedule.simulate().decisions
    prompt = {g: p for d in log if d.kind == "dispatch" for g, p in zip(d.groups, d.prompts, strict=True)}
    trained = [prompt[g] for d in log if d.kind == "take" for g in d.groups]
    gone = {g for d in log if d.kind in ("take", "drop") for g in d.groups}
    dropped_for_good = set(prompt.values()) - {prompt[g] for g in prompt if g not in gone} - set(trained)
    last = max((i for i, d in enumerate(log) if d.kind == "dispatch"), default=0)
    dropped_late = {prompt[g] for d in log[last:] if d.kind == "drop" for g in d.groups}
    waiting = {prompt[g] for d in log if d.kind == "drop" for g in d.groups} & dropped_for_good
    assert len(trained) == len(set(trained))
    assert dropped_for_good <= dropped_late | waiting
    assert set(prompt.values()) == set(range(len(set(prompt.values()))))


# -- mistakes


@pytest.mark.parametrize(
    ("lag", "batch", "dispatch"),
    [(-1, 1, 1), (0, 0, 1), (0, 4, 8), (0, 3, 2), (1, 4, 9)],
)
def test_a_queue_that_never_fills_a_batch_is_refused(lag: int, batch: int, dispatch: int) -> None:
    with pytest.raises(SizeError, match="HF760: queue 'scored'"):
        QueueSpec("scored", lag, "wait", batch, dispatch)


@given(st.integers(0, 3), st.integers(1, 8), st.integers(1, 32))
def test_exactly_the_queues_that_would_wait_for_ever_are_refused(lag: int, batch: int, dispatch: int) -> None:
    def live() -> bool:
        places, held, seen = (lag + 1) * batch, 0, set[int]()
        while held not in seen:
            seen.add(held)
            while held + dispatch <= places:
                held += dispatch
            if held < batch:
                return False
            held -= batch
        return True

    try:
        QueueSpec("scored", lag, "wait", batch, dispatch)
    except SizeError:
        assert not live()
    else:
        assert live()


@pytest.mark.parametrize("late", ["drop", "refill"])
@given(st.integers(0, 2), st.integers(1, 4), st.integers(1, 12))
def test_exactly_the_queues_that_late_groups_can_stop_are_refused(
    late: Late, lag: int, batch: int, dispatch: int
) -> None:
    try:
        QueueSpec("scored", lag, late, batch, dispatch)
    except SizeError:
        assert not never_stops(lag, batch, dispatch)
    else:
        assert never_stops(lag, batch, dispatch)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2), st.integers(0, 2), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
@example(1, 1, 3, 2, 2)  # with one place fewer, both stages would wait
def test_queues_in_a_row_have_places_for_whatever_late_groups_leave(
    lag: int, lag_behind: int, batch: int, batch_behind: int, dispatch: int
) -> None:
    try:
        first = QueueSpec("first", lag, "drop", batch, dispatch, trains=False)
        second = QueueSpec("second", lag_behind, "drop", batch_behind, batch)
    except SizeError:
        return
    assert never_stops_in_a_row(first, second, places_in_a_row([first, second]))


def test_lost_groups_that_leave_no_batch_end_with_an_error() -> None:
    schedule = QueueSchedule(QueueSpec("q", 1, "mask", 4, 6), 6, (1,), (1,), lost=(False, False, True, False, False))
    with pytest.raises(HfError, match=r"HF762: queue 'q' \(lag 1, late=\"mask\"\) stalls before update 4: 3 of its 8"):
        schedule.simulate()


@pytest.mark.parametrize("late", ["drop", "refill"])
def test_a_queue_that_drops_one_of_two_groups_left_behind_is_refused(late: Late) -> None:
    with pytest.raises(SizeError, match=r"HF760: .* puts 6 in, which takes 9"):
        QueueSpec("scored", 1, late, batch=4, dispatch=6)


def test_a_dispatch_without_places_is_refused() -> None:
    state = QueueState(QueueSpec("scored", 0)).dispatch([0])
    with pytest.raises(SizeError, match="HF760: queue 'scored' has 1 places"):
        state.dispatch([1])


def test_a_filter_that_keeps_nothing_starves_the_trainer() -> None:
    spec = QueueSpec("scored", lag=2, late="drop", batch=4)
    with pytest.raises(HfError, match=r'HF762: queue \'scored\' \(lag 2, late="drop"\) starves before update 0'):
        simulate(spec, Slots(2, lambda n: 1.0, lambda u: 1.0), 3, lost=lambda number: True)


def test_prompts_that_end_leave_what_fills_no_batch() -> None:
    outcome = simulate(QueueSpec("q", 1, "wait", 2), Slots(1, lambda n: 1.0, lambda u: 1.0), 9, prompts=iter(range(5)))
    assert [len(batch.groups) for batch in outcome.batches] == [2, 2]


@pytest.mark.parametrize(
    "line",
    ["", "[]", "{}", '{"kind": "eat", "queue": "q", "version": 0}', '{"kind": "take", "queue": 1, "version": "x"}'],
)
def test_a_line_that_is_no_decision_is_named(line: str) -> None:
    good = to_lines([Decision("dispatch", "q", 0, (0,), (0,))])
    with pytest.raises(CheckpointError, match="HF761: line 2"):
        from_lines(good + line + "\n")


@pytest.mark.parametrize("end", [1, 20, -2])
def test_a_last_line_that_ends_too_early_is_named_with_its_file(end: int, tmp_path: Path) -> None:
    lines = [to_lines([decision]) for decision in LOG]
    (file := tmp_path / "queues.jsonl").write_text("".join(lines[:2]) + lines[2][:end])
    message = rf"HF761: line 3 of '{re.escape(str(file))}' ends too early, .*; remove the line to repeat the decisions"
    with pytest.raises(CheckpointError, match=message):
        read_log(file)
    file.write_text("".join(lines[:2]))  # as the message says
    assert read_log(file) == list(LOG[:2])
    file.write_text("".join([*lines[:2], lines[2][:end], "\n"]))
    with pytest.raises(CheckpointError, match=rf"HF761: line 3 of '{re.escape(str(file))}' is not a decision"):
        read_log(file)


@pytest.mark.parametrize("whole", [0, 1, 2])
def test_a_log_goes_on_after_its_last_whole_line(whole: int, tmp_path: Path) -> None:
    """A run that was killed while it wrote a line leaves the beginning of the line."""
    lines = [to_lines([decision]) for decision in LOG]
    for unfinished in ("", lines[whole][:-2]):
        (file := tmp_path / "queues.jsonl").write_text("".join(lines[:whole]) + unfinished)
        log = DecisionLog(file, None)
        log.add(LOG[whole:])
        log.close()
        assert read_log(file) == list(LOG)


LOG = (
    Decision("dispatch", "q", 0, (0,), (0,)),
    Decision("dispatch", "q", 0, (1,), (1,)),
    Decision("take", "q", 0, (0,)),
    Decision("take", "q", 1, (1,)),
)
SPEC = QueueSpec("q", lag=1)


def broken_logs() -> Iterator[tuple[str, list[Decision], str]]:
    dispatch, second_dispatch, take, last = LOG
    stale = [*LOG[:3], replace(last, version=1), *LOG[:1]]
    yield "again", stale, "group 0 was dispatched twice"
    yield "order", [dispatch, second_dispatch, replace(take, groups=(1,))], "takes groups before [0]"
    yield "twice", [dispatch, second_dispatch, take, replace(take, version=1)], "group 0, of a take, is not on its way"
    yield "version", [dispatch, second_dispatch, take, take], "under version 0 after 1 updates"
    yield "half", [dispatch, second_dispatch, replace(take, groups=(0, 1))], "took 2 groups instead of 1"
    yield (
        "places",
        [dispatch, second_dispatch, Decision("dispatch", "q", 0, (2,), (2,))],
        "3 groups are on their way in 2 places",
    )
    yield "empty", [dispatch, replace(take, groups=())], "took 0 groups instead of 1"
    yield "drops", [dispatch, Decision("drop", "q", 0, (0,))], "a queue with late='wait' drops [0]"
    yield "masks", [dispatch, replace(take, masked=(0,))], "a queue with late='wait' masks [0]"
    yield "prompt", [dispatch, replace(second_dispatch, prompts=(0,))], "prompt 0 is dispatched while"


@pytest.mark.parametrize(("decisions", "text"), [case[1:] for case in broken_logs()], ids=[c[0] for c in broken_logs()])
def test_laws_see_what_is_broken(decisions: list[Decision], text: str) -> None:
    with pytest.raises(BrokenQueueError) as caught:
        check_decisions(SPEC, decisions)
    assert text in str(caught.value)


def test_the_law_of_the_bound_sees_a_late_group() -> None:
    log = [Decision("dispatch", "q", 0, (0,), (0,)), Decision("dispatch", "q", 0, (1,), (1,))]
    log += [Decision("take", "q", 0, (1,)), Decision("dispatch", "q", 1, (2,), (2,)), Decision("take", "q", 1, (2,))]
    log += [Decision("take", "q", 2, (0,))]
    late = replace(SPEC, late="drop")
    assert broken_laws(late, log) == ("group 0 was trained 2 updates after its dispatch, with lag 1",)
    assert broken_laws(replace(SPEC, late="mask"), [*log[:-1], replace(log[-1], masked=(0,))]) == ()


def test_laws_see_a_group_that_is_dropped_or_masked_within_the_lag() -> None:
    dispatch, _, take, _ = LOG
    masks = broken_laws(replace(SPEC, late="mask"), [dispatch, replace(take, masked=(0,))])
    drops = broken_laws(replace(SPEC, late="drop"), [dispatch, Decision("drop", "q", 0, (0,))])
    assert masks == ("group 0 was masked 0 updates after its dispatch, within lag 1",)
    assert drops == ("group 0 was dropped 0 updates after its dispatch, within lag 1",)


def test_a_log_of_other_queues_is_refused() -> None:
    with pytest.raises(DefinitionError, match="no decision is one of 'scored', but of 'q'") as caught:
        check_decisions(replace(SPEC, name="scored"), LOG)
    assert caught.value.code == "HF922"


def test_a_log_is_lines_of_plain_json() -> None:
    assert [json.loads(line)["kind"] for line in to_lines(LOG).splitlines()] == ["dispatch", "dispatch", "take", "take"]
