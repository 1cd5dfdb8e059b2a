"""The loop: check, compile, launch, and then step by step until the end, or until a signal stops it."""

from __future__ import annotations

import math
import re
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, TypeAlias

from hfdsl.errors import HfError
from hfdsl.graph.program import RoleCall
from hfdsl.graph.signatures import RecordType
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.rows import row_table
from hfdsl.plan.timeline import TraceFile
from hfdsl.rl.data.feed import Feed, Prefetcher
from hfdsl.rl.data.tokenizers import load_tokenizer
from hfdsl.rl.training.check import ConfigCheck, require_clean
from hfdsl.rl.training.config import Loaded
from hfdsl.rl.training.experiments import Experiments, compiled
from hfdsl.rl.training.feeds import evaluation_batch, training_feed
from hfdsl.rl.training.metrics import METRICS_FILE, JsonLinesWriter, Record, TensorBoardWriter, Writer, values_of
from hfdsl.rl.training.rounds import Rounds, Single, check_rounds
from hfdsl.rl.training.run_folder import checkpoints
from hfdsl.rl.training.run_folder.checkpoints import RunPosition
from hfdsl.rl.training.run_folder.lock import locked
from hfdsl.rl.training.run_folder.resuming import (
    CHECKPOINTS,
    RunStart,
    has_run,
    load,
    require_run,
    run_inputs,
    run_start,
    with_saved_engines,
)
from hfdsl.rl.training.run_folder.samples import Samples
from hfdsl.rl.training.sinks import sinks
from hfdsl.rl.training.streams import DECISIONS, Streamed
from hfdsl.runtime.running import Running
from hfdsl.runtime.saving.recording import HEADER, RECORDINGS_FOLDER
from hfdsl.types.batches import schema

Show: TypeAlias = Callable[[Record], None]

Stepping: TypeAlias = Single | Rounds | Streamed
"""The kinds of steps: of one dataflow, of rounds and an update, or of a dataflow with queues."""

CHECKPOINT_TIMEOUT_S = 30.0
"""How long a failed run waits for the checkpoint in progress; a rank may be waiting for a peer forever."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a run: its last step, and whether it was stopped before the configured one."""

    step: int
    stopped: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run after check and compilation: its plans, its data, and its configuration as plain values."""

    loaded: Loaded
    plan: CompiledPlan
    evaluation: CompiledPlan | None
    update: CompiledPlan | None
    feed: Feed
    unseen: Any
    tokenizer: Any
    inputs: checkpoints.RunInputs

    @property
    def folder(self) -> Path:
        """The folder of the run's files."""
        return Path(self.loaded.config.output)


def prepare(loaded: Loaded) -> Prepared:
    """Check and compile a run, and open its data.

    Raises:
        CheckError: with the report, if a check finds errors.
        ConfigError: HF901 for sizes or placements that do not fit the dataflow.
        DataError: HF902 to HF904 for data, tokenizers and models that do not fit together.
    """
    require_clean(ConfigCheck().reports(loaded))
    config = loaded.config
    experiments = Experiments.of(loaded)
    plan = compiled(experiments.run, loaded)
    feed = training_feed(config, loaded.roles, plan.graph)
    update, evaluation, unseen = None, None, None
    if config.update is not None and experiments.update is not None:
        update = compiled(experiments.update, loaded, "update")
        check_rounds(plan, update, config.update)
    if config.evaluation is not None and experiments.evaluation is not None:
        evaluation = compiled(experiments.evaluation, loaded, "evaluation")
        unseen, feed = evaluation_batch(config, config.evaluation, evaluation.graph, feed)
    return Prepared(
        loaded=loaded,
        plan=plan,
        evaluation=evaluation,
        update=update,
        feed=feed,
        unseen=unseen,
        tokenizer=load_tokenizer(config.data.tokenizer),
        inputs=run_inputs(loaded, len(feed.rows)),
    )


def train(
    loaded: Loaded,
    *,
    resume: bool | Literal["auto"] = False,
    accept: Collection[str] = (),
    show: Show = lambda record: None,
    worker_env: Mapping[str, str] | None = None,
    trace: str | PathLike[str] | None = None,
) -> Ended:
    """Train as configured, and show every record.

    The timelines of all steps go to the file ``trace``, for Perfetto or ``chrome://tracing``.

    With ``resume``, the run continues from the last checkpoint, with the results of a run without a stop. A difference
    from the checkpoint is refused, unless ``accept`` has its kind ("config", "data", "code", "versions") or the name of
    the field. A run that ended before its first checkpoint starts again, with or without ``resume``. With ``"auto"`` a
    run begins in a folder that has none, and continues in one that has: what a job needs that is started several times.

    SIGINT or SIGTERM ends the run after the current step, with a checkpoint; a second one ends it at once.

    Raises:
        CheckError: with the report, if a check finds errors.
        SizeError: HF321 if rounds of sampling do not fill the batch of an update.
        ConfigError: HF901 if the output folder has a run that is not to be resumed, or cannot be written; HF914 if
            another process writes to it.
        DataError: HF902, HF903 for a bad row that is not to be skipped.
        CheckpointError: HF905, HF906 if the run cannot resume; HF908 if a role's state cannot be saved.
        RoleError: HF806 if a body raises.
        HfError: HF907 for a metric that is not finite; the last checkpoint stays.
        OSError: where the trace cannot be written.

    >>> from tempfile import TemporaryDirectory
    >>> from hfdsl.rl.training.config import load
    >>> with TemporaryDirectory() as folder:
    ...     loaded = load("examples/spelling_supervised.toml", ["steps=2", "B=8", f"output={folder}/run"])
    ...     train(loaded, show=lambda record: print(record.step, *record.values))
    1 ...actor/loss...
    2 ...actor/loss...
    Ended(step=2, stopped=False)
    """
    run = prepare(with_saved_engines(loaded))
    if resume is True:
        require_run(run.folder)
    with locked(run.folder):
        resume = has_run(run.folder) if resume == "auto" else resume
        start = run_start(loaded, run.folder, run.inputs, resume=resume, accept=accept)
        return _train(run, start, show, worker_env, trace)


def _train(
    run: Prepared,
    start: RunStart,
    show: Show,
    worker_env: Mapping[str, str] | None,
    trace: str | PathLike[str] | None,
) -> Ended:
    config, saved = run.loaded.config, run.folder / CHECKPOINTS
    launched = run.plan.launch(
        config.backend,
        seed=config.seed,
        deadline=config.deadline,
        worker_env=worker_env,
        retries=config.faults.on(config.backend),
    )
    with (
        launched as running,
        Prefetcher(run.feed) if config.data.ahead else nullcontext(run.feed) as feed,
        _writers(run, start.last_kept_step) as (writers, samples),
        ExitStack() as traces,
        _Stop() as stop,
    ):
        evaluating = running.also(run.evaluation) if run.evaluation is not None else None
        stepping: Stepping = Single(feed, running)
        if run.plan.split.queues:
            stepping = Streamed(feed, running, run.folder / DECISIONS, config.deadline)
        if run.update is not None and config.update is not None:
            stepping = Rounds(feed, running, running.also(run.update), config.update)
        if trace is not None:
            file = traces.enter_context(TraceFile(trace))
            for traced in stepping.runs:
                traces.enter_context(traced.traced(file))
        load(running, start)
        settings = config.checkpoints
        checkpoint_writer = checkpoints.CheckpointWriter(saved, running, run.inputs, settings.keep, settings.behind)
        return _Loop(
            run=run,
            stepping=stepping,
            evaluating=evaluating,
            writers=writers,
            samples=samples,
            show=show,
            checkpoint_writer=checkpoint_writer,
        ).steps(start.position, stop)


@contextmanager
def _writers(run: Prepared, step: int | None) -> Iterator[tuple[list[Writer], Samples]]:
    config, writers = run.loaded.config, list[Writer]()
    try:
        writers.append(JsonLinesWriter(run.folder / METRICS_FILE, step))
        if config.tensorboard:
            writers.append(TensorBoardWriter(run.folder / "tensorboard", step))
        writers += sinks(config, dict(run.inputs.config), run.folder, step)
        count = config.evaluation.samples if config.evaluation else 0
        yield writers, Samples(run.folder / "samples.jsonl", run.tokenizer, count, step)
    finally:
        for writer in writers:
            writer.close()


class _Stop:
    """A context in which the first SIGINT or SIGTERM requests the end of the run; a second has its usual effect."""

    def __init__(self) -> None:
        self.requested = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {
                signum: signal.signal(signum, self._request) for signum in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _request(self, *signaled: object) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)
        self._handlers = {}


@contextmanager
def _numbered(label: str) -> Iterator[None]:
    """Replace the plan's step in an error of a role by the run's: a plan counts from 0, and counts rounds."""
    try:
        yield
    except HfError as error:
        message, replaced = OF_A_PLAN.subn(rf"{label}: \1", error.message)
        if not replaced:
            raise
        raise type(error)(error.code, message).with_traceback(error.__traceback__) from error.__cause__


OF_A_PLAN = re.compile(r"^('[^']*'(?: on rank \d+)?) in step \d+")
"""The beginning of a backend's message."""


@dataclass(frozen=True, slots=True)
class _Loop:
    run: Prepared
    stepping: Stepping
    evaluating: Running | None
    writers: list[Writer]
    samples: Samples
    show: Show
    checkpoint_writer: checkpoints.CheckpointWriter

    def steps(self, position: RunPosition, stop: _Stop) -> Ended:
        """Run the remaining steps, and complete the checkpoint in progress even if one fails."""
        try:
            ended = self._steps(position, stop)
        except BaseException as error:
            if not isinstance(error, HfError) or error.code != "HF807":  # processes that do not answer do not write
                with suppress(HfError):
                    # No wait after a second Ctrl-C.
                    self.checkpoint_writer.poll(CHECKPOINT_TIMEOUT_S if isinstance(error, Exception) else 0.0)
            raise
        self.checkpoint_writer.poll(math.inf)
        return ended

    def _steps(self, position: RunPosition, stop: _Stop) -> Ended:
        config, last = self.run.loaded.config, self.run.loaded.config.steps
        if position.step == 0:
            self._write(Record(0, self._evaluated(0)))
        while position.step < last:
            position, record = self._step(position)
            self.checkpoint_writer.poll()
            step = position.step
            evaluates = config.evaluation is not None and step % config.evaluation.every == 0
            values = {**record.values, **(self._evaluated(step) if evaluates else {})}
            self._write(replace(record, values=values))
            if step % config.checkpoints.every == 0 or step == last or stop.requested:
                self.checkpoint_writer.write(self._settled(position))
            if stop.requested and step < last:
                return Ended(step, stopped=True)
            if step == last and not evaluates:  # after the checkpoint: a longer run would not evaluate here
                self.checkpoint_writer.poll(math.inf)  # if processes are lost from here on, it may not be written
                self._write(Record(step, self._evaluated(step)))
        return Ended(position.step, stopped=False)

    def _settled(self, position: RunPosition) -> RunPosition:
        """The position of a checkpoint: the batches of a stream may have gone on since its result."""
        if isinstance(self.stepping, Streamed):
            return replace(position, cursor=self.stepping.settled())
        return position

    def _step(self, position: RunPosition) -> tuple[RunPosition, Record]:
        start = perf_counter()
        step = position.step + 1
        with _numbered(f"step {step}"), self._verified(step):
            result = self.stepping.step(position.cursor, step, lambda running: self._recorded(running, step))
        seconds = perf_counter() - start
        counts = {name: float(getattr(result.cursor, name)) for name in ("epoch", "skipped", "held_out")}
        values = result.values | {f"data/{name}": value for name, value in counts.items() if value}
        length = next((value for name, value in values.items() if name.endswith("/length")), None)
        rows = responses(self.run.plan)
        speed = length * rows * result.rounds / seconds if length is not None and rows is not None else None
        return RunPosition(step, result.cursor, position.rows), Record(step, values, seconds, result.nodes, speed)

    @contextmanager
    def _verified(self, step: int) -> Iterator[None]:
        """Verify the syncs of the step within this context, if its number is one to verify."""
        every = self.run.loaded.config.verify_sync
        with ExitStack() as stack:
            for running in self.stepping.runs if every is not None and step % every == 0 else ():
                stack.enter_context(running.verifying())
            yield

    def _recorded(self, running: Running, step: int) -> AbstractContextManager[None]:
        place = self.run.folder / RECORDINGS_FOLDER / f"step-{step}"
        if step not in self.run.loaded.config.record or (place / HEADER).exists():
            return nullcontext()  # a resumed run repeats the step
        if place.exists():
            shutil.rmtree(place)  # of a run that ended while it recorded
        return running.record(place)

    def _evaluated(self, step: int) -> dict[str, float]:
        if self.evaluating is None or self.run.evaluation is None:
            return {}
        with _numbered(f"evaluation after step {step}"):
            result = self.evaluating.step(self.run.unseen)
        self.samples.write(step, self.run.unseen, result)
        values = values_of(self.run.evaluation, result, step)
        return {f"held_out/{name.rpartition('/')[2]}": value for name, value in values.items()}

    def _write(self, record: Record) -> None:
        if record.values:
            for writer in self.writers:
                writer.write(record)
            self.show(record)


def responses(plan: CompiledPlan) -> int | None:
    """The number of responses that a step generates; None if the sizes do not determine it."""
    calls = [node for node in plan.graph.calls if isinstance(node.op, RoleCall) and isinstance(node.result, RecordType)]
    rollouts = [node.id for node in calls if "response_mask" in schema(node.result.record).fields]  # type: ignore[union-attr]  # it is one
    rows = row_table(plan, plan.dims).rows
    return sum(rows[node] for node in rollouts if node in rows) or None
