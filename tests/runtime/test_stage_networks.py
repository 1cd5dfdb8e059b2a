"""Several dynamic queues, behind and beside each other, against a model of plain lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import HfError
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.decisions import Decision
from hfdsl.testing import check_decisions, check_prompts, check_stream
from tests.nightly import examples
from tests.runtime.losing_backend import LosingBackend, Losses
from tests.runtime.network_model import Network, Row, deployment, modeled, networks
from tests.runtime.network_programs import (
    Copied,
    copies_in_driver,
    doubles_between,
    doubles_copies,
    reads_faster,
    refills_both,
    regroups,
    returns_in_front,
    takes_parts,
    takes_unevenly,
    three_queues,
    trains_between,
    waits_between,
)
from tests.runtime.stage_model import decisions
from tests.runtime.stage_programs import B, prompts

SERIES = Network(
    shape="series",
    lates=("refill", "refill"),
    lags=(1, 2),
    dispatch=2,
    batches=(2, 2),
    generation=((1, 7), (2, 1), (5, 4)),
    judging=((1, 6), (1, 1)),
    updates=(2, 1),
    fits=(3,),
    steps=9,
)
BESIDE = replace(SERIES, shape="beside", lates=("drop", "wait"))
JOINED = replace(SERIES, shape="joined", batches=(3, 3), lates=("refill", "refill"))
# A rank of the engine waits for new weights when the first half of a dispatch is dropped, and the second is not yet.
WAITING = Network(
    shape="series",
    lates=("refill", "drop"),
    lags=(1, 4),
    dispatch=4,
    batches=(5, 1),
    generation=((1, 7), (1, 1), (1, 1)),
    judging=((1, 1),),
    updates=(4,),
    fits=(1,),
    steps=9,
)
SHORT = replace(SERIES, batches=(3, 1), steps=1)  # no batch for the second queue
FILTERED = replace(SERIES, drops=0b0010110, batches=(3, 2), lags=(2, 3), group=2)


def rows_of(result: Any) -> list[Row]:
    """The rows that an update has trained."""
    parts = result if isinstance(result, tuple) else (result,)
    rows = list[Row]()
    for part in parts:
        numbers, versions, updates = part.number.tensor, part.version.tensor, part.update.tensor
        rows += zip(numbers.tolist(), versions.tolist(), updates.tolist(), strict=True)
    return rows


def bits(results: list[Any]) -> list[Any]:
    """Everything in results."""
    parts = [part for result in results for part in (result if isinstance(result, tuple) else (result,))]
    return [(part.number.tensor.tolist(), part.noise.tensor.tolist()) for part in parts]


def check_queues(case: Network, log: list[Decision]) -> None:
    """Check the laws of each queue; the second of a short run may have no decisions."""
    names = {decision.queue for decision in log}
    assert names <= {spec.name for spec in case.specs}
    for spec in case.specs:
        if spec.name in names:
            check_decisions(spec, log)


@settings(max_examples=examples(20), deadline=None)
@given(networks())
@example(SERIES)
@example(BESIDE)
@example(JOINED)
@example(FILTERED)
@example(WAITING)
@example(SHORT)
def test_a_run_trains_on_the_rows_of_the_model_and_its_log_repeats_it(case: Network) -> None:
    with TemporaryDirectory() as folder:
        log, again = Path(folder, "log"), Path(folder, "again")
        with case.launched() as running:
            results = list(running.stream(case.loader(), log=log, seconds=case.seconds))
            assert running.decisions == len(decisions(log))
            assert running.steps == len(results)
            assert [queue.spec for queue in running.queues] == list(case.specs) or not results
        expected = modeled(case)
        worst = sum(case.lags) if case.shape == "series" else max(case.lags)
        unmasked = [row for rows in expected for row in rows if "mask" not in case.lates]
        assert all(update - version <= worst for _, version, update in unmasked if case.shape != "joined")
        if case.shape == "joined":
            expected = [rows[: len(rows) // 2] for rows in expected]
            pages = [[page for page, *_ in rows[len(rows) // 2 :]] for rows in modeled(case)]
            assert [result.unmasked.tensor.tolist() for result in results] == pages
        assert [rows_of(result) for result in results] == expected
        check_queues(case, decisions(log))
        check_prompts(case.links, case.specs, decisions(log))
        with case.launched() as running:
            assert bits(list(running.stream(case.loader(), replay=log, log=again))) == bits(results)
        assert again.read_text() == log.read_text()


@pytest.mark.parametrize("lags", [(2, 2), (2, 4), (6, 2)])
@pytest.mark.parametrize("batches", [(2, 2), (2, 1), (4, 4), (2, 4)])
@pytest.mark.parametrize("late", ["drop", "refill"])
def test_no_group_is_late_where_only_updates_keep_it_waiting(
    late: Late, batches: tuple[int, int], lags: tuple[int, int], tmp_path: Path
) -> None:
    case = replace(SERIES, lates=(late, late), batches=batches, lags=lags, steps=12)
    with case.launched() as running:
        results = list(running.stream(case.loader(), log=tmp_path / "log"))
    assert len(results) == case.steps * case.dispatch // batches[1]
    assert not [decision for decision in decisions(tmp_path / "log") if decision.kind == "drop"]


@pytest.mark.parametrize("lags", [(1, 1, 1), (2, 1, 3)])
def test_no_group_is_late_in_three_queues_in_a_row(lags: tuple[int, int, int], tmp_path: Path) -> None:
    plan = three_queues.given(lags=lags).compile(deployment("series"), dims={B: 2})
    with plan.launch() as running:
        assert len(list(running.stream(prompts(12, 2), log=tmp_path / "log"))) == 12
    log = decisions(tmp_path / "log")
    assert not [decision for decision in log if decision.kind == "drop"]
    dispatched = {d.prompts: d.version for d in reversed(log) if d.kind == "dispatch"}  # first under which version
    last = [d for d in log if d.kind == "dispatch" and d.queue == "queue3"]
    taken = {d.groups: d.version for d in log if d.kind == "take" and d.queue == "queue3"}
    staleness = [taken[d.groups] - dispatched[d.prompts] for d in last]
    assert max(staleness) == sum(lags), "the places are no fewer than the lags allow"


@settings(max_examples=examples(8), deadline=None)
@given(networks(), st.dictionaries(st.integers(1, 60), st.integers(0, 2), max_size=3), st.sampled_from([1, 2, None]))
@example(SERIES, {9: 0, 24: 2}, 2)
@example(BESIDE, {8: 1, 9: 0}, None)
@pytest.mark.filterwarnings("ignore:.*HF840|.*lost rank:hfdsl.errors.HfWarning")
def test_a_loss_costs_no_bit_and_no_decision(case: Network, losses: Mapping[int, int], every: int | None) -> None:
    def losing(plan: Any, seed: int, **_: Any) -> Any:
        return LosingBackend(plan, seed, lost)

    with TemporaryDirectory() as folder:
        log, again, lost = Path(folder, "log"), Path(folder, "again"), Losses(losses)
        with case.launched(losing, hf.Retries(attempts=9, every=every)) as running:
            results = list(running.stream(case.loader(), seconds=case.seconds, log=log))
        with case.launched() as running:
            assert bits(list(running.stream(case.loader(), replay=log, log=again))) == bits(results)
        assert log.read_text() == again.read_text()


@pytest.mark.parametrize("case", [SERIES, BESIDE, JOINED, FILTERED], ids=["series", "beside", "joined", "filtered"])
def test_interruptions_change_no_result(case: Network) -> None:
    check_stream(case.launched, case.loader(), tries=2)


@pytest.mark.parametrize("case", [SERIES, FILTERED], ids=["series", "filtered"])
def test_a_resumed_run_loses_no_prompt_and_trains_none_twice(case: Network, tmp_path: Path) -> None:
    loader, results = iter(case.loader()), list[Any]()
    running = case.launched()
    for stop in range(3):
        for result in running.stream(loader, seconds=case.seconds):
            results.append(result)
            if len(results) % 2:
                break
        (state := tmp_path / str(stop)).mkdir()
        running.save(state)
        running.close()
        running = case.launched()
        running.load(state)
    results += running.stream(loader, seconds=case.seconds)
    queues = running.queues
    running.close()
    trained = [prompt for result in results for prompt, *_ in rows_of(result)][:: case.group]
    queued = [p for queue in queues for p in (*(group.prompt for group in queue.groups.values()), *queue.again)]
    once = trained + queued
    assert len(once) == len(set(once)), "no prompt is twice anywhere"
    lost = set(range(max(once) + 1)) - set(once)
    assert not any(map(case.keeps, lost)), "a filter loses them"
    assert len(trained) > case.batches[1]


@pytest.mark.parametrize(
    ("program", "shape", "reason"),
    [
        (waits_between, "series", 'in front of another queue, where late="wait" bounds nothing'),
        (trains_between, "beside", "'critic.fit' trains 'values' of 'critic' between two queues"),
        (refills_both, "series", "dispatches prompts again, which would enter the other queues of its stage a second"),
        (takes_unevenly, "series", "in a batch, but another queue of its stage gets 4 and has 2: one would fill up"),
        (takes_parts, "series", "a batch of 6 groups is not made of whole steps of 4"),
    ],
)
def test_what_no_run_can_follow_is_found_by_the_check(program: Any, shape: Any, reason: str) -> None:
    [finding] = program.check(deployment(shape), {B: 4}).errors
    assert finding.code == "HF765"
    assert reason in finding.message


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (doubles_between, "since its stage calls no role: call it in front of the queue"),
        (copies_in_driver, "since its protocol is a pair of functions"),
    ],
)
def test_calls_that_run_in_the_driver_get_no_rows_of_a_queue(program: Any, reason: str) -> None:
    [finding] = program.check(copying_deployment(), {B: 4}).errors
    assert finding.code == "HF765"
    assert f"in the driver, which has none of them, {reason}" in finding.message


def test_a_function_behind_a_queue_runs_in_the_processes_of_a_role() -> None:
    plan = doubles_copies.compile(copying_deployment(), dims={B: 4})
    with plan.launch("local") as running:
        results = list(running.stream(prompts(3, 4)))
    doubled = [first.score.tensor.tolist() for first, _ in results]
    assert doubled == [[2 * score for score in second.score.tensor.tolist()] for _, second in results]


def copying_deployment() -> hf.Deployment:
    """The deployment of queues in a row, with a judge that has a custom protocol."""
    places = deployment("series").placements
    pool = hf.ResourcePool([2], use_gpu=False, name="judge")
    return hf.Deployment(**{**places, "judge": hf.place(Copied, pool=pool)})


def test_what_only_a_plan_shows_is_refused_at_the_launch() -> None:
    """Whether the queue is dynamic depends on the rows of a step, which the plan does not have."""
    plan = returns_in_front.compile(deployment("series"))
    reason = "the program returns a value made in front of it"
    with pytest.raises(HfError, match=rf"HF765: the queue in line \d+ of .* is dynamic, and {reason}"):
        plan.launch()
    assert "HF765" not in returns_in_front.check(deployment("series"), {B: 8}).codes


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (regroups, "does not make one group from each of the 4 that it takes"),
        (takes_unevenly, "one would fill up before the other"),
        (takes_parts, "a batch of 6 groups is not made of whole steps of 4"),
    ],
)
def test_groups_that_no_run_can_follow_are_refused_with_their_numbers(program: Any, reason: str) -> None:
    plan = program.compile(deployment("series"))  # only a batch says how many rows a step puts in
    with plan.launch() as running, pytest.raises(HfError, match=rf"HF765: the queue in line \d+ of .*{reason}"):
        list(running.stream(prompts(3, 4)))
    assert "HF765" in program.check(deployment("series"), {B: 4}).codes


@pytest.mark.parametrize("lates", [*product(("wait", "refill"), repeat=2), ("mask", "wait")])
def test_sources_are_as_far_apart_as_their_queues_have_places(lates: tuple[Late, Late], tmp_path: Path) -> None:
    """Where groups are dropped, the distance grows with the steps: the check refuses that (HF757)."""
    case = replace(JOINED, lates=lates, steps=40)
    with case.launched() as running:
        list(running.stream(case.loader(), seconds=case.seconds, log=tmp_path / "log"))
    names, sent = [spec.name for spec in case.specs], [set[int](), set[int]()]
    apart = list[int]()
    for decision in decisions(tmp_path / "log"):
        if decision.kind == "dispatch":
            sent[names.index(decision.queue)].update(decision.prompts)
            apart.append(abs(len(sent[0]) - len(sent[1])))
    assert max(apart) <= max(spec.places for spec in case.specs)


def test_sources_of_which_one_falls_behind_for_ever_are_refused() -> None:
    assert "HF758" in {finding.code for finding in reads_faster.check(deployment("series"), dims={B: 4}).findings}
    plan = reads_faster.compile(deployment("series"))  # only a batch says how many rows a step puts in
    batches = [[batch, batch] for batch in prompts(3, 4)]
    message = (
        r"HF765: the queue in line \d+ of .* takes 1 batch of the loader for an update, .* 1/2 of a batch; more and"
    )
    with plan.launch() as running, pytest.raises(HfError, match=message):
        list(running.stream(batches))


@pytest.mark.nightly
def test_ray_takes_groups_as_they_end_and_repeats_them(ray_cluster: Any, tmp_path: Path) -> None:
    for case in (SERIES, BESIDE):
        log = tmp_path / case.shape
        with case.launched("ray") as running:
            results = list(running.stream(case.loader(), log=log))
        check_queues(case, decisions(log))
        with case.launched() as running:
            assert bits(list(running.stream(case.loader(), replay=log))) == bits(results)
