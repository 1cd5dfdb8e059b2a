"""A run with a queue: a checkpoint has what was begun, so that a resumed run is the run that was not stopped."""

from __future__ import annotations

import json
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from hfdsl.check.report import CheckError
from hfdsl.errors import CheckpointError, DeadlineError, HfWarning
from hfdsl.rl.training import streams
from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import from_table, load
from hfdsl.rl.training.loop import Ended, train
from hfdsl.rl.training.metrics import Record
from hfdsl.rl.training.run_folder import checkpoints
from hfdsl.rl.training.toml.tables import to_toml
from hfdsl.runtime.decisions import from_lines
from hfdsl.runtime.running import Running
from hfdsl.runtime.schedule import QueueSpec
from hfdsl.testing import check_decisions
from tests.nightly import NIGHTLY
from tests.rl.training import test_samplers
from tests.rl.training.test_loop import fresh, lines, weights
from tests.rl.training.toy import table

CHANGES = ("options.lag=2", "guesser.size=11", "evaluation.every=3", "checkpoints.every=2", "steps=7", "seed=3")


def configured(data: Path, output: Path, *changes: str) -> Any:
    values = table(data, algorithm="tests.rl.training.toy:ahead")
    return from_table(values, [f"output={output}/run", *CHANGES, *changes])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def straight(data: Path) -> Path:
    folder = fresh(data, "straight")
    train(configured(data, folder))
    return folder


def same_ending(folder: Path, straight: Path, after: int) -> None:
    assert [r for r in lines(folder) if r["step"] > after] == [r for r in lines(straight) if r["step"] > after]
    assert weights(folder) == weights(straight)
    assert (folder / "run/queues.jsonl").read_text() == (straight / "run/queues.jsonl").read_text()


def test_decisions_are_those_of_the_queue(straight: Path) -> None:
    decisions = from_lines((straight / "run/queues.jsonl").read_text())
    check_decisions(QueueSpec("queue", lag=2), decisions)
    trained = [group for decision in decisions if decision.kind == "take" for group in decision.groups]
    assert trained == list(range(7))


@pytest.mark.parametrize("stop", [1, 4])
def test_a_resumed_run_is_the_run_that_was_not_stopped(data: Path, tmp_path: Path, straight: Path, stop: int) -> None:
    train(configured(data, tmp_path, f"steps={stop}"))
    assert train(configured(data, tmp_path), resume=True) == Ended(7, stopped=False)
    same_ending(tmp_path, straight, stop)


class Counting:
    """A feed whose cursors count its batches."""

    def take(self, cursor: int) -> tuple[int, int]:
        return cursor, cursor + 1


class ReadingRun:
    """A run whose loader has yielded a batch more than the run has at each result."""

    plan, decisions, timings = None, 0, dict[str, float]()

    def __init__(self, batches_read: int) -> None:
        self.batches_read = batches_read
        self.yielded = list[int]()

    def stream(self, loader: Iterator[int], **_: Any) -> Iterator[Any]:
        self.yielded += islice(loader, 3)
        self.batches_read += 2
        yield None
        self.yielded.append(next(loader))
        self.batches_read += 1
        yield None

    def wait_for_loader(self) -> None:
        self.batches_read += 1


def test_a_cursor_is_behind_the_batches_that_the_run_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not behind one that the feed prepares, unless a checkpoint has waited for it."""
    monkeypatch.setattr(streams, "values_of", lambda *_: {})
    running = ReadingRun(batches_read=20)
    streamed: Any = streams.Streamed
    stepping = streamed(Counting(), running, tmp_path / "log", 60.0)
    assert stepping.step(100, 1, nullcontext).cursor == 102
    assert stepping.step(100, 2, nullcontext).cursor == 103
    assert stepping.settled() == 104
    assert running.yielded == [100, 101, 102, 103]


def test_a_run_that_was_killed_repeats_the_steps_since_its_checkpoint(
    data: Path, tmp_path: Path, straight: Path
) -> None:
    def killed(record: Record) -> None:
        if record.step == 5:
            raise MemoryError

    with pytest.raises(MemoryError):
        train(configured(data, tmp_path), show=killed)
    assert checkpoints.latest(tmp_path / "run/checkpoints").name == "step-00000004"
    train(configured(data, tmp_path), resume=True)
    same_ending(tmp_path, straight, 5)


def test_a_failure_of_the_last_evaluation_leaves_the_last_checkpoint(
    data: Path, tmp_path: Path, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Running.step

    def failing(running: Running, *batches: Any) -> Any:
        if running.all_steps["ahead"] == 7:
            raise DeadlineError("HF807", "nothing answers, and nothing is written any more")
        return step(running, *batches)

    monkeypatch.setattr(Running, "step", failing)
    with pytest.raises(DeadlineError):
        train(configured(data, tmp_path))
    assert checkpoints.latest(tmp_path / "run/checkpoints").name == "step-00000007"
    assert weights(tmp_path) == weights(straight)


def test_an_interrupt_leaves_a_checkpoint_with_full_queues(data: Path, tmp_path: Path, straight: Path) -> None:
    def interrupt(record: Record) -> None:
        if record.step == 3:
            signal.raise_signal(signal.SIGINT)

    before = threading.active_count()
    assert train(configured(data, tmp_path, "checkpoints.every=100"), show=interrupt) == Ended(3, stopped=True)
    saved = json.loads((checkpoints.latest(tmp_path / "run/checkpoints") / "state.json").read_text())
    assert [step["number"] for step in saved["stream"]["in_progress"]] == [3, 4]
    assert threading.active_count() <= before + 8  # threads of ranks end with their objects
    train(configured(data, tmp_path), resume=True)
    same_ending(tmp_path, straight, 3)


def test_a_run_with_another_lag_does_not_take_over_what_is_queued(data: Path, tmp_path: Path) -> None:
    train(configured(data, tmp_path, "steps=2"))
    with pytest.raises(CheckpointError, match=r"HF905: (?s:.)*options.lag"):
        train(configured(data, tmp_path, "options.lag=1"), resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HfWarning)  # nothing says that the run continues
        with pytest.raises(CheckpointError, match=r"HF905: .* other queues"):
            train(configured(data, tmp_path, "options.lag=1"), resume=True, accept=["config"])


def test_a_run_continues_with_a_larger_lag(data: Path, tmp_path: Path) -> None:
    train(configured(data, tmp_path, "steps=2"))
    with pytest.warns(HfWarning, match="HF905"):
        assert train(configured(data, tmp_path, "options.lag=3"), resume=True, accept=["config"]).step == 7
    decisions = from_lines((tmp_path / "run/queues.jsonl").read_text())
    check_decisions(QueueSpec("queue", lag=3), decisions)
    versions = {
        group: decision.version for decision in decisions if decision.kind == "dispatch" for group in decision.groups
    }
    taken = [
        (decision.version, group) for decision in decisions if decision.kind == "take" for group in decision.groups
    ]
    assert [group for _, group in taken] == list(range(7))
    assert [version - versions[group] for version, group in taken] == [0, 1, 2, 2, 2, 3, 3]


@pytest.mark.parametrize("role", ["guesser=tests.rl.training.toy:Forgetful", "policy=tests.rl.training.toy:Unsaved"])
def test_a_role_that_keeps_no_weights_is_refused_before_a_launch_as_a_save_would_refuse_it(
    data: Path, tmp_path: Path, role: str
) -> None:
    loaded = configured(data, tmp_path, f"roles.{role}", "steps=2")
    (saved := tmp_path / "saved").mkdir()
    with pytest.raises(CheckError) as refused:
        train(loaded)
    with loaded.experiment().compile().launch("local") as running:
        next(running.stream(loaded.experiment().batches()))
        with pytest.raises(CheckpointError) as raised:
            running.save(saved)
    [finding] = refused.value.report.findings
    assert (finding.code, finding.message) == (raised.value.code, raised.value.message)
    assert not (tmp_path / "run").exists()


def test_what_is_for_one_step_at_a_time_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"HF901\]: 'record': a dataflow with queues"):
        train(configured(data, tmp_path, "record=[2]"))


@pytest.mark.parametrize(
    ("change", "is_refused"),
    [("backend=ray", True), ("backend=local", False), ("faults.retries=0", False)],
)
def test_weights_in_flight_on_ray_need_a_run_without_retries(tmp_path: Path, change: str, is_refused: bool) -> None:
    run = tmp_path / "run.toml"
    values = test_samplers.table(tmp_path, "asynchronous:async_grpo_in_flight", backend="ray")
    run.write_text(to_toml(values).replace('"$$', '"$'))  # its references stay references
    reports = ConfigCheck().reports(load(run, ["options.group=2", change]))
    found = [finding for report in reports for finding in report.findings if finding.code == "HF765"]
    assert len(found) == is_refused
    if found:
        assert found[0].message.startswith("'async_grpo_in_flight' sends weights in flight to 'sampler'")
        assert "set faults.retries to 0" in str(found[0])


@pytest.mark.nightly
def test_a_run_that_loses_a_process_on_ray_is_the_run_that_lost_none(
    data: Path, tmp_path: Path, straight: Path, ray_cluster: Any
) -> None:
    import ray

    from hfdsl.runtime.ray.backend import RayBackend

    def losing(record: Record) -> None:
        if record.step == 5:
            (backend,) = (backend for backend in RayBackend.launched if backend._groups)
            ray.kill(backend._calls.workers["policy+reward+guesser"][0])

    with pytest.warns(HfWarning, match="HF840"):
        assert train(configured(data, tmp_path, "backend=ray"), show=losing) == Ended(7, stopped=False)
    assert lines(tmp_path) == lines(straight)
    same_ending(tmp_path, straight, 0)


@pytest.mark.skipif(not NIGHTLY, reason="only with HFDSL_NIGHTLY=1")
@pytest.mark.parametrize("algorithm", ["async_grpo", "async_grpo_in_flight", "async_dapo_rounds"])
def test_ready_roles_go_on_with_what_lies_in_the_queue(tmp_path: Path, algorithm: str) -> None:
    torch.set_num_threads(1)

    def run(name: str, steps: int, resume: bool = False) -> list[dict[str, Any]]:
        values = test_samplers.table(tmp_path, f"asynchronous:{algorithm}")
        values |= {"dims": {"B": 4, "P": 3, "R": 6}, "options": {"lag": 2, "group": 2, "updates": 1}}
        if algorithm == "async_dapo_rounds":
            values["options"] |= {"rows": 4, "longest": 6, "buffer": 2}
            del values["reference"]
        train(from_table(values, [f"output={tmp_path}/{name}", f"steps={steps}"]), resume=resume)
        return test_samplers.updates(tmp_path / name)

    straight = run("straight", 5)
    run("stopped", 2)
    assert run("stopped", 5, resume=True) == straight
