"""The processes as the loop of queues sees them: dispatches, updates and their results.

``stage_stream`` begins with a worked example of a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from hfdsl.runtime.backend import PollingBackend, WakingBackend
from hfdsl.runtime.loading import BatchSource
from hfdsl.runtime.queues.dispatch_loads import DispatchLoads
from hfdsl.runtime.queues.dispatched import Dispatched
from hfdsl.runtime.queues.durations import CallSeconds
from hfdsl.runtime.queues.links import TRAINER
from hfdsl.runtime.queues.loaded_prompts import LoadedPrompts
from hfdsl.runtime.queues.loop import QueuedId, QueueLoop
from hfdsl.runtime.queues.process_time import ProcessTime
from hfdsl.runtime.queues.reading import QueueReader
from hfdsl.runtime.queues.stage_plans import QueueStages
from hfdsl.runtime.queues.stage_run import StageRun
from hfdsl.runtime.queues.times import QueueTime
from hfdsl.runtime.queues.virtual_time import VirtualTime
from hfdsl.runtime.runner import StepRunner
from hfdsl.runtime.schedule import QueueBatch, QueueState
from hfdsl.types.batches import Batch


class QueueRun:
    """The processes as the loop of queues sees them: a ``QueueWorld``.

    ``dispatches`` counts the dispatches of each stage that feeds queues, from the ``first`` on; ``dispatched`` has for
    each queue the dispatches whose groups are on their way, or may be read by a queue behind it.
    """

    def __init__(
        self,
        runner: StepRunner,
        of_stages: Sequence[StepRunner],
        stages: QueueStages,
        loop: QueueLoop,
        seconds: Mapping[str, CallSeconds],
        first: int,
    ) -> None:
        self._runner, self.stages, self.loop, self._of_stages = runner, stages, loop, of_stages
        backend = runner.backend
        self._time: QueueTime = (
            ProcessTime(backend, stages)
            if isinstance(backend, PollingBackend)
            else VirtualTime(stages, seconds, runner.seed)
        )
        specs = [queue.spec for queue in loop.queues]
        self.dispatches = dict.fromkeys((*stages.links.sources, *stages.links.between), first)
        self.dispatched: list[dict[int, Dispatched]] = [{} for _ in stages.queues]
        self.prompts = LoadedPrompts(runner.plan, stages, specs, first)
        self._source: BatchSource | None = None  # from which prompts come while calls run
        self._reads_ahead = False
        self.loads = DispatchLoads(stages, self._time)
        self.synced = False
        self.unseen = list[QueuedId]()  # groups that have ended, and that the loop has not seen
        self._reader = QueueReader(stages, specs, self.dispatched)
        self._hands_on = any(queue.through for queue in stages.queues)
        self._left: list[int] = []  # by queue, the groups that had left it when `forget` ran last
        self._update: tuple[int, dict[int, StageRun]] | None = None
        self._results: deque[Any] = deque()
        self._unrecorded: deque[tuple[StepRunner, int, StageRun]] = deque()

    def read_from(self, source: BatchSource, first: list[Any], *, ahead: bool) -> Mapping[int, Iterator[int | None]]:
        """The prompts of each stage that dispatches them; ``first`` are batches read before.

        Where the backend can wait for calls and for the source at the same time, no stage waits for prompts alone. With
        ``ahead`` a batch is read as soon as there are places for it, while processes are busy.
        """
        wakes = isinstance(self._runner.backend, WakingBackend)
        self._source, self._reads_ahead = source if wakes else None, ahead
        return {
            stage: self.prompts.prompts(stage, source, first, waits=not wakes) for stage in self.stages.links.sources
        }

    # -- the world of the loop -----------------------------------------------------------------------------------------

    def accepts(self, stage: int) -> bool:
        """Whether a producer is free; a producer for a queue that waits in order dispatches ahead."""
        return self.loop.waits_in_order(stage) or self._time.accepts(stage)

    def dispatch(
        self, stage: int, numbers: Sequence[int], prompts: Sequence[int], version: int, batch: QueueBatch | None
    ) -> None:
        """Submit a step of a stage that feeds queues, for these prompts or a batch of the queue in front."""
        number, inputs, sizes = self.dispatches[stage], dict[int, Batch](), dict[Any, int]()
        batches = {} if batch is None else {self.stages.links.read_by(stage)[0]: batch}
        if batch is None:
            inputs = dict(self.prompts.dispatch(stage, prompts))
            sizes = self.prompts.sizes({stage: inputs})
        if not self.synced:
            self._runner.sync_first()
            self.synced, self.loads.first_version = True, version
        with self.breaking(number):
            self._keep_what_leaves(stage, number)
            step = self._new(stage, number, inputs, sizes, batches, prompts)
            if batch is not None:
                self._submit_reading(step, version, batches)
            elif not self.loads.awaited:
                self.loads.submit(number, step, inputs, version)
            if isinstance(self._time, VirtualTime) and not self.loads.awaited:
                step.resolve()
            dispatches = dict[int, Dispatched]()
            for index in self.stages.links.fed_by(stage):
                dispatch = Dispatched(
                    number=number,
                    queue=self.stages.queues[index],
                    table=step.table,
                    groups=tuple(numbers),
                    sizes=step.sizes,
                    step=step,
                    version=version,
                )
                dispatch.know(self.dispatched[index].get(number - 1))
                dispatches[index] = dispatch
                if batch is None and self.loads.awaited:
                    self.loads.put_off(dispatch, inputs)
            self._time.dispatched(stage, dispatches)
        for index, dispatch in dispatches.items():
            self.dispatched[index][number] = dispatch
        self.dispatches[stage] += 1
        if batch is None:
            self.prompts.dispatched(stage, prompts)

    def _keep_what_leaves(self, stage: int, number: int) -> None:
        """Keep the handles of the dispatch whose step the driver forgets when this one begins.

        Where a filter loses most groups, a group may wait in the queue while any number of later dispatches pass.
        """
        leaving = number - self.stages.plans[stage].steps_in_flight
        for index in self.stages.links.fed_by(stage):
            if leaving in self.dispatched[index]:
                self.dispatched[index][leaving].keep_handles(self._runner.backend)

    def _new(
        self,
        stage: int,
        number: int,
        inputs: Mapping[int, Batch],
        sizes: Mapping[Any, int],
        batches: Mapping[int, QueueBatch],
        prompts: Sequence[int] = (),
    ) -> StageRun:
        """A step of a stage that reads these inputs of the caller, for these prompts, and these batches, by queue."""
        sizes = dict(sizes)
        for dispatch in self._reader.dispatches_of(batches):
            dispatch.keep_handles(self._runner.backend)
            sizes |= dispatch.sizes
        batch_of = {self.stages.queues[index].queue_input: batch for index, batch in batches.items()}
        step = self._of_stages[stage].new_stage(number, inputs, sizes, frozenset(batch_of))
        of_caller = dict.fromkeys(inputs, prompts)
        step.prompts = lambda: (
            of_caller | {node: [group.prompt for group in batch.groups] for node, batch in batch_of.items()}
        )
        return step

    def _submit_reading(
        self, step: StageRun, version: int, batches: Mapping[int, QueueBatch], *, wait: bool = False
    ) -> None:
        """Submit a step that reads batches of queues."""
        step.begin({}, lambda slices: self._reader.read(batches, slices))
        in_flight = self.stages.in_flight_sync.of_update(version, scheduled=self.loads.scheduled)
        step.submit(0, [version], self._reader.versions(batches), wait=wait, in_flight=in_flight)

    def idle(self) -> bool:
        """Whether the last update's result exists; an update sends weights, which calls behind filters may not get."""
        return self._update is None and (not self.stages.loads_wait or self._time.filtered())

    def train(self, batches: Sequence[QueueBatch]) -> None:
        """Submit the stages that make results, each for the batches of its queues."""
        update, steps = batches[0].update, dict[int, StageRun]()
        by_queue = dict(zip(self.stages.links.read_by(TRAINER), batches, strict=True))
        with self.breaking(update):
            last_dispatch = max(dispatch.number for dispatch in self._reader.dispatches_of(by_queue))
            self.loads.submit_through(last_dispatch, self._runner.backend)
            for stage in self.stages.last:
                read = {index: batch for index, batch in by_queue.items() if self.stages.queues[index].reads == stage}
                steps[stage] = self._new(stage, update, {}, {}, read)
                self._submit_reading(steps[stage], update, read, wait=True)
        self._update = update, steps
        self._time.trained(update, steps)

    def ended(self) -> Sequence[QueuedId] | None:
        """Wait for the next call that ends, or for the loader."""
        self.forget()
        if self.unseen:
            groups, self.unseen = self.unseen, []
            return groups
        full = [stage for stage in self.dispatches if not self.loop.has_places(stage)]
        loader = self._awaited_loader(full)
        number = self._update[0] if self._update is not None else max(self.dispatches.values())
        with self.breaking(number):
            ended = self._time.ended(full, None if loader is None else lambda: not loader.pending)
            self.loads.note(self.dispatched[0].values(), {group for _, group in ended or ()}, self._runner.backend)
        if self._update is not None and self._time.idle():
            number, steps = self._update
            with self.breaking(number):
                results = {stage: iter(step.result()) for stage, step in steps.items()}
            self._results.append(self.stages.output.build(lambda ref: next(results[self.stages.stage_of[ref]])))
            self._update = None
            self._unrecorded += [(self._of_stages[stage], number, step) for stage, step in steps.items()]
        if ended is None and loader is not None:
            loader.wait()
            return ()
        return ended

    def _awaited_loader(self, full: Collection[int]) -> BatchSource | None:
        """The loader, if a batch is to come from it for a stage that is not ``full``."""
        source, sources = self._source, [stage for stage in self.stages.links.sources if stage not in full]
        if source is None:
            return None
        if self._reads_ahead and any(map(self._lacks_prompts, sources)):
            source.ask()
        return source if source.pending else None

    def _lacks_prompts(self, stage: int) -> bool:
        """Whether fewer prompts are here than a stage dispatches."""
        per_dispatch = self.loop.queues[self.stages.links.fed_by(stage)[0]].spec.dispatch
        return self.prompts.undispatched(stage) + len(self.loop.again(stage)) < per_dispatch

    def is_lost(self, group: QueuedId) -> bool:
        """Whether a filter removed a group that has ended."""
        queue, number = group
        return number not in self._reader.dispatch_of(queue, number).kept

    @property
    def busy(self) -> bool:
        """Whether an update is in progress, or a result has not been yielded."""
        return self._update is not None or bool(self._results)

    def given_out(self) -> Iterator[Any]:
        """The results that exist."""
        while self._results:
            result = self._results.popleft()
            self._runner.commit()
            self.record(2)
            yield result

    def record(self, at_most: int) -> None:
        """Record steps whose calls have all ended, except the last ones; to keep none, wait for all calls."""
        while len(self._unrecorded) > at_most:
            runner, number, step = self._unrecorded[0]
            with self.breaking(number):
                if at_most:
                    self._time.submitted(step)
                    if not self._time.has_ended(step):
                        return
                record = step.record(wait=not at_most)
            self._unrecorded.popleft()
            self._time.recorded(step)
            runner.routings.measure(record)
            self._runner.keep(record)

    def needed_groups(self) -> list[set[int]]:
        """By queue, the groups in progress, and those that may be read for groups made from them."""
        needed: list[set[int]] = [set(queue.groups) for queue in self.loop.queues]
        for index, queue in enumerate(self.loop.queues) if self._hands_on else ():
            for in_front, group in self._reader.made_of(index, queue.groups.values()):
                needed[in_front].add(group.number)
        return needed

    def forget(self) -> None:
        """Drop dispatches without groups in progress, and the prompts of groups that will not be dispatched again."""
        left = [queue.dispatched - len(queue.groups) for queue in self.loop.queues]
        if left == self._left:
            return
        self._left = left
        for index, (dispatches, needed) in enumerate(zip(self.dispatched, self.needed_groups(), strict=True)):
            for number, dispatch in list(dispatches.items()):
                if needed.isdisjoint(dispatch.groups):
                    del dispatches[number]
                    self._ended(index, dispatch)
                elif dispatch.handles and not needed.issuperset(dispatch.groups):
                    dispatch.forget([group for group in dispatch.groups if group not in needed])
        for stage in self.stages.links.sources:
            behind = [self.loop.queues[index] for index in self.stages.links.behind(stage)]
            on_their_way = (group.prompt for queue in behind for group in queue.groups.values())
            self.prompts.forget(stage, [*on_their_way, *(prompt for queue in behind for prompt in queue.again)])

    def settle(self) -> None:
        """Wait for all groups in progress, and keep the handles that they need.

        Raises:
            CheckpointError: HF908 if a call waits for weights of a later update, as in the log that is repeated.
        """
        self.forget()
        self.loads.check_arrived(self.dispatched[0], self.version)
        last = max(self.dispatches.values())
        with self.breaking(last):
            self.loads.submit_through(last, self._runner.backend)
        if isinstance(self._time, VirtualTime):
            self._time.settle()
        for dispatches in self.dispatched:
            for number, dispatch in dispatches.items():
                with self.breaking(number):
                    dispatch.keep_handles(self._runner.backend)
                    self.loads.note([dispatch], dispatch.groups, self._runner.backend)

    def show_all(self) -> None:
        """Show the loop that all groups have ended."""
        self.unseen = [(index, group) for index, queue in enumerate(self.loop.queues) for group in queue.groups]

    @property
    def version(self) -> int:
        """The number of updates."""
        return self.loop.queues[0].version

    def _ended(self, index: int, dispatch: Dispatched) -> None:
        """Remove a dispatch from one queue; record its step once it is gone from all queues."""
        stage = self.stages.links.of[index].feeds
        others = [self.dispatched[fed] for fed in self.stages.links.fed_by(stage)]
        if self.loads.forget(dispatch.number) or any(dispatch.number in dispatches for dispatches in others):
            return
        if dispatch.step is not None:
            self._unrecorded.appendleft((self._of_stages[stage], dispatch.number, dispatch.step))

    def breaking(self, number: int) -> AbstractContextManager[None]:
        """Within this context, an error breaks the run and reports the contents of the queues."""
        return self._runner.breaking_stream(number, lambda: in_words(self.loop.queues))


def in_words(queues: Sequence[QueueState]) -> str:
    """The contents of the queues."""
    return ", ".join(f"'{queue.spec.name}' of lag {queue.spec.lag} has {len(queue.groups)} groups" for queue in queues)
