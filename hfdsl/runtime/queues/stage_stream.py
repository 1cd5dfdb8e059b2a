"""The run of a program whose queue decides: two stages that step on their own, groups taken as ``QueueLoop`` says.

A worked example, with ``lag=1, late="drop"``, batches of two groups, one on each of two engine ranks. Rank 1 is slow::

    driver                        engine 0                  engine 1                  actor
    the sync, once                load 0                    load 0                    export 0
    dispatch 0: groups 0, 1       group 0, version 0        group 1, version 0
    dispatch 1: groups 2, 3       group 2, version 0        |
    take 0, 2: update 0           |                         |                         update 0, export 1
    dispatch 2: groups 4, 5       load 1, group 4           |
    ...                                                     group 3, load 1, group 5

The driver learns which calls have ended, and has handles, numbers and versions. A group that is taken is read by the
ranks of the second stage from the payloads that its producers sent (``queued_rows``).

Why it is right. *The bound*: ``QueueState`` counts versions in batches taken, and the load that belongs to a take is
submitted with it; processes run their calls in the order of submission, so a dispatch under version v is made with
the weights of version v. *No deadlock*: what is submitted depends on what was submitted before. *Backpressure*: no
group is dispatched without a place, and no update begun before the result of the one before has been made. *Nothing
is lost*: a group leaves the queue only with a batch or because it is late, prompts of late ones are kept
(``QueueState.again``), the loader's are dispatched in order, from the first that was not (``QueueRun.next_prompt``),
and a result that was not given out is given out by the next ``stream``. *Replay*: random streams derive from the
number of the dispatch and of the update, so the same decisions in the same order give the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hfdsl.errors import CheckpointError
from hfdsl.graph.program import Input
from hfdsl.plan.payloads import ColumnSlice
from hfdsl.plan.plan import DRIVER, StageOf
from hfdsl.plan.sizes import bind_sizes
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.inputs import loaded_inputs
from hfdsl.runtime.loading import END, BatchSource
from hfdsl.runtime.queues.files import SavedDecisions, SavedQueue, SavedStream
from hfdsl.runtime.queues.groups import check_groups, groups_of
from hfdsl.runtime.queues.loop import LoggedWorld, QueueLoop, QueueWorld
from hfdsl.runtime.queues.plan_simulation import CallSeconds
from hfdsl.runtime.queues.run import QueueRun
from hfdsl.runtime.queues.stage_plans import QueueStages, queue_stages
from hfdsl.runtime.queues.streaming import DecisionLog
from hfdsl.runtime.rank.store import PayloadContent, Store
from hfdsl.runtime.runner import StepRunner
from hfdsl.runtime.saving.loaded_states import check_loads_of_stream
from hfdsl.runtime.saving.store_files import read_stores, write_stores
from hfdsl.runtime.schedule import QueueSpec, QueueState
from hfdsl.types.batches import Batch, rebuild


class StageStream:
    """A stream of a program whose queue decides; ``decisions`` counts those that it has made."""

    def __init__(self, runner: StepRunner, seconds: Mapping[str, CallSeconds] | None = None) -> None:
        self._runner, self._plan = runner, runner.plan
        self._seconds = seconds or {}
        self._stages = queue_stages(runner.plan)
        self._of_stages: tuple[StepRunner, StepRunner] | None = None
        self._sizes: Mapping[Any, int] = {}
        self.reset()

    def reset(self) -> None:
        """Begin with an empty queue."""
        self.decisions = 0
        self._queue: QueueLoop | None = None
        self._run: QueueRun | None = None

    @property
    def order(self) -> StageStream:
        """What an error says of the queue: ``str(stream.order)``."""
        return self

    @property
    def queues(self) -> list[QueueState]:
        """The queue, once its sizes are known."""
        return [] if self._queue is None else [self._queue.state]

    def __str__(self) -> str:
        if self._queue is None:
            return "the queue is empty"
        state = self._queue.state
        return (
            f"'{state.spec.name}' of lag {state.spec.lag} has {state.occupied} of {state.spec.places} groups, and made "
            f"{state.version} batches"
        )

    def results(self, source: BatchSource, log: DecisionLog) -> Generator[Any]:
        """Dispatch, take and train as the queue decides, and give out the results of updates in order."""
        first = self._begin(source)
        if self._queue is None or self._run is None:
            return
        prompts = self._run.prompts(source, first)
        world: QueueWorld = self._run
        if log.expected is not None:  # which says when groups are seen to have ended
            ready = {number for number, group in self._queue.state.groups.items() if group.status == "ready"}
            self._queue.state = self._queue.state.run_again(ready)
            world = LoggedWorld(self._run, log.expected, ready)
        try:
            self._run.repeated = log.loads
            yield from self._run.given_out()
            for decisions in self._queue.run(world, prompts, self._run.lost, log.expected):
                log.add(decisions)
                log.add(self._run.loads_in_flight())
                self.decisions += len(decisions)
                yield from self._run.given_out()
                if log.paused and self._run.idle():
                    return
            self._run.record(0)
        finally:
            if isinstance(world, LoggedWorld):
                self._run.show_again(world.unseen & self._queue.state.groups.keys())

    def _begin(self, source: BatchSource) -> Any:
        """Begin with the sizes of the plan or, where these leave some open, with those of the first batch."""
        if self._run is not None:
            return None
        sizes, batch = dict(self._plan.dims), None
        if None in groups_of(self._stages, sizes):
            batch = source.next()
            if batch is END:
                return None
            sizes = bind_sizes(self._plan, loaded_inputs(self._plan, batch))
        self._start(sizes)
        return batch

    def _start(self, sizes: Mapping[Any, int]) -> tuple[QueueRun, QueueLoop]:
        put_in, taken = groups_of(self._stages, sizes)
        queue = self._stages.queue
        spec = QueueSpec(
            name="queue",
            lag=queue.lag or 0,
            late=queue.late or "wait",
            batch=taken or 1,
            dispatch=put_in or 1,
            loses=self._stages.loses,
        )
        check_groups(self._stages, sizes, spec.dispatch)
        self._queue = QueueLoop(QueueState(spec))
        in_flight = StageOf(self._plan.name, -(-spec.places // spec.dispatch) + 2)
        stages = replace(
            self._stages,
            producer=replace(self._stages.producer, stage_of=in_flight),
            consumer=replace(self._stages.consumer, stage_of=in_flight),
        )
        if self._of_stages is None:
            self._of_stages = self._runner.stage(stages.producer), self._runner.stage(stages.consumer)
        self._sizes = sizes
        self._run = QueueRun(self._runner, self._of_stages, stages, self._queue, self._seconds)
        return self._run, self._queue

    def save(self, backend: Backend, folder: str) -> SavedStream | None:
        """Write what the queue holds, once it has been made; None where nothing was begun.

        Raises:
            CheckpointError: HF906 where a file cannot be written, HF908 where the queue holds what no file can, or an
                update was begun whose result was not given out.
        """
        if self._queue is None or self._run is None:
            return None
        check_loads_of_stream(self._plan)
        if self._run.busy:
            text = "an update is in progress whose result was not given out; save after a result"
            raise CheckpointError("HF908", f"{text} of the stream ({self})")
        state, spec = self._queue.state, self._queue.state.spec
        return SavedStream(
            plan=self._plan.name,
            steps=(self._run.dispatches, state.version),
            queues=(
                SavedQueue(lag=spec.lag, late=spec.late, version=state.version, groups=tuple(state.groups.values())),
            ),
            in_progress=self._run.saved(),
            files={DRIVER: [write_stores(folder, DRIVER, self._plan.name, self._run.contents(backend))]},
            decided=SavedDecisions(
                put_in=spec.dispatch,
                taken=spec.batch,
                dispatched=state.dispatched,
                loaded=self._run.loaded,
                next_prompt=self._run.next_prompt,
                decisions=self.decisions,
                again=state.again,
            ),
        )

    def copy(self, _: Backend) -> Callable[[Any], None]:
        """Keep the handles of what the queue holds; the function that goes on with it, whose groups have ended.

        It waits for runtime queries, as ``save`` does.
        """
        if self._queue is None or self._run is None:
            return lambda _: self.reset()
        state, decisions, sizes, of_run = self._queue.state, self.decisions, self._sizes, self._run.copy()

        def go_back(_: Any) -> None:
            run, loop = self._start(sizes)
            loop.state, self.decisions = state.run_again(state.groups), decisions
            of_run(run)

        return go_back

    def load(self, backend: Backend, folder: str, saved: SavedStream) -> None:
        """Go on with the groups that a queue held.

        Raises:
            CheckpointError: HF905 where the queue is another, HF906 where a file is damaged.
        """
        queue, decided = self._stages.queue, saved.decided
        declared = [(queue.lag or 0, queue.late or "wait")]
        there = [(held.lag, held.late) for held in saved.queues]
        if decided is None or declared != there:
            text = f"the state is that of a run with other queues: (lag, late) {there} there, {declared} here"
            raise CheckpointError("HF905", f"{text}; the rows in them were made for those")
        stores: dict[int, Store] = {}
        read_stores(folder, saved.files[DRIVER][0], lambda number: stores.setdefault(number, Store()))
        batches = {-1 - number: _content(store) for number, store in stores.items() if number < 0}
        inputs = {number: _batches_of(self._stages, content) for number, content in batches.items()}
        sizes = dict(self._plan.dims)
        if inputs:
            sizes = bind_sizes(self._stages.producer, next(iter(inputs.values())))
        if groups_of(self._stages, sizes) != (decided.put_in, decided.taken):
            here, was = groups_of(self._stages, sizes), (decided.put_in, decided.taken)
            raise CheckpointError(
                "HF905",
                f"the state is that of a run with other queues: (put in, taken) {was} groups there, {here} here",
            )
        run, loop = self._start(sizes)
        [held] = saved.queues
        groups = {group.number: replace(group, status="running") for group in held.groups}
        loop.state = replace(
            loop.state,
            version=held.version,
            dispatched=decided.dispatched,
            groups=MappingProxyType(groups),
            again=decided.again,
        )
        self.decisions = decided.decisions
        contents = {step.number: (_content(stores[step.number]), step.queries) for step in saved.in_progress}
        run.restore(backend, sizes, saved.steps[0], decided.loaded, decided.next_prompt, inputs, contents)


def _content(store: Store) -> PayloadContent:
    """What was read from a file."""
    return {ColumnSlice(node, chunk, name, rows): value for node, chunk, name, rows, value in store.received_values()}


def _batches_of(stages: QueueStages, content: PayloadContent) -> dict[int, Batch]:
    """A batch of the loader, by the nodes of the first stage."""
    columns: dict[int, dict[str, Any]] = {node: {} for node in stages.inputs.values()}
    for part, value in content.items():
        columns[part.node][part.column] = value
    nodes = {node.id: node.op for node in stages.producer.graph.inputs if isinstance(node.op, Input)}
    return {node: rebuild(op.record, columns[node]) for node, op in nodes.items()}
