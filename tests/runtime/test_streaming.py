"""Stages step on their own, and yet a run has the same values everywhere, no prompt is lost, and nothing hangs."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import CheckpointError, HfError, LostProcessError, RoleError, SizeError, WiringError
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.decisions import from_lines
from hfdsl.runtime.queues.streaming import StageOrder
from hfdsl.runtime.running import Running
from hfdsl.runtime.schedule import QueueSpec
from hfdsl.testing import check_decisions
from tests.runtime.queue_programs import (
    DEADLY,
    Actor,
    B,
    CheckingActor,
    ForeignEngine,
    Prompts,
    StampingEngine,
    Trained,
    branches,
    chain,
    chosen_prompts,
    deployment,
    filtered,
    filtered_between,
    flow,
    look,
    one_pool,
    rows,
)

Values = list[tuple[list[int], list[int], list[float]]]


def values(trained: Trained) -> tuple[list[int], list[int], list[float]]:
    return trained.version.tensor.tolist(), trained.update.tensor.tolist(), trained.weight.tensor.tolist()


def launched(
    lag: int | None = 2,
    late: Late | None = "wait",
    backend: Literal["local", "ray"] = "local",
    place: Callable[[], hf.Deployment] = deployment,
) -> Running:
    place = one_pool if lag == 0 else place
    return flow.given(lag=lag, late=late).compile(place(), dims={B: 4}).launch(backend, seed=3, deadline=60)


def streamed(running: Running, loader: Any, **options: Any) -> Values:
    return [values(trained) for trained in running.stream(loader, **options)]


def version_of(step: int, lag: int) -> int:
    return max(0, step - lag)


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_every_row_is_as_stale_as_the_lag_says(lag: int) -> None:
    with launched(lag) as running:
        results = streamed(running, rows(7))
        assert running.steps == 7
    assert [versions for versions, _, _ in results] == [[version_of(step, lag)] * 4 for step in range(7)]
    assert [updates for _, updates, _ in results] == [[step] * 4 for step in range(7)]


def test_a_lag_of_zero_has_the_values_of_steps() -> None:
    with launched(0) as running:
        results = streamed(running, rows(5))
    with launched(None, place=one_pool) as running:
        assert [values(running.step(batch)) for batch in rows(5)] == results
    with launched(None, place=one_pool) as running:
        assert streamed(running, rows(5)) == results, "a program without queues streams too"


def test_disciplines_decide_alike_where_nothing_is_late() -> None:
    results = []
    for late in ("wait", "drop", "refill"):
        with launched(2, late) as running:
            results.append(streamed(running, rows(6)))
    assert results == [results[0]] * 3


def launched_chosen(lag: int) -> Running:
    place = deployment(actor=CheckingActor)
    return chosen_prompts.given(lag=lag).compile(place, dims={B: 4}).launch(seed=3, deadline=60)


@pytest.mark.parametrize("lag", [1, 2])
def test_rows_behind_a_filter_of_prompts_have_the_version_of_their_dispatch(lag: int) -> None:
    with launched_chosen(lag) as running:
        results = streamed(running, rows(6))
    assert [versions for versions, _, _ in results] == [[version_of(step, lag)] * 2 for step in range(6)]


def test_rows_behind_a_filter_of_prompts_keep_their_version_through_a_save(tmp_path: Path) -> None:
    def ends_early() -> Iterator[Prompts]:
        yield from rows(2)
        raise LookupError

    with launched_chosen(2) as running:
        with pytest.raises(LookupError):
            streamed(running, ends_early())
        running.save(tmp_path / "saved")
        continued = streamed(running, rows(6)[2:])
    with launched_chosen(2) as running:
        running.load(tmp_path / "saved")
        loaded = streamed(running, rows(6)[2:])
    with launched_chosen(2) as running:
        assert streamed(running, rows(6)) == continued == loaded


@pytest.mark.parametrize("place", [deployment, one_pool])
def test_a_save_in_front_of_filters_has_what_later_calls_read(
    place: Callable[[], hf.Deployment], tmp_path: Path
) -> None:
    plan = filtered_between.compile(place(), dims={B: 4})
    with plan.launch(seed=1) as running:
        straight = streamed(running, rows(7))
    for count in range(1, 7):
        with plan.launch(seed=1) as running:
            first = [values(trained) for trained in itertools.islice(running.stream(rows(7)), count)]
            running.save(tmp_path / str(count))
            read = running.batches_read
        with plan.launch(seed=1) as running:
            running.load(tmp_path / str(count))
            assert first + streamed(running, rows(7)[read:]) == straight


def test_stages_in_a_row_add_their_lags() -> None:
    plan = chain.given(first=1, second=2).compile(deployment(), dims={B: 4})
    with plan.launch() as running:
        results = streamed(running, rows(9))
    assert [versions[0] for versions, _, _ in results] == [version_of(step, 1 + 2) for step in range(9)]


@pytest.mark.parametrize("program", [chain, branches])
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 15))
def test_no_order_of_stages_is_later_than_the_check_proves(program: Any, first: int, second: int, steps: int) -> None:
    compiled = program.given(first=first, second=second).compile(deployment(), dims={B: 4})
    order, bounds = StageOrder(compiled, 0), compiled.report.queues
    readers, versions = [compiled.split.of[node.id] for node, _ in compiled.split.queues], list[int]()
    late: dict[int, list[int]] = {stage: [] for stage in readers}
    while (stage := order.next(prompts=order.steps[0] < steps)) is not None:
        results = min(order.steps)
        if stage == 0:
            versions.append(results)
        else:
            late[stage].append(results - versions[order.steps[stage]])
        order.submit(stage)
    assert order.steps == [steps] * 3
    for stage, bound in zip(readers, bounds, strict=True):
        [(_, proved)] = bound.states
        assert max(late[stage], default=0) <= proved
    if steps > first + second:
        assert max(late[2]) == (first + second if program is chain else min(first, second)), "no later than needed"


def first_steps_are_made_with_the_weights_of_the_actor(backend: Literal["local", "ray"]) -> None:
    with launched(2) as running:
        straight = streamed(running, rows(4)) + streamed(running, rows(2))
    for roles in ((ForeignEngine, Actor), (StampingEngine, CheckingActor)):
        with launched(2, backend=backend, place=partial(deployment, *roles)) as running:
            assert streamed(running, rows(4)) + streamed(running, rows(2)) == straight


def test_the_first_steps_are_made_with_the_weights_of_the_actor() -> None:
    first_steps_are_made_with_the_weights_of_the_actor("local")


@pytest.mark.nightly
def test_on_ray_the_first_steps_are_made_with_the_weights_of_the_actor(ray_cluster: Any) -> None:
    first_steps_are_made_with_the_weights_of_the_actor("ray")


def test_a_call_knows_the_version_under_which_it_was_dispatched(tmp_path: Path) -> None:
    def run(second: int, *roles: Any) -> Running:
        return chain.given(first=1, second=second).compile(deployment(*roles), dims={B: 4}).launch()

    for second in (1, 3):
        with run(second) as running:
            straight = streamed(running, rows(9))
        with run(second, StampingEngine, CheckingActor) as running:
            loader = iter(rows(9))
            stream = running.stream(loader)
            before = [values(next(stream)) for _ in range(3)]
            folder = tmp_path / str(second)
            folder.mkdir()
            running.save(folder)
        with run(second, StampingEngine, CheckingActor) as running:
            running.load(folder)
            assert before + streamed(running, loader) == straight
    with launched(None, place=one_pool) as running:
        assert [values(running.step(batch))[0][0] for batch in rows(3)] == [0, 1, 2]


# -- nothing is lost


def test_a_loop_that_is_left_goes_on_where_it_was() -> None:
    with launched() as running:
        straight = streamed(running, rows(8))
    with launched() as running:
        loader, results = iter(rows(8)), []
        for trained in running.stream(loader):
            results.append(values(trained))
            if running.steps == 3:
                break
        results += streamed(running, loader)
    assert results == straight


def test_what_was_begun_is_trained_after_the_loader_raised() -> None:
    def raising() -> Iterator[Prompts]:
        yield from rows(4)
        raise KeyError("gone")

    with launched() as running:
        results, stream = list[Any](), running.stream(raising())
        with pytest.raises(KeyError, match="gone"):
            results.extend(values(trained) for trained in stream)
        begun = len(results)
        results += streamed(running, rows(8)[4:])
    with launched() as running:
        assert streamed(running, rows(8)) == results
    assert begun < 4


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("background", [False, True])
def test_a_run_goes_on_from_a_checkpoint_with_the_values_that_it_would_have_had(
    tmp_path: Path, lag: int, background: bool
) -> None:
    with launched(lag) as running:
        straight = streamed(running, rows(9))
    loader, before = iter(rows(9)), []
    with launched(lag) as running:
        for trained in running.stream(loader):
            before.append(values(trained))
            if running.steps == 4:
                running.save_in_background(tmp_path).wait() if background else running.save(tmp_path)
                break
    with launched(lag) as running:
        running.load(tmp_path)
        assert running.steps == 4
        assert before + streamed(running, loader) == straight, "the loader continues after what was begun"
        assert running.timeline.number == 8


@pytest.mark.parametrize("place", [deployment, one_pool])
def test_a_checkpoint_holds_what_filters_kept_and_columns_of_all_kinds(
    tmp_path: Path, place: Callable[[], hf.Deployment]
) -> None:
    def run() -> Running:
        return filtered.compile(place(), dims={B: 8}).launch(seed=3)

    def results(running: Running, loader: Any, most: int = 99) -> list[Any]:
        pairs = itertools.islice(running.stream(loader), most)
        return [(values(trained), scores.score.tensor.tolist()) for trained, scores in pairs]

    with run() as running:
        straight = results(running, rows(7, size=8))
    loader = iter(rows(7, size=8))
    with run() as running:
        before = results(running, loader, most=3)
        running.save(tmp_path)
    with run() as running:
        running.load(tmp_path)
        assert before + results(running, loader) == straight


def test_a_checkpoint_of_other_queues_is_refused(tmp_path: Path) -> None:
    with launched(2) as running:
        next(running.stream(rows(9)))
        running.save(tmp_path)
    others: list[tuple[int, Late]] = [(1, "wait"), (2, "drop")]
    for lag, late in others:
        with launched(lag, late) as running, pytest.raises(CheckpointError, match=r"HF905: .* other queues"):
            running.load(tmp_path)
    with launched(None) as running, pytest.raises(CheckpointError, match=r"HF905: .* other queues"):
        running.load(tmp_path)


def test_a_damaged_queue_is_named(tmp_path: Path) -> None:
    with launched(2) as running:
        next(running.stream(rows(9)))
        running.save(tmp_path)
    for file in tmp_path.glob("actor.queue-*"):
        file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\1")
    with launched(2) as running, pytest.raises(CheckpointError, match=r"HF906: .*actor\.queue-.* is damaged"):
        running.load(tmp_path)


def test_another_plan_steps_between_two_updates() -> None:
    place = deployment()
    with flow.compile(place, dims={B: 4}).launch(seed=3) as running:
        looking = running.also(look.compile(place, dims={B: 4}))
        versions = [looking.step(rows(1)[0]).version.tensor[0].item() for _ in running.stream(rows(5))]
    assert versions == [1, 2, 3, 4, 5]
    with launched() as alone, flow.compile(place, dims={B: 4}).launch(seed=3) as running:
        looking = running.also(look.compile(place, dims={B: 4}))
        beside = [(values(trained), looking.step(rows(1)[0]))[0] for trained in running.stream(rows(5))]
        assert beside == streamed(alone, rows(5))


# -- the log


def test_the_log_keeps_the_laws_and_repeats_the_run(tmp_path: Path) -> None:
    log, again = tmp_path / "log.jsonl", tmp_path / "again.jsonl"
    with launched() as running:
        results = streamed(running, rows(6), log=log)
    check_decisions(QueueSpec("queue", lag=2), from_lines(log.read_text()))
    with launched() as running:
        assert streamed(running, rows(20), replay=log, log=again) == results, "it ends with the log"
    assert again.read_text() == log.read_text()


def test_a_log_that_the_queues_cannot_follow_is_refused(tmp_path: Path) -> None:
    with launched(2) as running:
        results = streamed(running, rows(4), log=tmp_path / "log")
    with launched(1) as running, pytest.raises(CheckpointError, match=r'HF761: this run decides \{"kind": "take"'):
        streamed(running, rows(4), replay=tmp_path / "log")
    with launched(3) as running:
        assert streamed(running, rows(4), replay=tmp_path / "log") == results, "its decisions are possible here, too"


# -- mistakes


def test_a_step_names_the_stream() -> None:
    with (
        launched() as running,
        pytest.raises(WiringError, match=r"HF751: 'flow' has queues.*running\.stream\(loader\)"),
    ):
        running.step(rows(1)[0])


def test_a_loader_that_hangs_is_named_with_what_waits() -> None:
    release = threading.Event()

    def hanging() -> Iterator[Prompts]:
        yield from rows(1)
        release.wait()

    with launched() as running:
        with pytest.raises(HfError, match=r"HF764: .* for 0\.2 s \('queue' of lag 2 has 1 of 3 batches\)"):
            streamed(running, hanging(), timeout=0.2)
        release.set()
        assert len(streamed(running, [])) == 1, "what was begun is still there"


def test_the_thread_of_a_loader_ends_with_the_run() -> None:
    def loaders() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "loader"]

    before = loaders()
    with launched() as running:
        results = running.stream(itertools.cycle(rows(1)))
        next(results)
        (begun,) = [thread for thread in loaders() if thread not in before]
    begun.join(10.0)
    assert not begun.is_alive()
    results.close()  # type: ignore[attr-defined]  # a generator, which was kept until here


def test_a_batch_that_is_none_breaks_nothing() -> None:
    with launched() as running:
        with pytest.raises(WiringError, match="HF203"):
            streamed(running, [[]])
        with pytest.raises(WiringError, match="HF206: the loader of 'flow' yielded int"):
            streamed(running, [1])
        assert len(streamed(running, [[batch] for batch in rows(2)])) == 2
        assert len(streamed(running, [{"prompts": batch} for batch in rows(2)])) == 2


def test_rows_that_no_step_takes_break_nothing() -> None:
    with launched() as running:
        with pytest.raises(HfError, match="HF302"):
            streamed(running, rows(1, size=3))
        assert len(streamed(running, rows(1))) == 1


def test_a_filter_that_starves_the_reader_is_named_with_its_queue() -> None:
    nothing = Prompts(x=torch.full((8,), 2.0))  # rows of three tokens, which the filter drops
    with filtered.compile(one_pool(), dims={B: 8}).launch(seed=3) as running:
        with pytest.raises(SizeError, match=r"HF321: .* no rows .*, in step 2 while 'queue' of lag 2 has \d of 3"):
            list(running.stream([*rows(2, size=8), nothing, *rows(3, size=8)]))
        with pytest.raises(HfError, match="HF808"):
            next(running.stream(rows(1, size=8)))


def test_a_body_that_raises_breaks_the_run() -> None:
    with launched() as running:
        with pytest.raises(RoleError, match=r"HF806: 'engine.generate' raised"):
            streamed(running, [*rows(2), Prompts(x=rows(1)[0].x.tensor - DEADLY)])
        with pytest.raises(HfError, match=r"HF808: .* has been broken since step 2"):
            streamed(running, rows(1))


# -- Ray


def test_ray_has_the_values_of_the_local_backend(ray_cluster: Any, tmp_path: Path) -> None:
    with launched() as running:
        straight = streamed(running, rows(7))
    with launched(backend="ray") as running:
        results = []
        for trained in running.stream(rows(7)):
            results.append(values(trained))
            if running.steps == 3:
                running.save(tmp_path)
        assert results == straight
        assert running.timeline.number == 6
        running.load(tmp_path)
        assert streamed(running, rows(7)[5:]) == straight[3:], "two batches were on their way"
        with pytest.raises(
            LostProcessError, match=r"HF806: step \d of 'flow' lost ranks? .*'engine' while 'queue' of lag"
        ):
            streamed(running, [*rows(2), Prompts(x=rows(1)[0].x.tensor + DEADLY), *rows(3)])
