"""The run of a program with dynamic queues: stages step independently, and groups are taken as ``QueueLoop`` decides.

A worked example, with ``lag=1, late="drop"``, batches of two groups, one on each of two engine ranks. Rank 1 is slow::

    driver                        engine 0                  engine 1                  actor
    the sync, once                load 0                    load 0                    export 0
    dispatch 0: groups 0, 1       group 0, version 0        group 1, version 0
    dispatch 1: groups 2, 3       group 2, version 0        |
    take 0, 2: update 0           |                         |                         update 0, export 1
    dispatch 2: groups 4, 5       load 1, group 4           |
    ...                                                     group 3, load 1, group 5

The driver learns which calls have ended; it holds only handles, numbers and versions. When a group is taken, the ranks
of the stage behind read it from the payloads that its producers sent (``queues.reading``).

Why it is right. *The bound*: ``QueueState`` counts versions in updates, and the load that belongs to an update is
submitted with it; processes run their calls in the order of submission, so a dispatch under version v is made with
the weights of version v. With several queues, each bounds the number of updates between the dispatch of a group and the
dispatch of the next stage, or the update: the lags add up. *No deadlock*: a submitted call depends only on calls
submitted before it. *Backpressure*: no group is dispatched without a place, and no update begins before the result of
the previous one exists. *Nothing is lost*: a group leaves the queue only with a batch or because it is late; the
prompts of late groups are kept (``QueueState.again``); the loader's prompts are dispatched in order, beginning with the
first one that was not (``LoadedPrompts.next``); and a result that was not yielded is yielded by the next ``stream``.
*Replay*: random streams derive from the number of the dispatch and of the update, so the same decisions in the same
order give the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from hfdsl.errors import CheckpointError
from hfdsl.plan.sizes import bind_sizes
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.inputs import loaded_inputs
from hfdsl.runtime.loading import END, BatchSource
from hfdsl.runtime.queues.decision_log import DecisionLog
from hfdsl.runtime.queues.durations import CallSeconds
from hfdsl.runtime.queues.files import SavedStream
from hfdsl.runtime.queues.groups import are_known, queue_specs
from hfdsl.runtime.queues.loop import LoggedWorld, QueuedId, QueueLoop, QueueWorld
from hfdsl.runtime.queues.run import QueueRun
from hfdsl.runtime.queues.stage_files import copied, loaded, saved
from hfdsl.runtime.queues.stage_plans import queue_stages
from hfdsl.runtime.queues.tracing import TimedWorld, queue_samples
from hfdsl.runtime.runner import StepRunner
from hfdsl.runtime.saving.loaded_states import check_loads_of_stream
from hfdsl.runtime.schedule import QueueState


class StageStream:
    """A stream of a program with dynamic queues; ``decisions`` counts their decisions, as the lines of a log.

    On a virtual clock, calls that are submitted from now on take the ``seconds`` of their node.
    """

    def __init__(self, runner: StepRunner) -> None:
        self._runner, self._plan = runner, runner.plan
        self.seconds: dict[str, CallSeconds] = {}
        self._stages = queue_stages(runner.plan)
        self._of_stages: list[StepRunner] = []
        self._sizes: Mapping[Any, int] = {}
        self.reset()

    def reset(self) -> None:
        """Begin with empty queues."""
        self.decisions = 0
        self._loop: QueueLoop | None = None
        self._run: QueueRun | None = None

    @property
    def order(self) -> StageStream:
        """The state of the queues for an error: ``str(stream.order)``."""
        return self

    @property
    def queues(self) -> list[QueueState]:
        """The queues, once their sizes are known."""
        return [] if self._loop is None else self._loop.queues

    def __str__(self) -> str:
        if self._loop is None:
            return "the queue is empty"
        return ", ".join(
            f"'{state.spec.name}' of lag {state.spec.lag} has {state.occupied} of {state.spec.places} groups, and made "
            f"{state.version} batch{'es' * (state.version != 1)}"
            for state in self._loop.queues
        )

    def results(self, source: BatchSource, log: DecisionLog) -> Generator[Any]:
        """Dispatch, take and train as the queues decide, and yield the results of updates in order."""
        names = [queue.name for queue in self._stages.queues]
        log.check_queues(names)
        first = self._begin(source.next)
        if self._loop is None or self._run is None:
            return
        run, loop = self._run, self._loop
        prompts = run.read_from(source, first, ahead=log.expected is None)
        world: QueueWorld = run
        if log.expected is not None:  # which says when groups are seen to have ended
            ready = set[QueuedId]()
            for index, state in enumerate(loop.queues):
                ended = {number for number, group in state.groups.items() if group.status == "ready"}
                loop.queues[index] = state.run_again(ended)
                ready |= {(index, number) for number in ended}
            world = LoggedWorld(run, log.expected, self._stages.links, names, ready)
        try:
            run.loads.repeated = log.loads
            yield from run.given_out()
            timed = TimedWorld(world)
            for decisions in loop.run(timed, prompts, run.is_lost, log.expected):
                self._log(log, decisions)
                self._log(log, run.loads.decisions())
                self._trace(decisions, timed.noted)
                yield from run.given_out()
                if log.paused and run.idle():
                    return
            self._log(log, run.loads.decisions())
            log.end()
            run.record(0)
        finally:
            if isinstance(world, LoggedWorld):
                run.unseen += sorted(
                    (index, group) for index, group in world.unseen if group in loop.queues[index].groups
                )

    def _log(self, log: DecisionLog, decisions: Sequence[Decision]) -> None:
        log.add(decisions)
        self.decisions += len(decisions)

    def _trace(self, decisions: Sequence[Decision], time: float) -> None:
        samples = queue_samples(self._plan.name, self._stages, self.queues, decisions, time)
        for sample in samples if self._runner.traces else ():
            for file in self._runner.traces:
                file.add_queue(sample)

    def _begin(self, first_batch: Callable[[], Any]) -> list[Any]:
        """Begin with the sizes of the plan or, if incomplete, with those of the first batch, and return that batch."""
        if self._run is not None:
            return []
        sizes, first = dict(self._plan.dims), list[Any]()
        if not all(are_known(queue, sizes) for queue in self._stages.queues):
            batch = first_batch()
            if batch is END:
                return []
            sizes, first = bind_sizes(self._plan, loaded_inputs(self._plan, batch)), [batch]
        self.start(sizes)
        return first

    def start(self, sizes: Mapping[Any, int]) -> tuple[QueueRun, QueueLoop]:
        """Begin with these sizes, behind the steps that the program has made.

        Raises:
            HfError: HF765 if a run cannot follow its groups.
        """
        specs = queue_specs(self._stages, sizes)
        first = self._runner.next_step  # versions, and the numbers that random streams derive from, continue there
        states = [QueueState(spec, version=first, dispatched=first * spec.dispatch) for spec in specs]
        loop = self._loop = QueueLoop(states, self._stages.links)
        stages = self._stages.with_steps_in_flight(max(-(-spec.places // spec.dispatch) for spec in specs) + 2)
        self._of_stages = self._of_stages or [self._runner.stage(plan) for plan in stages.plans]
        self._sizes = sizes
        run = self._run = QueueRun(self._runner, self._of_stages, stages, loop, self.seconds, first)
        return run, loop

    @property
    def batches_read(self) -> int:
        """The number of the loader's batches that this stream has."""
        return self._runner.next_step if self._run is None else self._run.prompts.loaded

    def read_ahead(self, batch: Any) -> None:
        """Hold the loader's next batch, of which no prompt is dispatched yet; errors as for ``Running.step``."""
        self._begin(lambda: batch)
        if self._run is not None:
            self._run.prompts.load(batch)

    def submit_put_off(self) -> None:
        """Submit the calls that a virtual clock has put off, before those of another plan; errors as for a step."""
        if self._run is not None and self._run.loads.awaited:
            self._run.settle()

    def save(self, backend: Backend, folder: str) -> SavedStream | None:
        """Save the contents of the queues, once they are complete; None if the stream has not begun.

        Raises:
            CheckpointError: HF906 if a file cannot be written, HF908 if a queue holds a value that no file can hold, or
                an update has begun whose result was not yielded.
            ResourceError: HF518 if the backend has not written it.
        """
        if self._run is None:
            return None
        check_loads_of_stream(self._plan)
        if self._run.busy:
            text = "an update is in progress whose result was not yielded; save after a result"
            raise CheckpointError("HF908", f"{text} of the stream ({self})")
        return saved(self._run, self._plan, self.decisions, backend, folder)

    def copy(self, backend: Backend) -> Callable[[Any], None]:
        """Keep the handles of the queues' contents; return the function that continues with them, all groups ended.

        It waits for runtime queries, as ``save`` does.
        """
        if self._run is None:
            return lambda _: self.reset()
        decisions, sizes, continue_with = self.decisions, self._sizes, copied(self._run)

        def go_back(_: Any) -> None:
            run, _loop = self.start(sizes)
            self.decisions = decisions
            continue_with(run)

        return go_back

    def load(self, backend: Backend, folder: str, saved: SavedStream) -> None:
        """Continue with the groups that queues held.

        Raises:
            CheckpointError: HF905 if queues have other sizes in this run, HF906 if a file is damaged.
        """
        if saved.decided is None:
            raise ValueError("a stream whose queues decided nothing")
        state = loaded(self._stages, dict(self._plan.dims), folder, saved, saved.decided)
        run, _ = self.start(state.sizes)
        self.decisions = state.decisions
        state.restore(run, backend)
