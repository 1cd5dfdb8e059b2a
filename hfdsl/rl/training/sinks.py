"""Where records go beside the files of a run: W&B and MLflow.

A sink that fails does not end a run: its records are counted, one warning says why at the first, and another how many
there were at the end. A run that continues goes on with the run of the sink, whose name is in ``sinks.json``::

    first launch    steps 1 to 14 are sent, then the run is killed; the last checkpoint is of step 10
    --resume        steps 11 to 14 are taken again with the same results, and sent no second time; 15 is sent
"""

from __future__ import annotations

import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from hfdsl.errors import HfWarning
from hfdsl.rl.training.metrics import Record, Writer, scalars_of
from hfdsl.rl.training.run_config import MlflowConfig, RunConfig, WandbConfig
from hfdsl.rl.training.tables import Table, flattened
from hfdsl.types.foreign_text import parse_object

SINKS_FILE = "sinks.json"
"""The file in a run's folder that names its runs in the sinks, and the last step that each has."""

MAX_FAILURES = 3
"""After so many records in a row that cannot be sent, a sink gets no more: each may have waited for a timeout."""

MAX_PARAMETERS = 100
"""MLflow's limit for a batch."""

MAX_TEXT = 6000
"""MLflow's limit for the value of a parameter, in characters."""


@dataclass(slots=True)
class SinkRun:
    """The run of a sink: its id, the last step that it has, and whether this launch continues it."""

    file: Path
    name: str
    id: str = field(default_factory=lambda: uuid4().hex[:12])
    last: int = -1
    continues: bool = False

    @classmethod
    def of(cls, folder: Path, name: str, *, resume: bool) -> SinkRun:
        """The run of a sink that a folder names, or a new one."""
        known = _read(folder / SINKS_FILE).get(name) if resume else None
        if known is None:
            return cls(folder / SINKS_FILE, name)
        return cls(folder / SINKS_FILE, name, known["id"], known["last"], continues=True)

    def save(self, step: int) -> None:
        """Keep the last step that was sent."""
        self.last = max(self.last, step)
        runs = {**_read(self.file), self.name: {"id": self.id, "last": self.last}}
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(runs, indent=1) + "\n", "utf-8")
        new.replace(self.file)


def _read(file: Path) -> dict[str, Any]:
    """The runs of sinks that a folder has; a file that is no such list names none."""
    try:
        runs = parse_object(file.read_bytes()) if file.is_file() else {}
    except (OSError, ValueError):
        return {}
    return {name: run for name, run in runs.items() if isinstance(run, dict) and {"id", "last"} <= run.keys()}


class Sink:
    """A writer that may fail: what it raises is a warning, and its records are counted."""

    def __init__(self, run: SinkRun, open_writer: Callable[[SinkRun], Writer]) -> None:
        self._run, self._had = run, run.last
        self._writers: list[Writer] = []
        self._failures_in_a_row, self._warned = 0, False
        self.lost = 0
        self._attempt("cannot be opened", lambda: self._writers.append(open_writer(run)))

    def write(self, record: Record) -> None:
        """Send a record, unless the run of the sink has its step from before."""
        if record.step <= self._had:
            return
        is_up = bool(self._writers) and self._failures_in_a_row < MAX_FAILURES
        if is_up and self._attempt("does not take a record", lambda: self._send(record)):
            self._failures_in_a_row = 0
        else:
            self._failures_in_a_row += 1
            self.lost += 1

    def close(self) -> None:
        """End the run of the sink, and report how many records it does not have."""
        for writer in self._writers:
            self._attempt("cannot be closed", writer.close)
        if self.lost:
            self._warn(f"{self.lost} records were not sent; metrics.jsonl has all")

    def _send(self, record: Record) -> None:
        for writer in self._writers:
            writer.write(record)
        self._run.save(record.step)

    def _attempt(self, problem: str, action: Callable[[], None]) -> bool:
        """Whether an action succeeds; the first that does not is a warning."""
        try:
            action()
        except Exception as error:  # noqa: BLE001  # a client of a server may raise anything
            if not self._warned:
                self._warn(f"{problem}: {type(error).__name__}: {error}; the run goes on without it")
            self._warned = True
            return False
        return True

    def _warn(self, problem: str) -> None:
        warnings.warn(HfWarning("HF722", f"{self._run.name}: {problem}"), stacklevel=3)


def sinks(config: RunConfig, table: Table, folder: Path, *, resume: bool) -> Iterator[Writer]:
    """The sinks that a run is configured with, each open."""
    wandb, mlflow = config.wandb, config.mlflow
    if wandb is not None:
        yield Sink(SinkRun.of(folder, "wandb", resume=resume), lambda run: WandbWriter(wandb, run, table, folder))
    if mlflow is not None:
        yield Sink(SinkRun.of(folder, "mlflow", resume=resume), lambda run: MlflowWriter(mlflow, run, table, folder))


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
        """All numbers of a step."""
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
            known = self._client.get_experiment_by_name(config.experiment)
            experiment = known.experiment_id if known else self._client.create_experiment(config.experiment)
            run.id = self._client.create_run(experiment, run_name=config.name or folder.name).info.run_id
            run.save(-1)
            values = iter(flattened(table))
            while part := [Param(name, str(value)[:MAX_TEXT]) for name, value in islice(values, MAX_PARAMETERS)]:
                self._client.log_batch(run.id, params=part)
        self._id = run.id

    def write(self, record: Record) -> None:
        """All numbers of a step."""
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(time.time() * 1000)
        numbers = [Metric(mlflow_name(name), value, now, record.step) for name, value in scalars_of(record).items()]
        self._client.log_batch(self._id, metrics=numbers)

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._id)


def mlflow_name(name: str) -> str:
    """A metric's name without the characters that MLflow refuses.

    >>> mlflow_name("time/actor.update#2")
    'time/actor.update_2'
    """
    return re.sub(r"[^\w./: -]", "_", name)
