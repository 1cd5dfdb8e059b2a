"""The processes as the loop of a queue sees them: dispatches, updates, their results, and what a checkpoint holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from hfdsl.errors import HfError
from hfdsl.graph.program import Input
from hfdsl.plan.payloads import ColumnSlice
from hfdsl.plan.rows import row_table
from hfdsl.plan.sizes import bind_sizes
from hfdsl.protocols.ranges import RowRanges, as_ranges
from hfdsl.runtime.backend import Backend, PollingBackend
from hfdsl.runtime.decisions import Decision, Loads, load_decisions
from hfdsl.runtime.inputs import loaded_inputs
from hfdsl.runtime.loading import END, BatchSource
from hfdsl.runtime.queues.dispatched import Dispatched
from hfdsl.runtime.queues.files import SavedStep
from hfdsl.runtime.queues.groups import groups_of
from hfdsl.runtime.queues.loop import QueueLoop
from hfdsl.runtime.queues.plan_simulation import CallSeconds
from hfdsl.runtime.queues.rows import QueuedPart, QueuedRows, QueueRead, needed_rows
from hfdsl.runtime.queues.stage_plans import QueueStages
from hfdsl.runtime.queues.stage_run import StageRun
from hfdsl.runtime.queues.times import ProcessTime, QueueTime, VirtualTime
from hfdsl.runtime.rank.in_flight import flights
from hfdsl.runtime.rank.store import PayloadContent, Store
from hfdsl.runtime.runner import StepRunner
from hfdsl.runtime.schedule import QueueBatch
from hfdsl.types.batches import Batch, rebuild
from hfdsl.types.joining import picked_rows, rows_after_rows


class QueueRun:
    """The processes as the loop of a queue sees them: a ``QueueWorld``."""

    def __init__(
        self,
        runner: StepRunner,
        of_stages: tuple[StepRunner, StepRunner],
        stages: QueueStages,
        queue: QueueLoop,
        seconds: Mapping[str, CallSeconds],
    ) -> None:
        self._runner, self._stages, self._queue = runner, stages, queue
        self._producer, self._trainer = of_stages
        backend = runner.backend
        self._time: QueueTime = (
            ProcessTime(backend, stages)
            if isinstance(backend, PollingBackend)
            else VirtualTime(stages, seconds, runner.seed)
        )
        self.dispatches = self.loaded = 0
        self.next_prompt = 0  # of the loader, whose prompts are dispatched in order
        self._dispatched: dict[int, Dispatched] = {}
        self._batches: dict[int, Mapping[int, Batch]] = {}  # of the loader, by its number
        self._update: tuple[int, StageRun] | None = None
        self._results: deque[Any] = deque()
        self._unrecorded: deque[tuple[StepRunner, int, StageRun]] = deque()
        self._synced, self._first_version = False, 0  # that of the sync
        self._put_in: dict[tuple[Any, ...], int | None] = {}  # groups, by the sizes of the last batch
        self._flights = flights(stages.producer, stages.consumer)
        self._unsubmitted: dict[int, tuple[Mapping[int, Batch], int]] = {}  # dispatches: their inputs and version
        self._loads: deque[Decision] = deque()
        self.repeated: Loads | None = None  # what calls loaded in flight in a run that this one repeats
        self._unseen = list[int]()  # groups that have ended, and that the loop has not seen

    # -- prompts -------------------------------------------------------------------------------------------------------

    def prompts(self, source: BatchSource, first: Any) -> Iterator[int]:
        """The numbers of prompts that were not dispatched; ``first`` is a batch that was asked for already."""
        per_batch, number = self._queue.state.spec.dispatch, self.next_prompt
        while True:
            yield from range(number, self.loaded * per_batch)
            number = self.loaded * per_batch
            batch = source.next() if first is None else first
            first = None
            if batch is END:
                return
            inputs = self._checked(batch)
            self._batches[self.loaded] = inputs
            self.loaded += 1

    def _checked(self, batch: Any) -> Mapping[int, Batch]:
        """A batch of the loader, by the nodes of the first stage.

        Raises:
            HfError: HF765 where it puts another number of groups in than the first one; and as ``Running.step``.
        """
        plan = self._runner.plan
        names = {node.id: node.label for node in plan.graph.inputs}
        inputs = {self._stages.inputs[names[node]]: given for node, given in loaded_inputs(plan, batch).items()}
        sizes = bind_sizes(self._stages.producer, inputs)
        known = tuple(sizes.items())
        if known not in self._put_in:
            self._put_in = {known: groups_of(self._stages, sizes)[0]}
        put_in, spec = self._put_in[known], self._queue.state.spec
        if put_in != spec.dispatch:
            raise HfError(
                "HF765",
                f"a batch of the loader of '{plan.name}' puts {put_in} groups into '{spec.name}', and those before put "
                f"in {spec.dispatch}; give every step as many prompts",
            )
        return inputs

    def _inputs(self, prompts: Sequence[int]) -> Mapping[int, Batch]:
        """The rows of these prompts, by input."""
        per_batch = self._queue.state.spec.dispatch
        first = prompts[0] // per_batch
        if list(prompts) == list(range(first * per_batch, (first + 1) * per_batch)):
            return self._batches[first]
        nodes = self._batches[first]
        return {node: self._picked(node, prompts) for node in nodes}

    def _picked(self, node: int, prompts: Sequence[int]) -> Batch:
        per_batch = self._queue.state.spec.dispatch
        parts = list[tuple[Batch, list[int]]]()
        for prompt in prompts:
            batch = self._batches[prompt // per_batch][node]
            per_prompt = len(batch) // per_batch
            place = prompt % per_batch
            parts.append((batch, list(range(place * per_prompt, (place + 1) * per_prompt))))
        op = self._stages.producer.node(node).op
        record = op.record if isinstance(op, Input) else type(parts[0][0])
        columns = {}
        for name in parts[0][0].__hf_columns__:
            values = [picked_rows(batch.__hf_columns__[name], rows) for batch, rows in parts]
            columns[name] = None if values[0] is None else rows_after_rows(values)
        return rebuild(record, columns)

    # -- the world of the loop -----------------------------------------------------------------------------------------

    def accepts(self) -> bool:
        """Whether a producer is free; one that waits in order dispatches ahead."""
        return self._queue.state.spec.late == "wait" or self._time.accepts()

    def dispatch(self, numbers: Sequence[int], prompts: Sequence[int], version: int) -> None:
        """Submit the first stage for these prompts."""
        number, inputs = self.dispatches, self._inputs(prompts)
        sizes = bind_sizes(self._stages.producer, inputs)
        if not self._synced:
            self._runner.sync_first()
            self._synced, self._first_version = True, version
        with self._breaking(number):
            step = self._producer.new_stage(number, inputs, sizes, None)
            if isinstance(self._time, VirtualTime) and self._flights.calls:
                self._unsubmitted[number] = inputs, version  # what its calls load in flight is known when they end
            else:
                self._submit(number, step, inputs, version)
            dispatch = Dispatched(
                number=number,
                stages=self._stages,
                table=step.table,
                groups=tuple(numbers),
                sizes=sizes,
                step=step,
                version=version,
            )
            if isinstance(self._time, VirtualTime) and number not in self._unsubmitted:
                step.resolve()
                dispatch.settle(step.table)
            dispatch.know(self._dispatched.get(number - 1))
            self._time.dispatched(dispatch)
        self.dispatches += 1
        self.next_prompt = max(self.next_prompt, *(prompt + 1 for prompt in prompts))
        self._dispatched[number] = dispatch

    def _submit(self, number: int, step: StageRun, inputs: Mapping[int, Batch], version: int) -> None:
        """Submit the calls of a dispatch, with what they load in flight as far as a log or the virtual clock says."""
        schedules: dict[int, Sequence[Sequence[Any]] | None] = {}
        for called in self._flights.calls:
            node = called.node
            logged = [
                (rank, at, taken)
                for rank in called.ranks
                for at, taken in (self.repeated or {}).get((number, node, rank), ())
            ]
            clock = self._time.schedule(number, version, called) if isinstance(self._time, VirtualTime) else None
            schedules[node] = logged or clock
        step.begin(inputs)
        step.submit(
            0, [version], wait=False, in_flight=self._flights.of_dispatch(version, self._first_version, schedules)
        )

    def _submit_through(self, last: int) -> None:
        """Submit the dispatches up to one that has ended on the virtual clock, in order."""
        for number, (inputs, version) in list(self._unsubmitted.items()):
            dispatch = self._dispatched[number]
            if number <= last and dispatch.step is not None:
                del self._unsubmitted[number]
                self._submit(number, dispatch.step, inputs, version)
                self._note_loads(dispatch, dispatch.groups)

    def _note_loads(self, dispatch: Dispatched, groups: Iterable[int]) -> None:
        """Write down what the calls that made these groups of a dispatch have loaded in flight."""
        if dispatch.step is None:
            return
        labels = {called.node: called.label for called in self._flights.calls}
        ended = {place for group in groups for place in self._makers(dispatch, group)}
        calls = [
            (node, rank, handle)
            for node, rank, handle in dispatch.step.loads(labels)
            if (node, rank) in ended - dispatch.noted
        ]
        dispatch.noted |= ended
        results = self._runner.backend.done([handle for *_, handle in calls])
        loads = {
            (dispatch.number, node, rank): next(call.taken for call in result.calls if call.label == labels[node])
            for (node, rank, _), result in zip(calls, results, strict=True)
        }
        self._loads += load_decisions(self._queue.state.spec.name, dispatch.version, dispatch.groups, loads)

    def _makers(self, dispatch: Dispatched, group: int) -> Iterator[tuple[int, int]]:
        """The calls that take weights in flight, of those that made a group: node and rank."""
        for called in self._flights.calls:
            layout = self._stages.producer.layouts[called.node]
            ranks = [layout.producer(chunk)[1] for node, chunk in dispatch.places(group) if node == called.node]
            yield from ((called.node, rank) for rank in ranks or called.ranks)

    def loads_in_flight(self) -> list[Decision]:
        """What calls have loaded in flight since this was asked last."""
        loads, self._loads = list(self._loads), deque()
        return loads

    def idle(self) -> bool:
        """Whether the result of the last update is there."""
        return self._update is None

    def train(self, batch: QueueBatch) -> None:
        """Submit the second stage for a batch."""
        with self._breaking(batch.update):
            self._submit_through(max(self._dispatch_of(group.number) for group in batch.groups))
            for dispatch in self._dispatched.values() if self._stages.loads_wait else ():
                if dispatch.step is not None:  # what was dispatched under this version precedes the next one's weights
                    dispatch.step.resolve()
            parts = self._parts(batch)
            step = self._trainer.new_stage(batch.update, {}, parts[0][0].sizes, self._stages.queue_input)
            masked = frozenset(batch.masked)
            step.begin({}, lambda slices: self._read(batch, slices, masked))
            in_flight = self._flights.of_update(batch.update)
            step.submit(0, [batch.update], self._versions(batch), in_flight=in_flight)
        self._update = batch.update, step
        self._time.trained(batch.update, step)

    def ended(self) -> Sequence[int] | None:
        """Wait for the next thing that ends."""
        self._forget()
        if self._unseen:
            numbers, self._unseen = self._unseen, []
            return numbers
        number = self._update[0] if self._update is not None else self.dispatches
        with self._breaking(number):
            groups = self._time.ended()
            if self._flights.calls and not isinstance(self._time, VirtualTime):
                for dispatch in self._dispatched.values():
                    self._note_loads(dispatch, set(dispatch.groups) & {*(groups or ())})
        if self._update is not None and self._time.idle():
            number, step = self._update
            with self._breaking(number):
                self._results.append(step.result())
            self._update = None
            self._unrecorded.append((self._trainer, number, step))
        return groups

    def lost(self, group: int) -> bool:
        """Whether a filter removed a group, which has ended."""
        return group not in self._dispatched[self._dispatch_of(group)].kept

    def _dispatch_of(self, group: int) -> int:
        return group // self._queue.state.spec.dispatch

    def show_again(self, groups: Iterable[int]) -> None:
        """Let the loop see that groups have ended."""
        self._unseen += sorted(groups)

    @property
    def busy(self) -> bool:
        """Whether an update is in progress, or a result was not given out."""
        return self._update is not None or bool(self._results)

    def given_out(self) -> Iterator[Any]:
        """The results that are there."""
        while self._results:
            result = self._results.popleft()
            self._runner.commit()
            self.record(2)
            yield result

    def record(self, kept: int) -> None:
        """Record steps but the last ones, where all their calls have ended; with none to be kept wait for them."""
        while len(self._unrecorded) > kept:
            runner, number, step = self._unrecorded[0]
            with self._breaking(number):
                if kept and not self._time.has_ended(step):
                    return
                record = step.record(wait=not kept)
            self._unrecorded.popleft()
            runner.routings.measure(record)
            self._runner.keep(record)

    def _breaking(self, number: int) -> AbstractContextManager[None]:
        state = self._queue.state
        return self._runner.breaking_stream(
            number, lambda: f"'{state.spec.name}' of lag {state.spec.lag} has {len(state.groups)} groups"
        )

    def _forget(self) -> None:
        """Drop dispatches of which no group is on its way, and the prompts of groups that do not come again."""
        state = self._queue.state
        for number, dispatch in list(self._dispatched.items()):
            gone = [group for group in dispatch.groups if group not in state.groups]
            if len(gone) == len(dispatch.groups):
                del self._dispatched[number]
                unsubmitted = self._unsubmitted.pop(number, None)
                if dispatch.step is not None and unsubmitted is None:
                    self._unrecorded.appendleft((self._producer, number, dispatch.step))
            elif gone and dispatch.handles:
                dispatch.forget(gone)
        per_batch = state.spec.dispatch
        used = {group.prompt // per_batch for group in state.groups.values()} | {p // per_batch for p in state.again}
        self._batches = {n: batch for n, batch in self._batches.items() if n in used or n == self.loaded - 1}

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def saved(self) -> tuple[SavedStep, ...]:
        """The dispatches of which groups are on their way, once their runtime queries were resolved."""
        self._forget()
        self._submit_through(self.dispatches)
        if isinstance(self._time, VirtualTime):
            self._time.settle()
        steps = []
        for number, dispatch in self._dispatched.items():
            with self._breaking(number):
                dispatch.keep_handles(self._runner.backend)
            steps.append(
                SavedStep(
                    number=number, stages=(), submitted=(), short_steps=(), queries=dispatch.queries, stage_steps=()
                )
            )
        return tuple(steps)

    def contents(self, backend: Backend) -> dict[int, tuple[Store, list[PayloadContent]]]:
        """By dispatch the rows that are on their way; the loader's batches have numbers below zero."""
        state, contents = self._queue.state, dict[int, tuple[Store, list[PayloadContent]]]()
        for number, dispatch in self._dispatched.items():
            left = [group for group in dispatch.groups if group in state.groups]
            with self._breaking(number):
                contents[number] = Store(), dispatch.contents(backend, left)
        for number, inputs in self._batches.items():
            columns = {
                ColumnSlice(node, 0, name, None): value
                for node, batch in inputs.items()
                for name, value in batch.__hf_columns__.items()
            }
            contents[-1 - number] = Store(), [columns]
        return contents

    def restore(
        self,
        backend: Backend,
        sizes: Mapping[Any, int],
        dispatches: int,
        loaded: int,
        next_prompt: int,
        batches: Mapping[int, Mapping[int, Batch]],
        contents: Mapping[int, tuple[PayloadContent, Mapping[int, tuple[int, ...]]]],
    ) -> None:
        """Go on with the dispatches of an earlier run; the states of roles were loaded."""
        self.dispatches, self.loaded, self.next_prompt = dispatches, loaded, next_prompt
        self._batches, self._synced = dict(batches), not self._flights.calls  # what was in flight was not saved
        per_dispatch = self._queue.state.spec.dispatch
        for number, (content, queries) in contents.items():
            table = row_table(self._stages.producer, sizes, queries)
            groups = tuple(range(number * per_dispatch, (number + 1) * per_dispatch))
            dispatch = Dispatched(
                number=number, stages=self._stages, table=table, groups=groups, sizes=sizes, queries=queries
            )
            dispatch.restore(backend, content)
            self._dispatched[number] = dispatch
        self._unseen = list(self._queue.state.groups)

    def copy(self) -> Callable[[QueueRun], None]:
        """Keep the handles of what is on its way; the function that has a ``QueueRun`` go on with them."""
        self._forget()
        for dispatch in self._dispatched.values():
            dispatch.keep_handles(self._runner.backend)
        ended = [replace(dispatch, step=None) for dispatch in self._dispatched.values()]
        counts, batches = (self.dispatches, self.loaded, self.next_prompt, self._synced), dict(self._batches)

        def go_back(run: QueueRun) -> None:
            run.dispatches, run.loaded, run.next_prompt, run._synced = counts
            run._batches = dict(batches)
            run._dispatched = {dispatch.number: replace(dispatch) for dispatch in ended}
            run._unseen = list(run._queue.state.groups)

        return go_back

    # -- what an update reads ------------------------------------------------------------------------------------------

    def _parts(self, batch: QueueBatch) -> list[tuple[Dispatched, list[int]]]:
        """The dispatches of a batch's groups, each with those groups, in the order of the batch."""
        parts = list[tuple[Dispatched, list[int]]]()
        for group in batch.groups:
            dispatch = self._dispatched[self._dispatch_of(group.number)]
            dispatch.keep_handles(self._runner.backend)
            if not parts or parts[-1][0] is not dispatch:
                parts.append((dispatch, []))
            parts[-1][1].append(group.number)
        return parts

    def _read(self, batch: QueueBatch, slices: tuple[ColumnSlice, ...], masked: frozenset[int]) -> QueueRead:
        """What a process reads of a batch."""
        wanted, columns = needed_rows(slices), tuple(dict.fromkeys(part.column for part in slices))
        rows = {row for start, stop in wanted for row in range(start, stop)}
        size, position, place = self._stages.queue.group, 0, 0
        parts, handles, masked_rows = list[QueuedPart](), list[Any](), list[int]()
        for dispatch, groups in self._parts(batch):
            chosen = list[int]()
            for group in groups:
                start, _ = dispatch.rows(group)
                for row in range(size):
                    if position + row in rows:
                        chosen.append(start + row)
                        masked_rows += [place] if group in masked else []
                        place += 1
                position += size
            if chosen or (not rows and not parts):
                ranges: RowRanges = as_ranges(chosen) or ((0, 0),)
                keys = dispatch.keys(ranges, columns)
                parts.append(QueuedPart(dispatch.number, dispatch.table, ranges, len(keys)))
                handles += [dispatch.handles[key][1] for key in keys]
        recipe = QueuedRows(
            slices=slices,
            rows=wanted,
            plan=self._stages.producer.name,
            sources={column: self._stages.sources[column] for column in columns},
            parts=tuple(parts),
            masks=self._stages.masks,
            masked=tuple(masked_rows),
        )
        return QueueRead(recipe, tuple(handles))

    def _versions(self, batch: QueueBatch) -> list[tuple[int, int]]:
        """The ends and the versions of the rows of each group."""
        size = self._stages.queue.group
        return [((position + 1) * size, group.version) for position, group in enumerate(batch.groups)]
