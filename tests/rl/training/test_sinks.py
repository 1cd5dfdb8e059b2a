"""W&B and MLflow: what they have of a run, a run that continues, and sinks that fail.

The tests that need a package run where it is installed.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from hfdsl.errors import ConfigError, HfWarning
from hfdsl.rl.training.metrics import METRICS_FILE, JsonLinesWriter, Record, Writer
from hfdsl.rl.training.preflight.requirements import is_installed
from hfdsl.rl.training.run_config import MlflowConfig, WandbConfig
from hfdsl.rl.training.sinks import MAX_FAILURES, MlflowWriter, Sink, SinkRun, WandbWriter, missed_records

TABLE: dict[str, Any] = {"steps": 4, "actor": {"model": {"seed": 0}, "tags": []}, **{f"x{i}": i for i in range(150)}}


def record(step: int) -> Record:
    return Record(step, {"actor/loss": step / 2}, 1.0, {"actor.update#2": 0.5}, 7.0)


@dataclass
class Remembered:
    """A writer that keeps its records, and refuses some."""

    refuses: frozenset[int] = frozenset()
    steps: list[int] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)
    closed: bool = False

    def write(self, record: Record) -> None:
        self.tried.append(record.step)
        if record.step in self.refuses:
            raise ConnectionError("no network")
        self.steps.append(record.step)

    def close(self) -> None:
        self.closed = True


def sent(folder: Path, writer: Remembered, steps: Iterable[int], *, resume: bool = False) -> list[str]:
    """The warnings of a launch that writes these steps to a run of W&B."""
    return warnings_of(SinkRun.of(folder, "wandb", resume=resume), lambda run: writer, steps)


def warnings_of(
    run: SinkRun, open_writer: Callable[[SinkRun], Writer], steps: Iterable[int], missed: Iterable[Record] = ()
) -> list[str]:
    """The warnings of a sink that is opened, written and closed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sink = Sink(run, open_writer, missed)
        for step in steps:
            sink.write(record(step))
        sink.close()
    assert all(isinstance(warning.message, HfWarning) for warning in caught)
    return [str(warning.message) for warning in caught]


def test_a_run_that_goes_on_sends_no_step_twice(tmp_path: Path) -> None:
    first, second = Remembered(), Remembered()
    assert sent(tmp_path, first, range(15)) == []
    assert sent(tmp_path, second, range(11, 18), resume=True) == []  # from the checkpoint of step 10
    assert (first.steps, second.steps) == ([*range(15)], [15, 16, 17])
    assert SinkRun.of(tmp_path, "wandb", resume=True).id == SinkRun.of(tmp_path, "wandb", resume=True).id
    assert SinkRun.of(tmp_path, "wandb", resume=False).last == -1


def test_a_run_that_goes_on_sends_what_the_sink_missed(tmp_path: Path) -> None:
    file, second = JsonLinesWriter(tmp_path / METRICS_FILE), Remembered()
    for step in range(15):
        file.write(record(step))
    file.close()
    sent(tmp_path, Remembered(refuses=frozenset(range(9, 15))), range(15))
    run = SinkRun.of(tmp_path, "wandb", resume=True)
    missed = missed_records(run, 10)  # the step of the checkpoint
    assert missed == [record(9), record(10)]
    assert missed_records(SinkRun.of(tmp_path, "mlflow", resume=True), 10) == []
    assert missed_records(SinkRun.of(tmp_path, "wandb", resume=False), None) == []
    assert warnings_of(run, lambda run: second, range(11, 13), missed) == []
    assert second.steps == [9, 10, 11, 12]


def test_a_sink_that_fails_is_a_warning_with_a_count(tmp_path: Path) -> None:
    writer = Remembered(refuses=frozenset({2, 4}))
    first, last = sent(tmp_path, writer, range(6))
    assert first.startswith("HF722: wandb: does not accept a record: ConnectionError: no network")
    assert last == "HF722: wandb: 2 records were not sent; metrics.jsonl has all"
    assert (writer.steps, writer.closed) == ([0, 1, 3, 5], True)


def test_a_sink_that_keeps_failing_gets_no_more(tmp_path: Path) -> None:
    writer = Remembered(refuses=frozenset(range(100)))
    assert sent(tmp_path, writer, range(10))[-1].startswith("HF722: wandb: 10 records")
    assert writer.tried == [*range(MAX_FAILURES)]


def test_a_sink_that_cannot_be_opened_does_not_end_the_run(tmp_path: Path) -> None:
    def refuse(run: SinkRun) -> Remembered:
        raise OSError("no route")

    assert warnings_of(SinkRun.of(tmp_path, "mlflow", resume=False), refuse, [1]) == [
        "HF722: mlflow: cannot be opened: OSError: no route; the run continues without it",
        "HF722: mlflow: 1 records were not sent; metrics.jsonl has all",
    ]


class Blocking(Remembered):
    """A writer that takes its first record when ``opened`` is set, and none before."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.opened = Event(), Event()

    def write(self, record: Record) -> None:
        self.entered.set()
        self.opened.wait()
        super().write(record)


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    writer = Blocking()
    yield writer
    writer.opened.set()


def test_no_step_waits_for_a_sink_that_is_slow(tmp_path: Path, blocking: Blocking) -> None:
    sink = Sink(SinkRun.of(tmp_path, "wandb", resume=False), lambda run: blocking, waiting=2)
    sink.write(record(0))
    blocking.entered.wait()
    sink.write(record(1))
    sink.write(record(2))
    with pytest.warns(HfWarning, match="HF722: wandb: is too slow: 2 records wait for it"):
        sink.write(record(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sink.write(record(4))  # the reason is a warning once
    assert blocking.steps == []
    blocking.opened.set()
    with pytest.warns(HfWarning, match="HF722: wandb: 2 records were not sent"):
        sink.close()
    assert (blocking.steps, blocking.closed, sink.lost) == ([0, 1, 2], True, 2)


def test_a_run_ends_although_a_sink_hangs(tmp_path: Path, blocking: Blocking) -> None:
    sink = Sink(SinkRun.of(tmp_path, "wandb", resume=False), lambda run: blocking, close_seconds=0)
    for step in range(3):
        sink.write(record(step))
    blocking.entered.wait()
    with pytest.warns(HfWarning) as caught:
        sink.close()
    assert [str(warning.message) for warning in caught] == [
        "HF722: wandb: still takes records 0 s after the last step; the run ends without it",
        "HF722: wandb: 3 records were not sent; metrics.jsonl has all",
    ]
    blocking.opened.set()
    join(sink)
    assert blocking.steps == [0]  # it was given up


def test_a_run_ends_although_a_sink_hangs_while_it_opens(tmp_path: Path) -> None:
    opened, writer = Event(), Remembered()

    def hang(run: SinkRun) -> Remembered:
        opened.wait()
        return writer

    sink = Sink(SinkRun.of(tmp_path, "wandb", resume=False), hang, close_seconds=0)
    sink.write(record(0))
    with pytest.warns(HfWarning) as caught:
        sink.close()
    assert "wandb: still opens 0 s after the last step" in str(caught[0].message)
    assert "wandb: 1 records were not sent" in str(caught[1].message)
    opened.set()
    join(sink)
    assert writer.steps == []


def join(sink: Sink) -> None:
    """Wait for the thread of a sink that was given up."""
    sink._thread.join()  # nothing else tells that it has ended


def test_sinks_of_one_run_write_the_same_file(tmp_path: Path) -> None:
    names = ("wandb", "mlflow")
    opened = [Sink(SinkRun.of(tmp_path, name, resume=False), lambda run: Remembered()) for name in names]
    for step in range(100):
        for sink in opened:
            sink.write(record(step))
    for sink in opened:
        sink.close()
    assert {name: SinkRun.of(tmp_path, name, resume=True).last for name in names} == dict.fromkeys(names, 99)


@pytest.mark.parametrize("project", ["", "a/b", "x" * 129])
def test_projects_that_wandb_refuses(project: str) -> None:
    with pytest.raises(ConfigError, match=r"HF940: 'project' of W&B has 1 to 128 characters"):
        WandbConfig(project=project)


def test_tracking_of_mlflow_is_a_folder_or_a_known_scheme() -> None:
    MlflowConfig(experiment="a", tracking="runs/mlflow")
    MlflowConfig(experiment="a", tracking="https://host:5000")
    with pytest.raises(ConfigError, match=r"HF940: 'tracking' is a folder, or begins with one of http, https"):
        MlflowConfig(experiment="a", tracking="sqlite:///mlflow.db")


@pytest.mark.skipif(not is_installed("mlflow"), reason="mlflow is not installed")
def test_mlflow_has_every_number_and_the_configuration(tmp_path: Path) -> None:
    from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]  # optional

    for steps, resume in ((range(3), False), (range(1, 5), True)):
        run = SinkRun.of(tmp_path, "mlflow", resume=resume)
        sink = Sink(run, lambda run: MlflowWriter(MlflowConfig(experiment="words"), run, TABLE, tmp_path))
        for step in steps:
            sink.write(record(step))
        sink.close()
        assert sink.lost == 0
    client = MlflowClient(tracking_uri=(tmp_path / "mlflow").as_uri())
    [experiment] = [candidate for candidate in client.search_experiments() if candidate.name == "words"]
    [stored] = client.search_runs([experiment.experiment_id])
    assert stored.info.status == "FINISHED"
    assert stored.data.params["actor.model.seed"] == "0"
    assert len(stored.data.params) == len(TABLE) + 1
    for name in ("actor/loss", "time/actor.update_2", "time/tokens_per_second"):
        assert [metric.step for metric in client.get_metric_history(stored.info.run_id, name)] == [0, 1, 2, 3, 4]


@pytest.mark.skipif(not is_installed("wandb"), reason="wandb is not installed")
def test_wandb_goes_on_with_its_run_offline(tmp_path: Path) -> None:
    config = WandbConfig(project="words", mode="offline", tags=("a", "b"))
    for steps, resume in ((range(3), False), (range(1, 5), True)):
        run = SinkRun.of(tmp_path, "wandb", resume=resume)
        sink = Sink(run, lambda run: WandbWriter(config, run, TABLE, tmp_path))
        for step in steps:
            sink.write(record(step))
        sink.close()
        assert (sink.lost, run.last) == (0, steps[-1])
    [name] = {folder.name.rpartition("-")[2] for folder in (tmp_path / "wandb").glob("offline-run-*")}
    assert name == json.loads((tmp_path / "sinks.json").read_text())["wandb"]["id"]
