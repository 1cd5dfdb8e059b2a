"""Destinations of records beside the files of a run: W&B and MLflow.

A sink works in a thread of its own, so no step waits for a server. A sink that is slow, fails or hangs costs records
but no time: a warning gives the reason at the first lost record, and another the count at the end. With at most two
waiting records, and a server that hangs from step 1 on::

    step       1          2    3      4      5      end
    waiting               2    2, 3   2, 3   2, 3   given up after CLOSE_SECONDS: five records are not there
    dropped                           4      4, 5

A resumed run continues the run of the sink, which ``sinks.json`` names::

    first launch    steps 1 to 14 are sent, then the run is killed; the last checkpoint is of step 10
    --resume        steps 11 to 14 run again with the same results, and are not sent again; 15 is sent

    first launch    steps 1 to 8 are sent, 9 to 14 wait for a slow server; the last checkpoint is of step 10
    --resume        9 and 10 are sent from metrics.jsonl, then 11
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

from hfdsl.errors import HfWarning
from hfdsl.rl.training.metrics import METRICS_FILE, Record, Writer, records_between, scalars_of
from hfdsl.rl.training.run_config import MlflowConfig, RunConfig, WandbConfig
from hfdsl.rl.training.toml.tables import Table, flattened
from hfdsl.types.foreign_text import parse_object

SINKS_FILE = "sinks.json"
"""The file in a run's folder with its runs in the sinks, and the last step of each."""

MAX_FAILURES = 3
"""The consecutive failures after which a sink gets no more records, since each may have waited for a timeout."""

WAITING_RECORDS = 1000
"""The most records that wait for a sink; further ones are dropped."""

CLOSE_SECONDS = 30.0
"""How long the end of a run waits for a sink with pending records."""

MAX_PARAMETERS = 100
"""MLflow's limit for a batch."""

MAX_TEXT = 6000
"""MLflow's limit for the value of a parameter, in characters."""


@dataclass(slots=True)
class SinkRun:
    """The run of a sink: its id, its last step, and whether this launch continues it."""

    file: Path
    name: str
    id: str = field(default_factory=lambda: uuid4().hex[:12])
    last: int = -1
    continues: bool = False

    @classmethod
    def of(cls, folder: Path, name: str, *, resume: bool) -> SinkRun:
        """The run of a sink that a folder names, or a new one."""
        saved = _read(folder / SINKS_FILE).get(name) if resume else None
        if saved is None:
            return cls(folder / SINKS_FILE, name)
        return cls(folder / SINKS_FILE, name, saved["id"], saved["last"], continues=True)

    def save(self, step: int) -> None:
        """Write the last sent step into the file, which all sinks of a run share."""
        self.last = max(self.last, step)
        with _SINKS_FILE_LOCK:
            runs = {**_read(self.file), self.name: {"id": self.id, "last": self.last}}
            new = self.file.with_suffix(".new")
            new.write_text(json.dumps(runs, indent=1) + "\n", "utf-8")
            new.replace(self.file)


_SINKS_FILE_LOCK = threading.Lock()


def _read(file: Path) -> dict[str, Any]:
    """The runs of sinks in a file; none if it is malformed."""
    try:
        runs = parse_object(file.read_bytes()) if file.is_file() else {}
    except (OSError, ValueError):
        return {}
    return {name: run for name, run in runs.items() if isinstance(run, dict) and {"id", "last"} <= run.keys()}


class Sink:
    """A writer in a thread, which may be slow, fail or hang; the run then only gets a warning.

    Only the thread of the run counts queued records and warns; only the sink's thread counts sent ones.
    """

    def __init__(
        self,
        run: SinkRun,
        open_writer: Callable[[SinkRun], Writer],
        missed: Iterable[Record] = (),
        *,
        waiting: int = WAITING_RECORDS,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        self._run, self._last_sent = run, run.last
        self._waiting, self._close_seconds = waiting, close_seconds
        self._records = SimpleQueue[Record | None]()
        self._queued, self._sent = 0, 0
        for record in missed:
            self._queued += 1
            self._records.put(record)
        self._activity, self._problem, self._warned = "opens", "", False
        self._abandoned = threading.Event()
        self._thread = threading.Thread(
            target=self._send_all, args=(open_writer,), name=f"hfdsl-{run.name}", daemon=True
        )
        self._thread.start()

    @property
    def lost(self) -> int:
        """The records that the sink has not sent; during the run, waiting ones count."""
        return self._queued - self._sent

    def write(self, record: Record) -> None:
        """Queue a record, unless the run of the sink already has its step."""
        if record.step > self._last_sent:
            self._queued += 1
            if self._records.qsize() < self._waiting:
                self._records.put(record)
            else:
                self._note(
                    f"is too slow: {self._waiting} records wait for it, and it gets no more until it accepts some"
                )
        self._warn_of_problem()

    def close(self) -> None:
        """End the run of the sink once it has sent its records, and report the number of lost ones."""
        self._records.put(None)
        self._thread.join(self._close_seconds)
        if self._thread.is_alive():
            self._abandoned.set()
            self._note(f"still {self._activity} {self._close_seconds:g} s after the last step; the run ends without it")
        self._warn_of_problem()
        if self.lost:
            self._warn(f"{self.lost} records were not sent; metrics.jsonl has all")

    def _send_all(self, open_writer: Callable[[SinkRun], Writer]) -> None:
        """Send records until the end, in the thread."""
        try:
            writer = open_writer(self._run)
        except Exception as error:  # noqa: BLE001  # a client of a server may raise anything
            self._note_error("cannot be opened", error)
            return
        self._activity, failures_in_a_row = "takes records", 0
        while (record := self._records.get()) is not None and not self._abandoned.is_set():
            if failures_in_a_row == MAX_FAILURES:
                continue
            try:
                writer.write(record)
                self._run.save(record.step)
            except Exception as error:  # noqa: BLE001
                self._note_error("does not accept a record", error)
                failures_in_a_row += 1
            else:
                self._sent += 1
                failures_in_a_row = 0
        self._activity = "closes"
        try:
            writer.close()
        except Exception as error:  # noqa: BLE001
            self._note_error("cannot be closed", error)

    def _note_error(self, problem: str, error: Exception) -> None:
        self._note(f"{problem}: {type(error).__name__}: {error}; the run continues without it")

    def _note(self, problem: str) -> None:
        """Keep the first problem for the thread of the run to report."""
        self._problem = self._problem or problem

    def _warn_of_problem(self) -> None:
        if self._problem and not self._warned:
            self._warned = True
            self._warn(self._problem)

    def _warn(self, problem: str) -> None:
        warnings.warn(HfWarning("HF722", f"{self._run.name}: {problem}"), stacklevel=3)


def sinks(config: RunConfig, table: Table, folder: Path, step: int | None) -> Iterator[Writer]:
    """The configured sinks of a run; after a resume, with the records that they missed."""
    wandb, mlflow = config.wandb, config.mlflow
    openers: dict[str, Callable[[SinkRun], Writer]] = {}
    if wandb is not None:
        openers["wandb"] = lambda run: WandbWriter(wandb, run, table, folder)
    if mlflow is not None:
        openers["mlflow"] = lambda run: MlflowWriter(mlflow, run, table, folder)
    for name, open_writer in openers.items():
        run = SinkRun.of(folder, name, resume=step is not None)
        yield Sink(run, open_writer, missed_records(run, step))


def missed_records(run: SinkRun, step: int | None) -> list[Record]:
    """The records up to a step that an earlier launch did not send to the continued run of a sink."""
    if step is None or not run.continues:
        return []
    return records_between(run.file.with_name(METRICS_FILE), run.last, step)


class WandbWriter:
    """A run of W&B, by the package wandb; offline it is a folder that ``wandb sync`` sends later."""

    def __init__(self, config: WandbConfig, run: SinkRun, table: Table, folder: Path) -> None:
        import wandb  # pyright: ignore[reportMissingImports]  # optional

        self._run = wandb.init(
            project=config.project,
            entity=config.entity,
            name=config.name or folder.name,
            group=config.group,
            tags=list(config.tags),
            mode=config.mode,
            id=run.id,
            resume="allow",
            dir=str(folder),
            config=dict(table),
            settings=wandb.Settings(console="off", silent=True),
        )

    def write(self, record: Record) -> None:
        """Send all numbers of a step."""
        self._run.log(scalars_of(record), step=record.step)

    def close(self) -> None:
        """End the run; online this waits until everything is sent."""
        self._run.finish()


class MlflowWriter:
    """A run of MLflow, by the package mlflow-skinny or mlflow: in a folder, or on a server."""

    def __init__(self, config: MlflowConfig, run: SinkRun, table: Table, folder: Path) -> None:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]  # optional
        from mlflow.entities import Param  # pyright: ignore[reportMissingImports]

        tracking = config.tracking or str(folder / "mlflow")
        if "://" not in tracking and tracking != "databricks":
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3.17 refuses folders otherwise
            tracking = Path(tracking).resolve().as_uri()
        self._client = MlflowClient(tracking_uri=tracking)
        if run.continues:
            self._client.update_run(run.id, status="RUNNING")
        else:
            existing = self._client.get_experiment_by_name(config.experiment)
            experiment = existing.experiment_id if existing else self._client.create_experiment(config.experiment)
            run.id = self._client.create_run(experiment, run_name=config.name or folder.name).info.run_id
            run.save(-1)
            values = iter(flattened(table))
            while parameters := [Param(name, str(value)[:MAX_TEXT]) for name, value in islice(values, MAX_PARAMETERS)]:
                self._client.log_batch(run.id, params=parameters)
        self._id = run.id

    def write(self, record: Record) -> None:
        """Send all numbers of a step."""
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        milliseconds = int(time.time() * 1000)
        metrics = [
            Metric(mlflow_name(name), value, milliseconds, record.step) for name, value in scalars_of(record).items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._id)


def mlflow_name(name: str) -> str:
    """A metric's name without the characters that MLflow refuses.

    >>> mlflow_name("time/actor.update#2")
    'time/actor.update_2'
    """
    return re.sub(r"[^\w./: -]", "_", name)
