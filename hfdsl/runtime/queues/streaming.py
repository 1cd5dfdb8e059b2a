"""The run of a program with queues: stages step independently, and results come in the order of updates.

A worked example. An engine generates, a queue of lag 1 follows, an actor trains and sends its weights to the engine::

    rollout = engine.generate(prompts)                     stage 0
    batch = hf.queue(rollout, lag=1, late="wait")
    metrics = actor.update(batch)                          stage 1
    hf.sync(actor, engine)                                 stage 1

The driver submits, and its processes run their calls in this order::

    driver                                engine                   actor
    the sync, once                        load 0                   export 0
    stage 0 of step 0                     generate 0, version 0
    stage 0 of step 1                     generate 1, version 0
    stage 1 of step 0, waits for result   |                        update 0, export 1
    stage 0 of step 2                     load 1, generate 2       |
    stage 1 of step 1, waits for result   |                        update 1, export 2
    stage 0 of step 3                     load 2, generate 3       |

A slow loader delays updates, although the queues have batches: stage 0 of step 2 comes before update 1, since its rows
are to have version 1, and the loader is not asked for its batch before the queues have a place.

Payloads go from the engine to the actor as in any step: a queue is the time between the submissions of two stages of
one step, and it holds the payloads whose reader has not been submitted. The driver holds only handles and numbers.

Why it is right. *The bound*: ``QueueState`` admits step n into a queue of lag k after step n - k - 1 was taken; the
load that belongs to that take was submitted before, and a process runs its calls in the order of submission. So step n
is generated under version n - k, and trained under version n. A call of the engine that waits for a filter is submitted
before the next update, which waits for the filter. Through queues of lags k and l, a step is begun only if the last
stage is at most k + l steps behind (``stage_lags``): both queues alone have places for one more. Version 0 is the
actor's, whatever weights the engine began with: everything that ``hf.sync`` sends is sent once before the first
dispatch (``graph.first_syncs``). *The same values everywhere*: the order of submission does not depend on times, and
random streams are derived from the number of the step. *No deadlock*: a stage is submitted after the stages that feed
it, so everything that the earliest call waits for has been submitted. *Backpressure*: a stage is submitted only if its
queues have places, and the result of an update is fetched before the next one is submitted. *Nothing is lost*: a step
that has begun stays in the stream until its result has been yielded; if the caller stops, or the loader raises, the
next ``stream`` continues with it, and with what the loader was asked for. A checkpoint holds all of this (``files``).

All four disciplines make the same decisions here: engines finish the rows of a step as a whole and in order, so nothing
is ever late. ``hfdsl simulate`` shows what they would do with groups that finish one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hfdsl.errors import CheckpointError, SizeError
from hfdsl.graph.lags import stage_lags
from hfdsl.graph.stages import syncs
from hfdsl.plan.payloads import DRIVER_PROCESS
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.plan.queues import queried_calls
from hfdsl.plan.rows import row_table
from hfdsl.plan.sizes import bind_sizes
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.decisions import (
    Decision,
    dispatch_decision,
    take_decision,
)
from hfdsl.runtime.inputs import loaded_inputs
from hfdsl.runtime.loading import END, BatchSource
from hfdsl.runtime.queues.decision_log import DecisionLog
from hfdsl.runtime.queues.files import (
    QueueFile,
    SavedQueue,
    SavedStream,
    loading_backend,
    saving_backend,
    written_files,
)
from hfdsl.runtime.queues.groups import cut_group
from hfdsl.runtime.queues.stage_plans import subject_of
from hfdsl.runtime.recovery.steps import RecoverableBackend
from hfdsl.runtime.runner import StepRunner
from hfdsl.runtime.saving.loaded_states import check_loads_of_stream
from hfdsl.runtime.schedule import QueueSpec, QueueState
from hfdsl.runtime.step import StepRun


class StageOrder:
    """The order in which stages may be submitted; the unit of its queues is the rows that one step puts in.

    ``steps`` counts the submitted steps of each stage, including those before the stream. Stages that feed no queue
    make the results: they step together, so that a version is the number of results, whichever of them trains a state.
    """

    def __init__(self, plan: Plan, first_step: int) -> None:
        self.steps = [first_step] * plan.split.count
        self._feeds = [(plan.split.producer(node), plan.split.of[node.id]) for node, _ in plan.split.queues]
        self._last = sorted({*range(plan.split.count)} - {producer for producer, _ in self._feeds})
        self._ahead = [(*stages, lag) for stages, lag in stage_lags(plan.split).items()]
        names = ["queue"] if len(self._feeds) == 1 else [f"queue{i + 1}" for i in range(len(self._feeds))]
        self.queues = [
            QueueState(QueueSpec(name, queue.lag or 0, queue.late or "wait"), first_step, first_step)
            for name, (_, queue) in zip(names, plan.split.queues, strict=True)
        ]

    def next(self, *, prompts: bool, logged: Decision | None = None) -> int | None:
        """The first stage that may be submitted; None if none may. No stage before it has places.

        Without ``prompts`` no step is begun. The stage of a ``logged`` decision, which is to be repeated, comes first.
        """
        repeated = () if logged is None else self._stages_of(logged)
        stages = (*repeated, *self._last_behind, *range(len(self.steps)))
        return next((stage for stage in stages if self._may_step(stage, prompts=prompts)), None)

    def _stages_of(self, decision: Decision) -> list[int]:
        """The stage that a decision of a queue submits; none for an unknown queue."""
        return [
            producer if decision.kind == "dispatch" else reader
            for queue, (producer, reader) in zip(self.queues, self._feeds, strict=True)
            if queue.spec.name == decision.queue
        ]

    @property
    def _last_behind(self) -> list[int]:
        """The last stages that are a step behind the others, which were submitted for the same result."""
        results = [self.steps[stage] for stage in self._last]
        return [stage for stage in self._last if self.steps[stage] == min(results) < max(results)]

    def _may_step(self, stage: int, *, prompts: bool) -> bool:
        steps = self.steps[stage]
        if steps == max(self.steps) and not prompts:
            return False
        together = [last for last in self._last if self.steps[last] <= steps] if stage in self._last else [stage]
        return all(self.steps[producer] > steps for producer, reader in self._feeds if reader in together) and all(
            steps - self.steps[behind] <= lag for ahead, behind, lag in self._ahead if ahead == stage
        )

    def counted(self, stage: int) -> list[int]:
        """The steps of every stage before the next one of a stage; those that make the same result count alike."""
        steps, together = self.steps[stage], self._last if stage in self._last else ()
        return [steps if other in together else count for other, count in enumerate(self.steps)]

    def makes_results(self, stage: int) -> bool:
        """Whether a stage feeds no queue; such stages train, and send weights."""
        return stage in self._last

    def sources_of(self, stage: int) -> list[int]:
        """For each queue of a stage that makes results, the first stages on the way there; none for other stages."""
        return self._behind(stage) if stage in self._last else []

    def _behind(self, stage: int) -> list[int]:
        feeding = [producer for producer, reader in self._feeds if reader == stage]
        return [source for producer in feeding for source in self._behind(producer) or [producer]]

    def submit(self, stage: int) -> list[Decision]:
        """Count a step of a stage, and return the decisions of its queues."""
        decisions = list[Decision]()
        for index, (producer, reader) in enumerate(self._feeds):
            before = self.queues[index]
            if reader == stage:
                after, batch = before.take()
                decisions += [take_decision(batch)] if batch is not None else []
                self.queues[index] = after
            if producer == stage:
                after = before.dispatch([self.steps[stage]])
                decisions.append(dispatch_decision(before, after))
                # Its rows may not exist yet: the calls of the stage that reads them wait for them.
                self.queues[index] = after.finish([before.dispatched])
        self.steps[stage] += 1
        return decisions

    @property
    def decisions(self) -> int:
        """The number of decisions so far, including those before the stream."""
        return sum(self.steps[producer] + self.steps[reader] for producer, reader in self._feeds)

    def saved(self) -> tuple[SavedQueue, ...]:
        """The queues, for a checkpoint."""
        return tuple(
            SavedQueue(
                lag=queue.spec.lag, late=queue.spec.late, version=queue.version, groups=tuple(queue.groups.values())
            )
            for queue in self.queues
        )

    def load(self, saved: SavedStream) -> None:
        """Continue from a checkpoint of the same queues."""
        self.steps = list(saved.steps)
        self.queues = [
            replace(
                queue,
                version=saved_queue.version,
                dispatched=self.steps[producer],
                groups=MappingProxyType({group.number: group for group in saved_queue.groups}),
            )
            for queue, saved_queue, (producer, _) in zip(self.queues, saved.queues, self._feeds, strict=True)
        ]

    def __str__(self) -> str:
        return ", ".join(
            f"'{queue.spec.name}' of lag {queue.spec.lag} has {len(queue.groups)} of {queue.spec.places} batches"
            for queue in self.queues
        )


class Stream:
    """The steps of a run that have begun and not ended."""

    def __init__(self, runner: StepRunner) -> None:
        self._plan, self._runner = runner.plan, runner
        self.reset()
        self._loads_wait = self._has_queried_readers()
        known_rows = row_table(self._plan, self._plan.dims).rows  # of which the check knew whether they cut a group
        queues = [(node, queue.group) for node, queue in self._plan.split.queues if node.id not in known_rows]
        self._groups = [(node, group) for node, group in queues if group > 1]

    def reset(self) -> None:
        """Begin after the committed steps, with none in progress."""
        self.order = StageOrder(self._plan, self._runner.next_step)
        self._in_flight: dict[int, StepRun] = {}
        self._synced = False  # whether producers have the weights of the version under which they begin
        self._unrecorded: deque[tuple[int, StepRun]] = deque()  # yielded; the rest may still run

    def results(self, source: BatchSource, log: DecisionLog) -> Generator[Any]:
        """Submit stages as their queues allow, and yield the results of steps in order."""
        log.check_queues([queue.spec.name for queue in self.order.queues])
        prompts = True
        while not log.repeated:
            stage = self.order.next(prompts=prompts and log.begins_steps, logged=log.next)
            if stage is None:
                break
            step = self.order.steps[stage]
            if step not in self._in_flight:
                batch = source.next()
                prompts = batch is not END
                if prompts:
                    self._check_groups(batch)
                    self._sync_first()
                    self._in_flight[step] = self._runner.begin(step, batch)
                continue
            if self._loads_wait and self.order.makes_results(stage):
                self._submit_queried()
            with self._breaking(step):
                self._in_flight[step].submit(stage, self.order.counted(stage))
            log.add(self.order.submit(stage), loader_ended=not prompts)
            if min(self.order.steps) > step:
                yield self._finish(step)
        log.end()
        self._record(0)

    @property
    def batches_read(self) -> int:
        """The number of the loader's batches that this stream has; each begins a step."""
        return max([*self.order.steps, *(number + 1 for number in self._in_flight)])

    def read_ahead(self, batch: Any) -> None:
        """Begin a step with the loader's next batch, without submitting any of its stages; errors as for a step."""
        number = self.batches_read
        self._check_groups(batch)
        self._sync_first()
        self._in_flight[number] = self._runner.begin(number, batch)

    def save(self, backend: Backend, folder: str) -> SavedStream | None:
        """Write the steps in progress; None if there are none.

        Raises:
            CheckpointError: HF906 if a file cannot be written, HF908 if a queue holds a value that no file can hold, or
                the backend cannot write it.
            ResourceError: HF518 if the backend has not written it.
        """
        if not self._in_flight:
            return None
        check_loads_of_stream(self._plan)
        pending = {number: run.pending() for number, run in self._in_flight.items()}
        read_here = {number: backend.get(handles.pop(DRIVER_PROCESS, ())) for number, handles in pending.items()}
        files = dict[str, Sequence[QueueFile]]()
        if self.order.queues:  # else a step that has begun is its inputs, which the driver has
            files |= written_files(saving_backend(backend, self.order), folder, self._plan, pending)
        files[DRIVER] = [backend.driver.stores.save(folder, self._plan.name, read_here)]
        return SavedStream(
            plan=self._plan.name,
            steps=tuple(self.order.steps),
            queues=self.order.saved(),
            in_progress=tuple(run.saved(number) for number, run in self._in_flight.items()),
            files=files,
        )

    def load(self, backend: Backend, folder: str, saved: SavedStream) -> None:
        """Continue with the steps in progress.

        Raises:
            CheckpointError: HF905 if the backend cannot load them, HF906 if a file is damaged.
        """
        self.order.load(saved)
        keeping = loading_backend(backend, self.order) if self.order.queues else None
        try:
            if keeping is not None:
                keeping.load_queues(folder, saved.plan, saved.files)
            backend.driver.stores.load(folder, saved.plan, saved.files[DRIVER][0])
            inputs = {step.number: backend.driver.inputs_of(saved.plan, step.number) for step in saved.in_progress}
        except (KeyError, IndexError, ValueError) as error:
            raise CheckpointError(
                "HF906", f"the queues saved in {folder} are not those of this plan: {error!r}"
            ) from None
        self._synced = True  # the state of every copy was loaded
        for step in saved.in_progress:
            self._in_flight[step.number] = self._runner.resume(step, inputs[step.number])

    def copy(self, backend: Backend) -> Callable[[Any], None]:
        """Keep the handles of the steps in progress; return the function that continues from them and copies of states.

        It waits for runtime queries, as ``save`` does.

        Raises:
            CheckpointError: HF908 if the driver holds objects that cannot be copied.
        """
        pending = {number: run.pending() for number, run in self._in_flight.items()}
        for_driver = {number: by_process.pop(DRIVER_PROCESS, []) for number, by_process in pending.items()}
        held, synced = backend.driver.stores.copies().get(self._plan.name), self._synced
        saved = SavedStream(
            plan=self._plan.name,
            steps=tuple(self.order.steps),
            queues=self.order.saved(),
            in_progress=tuple(run.saved(number) for number, run in self._in_flight.items()),
        )

        def go_back(states: Any) -> None:
            backend = self._runner.backend
            self.reset()
            self.order.load(saved)
            self._synced = synced
            if isinstance(backend, RecoverableBackend):
                backend.restore_queues(self._plan.name, states, pending)
            contents = {number: backend.get(handles) for number, handles in for_driver.items()}
            backend.driver.stores.restore(self._plan.name, held, contents)
            for step in saved.in_progress:
                inputs = backend.driver.inputs_of(self._plan.name, step.number)
                self._in_flight[step.number] = self._runner.resume(step, inputs)

        return go_back

    def _has_queried_readers(self) -> bool:
        """Whether a role that gets weights by a sync has calls in front of a queue that wait for a filter.

        These calls are submitted once the filter has run, so an update, which sends weights, waits until then: they
        belong to the version of their dispatch.
        """
        targets = {sync.target.role for sync in syncs(self._plan.graph)}
        stage_of = self._plan.split.of
        return any(
            call.role in targets and not self.order.makes_results(stage_of[node.id])
            for node, call in queried_calls(self._plan)
        )

    def _check_groups(self, batch: Any) -> None:
        """Raise ``SizeError`` (HF745) if a step of this batch cuts a group of a queue, as far as its rows are known."""
        if not self._groups:
            return
        rows = row_table(self._plan, bind_sizes(self._plan, loaded_inputs(self._plan, batch))).rows
        for queue, group in self._groups:
            count = rows.get(queue.id, 0)
            if count % group:
                raise SizeError("HF745", cut_group(subject_of(self._plan, queue), "a step puts in", count, group))

    def _submit_queried(self) -> None:
        for number, run in self._in_flight.items():
            with self._breaking(number):
                run.submit_queried()

    def _sync_first(self) -> None:
        if not self._synced:
            self._runner.sync_first()
            self._synced = True

    def _breaking(self, step: int) -> AbstractContextManager[None]:
        return self._runner.breaking_stream(step, lambda: str(self.order))

    def _finish(self, step: int) -> Any:
        run = self._in_flight.pop(step)
        with self._breaking(step):
            result = run.result()
        self._unrecorded.append((step, run))
        self._record(self._plan.steps_in_flight)
        self._runner.commit()
        return result

    def _record(self, at_most: int) -> None:
        """Record steps except the last ones; all calls of earlier steps have ended by now."""
        while len(self._unrecorded) > at_most:
            step, run = self._unrecorded.popleft()
            with self._breaking(step):
                record = run.record()
            self._runner.keep(record)
