"""The steps of one plan: start, run, count and record each, alone or within a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hfdsl.errors import LostProcessError, SizeError
from hfdsl.plan.plan import Plan
from hfdsl.plan.sizes import bind_sizes
from hfdsl.plan.timeline import TraceFile
from hfdsl.runtime.backend import Backend, do_nothing
from hfdsl.runtime.inputs import loaded_inputs
from hfdsl.runtime.processes import Processes
from hfdsl.runtime.queues.files import SavedStep
from hfdsl.runtime.queues.stage_run import StageRun
from hfdsl.runtime.recovery.ended_calls import Replies, StepAttempt, StepReplies, ended_calls
from hfdsl.runtime.recovery.steps import LOSS_SECONDS, RecoverableBackend, ranks_in_words
from hfdsl.runtime.routings import Routings
from hfdsl.runtime.step import StepRun
from hfdsl.runtime.timeline import StepRecord, timeline
from hfdsl.runtime.verification.digest_report import DigestReport
from hfdsl.types.batches import Batch


class StepRunner:
    """Runs the steps of a plan; ``record`` is the last step's, and ``traces`` are the files that get all records."""

    def __init__(self, plan: Plan, processes: Processes) -> None:
        self.plan, self.routings = plan, Routings(plan)
        self.record: StepRecord | None = None
        self.traces: list[TraceFile] = []
        self._processes = processes
        self._unwritten: StepRecord | None = None
        self._unfinished: StepRun | None = None  # the step that has begun and not ended
        self._first_syncs: StepRunner | None = None

    def stage(self, plan: Plan) -> StepRunner:
        """The runner of a stage of this plan, on the same processes."""
        self._processes.usable_backend(self.plan.name).add(plan)
        return StepRunner(plan, self._processes)

    @property
    def backend(self) -> Backend:
        """The backend; HF808 if it can no longer be used."""
        return self._processes.usable_backend(self.plan.name)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self._processes.seed

    @property
    def next_step(self) -> int:
        """The number of committed steps."""
        return self._processes.steps[self.plan.name]

    def new(
        self, inputs: Mapping[int, Batch], number: int | None = None, short_steps: frozenset[int] | None = None
    ) -> StepRun:
        """A new step, by default the next one.

        Raises:
            SizeError: HF302, HF319 for sizes that do not work out.
        """
        backend, sizes = self._processes.usable_backend(self.plan.name), bind_sizes(self.plan, inputs)
        routing = self.routings.of(backend, inputs, sizes, self._processes.generation, short_steps)
        number = self.next_step if number is None else number
        replies = StepReplies(kept=self._processes.recovery is not None and not self.plan.steps_in_flight)
        return StepRun(self.plan, backend, routing, number, sizes, replies)

    def new_stage(
        self, number: int, inputs: Mapping[int, Batch], sizes: Mapping[Any, int], queues: frozenset[int]
    ) -> StageRun:
        """A step of a stage; the inputs in ``queues`` are cut for every process; errors as for ``new``."""
        backend = self._processes.usable_backend(self.plan.name)
        routing = self.routings.of(backend, inputs, sizes, self._processes.generation, None, queues)
        return StageRun(self.plan, backend, routing, number, sizes)

    def run(self, step: StepRun, inputs: Mapping[int, Batch]) -> Any:
        """Run a step from beginning to end, and count it."""
        self._unfinished = step
        result, record = step.run(inputs, self.write)
        self._unfinished = None
        reports = self._reports(record) if self._processes.verifying else []
        self.commit()
        self._processes.syncs.report(reports)
        self.keep(record)
        return result

    def _reports(self, record: StepRecord) -> list[DigestReport]:
        """The digests that ranks have taken in a step."""
        calls = (call for result in record.results for call in result.calls)
        return [*(report for call in calls for report in call.reports), *self.backend.sent_digests()]

    def run_again(self, inputs: Mapping[int, Batch]) -> Any:
        """Run the dataflow once on the current processes, except for ended calls that a loss has left."""
        self.recovered()
        step = self.new(inputs)
        unfinished = self._unfinished
        attempt = None if unfinished is None else unfinished.replies.attempt(unfinished.routes)
        if attempt is not None:
            step.replies.skip(StepAttempt(attempt.routes, self._ended_calls(attempt)))
        return self.run(step, inputs)

    def _ended_calls(self, attempt: StepAttempt) -> Mapping[int, Replies]:
        """The calls of an interrupted attempt that need not run again; processes forget their other values."""
        recovery = self._processes.recovery
        if recovery is None or not recovery.left:
            return {}
        groups = () if self._processes.verifying or self._processes.recording else recovery.left
        ended, used = ended_calls(attempt.routes, attempt.replies, groups, recovery.backend.succeeded)
        recovery.backend.forget(set(recovery.left) - used)
        return ended

    def begin(self, number: int, batch: Any) -> StepRun:
        """Begin a step of a stream: errors as for ``Running.step``."""
        self._processes.usable_backend(self.plan.name)
        inputs = loaded_inputs(self.plan, batch)
        step = self.new(inputs, number)
        with self.breaking(number):
            step.begin(inputs, held=True)
        return step

    def sync_first(self) -> None:
        """Before a stream's first dispatch, send its producers the weights that they would get with the first sync.

        Where they have them, nothing changes.
        """
        backend = self._processes.usable_backend(self.plan.name)
        with self.breaking(self.next_step):
            if self.plan.first_syncs is None:
                return
            if self._first_syncs is None:
                backend.add(self.plan.first_syncs)
                self._first_syncs = StepRunner(self.plan.first_syncs, self._processes)
            self._first_syncs.new({}, self.next_step).run({}, do_nothing)

    def resume(self, saved: SavedStep, inputs: Mapping[int, Batch]) -> StepRun:
        """Continue a step of an earlier run's stream."""
        step = self.new(inputs, saved.number, frozenset(saved.short_steps))
        with self.breaking(saved.number):
            step.begin(inputs)
            step.resume(saved)
        return step

    def commit(self) -> None:
        """Count a step whose result exists."""
        self._processes.steps[self.plan.name] += 1
        self._processes.syncs.add(self.plan, self._processes.verifying)

    def recovered(self) -> None:
        """Use the current processes, after others were lost."""
        self._processes.broken = None
        self._processes.forget_replaced(self.backend)

    def breaking(self, number: int) -> BreakingContext:
        """Within this context, an error breaks the run, since processes may be anywhere within the step."""
        return BreakingContext(self.plan.name, self._processes, number)

    def breaking_stream(self, number: int, queues: Callable[[], str]) -> BreakingContext:
        """As ``breaking``; errors of losses, and of filters that keep too little, report the contents of ``queues``.

        That of a loss names the ranks that are gone.
        """
        return BreakingContext(self.plan.name, self._processes, number, queues)

    def keep(self, record: StepRecord) -> None:
        """Keep the record of a completed step, and its times of bodies."""
        self.write()
        self.record = record
        self._unwritten = record if self.traces else None
        self.routings.measure(record)

    def write(self) -> None:
        """Write the last step to the traces, once."""
        if self._unwritten is not None:
            record, self._unwritten = self._unwritten, None
            for file in self.traces:
                file.add(timeline(record))


class BreakingContext:
    """A context whose errors break the run; a class, since a step enters several, and a generator costs more.

    With ``queues`` it reports their contents.
    """

    __slots__ = ("_number", "_plan", "_processes", "_queues")

    def __init__(self, plan: str, processes: Processes, number: int, queues: Callable[[], str] | None = None) -> None:
        self._plan, self._processes, self._number, self._queues = plan, processes, number, queues

    def __enter__(self) -> None:
        """Nothing to do before an error."""

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        self._processes.broken = f"step {self._number} of '{self._plan}' ({type(error).__name__})"
        reported = error if self._queues is None else self._reported(error, self._queues)
        if reported is not error:
            raise reported from None

    def _reported(self, error: BaseException, queues: Callable[[], str]) -> BaseException:
        """The error with the contents of queues, if these may explain it."""
        if isinstance(error, SizeError):
            return SizeError(error.code, f"{error.message}, in step {self._number} while {queues()}")
        backend = self._processes.backend
        if not isinstance(error, LostProcessError) or not isinstance(backend, RecoverableBackend):
            return error
        lost = backend.lost_ranks(LOSS_SECONDS)
        if not lost:
            return error
        text = f"step {self._number} of '{self._plan}' lost {ranks_in_words(lost)} while {queues()}: {error.message}"
        named_loss = LostProcessError("HF806", text)
        named_loss.deaths = error.deaths
        return named_loss
