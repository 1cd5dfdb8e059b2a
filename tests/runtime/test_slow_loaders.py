"""A slow loader stops no update that its prompts do not decide, and nothing that it reads is lost or trained twice."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import HfError
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.backend import WakingBackend as WakingProtocol
from hfdsl.runtime.loading import END, LoaderThread
from hfdsl.runtime.queues import running_stream
from hfdsl.runtime.recovery.streams import JournaledSource, StreamEntry
from hfdsl.runtime.schedule import QueueSpec
from hfdsl.testing import check_decisions, check_stream
from tests.nightly import examples
from tests.runtime import queue_programs
from tests.runtime.losing_backend import Losses
from tests.runtime.stage_model import Case, bits, cases, decisions, modeled, rows_of
from tests.runtime.test_stream_recovery import LOSSES, PROGRAMS, RETRIES, trained
from tests.runtime.timed_loader import WakingBackend, WakingLosingBackend, loader_takes

pytestmark = pytest.mark.filterwarnings("ignore:.*HF840|.*lost rank:hfdsl.errors.HfWarning")

LOADERS = st.lists(st.integers(0, 12), min_size=1, max_size=4).map(tuple)
"""The seconds of a loader by batch."""

SLOW = Case("drop", 2, 1, 2, 2, ((1, 1),), (2,), 9, reading=(0, 0, 0, 30))


def waking(case: Case) -> Any:
    """The context of launches whose loader takes the case's seconds."""
    return loader_takes(lambda: cycle(case.reading), lambda plan, seed: WakingBackend(plan, seed, case.seconds))


@settings(max_examples=examples(60), deadline=None)
@given(cases(filtered=["choosing", "screening"]), LOADERS)
@example(SLOW, SLOW.reading)
@example(replace(SLOW, late="refill", batch=3, lag=2), SLOW.reading)
@example(replace(SLOW, late="wait", batch=4), SLOW.reading)
def test_a_run_decides_as_the_model_does_whatever_its_loader_takes(case: Case, reading: tuple[int, ...]) -> None:
    """And its log repeats it, with any loader."""
    case = replace(case, reading=reading)
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with waking(case) as launch, case.launched(launch) as running:
            assert isinstance(running._processes.backend, WakingProtocol)
            results = list(running.stream(case.loader(), log=log))
        assert rows_of(results) == modeled(case)
        check_decisions(case.spec, decisions(log))
        with case.launched() as running:
            assert bits(list(running.stream(case.loader(), replay=log))) == bits(results)
        case = replace(case, reading=(7, 1))
        with waking(case) as launch, case.launched(launch) as running:
            assert bits(list(running.stream(case.loader(), replay=log))) == bits(results)


def test_the_model_trains_ahead_of_a_slow_loader_unless_the_queue_waits() -> None:
    """While the fourth batch is read, for 30 s, three are in the queue: an update dispatches that batch's version."""
    versions = {}
    for late in get_args(Late):
        case = replace(SLOW, late=late, batch=4 if late == "wait" else 2)
        with waking(case) as launch, case.launched(launch) as running:
            versions[late] = {prompt: version for prompt, version, *_ in rows_of(list(running.stream(case.loader())))}
    assert [versions[late][6] for late in ("drop", "refill", "mask")] == [3, 3, 3], "after all three updates"
    instant = replace(SLOW, late="wait", batch=4)
    with instant.launched() as running:
        rows = rows_of(list(running.stream(instant.loader())))
    assert versions["wait"] == {prompt: version for prompt, version, *_ in rows}


@settings(max_examples=examples(12), deadline=None)
@given(cases(["wait"]), LOADERS, LOADERS)
def test_a_queue_that_waits_decides_the_same_whatever_its_loader_takes(
    case: Case, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    outcomes = list[Any]()
    for reading in (first, second):
        case = replace(case, reading=reading)
        with TemporaryDirectory() as folder, waking(case) as launch, case.launched(launch) as running:
            results = list(running.stream(case.loader(), log=Path(folder, "log")))
            outcomes.append((bits(results), Path(folder, "log").read_text()))
    assert outcomes[0] == outcomes[1]


# -- nothing is lost or trained twice


@settings(max_examples=examples(40), deadline=None)
@given(
    cases(["drop", "refill", "mask"], ["choosing"]),
    LOADERS,
    st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=4),
)
@example(replace(SLOW, late="refill"), SLOW.reading, [(2, True), (1, False), (1, True)])
def test_a_run_that_is_left_or_saved_while_its_loader_reads_has_every_batch_once(
    case: Case, reading: tuple[int, ...], stops: list[tuple[int, bool]]
) -> None:
    """The loader is one iterator, as of a file: what it has yielded comes from nowhere else."""
    case, results = replace(case, reading=reading), list[Any]()
    loader = Counted(case.loader())
    with TemporaryDirectory() as folder, waking(case) as launch, ExitStack() as runs:
        log, running = Path(folder, "log"), runs.enter_context(case.launched(launch))
        for stop, (result_count, saves) in enumerate(stops):
            results += islice(running.stream(loader, log=log), result_count)
            if saves:
                state = Path(folder, str(stop))
                state.mkdir()
                running.save(state)
                assert running.batches_read == loader.count, "the loader rests"
                running = runs.enter_context(case.launched(launch))
                running.load(state)
            assert running.batches_read <= loader.count
        results += running.stream(loader, log=log)
        assert running.batches_read == loader.count == case.steps
        [queue] = running.queues
        logged = decisions(log)
    check_decisions(case.spec, logged)
    dispatched = [prompt for decision in logged if decision.kind == "dispatch" for prompt in decision.prompts]
    assert list(dict.fromkeys(dispatched)) == list(range(max(dispatched, default=-1) + 1)), "prompts come in order"
    rest = case.steps * case.dispatch - len(set(dispatched))
    assert 0 <= rest < max(case.dispatch - len(queue.again), 1), "none is skipped"
    trained = [number for number, *_ in rows_of(results)][:: case.group]
    assert len(trained) == len(set(trained))


class Counted(Iterator[Any]):
    """Batches, and how many of them were taken."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches, self.count = iter(batches), 0

    def __next__(self) -> Any:
        batch = next(self._batches)
        self.count += 1
        return batch


@pytest.mark.parametrize("reading", [(0,), (0, 9), (3,)])
def test_interruptions_change_no_result_of_a_queue_that_waits(reading: tuple[int, ...]) -> None:
    case = Case("wait", 2, 2, 4, 6, ((1, 3),), (1,), 9, reading=reading)
    with waking(case) as launch:
        check_stream(lambda: case.launched(launch), case.loader(), tries=3)


@settings(max_examples=examples(40), deadline=None)
@given(cases(["drop", "refill", "mask"], ["choosing"]), LOADERS, LOSSES, RETRIES)
@example(SLOW, (1,), {12: 0, 25: 1}, hf.Retries(attempts=9, every=1))
def test_a_loss_while_the_loader_reads_costs_no_bit(
    case: Case, reading: tuple[int, ...], losses: dict[int, int], retries: hf.Retries
) -> None:
    lost = Losses(losses)
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        launches = loader_takes(lambda: cycle(reading), partial(WakingLosingBackend, losses=lost))
        with launches as launch, case.launched(launch, retries=retries) as running:
            assert isinstance(running._processes.backend, WakingProtocol)
            results = list(running.stream(case.loader(), log=log))
            assert running.batches_read == case.steps
            assert running.recoveries or not lost.lost or lost.unnoticed
        with case.launched() as running:
            assert bits(list(running.stream(case.loader(), replay=log))) == bits(results)
        check_decisions(case.spec, decisions(log))


@pytest.mark.nightly_besides("False-retries0", "True-retries1")
@pytest.mark.parametrize("retries", [hf.Retries(attempts=9, every=2), hf.Retries(attempts=9, every=None)])
@pytest.mark.parametrize("goes_back", [False, True])
def test_a_loss_after_a_save_reads_the_batch_again_for_which_it_waited_unless_the_file_has_it(
    retries: hf.Retries, goes_back: bool, tmp_path: Path
) -> None:
    """The batch is in the file, and in the journal of the result after it; any submission may be the one that fails."""
    case, recoveries = replace(SLOW, steps=5), 0
    for at in range(10, 40):
        lost, loader, results = Losses({at: at % 3}), Counted(case.loader()), list[Any]()
        launches = loader_takes(lambda: cycle([1]), partial(WakingLosingBackend, losses=lost))
        with launches as launch, case.launched(launch, retries=retries) as running:
            for result in running.stream(loader, log=tmp_path / f"log {at}"):
                results.append(result)
                if running.steps == 2:
                    (state := tmp_path / f"state {at}").mkdir()
                    running.save(state)
                    assert running.batches_read == loader.count == 3
                    if goes_back:
                        running.go_back_to(state)
            assert running.batches_read == loader.count == case.steps
            assert running._processes.recovery is not None
            [stream] = running._processes.recovery.streams.values()
            assert stream._batches.again == {}, "nothing is kept that was read again"  # type: ignore[attr-defined]
            recoveries += len(running.recoveries)
        assert sorted(prompt for prompt, *_ in rows_of(results)) == list(range(2 * case.steps)), at
        with case.launched() as running:
            assert bits(list(running.stream(case.loader(), replay=tmp_path / f"log {at}"))) == bits(results)
    assert recoveries > 10


def test_a_journal_comes_before_the_loader() -> None:
    """And keeps nothing that the stream has."""
    read, release = 3, threading.Event()
    loader = LoaderThread((batch for batch in "e" if release.wait()), 60.0, str)
    journaled = JournaledSource(StreamEntry(), lambda: read, {2: "b", 3: "c", 4: "d"}, loader)
    journaled.forget_read()
    assert journaled.again == {3: "c", 4: "d"}
    journaled.ask()
    assert not loader.pending
    assert journaled.next() == "c"
    read = 5
    journaled.ask()
    assert journaled.pending
    read = 4
    assert not journaled.pending
    assert journaled.next() == "d"
    read = 5
    release.set()
    assert (journaled.next(), journaled.next() is END) == ("e", True)
    assert journaled.entry.batches == {5: "e"}
    loader.close()


# -- loaders that end, raise or hang


class ArrivesNext(LoaderThread):
    """Delivers each batch right after the driver has seen that it has not come."""

    @property
    def pending(self) -> bool:
        """Whether the batch had not come at the look."""
        if pending := super().pending:
            self.wait()
        return pending


@pytest.mark.parametrize("late", ["drop", "refill", "mask"])
def test_a_batch_that_comes_between_two_looks_at_the_loader_stops_no_run(late: Late) -> None:
    """With nothing else in progress."""
    case = replace(SLOW, late=late)

    def launch(plan: Any, seed: int, **_: Any) -> WakingLosingBackend:
        return WakingLosingBackend(plan, seed, Losses({}))

    with mock.patch.object(running_stream, "LoaderThread", ArrivesNext), case.launched(launch) as running:
        assert len(list(running.stream(case.loader()))) == case.steps


HANGING = replace(SLOW, reading=(0, 0, 0, math.inf))  # type: ignore[arg-type]  # its fourth batch never comes


def hanging(release: threading.Event) -> Iterator[Any]:
    """Three batches, and none after them before the release."""
    yield from HANGING.loader()[:3]
    release.wait()


def test_batches_that_are_ready_are_trained_before_a_loader_that_hangs_is_named() -> None:
    release, results = threading.Event(), list[Any]()
    with waking(HANGING) as launch, HANGING.launched(launch) as running:
        with pytest.raises(
            HfError, match=r"HF764: .* for 60 s \('queue' of lag 2 has 0 of 6 groups, and made 3 batches"
        ):
            results.extend(running.stream(hanging(release), timeout=60))
        assert len(results) == 3
        assert len(list(running.stream(HANGING.loader()[3:6]))) == 3, "of a loader that does not hang"
    release.set()


def test_a_loader_that_hangs_keeps_no_checkpoint_from_being_written(tmp_path: Path) -> None:
    release = threading.Event()
    with waking(HANGING) as launch, HANGING.launched(launch) as running:
        stream = running.stream(hanging(release), timeout=60)
        assert len(list(islice(stream, 3))) == 3
        running.save(tmp_path)
        with pytest.raises(HfError, match="HF764"):
            next(stream)
    release.set()
    with HANGING.launched() as running:
        running.load(tmp_path)
        assert running.batches_read == 3
        assert len(list(running.stream(HANGING.loader()[3:]))) == HANGING.steps - 3


@pytest.mark.parametrize("bad", ["raises", "is no batch"])
def test_an_error_of_a_batch_is_not_one_of_the_checkpoint(bad: str, tmp_path: Path) -> None:
    """The stream raises it when the batch would be dispatched."""
    case = replace(SLOW, reading=(0, 0, 0, 30))

    def loader() -> Iterator[Any]:
        yield from case.loader()[:3]
        if bad == "raises":
            raise KeyError("gone")
        yield 7

    error, text = (KeyError, "gone") if bad == "raises" else (HfError, "HF206: the loader of 'deciding' yielded int")
    with waking(case) as launch, case.launched(launch) as running:
        stream = running.stream(loader())
        assert len(list(islice(stream, 3))) == 3
        running.save(tmp_path)
        assert running.batches_read == 3
        with pytest.raises(error, match=text):
            next(stream)
        assert len(list(running.stream(case.loader()[3:]))) == case.steps - 3


class Interrupted(LoaderThread):
    """Ctrl-C, once while the driver sleeps until the fifth batch is there."""

    waits = 0

    def wait(self) -> None:
        """Wait for a batch, as ever, unless it is the fifth."""
        Interrupted.waits += 1
        if Interrupted.waits == 5:
            self.sleeps = True
            raise KeyboardInterrupt
        super().wait()


def test_a_batch_for_which_an_interrupt_did_not_wait_comes_first_in_the_next_stream() -> None:
    plan = queue_programs.flow.given(lag=2, late="wait").compile(
        queue_programs.deployment(), dims={queue_programs.B: 4}
    )
    loader, results, before = iter(queue_programs.rows(6)), list[Any](), threading.enumerate()
    with plan.launch(seed=3) as running:
        straight = [trained.weight.tensor.tolist() for trained in running.stream(queue_programs.rows(6))]
    with plan.launch(seed=3) as running, mock.patch.object(running_stream, "LoaderThread", Interrupted):
        with pytest.raises(KeyboardInterrupt):
            results.extend(trained.weight.tensor.tolist() for trained in running.stream(loader))
        results += [trained.weight.tensor.tolist() for trained in running.stream(loader)]
    assert results == straight
    for thread in threading.enumerate():
        if thread.name == "loader" and thread not in before:
            thread.join(10.0)
            assert not thread.is_alive()


# -- Ray


@pytest.mark.parametrize("between", ["nothing", "a step of another plan"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_file_has_the_batch_that_the_loader_reads_during_an_interrupt(
    name: str, between: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without queues: the loader does not give it again."""
    plan, batches = PROGRAMS[name]().compile(queue_programs.deployment(), {queue_programs.B: 4}), queue_programs.rows(7)
    with plan.launch(seed=3) as running:
        undisturbed = [trained(result) for result in running.stream(batches)]
    wait, waits = LoaderThread.wait, iter(range(100))

    def interrupted(loader: LoaderThread) -> None:
        if next(waits) == 4:
            loader.sleeps = True
            raise KeyboardInterrupt
        wait(loader)

    monkeypatch.setattr(LoaderThread, "wait", interrupted)
    loader, results = iter(batches), list[Any]()
    with plan.launch(seed=3) as running:
        looking = running.also(queue_programs.look.compile(plan.deployment, {queue_programs.B: 4}))
        with pytest.raises(KeyboardInterrupt):
            results.extend(trained(result) for result in running.stream(loader))
        if between != "nothing":
            running.wait_for_loader()
            looking.step(batches[0])
        running.save(tmp_path / "saved")
        assert running.batches_read == 5
    with plan.launch(seed=3) as running:
        running.load(tmp_path / "saved")
        assert running.batches_read == 5
        results += [trained(result) for result in running.stream(loader)]
        assert plan.steps_in_flight or len(running._processes.backend.driver.stores._in_flight) <= 1
    assert results == undisturbed


@pytest.mark.nightly_cases("drop")
@pytest.mark.parametrize("late", ["drop", "refill"])
def test_on_ray_updates_go_on_while_the_loader_reads(ray_cluster: Any, tmp_path: Path, late: Late) -> None:
    """The loader yields its fourth batch once three updates have ended, and a checkpoint waits for it."""
    case, log, trained = Case(late, 2, 1, 2, 2, ((1, 1),), (1,), 6), tmp_path / "log", threading.Event()

    def batches() -> Iterator[Any]:
        for number, batch in enumerate(case.loader()):
            if number == 3:
                trained.wait()
            yield batch

    loader, results = batches(), list[Any]()
    with case.launched("ray") as running:
        for result in running.stream(loader, log=log, timeout=60):
            results.append(result)
            if len(results) == 3:
                trained.set()
                (tmp_path / "state").mkdir()
                running.save(tmp_path / "state")
                assert running.batches_read == 4
                break
    with case.launched("ray") as running:
        running.load(tmp_path / "state")
        results += running.stream(loader, log=log)
    assert sorted(prompt for prompt, *_ in rows_of(results)) == list(range(12))
    check_decisions(QueueSpec("queue", 2, late, 2, 2), decisions(log))
    with case.launched() as running:
        assert bits(list(running.stream(case.loader(), replay=log))) == bits(results)
