"""What a stream takes: its loader, its timeout, and the files of its decisions."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hfdsl.errors import CheckpointError, HfError, ResourceError, WiringError
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.queues.durations import DrawnSeconds
from hfdsl.runtime.running import Running
from tests.runtime.stage_programs import B, Prompts, deciding, prompts, stage_deployment

BOTH = pytest.mark.parametrize("late", ["wait", "drop"])
"""Stages that follow each other step by step, and a dynamic queue."""


def launched(late: Late = "wait", lag: int = 1) -> Running:
    return deciding.given(late=late, lag=lag).compile(stage_deployment(), dims={B: 4}).launch(seed=3)


def numbers(results: Any) -> list[int]:
    return [number for trained in results for number in trained.number.tensor.tolist()]


class Loader:
    """A loader whose iterator comes from a function, such as one that opens files."""

    def __init__(self, begin: Callable[[], Iterator[Prompts]]) -> None:
        self.begin = begin

    def __iter__(self) -> Iterator[Prompts]:
        return self.begin()


@BOTH
def test_a_loader_that_hangs_before_its_first_batch_is_named(late: Late) -> None:
    release = threading.Event()

    def hanging() -> Iterator[Prompts]:
        release.wait(30)
        return iter(prompts(1, 4))

    with launched(late) as running:
        with pytest.raises(HfError, match=r"HF764: the loader yielded no batch for 0\.2 s"):
            list(running.stream(Loader(hanging), timeout=0.2))
        release.set()
        assert numbers(running.stream(prompts(2, 4))) == list(range(8)), "from another loader"


@BOTH
def test_an_iterator_that_took_too_long_loses_no_batch(late: Late) -> None:
    release = threading.Event()

    def hanging() -> Iterator[Prompts]:
        first, *rest = prompts(4, 4)
        yield first
        release.wait(30)
        yield from rest

    loader, trained = hanging(), list[Any]()
    with launched(late) as running:
        for _ in range(2):  # the second stream waits for the batch that the first one has asked for
            with pytest.raises(HfError, match="HF764"):
                trained.extend(running.stream(loader, timeout=0.2))
        release.set()
        trained += running.stream(loader)
    assert numbers(trained) == list(range(16))


@BOTH
def test_the_error_of_a_loader_that_cannot_begin_is_raised(late: Late) -> None:
    def broken() -> Iterator[Prompts]:
        raise LookupError("no data here")

    with launched(late) as running:
        results = running.stream(prompts(6, 4))
        first = next(results)
        with pytest.raises(LookupError, match="no data here"):
            list(running.stream(Loader(broken)))
        rest = list(running.stream(prompts(6, 4, running.batches_read)))
    assert numbers([first, *rest]) == list(range(24)), "the steps in progress are still there"


def test_a_loader_that_was_not_called_is_named_with_its_call() -> None:
    def batches() -> Iterator[Prompts]:
        yield from prompts(1, 4)

    with launched() as running:
        with pytest.raises(WiringError, match=r"HF206: .* got type; call it: stream\(Loader\(\)\)"):
            list(running.stream(Loader))  # type: ignore[arg-type]
        with pytest.raises(WiringError, match=r"HF206: .* got function; call it: stream\(batches\(\)\)"):
            running.stream(batches)  # type: ignore[arg-type]
        assert numbers(running.stream(batches())) == list(range(4))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 1e300, True, "60", None])
def test_a_timeout_is_a_positive_number_of_seconds(timeout: Any) -> None:
    with launched() as running:
        with pytest.raises(ResourceError, match=r"HF931: stream\(timeout=\) must be a positive number of seconds"):
            running.stream(prompts(1, 4), timeout=timeout)
        assert numbers(running.stream(prompts(1, 4), timeout=2_000_000)) == list(range(4))


@pytest.mark.parametrize("seconds", [41.0, "41", ["engine.generate"]])
def test_seconds_are_a_dict_of_calls(seconds: Any) -> None:
    with (
        launched() as running,
        pytest.raises(WiringError, match="HF202: seconds= of the stream takes a dict"),
    ):
        running.stream(prompts(1, 4), seconds=seconds)


@pytest.mark.parametrize("duration", [True, -1.0, float("nan"), "41", None, [4.0], DrawnSeconds])
@BOTH
def test_a_duration_is_a_number_or_draws_one(late: Late, duration: Any) -> None:
    text = r"HF202: seconds= of the stream: 'engine.generate' takes a number, 0 or more, or an object with a method of"
    with launched(late) as running, pytest.raises(WiringError, match=text):
        running.stream(prompts(1, 4), seconds={"engine.generate": duration})


def test_a_call_is_named_by_a_string() -> None:
    with launched() as running, pytest.raises(WiringError, match=r"HF202: seconds= of the stream: .* has no call '3'"):
        running.stream(prompts(1, 4), seconds={3: 1.0})  # type: ignore[dict-item]


@pytest.mark.parametrize("argument", ["log", "replay"])
def test_a_log_is_a_file(argument: str) -> None:
    path: dict[str, Any] = {argument: 3}
    with launched() as running, pytest.raises(WiringError, match=f"HF206: {argument}= of a stream takes the path of"):
        running.stream(prompts(1, 4), **path)


def test_a_line_that_is_no_decision_is_shown(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("[1, 2]\n")
    with launched() as running, pytest.raises(CheckpointError, match=r"HF761: line 1 of .* of a queue: '\[1, 2\]'"):
        running.stream(prompts(1, 4), replay=tmp_path / "log")
    (tmp_path / "log").write_text('{"kind": "take", "queue": "queue", "version": Infinity, "groups": [0]}\n')
    with launched() as running, pytest.raises(CheckpointError, match=r"HF761: line 1 of .* is not a decision"):
        running.stream(prompts(1, 4), replay=tmp_path / "log")


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with launched() as running:
        for log in (tmp_path, tmp_path / "file/log", tmp_path / "none/log"):
            with pytest.raises(CheckpointError, match=rf"HF906: the decisions .* cannot be written to '{log}': \w+"):
                running.stream(prompts(1, 4), log=log)


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with launched() as running:
        for log in (tmp_path, tmp_path / "none", tmp_path / "bytes"):
            with pytest.raises(CheckpointError, match=rf"HF761: the log '{log}' cannot be read: \S+"):
                running.stream(prompts(1, 4), replay=log)


@BOTH
def test_a_run_does_not_append_to_the_log_that_it_repeats(late: Late, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with launched(late) as running:
        list(running.stream(prompts(3, 4), log=log))
    before = log.read_text()
    with launched(late) as running, pytest.raises(CheckpointError, match=r"HF761: log= and replay= .* are both"):
        running.stream(prompts(3, 4), log=f"{tmp_path}/../{tmp_path.name}/log", replay=log)
    assert log.read_text() == before
    with launched(late) as running:
        assert numbers(running.stream(prompts(3, 4), replay=log, log=tmp_path / "again")) == list(range(12))
    assert (tmp_path / "again").read_text() == before


def test_a_stream_that_nobody_iterates_over_holds_no_file(tmp_path: Path) -> None:
    with launched() as running, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        running.stream(prompts(1, 4), log=tmp_path / "log")
        gc.collect()
    assert not [warning for warning in seen if warning.category is ResourceWarning]
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize("lag", [1, 3])
def test_a_log_of_another_lag_is_refused_as_a_log(lag: int, tmp_path: Path) -> None:
    """With fewer places a dispatch of the log has none, and with more a take comes too soon; no queue starves."""
    with launched("drop", lag=2) as running:
        list(running.stream(prompts(8, 4), log=tmp_path / "log"))
    with launched("drop", lag=lag) as running:
        results = running.stream(prompts(8, 4), replay=tmp_path / "log")
        if lag > 2:  # the log's decisions are possible here, too
            assert len(list(results)) == 8
            return
        with pytest.raises(CheckpointError, match=r"HF761: the log has .*\"dispatch\".* where 'queue' \(lag 1, .* can"):
            list(results)


@BOTH
def test_a_log_of_other_queues_is_refused(late: Late, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with launched(late) as running:
        list(running.stream(prompts(3, 4), log=log))
    log.write_text(log.read_text().replace('"queue": "queue"', '"queue": "queue2"'))
    with launched(late) as running:
        with pytest.raises(CheckpointError, match=r"HF761: .* of a queue 'queue2', and this program has 'queue'"):
            list(running.stream(prompts(3, 4), replay=log))
        assert numbers(running.stream(prompts(3, 4))) == list(range(12)), "nothing was begun"


@BOTH
def test_nothing_of_a_run_is_left(late: Late) -> None:
    before = {*threading.enumerate()}
    with launched(late) as running:
        next(running.stream(prompts(6, 4)))
        own = {*threading.enumerate()} - before
        assert own
    for thread in own:
        thread.join(10.0)
    assert not own & {*threading.enumerate()}


@BOTH
def test_a_loader_that_writes_into_what_it_has_yielded_is_told_so(late: Late) -> None:
    def reusing() -> Iterator[Prompts]:
        for batch in prompts(6, 4):
            yield batch
            batch.number.tensor.add_(100)

    text = (
        "HF703: column 'number' of a batch was changed after the run had taken it; give every step tensors of its own"
    )
    with launched(late) as running, pytest.raises(WiringError, match=text):
        list(running.stream(reusing()))


def test_a_folder_is_given_by_its_path(tmp_path: Path) -> None:
    with launched("wait") as running:
        calls: list[Callable[[Any], Any]] = [running.save, running.save_in_background, running.load]
        for call in calls:
            with pytest.raises(WiringError, match=r"HF206: running\.\w+ takes the path of a folder, got 3"):
                call(3)
        recorded: Any = 3
        with pytest.raises(WiringError, match=r"HF206: running\.record takes the path"), running.record(recorded):
            pass
        running.save(tmp_path / "state")
