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
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from hfdsl.errors import ConfigError, HfError
from hfdsl.graph.program import RoleCall
from hfdsl.graph.signatures import RecordType
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.rows import row_table
from hfdsl.rl.data.feed import Feed, Prefetcher
from hfdsl.rl.data.tokenizers import load_tokenizer
from hfdsl.rl.training import checkpoints
from hfdsl.rl.training.beginning import CHECKPOINTS, Beginning, beginning, load, require_run, run_inputs
from hfdsl.rl.training.check import ConfigCheck, require_clean
from hfdsl.rl.training.checkpoints import RunPosition
from hfdsl.rl.training.config import Loaded
from hfdsl.rl.training.experiments import Experiments, compiled
from hfdsl.rl.training.feeds import evaluation_batch, training_feed
from hfdsl.rl.training.metrics import METRICS_FILE, JsonLinesWriter, Record, TensorBoardWriter, Writer, values_of
from hfdsl.rl.training.rounds import Rounds, Single, check_rounds
from hfdsl.rl.training.run_config import RunConfig
from hfdsl.rl.training.run_lock import locked
from hfdsl.rl.training.samples import Samples
from hfdsl.rl.training.sinks import sinks
from hfdsl.rl.training.streams import DECISIONS, Streamed
from hfdsl.runtime.recording import HEADER, RECORDINGS_FOLDER
from hfdsl.runtime.running import Running
from hfdsl.types.batches import schema

Show: TypeAlias = Callable[[Record], None]

Stepping: TypeAlias = Single | Rounds | Streamed
"""What runs a step: one dataflow, rounds and an update, or a dataflow with queues."""

CHECKPOINT_TIMEOUT_S = 30.0
"""How long a failed run waits for the checkpoint that is under way: a rank may wait for a peer for ever."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended: after which step, and whether it was stopped before its last one."""

    step: int
    stopped: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that was checked and compiled: its plans, its data, and its configuration as plain values."""

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
        """Where the run leaves what it makes."""
        return Path(self.loaded.config.output)


def prepare(loaded: Loaded) -> Prepared:
    """Check, compile, and open the data.

    Raises:
        CheckError: with the report, where a check finds errors.
        ConfigError: HF901 for sizes or places that do not go with the dataflow.
        DataError: HF902 to HF904 for data, tokenizers and models that do not go together.
    """
    require_clean(ConfigCheck().reports(loaded))
    config = loaded.config
    experiments = Experiments.of(loaded)
    plan = compiled(experiments.run, loaded)
    feed = training_feed(config, loaded.roles, plan.graph)
    update, evaluation, unseen = None, None, None
    if plan.split.queues:
        check_streamed(config)
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


def check_streamed(config: RunConfig) -> None:
    """Refuse what goes with one step at a time alone.

    Raises:
        ConfigError: HF901 for a recording of a step, or an update on rows of several rounds.
    """
    for name, wanted in (("record", bool(config.record)), ("update", config.update is not None)):
        if wanted:
            text = f"'{name}': a dataflow with queues has several steps in progress, and this is for one at a time"
            raise ConfigError("HF901", text, name)


def train(
    loaded: Loaded,
    *,
    resume: bool = False,
    accept: Collection[str] = (),
    show: Show = lambda record: None,
    worker_env: Mapping[str, str] | None = None,
) -> Ended:
    """Train as configured, and show every record.

    With ``resume`` it goes on from the last checkpoint, with the results that it would have had without a stop. What
    differs from the checkpoint is refused, unless ``accept`` has its kind ("config", "data", "code", "versions") or the
    name of the field. A run that ended before its first checkpoint starts again, with or without ``resume``.

    SIGINT and SIGTERM end the run after the step that it is in, with a checkpoint; a second one ends it at once.

    Raises:
        CheckError: with the report, where a check finds errors.
        SizeError: HF321 where rounds of sampling do not fill the batch of an update.
        ConfigError: HF901 where the folder of the output has a run already and it is not to be resumed, or cannot be
            written; HF914 where another process writes to it.
        DataError: HF902, HF903 for a bad row that is not to be skipped.
        CheckpointError: HF905, HF906 where there is nothing that it can go on from, HF908 where a role keeps nothing.
        RoleError: HF806 where a body raises.
        HfError: HF907 where a metric is no finite number; the last checkpoint is as it was.

    >>> from tempfile import TemporaryDirectory
    >>> from hfdsl.rl.training.config import load
    >>> with TemporaryDirectory() as folder:
    ...     loaded = load("examples/spelling_supervised.toml", ["steps=2", "B=8", f"output={folder}/run"])
    ...     train(loaded, show=lambda record: print(record.step, *record.values))
    1 ...actor/loss...
    2 ...actor/loss...
    Ended(step=2, stopped=False)
    """
    run = prepare(loaded)
    if resume:
        require_run(run.folder)
    with locked(run.folder):
        return _train(run, beginning(loaded, run.folder, run.inputs, resume=resume, accept=accept), show, worker_env)


def _train(run: Prepared, begins: Beginning, show: Show, worker_env: Mapping[str, str] | None) -> Ended:
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
        _writers(run, begins.kept) as (writers, samples),
        _Stop() as stop,
    ):
        looking = running.also(run.evaluation) if run.evaluation is not None else None
        stepping: Stepping = Single(feed, running)
        if run.plan.split.queues:
            stepping = Streamed(feed, running, run.folder / DECISIONS, config.deadline)
        if run.update is not None and config.update is not None:
            stepping = Rounds(feed, running, running.also(run.update), config.update)
        if begins.checkpoint is not None:
            load(running, begins.checkpoint, begins.differences)
        settings = config.checkpoints
        keeper = checkpoints.Keeper(saved, running, run.inputs, settings.keep, settings.behind)
        return _Loop(
            run=run, stepping=stepping, looking=looking, writers=writers, samples=samples, show=show, keeper=keeper
        ).steps(begins.start, stop)


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
    """Within this, the first SIGINT or SIGTERM asks for an end, and the second one is what it always is."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = {caught: signal.signal(caught, self._ask) for caught in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _ask(self, *signaled: object) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for caught, handler in self._before.items():
            signal.signal(caught, handler)
        self._before = {}


@contextmanager
def _numbered(what: str) -> Iterator[None]:
    """Tell an error of a role with the step of the run: that of a plan counts otherwise, from 0, or each round."""
    try:
        yield
    except HfError as error:
        message, replaced = OF_A_PLAN.subn(rf"{what}: \1", error.message)
        if not replaced:
            raise
        raise type(error)(error.code, message).with_traceback(error.__traceback__) from error.__cause__


OF_A_PLAN = re.compile(r"^('[^']*'(?: on rank \d+)?) in step \d+")
"""How a message of a backend begins."""


@dataclass(frozen=True, slots=True)
class _Loop:
    run: Prepared
    stepping: Stepping
    looking: Running | None
    writers: list[Writer]
    samples: Samples
    show: Show
    keeper: checkpoints.Keeper

    def steps(self, point: RunPosition, stop: _Stop) -> Ended:
        """All steps that are left; the checkpoint that is under way becomes whole, also where one of them fails."""
        try:
            ended = self._steps(point, stop)
        except BaseException as error:
            if not isinstance(error, HfError) or error.code != "HF807":  # processes that do not answer do not write
                with suppress(HfError):
                    # A second Ctrl-C does not wait.
                    self.keeper.look(CHECKPOINT_TIMEOUT_S if isinstance(error, Exception) else 0.0)
            raise
        self.keeper.look(math.inf)
        return ended

    def _steps(self, point: RunPosition, stop: _Stop) -> Ended:
        config, last = self.run.loaded.config, self.run.loaded.config.steps
        if point.step == 0:
            self._write(Record(0, self._evaluated(0)))
        while point.step < last:
            point, record = self._step(point)
            self.keeper.look()
            step = point.step
            looks = config.evaluation is not None and step % config.evaluation.every == 0
            values = {**record.values, **(self._evaluated(step) if looks else {})}
            self._write(replace(record, values=values))
            if step % config.checkpoints.every == 0 or step == last or stop.asked:
                self.keeper.write(point)
            if stop.asked and step < last:
                return Ended(step, stopped=True)
            if step == last and not looks:  # after the checkpoint: a longer run would not look here
                self.keeper.look(math.inf)  # processes that are lost from here on may not write it
                self._write(Record(step, self._evaluated(step)))
        return Ended(point.step, stopped=False)

    def _step(self, point: RunPosition) -> tuple[RunPosition, Record]:
        start = perf_counter()
        step = point.step + 1
        with _numbered(f"step {step}"), self._verified(step):
            done = self.stepping.step(point.cursor, step, lambda running: self._recorded(running, step))
        seconds = perf_counter() - start
        passed = {name: float(getattr(done.cursor, name)) for name in ("epoch", "skipped", "held_out")}
        values = done.values | {f"data/{name}": value for name, value in passed.items() if value}
        length = next((value for name, value in values.items() if name.endswith("/length")), None)
        rows = responses(self.run.plan)
        speed = length * rows * done.rounds / seconds if length is not None and rows is not None else None
        return RunPosition(step, done.cursor, point.rows), Record(step, values, seconds, done.nodes, speed)

    @contextmanager
    def _verified(self, step: int) -> Iterator[None]:
        """Within this, what the step syncs is verified, where its number says so."""
        every = self.run.loaded.config.verify_sync
        with ExitStack() as stack:
            for running in self.stepping.runs if every is not None and step % every == 0 else ():
                stack.enter_context(running.verifying())
            yield

    def _recorded(self, running: Running, step: int) -> AbstractContextManager[None]:
        place = self.run.folder / RECORDINGS_FOLDER / f"step-{step}"
        if step not in self.run.loaded.config.record or (place / HEADER).exists():
            return nullcontext()  # a run that was resumed takes the same step again
        if place.exists():
            shutil.rmtree(place)  # of a run that was ended as it began
        return running.record(place)

    def _evaluated(self, step: int) -> dict[str, float]:
        if self.looking is None or self.run.evaluation is None:
            return {}
        with _numbered(f"evaluation after step {step}"):
            result = self.looking.step(self.run.unseen)
        self.samples.write(step, self.run.unseen, result)
        values = values_of(self.run.evaluation, result, step)
        return {f"held_out/{name.rpartition('/')[2]}": value for name, value in values.items()}

    def _write(self, record: Record) -> None:
        if record.values:
            for writer in self.writers:
                writer.write(record)
            self.show(record)


def responses(plan: CompiledPlan) -> int | None:
    """How many responses a step generates, as far as the sizes tell."""
    calls = [node for node in plan.graph.calls if isinstance(node.op, RoleCall) and isinstance(node.result, RecordType)]
    rollouts = [node.id for node in calls if "response_mask" in schema(node.result.record).fields]  # type: ignore[union-attr]  # it is one
    rows = row_table(plan, plan.dims).rows
    return sum(rows[node] for node in rollouts if node in rows) or None
