"""Stages around a dynamic queue, against a model that steps through time second by second."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hfdsl.errors import CheckpointError, HfError
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.backend import PollingBackend
from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.rank.store import Store
from hfdsl.runtime.saving.store_files import read_stores
from hfdsl.testing import check_decisions, check_stream
from tests.nightly import examples
from tests.runtime.stage_model import FILTERED, Case, Program, Row, bits, cases, decisions, modeled, rows_of
from tests.runtime.stage_programs import (
    B,
    GivenSeconds,
    deciding,
    filled,
    filled_up,
    halved,
    masked_elsewhere,
    prompts,
    returning_both,
    stage_deployment,
    unmasked,
)
from tests.runtime.timed_backend import TimedBackend

STRAGGLER = Case("drop", 1, 1, 2, 2, ((1, 1), (1, 9), (1, 1), (1, 1)), (1,), 8)


@settings(max_examples=examples(12), deadline=None)
@given(cases())
@example(STRAGGLER)
@example(replace(STRAGGLER, late="refill", batch=3, lag=2, program="sampling", drops=0b0110011, steps=20))
@example(replace(STRAGGLER, late="mask", program="choosing", drops=0b1010101, steps=20))
@example(Case("drop", 2, 1, 2, 2, ((2, 1),), (1,), 3, "screening", 0b1))
@example(Case("drop", 2, 1, 2, 2, ((2, 1),), (1,), 3, "choosing", 0b1))
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


def test_a_loader_that_ends_before_the_log_to_repeat_is_an_error(tmp_path: Path) -> None:
    """The results of its batches come first."""
    case, log = replace(STRAGGLER, steps=6), tmp_path / "log"
    with case.launched() as running:
        results = list(running.stream(case.loader(), log=log, seconds=case.seconds))
    repeated = list[Any]()
    with case.launched() as running:
        shorter = running.stream(replace(case, steps=4).loader(), replay=log)
        with pytest.raises(CheckpointError, match="HF761: the loader ended where the log to repeat has"):
            repeated.extend(shorter)
    assert 0 < len(repeated) < len(results)
    assert bits(repeated) == bits(results[: len(repeated)])


@settings(max_examples=examples(24), deadline=None)
@given(cases(filtered=["choosing", "screening"]))
@example(STRAGGLER)
@example(replace(STRAGGLER, late="drop", lag=3, program="choosing", drops=0b1010101, steps=20))
def test_processes_decide_as_the_model_does(case: Case) -> None:
    """A filter in front of generation, whose calls are submitted late, makes no stage dispatch earlier.

    Without ``sampling``: its judge gets what is behind the filter after calls of the next dispatch, and in that order
    runs it, which the model knows nothing of.
    """

    def timed(plan: Plan, seed: int, **_: Any) -> TimedBackend:
        return TimedBackend(plan, seed, case.seconds)

    with case.launched(timed) as running:
        assert isinstance(running._processes.backend, PollingBackend)
        assert rows_of(list(running.stream(case.loader()))) == modeled(case)


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
@given(cases(["wait"]), st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1))
def test_a_queue_that_waits_needs_no_log(case: Case, others: list[tuple[int, int]]) -> None:
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
        decision_count = running.decisions
        with case.launched() as resumed:
            resumed.load(state)
            assert (resumed.decisions, resumed.steps) == (decision_count, len(before))
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
        for stop, (result_count, saves) in enumerate(stops):
            results += islice(running.stream(loader, seconds=case.seconds, log=log), result_count)
            if saves:
                state = Path(folder, str(stop))
                state.mkdir()
                running.save(state)
                running = runs.enter_context(case.launched())
                running.load(state)
        results += running.stream(loader, seconds=case.seconds, log=log)
        [queue] = running.queues
        logged = decisions(log)
    dispatched = [prompt for decision in logged if decision.kind == "dispatch" for prompt in decision.prompts]
    trained = [number for number, *_ in rows_of(results)][:: case.group]
    lost = lost_prompts(logged)
    assert not any(map(case.keeps, lost)), "a filter loses them"
    queued = [group.prompt for group in queue.groups.values()] + list(queue.again)
    first_not_dispatched = max(dispatched) + 1
    assert list(dict.fromkeys(dispatched)) == list(range(first_not_dispatched)), "prompts come in order"
    assert sorted(trained + queued + lost) == list(range(first_not_dispatched)), "none is lost or trained twice"
    assert 0 <= case.steps * case.dispatch - first_not_dispatched < case.dispatch - len(queue.again), "none is skipped"


@pytest.mark.parametrize("late", ["drop", "refill", "mask", "wait"])
def test_interruptions_change_no_result(late: Late) -> None:
    case = Case(late, 2, 2, 4, 6, ((1, 1),), (1,), 9)
    check_stream(case.launched, case.loader(), tries=2)


@pytest.mark.parametrize("program", FILTERED)
def test_interruptions_change_no_result_behind_a_filter(program: Program) -> None:
    case = Case("refill", 2, 2, 4, 6, ((1, 1),), (1,), 12, program, drops=0b0011010)
    check_stream(case.launched, case.loader(), tries=2)


def test_a_filter_that_keeps_nothing_ends_with_an_error() -> None:
    case = Case("refill", 1, 1, 2, 2, ((1, 1),), (1,), 300, "sampling", drops=2**7 - 1)
    with (
        case.launched() as running,
        pytest.raises(HfError, match=r"HF762: queue 'queue' \(lag 1, .*starves before update 0: the last \d+ groups"),
    ):
        list(running.stream(case.loader()))


def test_prompts_that_are_no_groups_are_not_dispatched_again() -> None:
    text = r"HF765: .*the 6 rows of 'prompts' are not the prompts of 4 groups"
    with filled.compile(stage_deployment()).launch() as running, pytest.raises(HfError, match=text):
        list(running.stream(prompts(3, 6)))
    text = r"HF765: .*, but a group's place is not that of its prompt, since it gets a part of the rows of a step"
    with filled.compile(stage_deployment()).launch() as running, pytest.raises(HfError, match=text):
        list(running.stream(prompts(3, 8)))
    with filled.compile(stage_deployment()).launch() as running:
        assert len(list(running.stream(prompts(3, 4)))) == 3, "all rows are no part"


@pytest.mark.parametrize(
    ("program", "size", "reason"),
    [
        (unmasked, 4, "sets response_mask or loss_mask to zero, and no call behind it reads them"),
        (masked_elsewhere, 4, "response_mask to zero, which 'actor.learn' does not train with"),
        (returning_both, 4, "the program returns a value made in front of it"),
        (filled_up, 4, "hf.fill or hf.take moves rows behind a filter"),
        (filled, 6, "the 6 rows of 'prompts' are not the prompts of 4 groups"),
        (filled, 8, "a group's place is not that of its prompt: it gets the first 4 of 8 rows; put in all rows"),
        (halved, 8, "a group's place is not that of its prompt: it gets mini-batch 2 of 2 of the rows of a step"),
    ],
)
def test_what_no_run_can_follow_is_found_by_the_check(program: Any, size: int, reason: str) -> None:
    [finding] = program.check(stage_deployment(), {B: size}).errors
    assert finding.code == "HF765"
    assert reason in finding.message


def test_calls_take_their_seconds_after_a_load_as_well(tmp_path: Path) -> None:
    case = Case("drop", 1, 1, 2, 2, STRAGGLER.generation, (1,), 12)
    with case.launched() as running:
        list(islice(running.stream(case.loader()), 2))
        running.save(tmp_path)
    rest = prompts(24, 2, first=12)
    dropped = []
    for seconds in (None, case.seconds):
        with case.launched() as running:
            running.load(tmp_path)
            log = tmp_path / f"log-{seconds is None}"
            list(running.stream(rest, seconds=seconds, log=log))
            dropped.append(sum(len(decision.groups) for decision in decisions(log) if decision.kind == "drop"))
    assert dropped[0] == 0
    assert dropped[1] > 0


@pytest.mark.parametrize("late", ["wait", "drop"])
def test_seconds_of_calls_that_do_not_exist_are_refused(late: Late) -> None:
    case = Case(late, 1, 1, 2, 2, ((1, 1),), (1,), 3)
    with case.launched() as running, pytest.raises(HfError, match=r"HF202: .*'engine.generte'; did you mean"):
        running.stream(case.loader(), seconds={"engine.generte": 1.0})


@pytest.mark.parametrize("late", ["wait", "drop"])
@pytest.mark.parametrize("duration", [-1.0, float("nan"), float("inf"), "1 s", None])
def test_seconds_that_are_no_duration_are_refused(late: Late, duration: Any) -> None:
    case = Case(late, 1, 1, 2, 2, ((1, 1),), (1,), 3)
    expected = r"HF202: .*'engine.generate' takes a number, 0 or more"
    with case.launched() as running, pytest.raises(HfError, match=expected):
        running.stream(case.loader(), seconds={"engine.generate": duration})


@pytest.mark.parametrize("duration", [-1.0, float("nan"), float("inf"), "1 s", None])
def test_an_object_that_gives_no_duration_is_named_with_its_call(duration: Any) -> None:
    class Given:
        def of(self, *call: object) -> Any:
            return duration if call[2] == 1 else 1.0

    case = Case("drop", 1, 1, 2, 2, ((1, 1),), (1,), 5)
    text = rf"HF202: the duration of 'engine\.generate' in step 1 is {duration!r}; Given\.of\(\*call\) returns seconds"
    with case.launched() as running, pytest.raises(HfError, match=text):
        list(running.stream(case.loader(), seconds={"engine.generate": Given()}))


def test_seconds_are_refused_where_calls_take_time() -> None:
    def timed(plan: Plan, seed: int, **_: Any) -> TimedBackend:
        return TimedBackend(plan, seed, STRAGGLER.seconds)

    with (
        STRAGGLER.launched(timed) as running,
        pytest.raises(HfError, match=r"HF202: .* only the local backend has a v"),
    ):
        running.stream(STRAGGLER.loader(), seconds=STRAGGLER.seconds)


def test_a_batch_of_another_size_is_refused_and_breaks_nothing() -> None:
    case = Case("drop", 1, 1, 4, 4, ((1, 1),), (1,), 3)
    program = deciding.given(lag=1, late="drop")
    with program.compile(stage_deployment()).launch() as running:
        with pytest.raises(HfError, match=r"HF765: a batch of the loader .* puts 2 groups into 'queue', .* in 4"):
            list(running.stream([*case.loader(), *prompts(1, 2)]))
        list(running.stream(case.loader()))
        assert running.steps == 6


def test_ray_takes_groups_as_they_end_and_repeats_them(ray_cluster: Any, tmp_path: Path) -> None:
    queues: list[tuple[Late, Program]] = [("drop", "deciding"), ("mask", "choosing"), ("refill", "sampling")]
    for late, program in queues:
        case, log = Case(late, 2, 2, 4, 4, ((1, 1),), (1,), 6, program, drops=0b0101100), tmp_path / late
        with case.launched("ray") as running:
            results = list(running.stream(case.loader(), log=log))
        check_decisions(case.spec, decisions(log))
        with case.launched() as running:
            assert bits(list(running.stream(case.loader(), replay=log))) == bits(results)


RESUMED = Case("drop", 2, 2, 4, 4, ((3, 1),), (1,), 6)


def test_a_damaged_file_of_rows_is_named(tmp_path: Path) -> None:
    with RESUMED.launched() as running:
        next(running.stream(RESUMED.loader()))
        running.save(tmp_path)
    for file in tmp_path.glob("actor.queue-*"):
        file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\1")
    with RESUMED.launched() as running, pytest.raises(CheckpointError, match=r"HF906: .*actor\.queue-.* is damaged"):
        running.load(tmp_path)


def test_no_row_in_a_queue_passes_through_the_driver(
    ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when it is saved nor when it is loaded; prompts that were not dispatched are in its own file."""

    def refuse(*_: object) -> None:
        raise AssertionError("the driver fetches rows")

    log, loader, state = tmp_path / "log", iter(RESUMED.loader()), tmp_path / "state"
    with RESUMED.launched("ray") as running:
        stream = running.stream(loader, log=log)
        results = [next(stream) for _ in range(3)]
        with monkeypatch.context() as patched:
            patched.setattr(running.backend, "get", refuse)
            running.save(state)
    [file] = json.loads((state / "state.json").read_text())["stream"]["files"][DRIVER]
    stores: dict[int, Store] = {}
    read_stores(str(state), file, lambda number: stores.setdefault(number, Store()))
    assert all(number < 0 for number in stores)  # batches of the loader
    with RESUMED.launched("ray") as resumed:
        with monkeypatch.context() as patched:
            patched.setattr(resumed.backend, "get", refuse)
            patched.setattr(resumed.backend, "put", refuse)
            resumed.load(state)
        results += resumed.stream(loader, log=log)
    check_decisions(RESUMED.spec, decisions(log))
    with RESUMED.launched() as running:
        assert bits(list(running.stream(RESUMED.loader(), replay=log))) == bits(results)


def lost_prompts(made: list[Decision]) -> list[int]:
    prompt = {g: p for d in made if d.kind == "dispatch" for g, p in zip(d.groups, d.prompts, strict=True)}
    return [prompt[group] for decision in made if decision.kind == "lose" for group in decision.groups]


def trained_version(rows: list[Row], prompt: int) -> int:
    return next((version for number, version, *_ in rows if number == prompt), 10**6)
