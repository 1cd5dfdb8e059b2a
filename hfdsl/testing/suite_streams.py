"""The streams of the conformance suite: each repeats a log in which groups are late, and then decides by itself.

Its results are compared with those of a model in plain Python (``stream_model``). A log makes a backend drop, send
again and mask the same groups in every run, and load weights before the same tokens, however long its calls take.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hfdsl.deploy.deployment import Deployment, place
from hfdsl.deploy.pools import ResourcePool
from hfdsl.errors import HfWarning
from hfdsl.graph.dataflow import Dataflow
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.plan import Plan
from hfdsl.protocols.mesh import Mesh
from hfdsl.rl.batches import B
from hfdsl.runtime.decisions import Decision, from_lines, to_lines
from hfdsl.runtime.queues.durations import DrawnSeconds
from hfdsl.runtime.queues.links import QueueLinks
from hfdsl.runtime.running import Running
from hfdsl.testing import suite_queues as q
from hfdsl.testing.compare import first_difference
from hfdsl.testing.queues import BrokenQueueError, broken_laws, check_prompts
from hfdsl.testing.stream_model import StreamModel

QUESTIONS = 4
"""The questions of a step."""

STEPS = 6

SECONDS = {"sampler.generate": DrawnSeconds(4.0, tail=3.0), "learner.update": DrawnSeconds(1.0)}
"""On a virtual clock, generation takes so long that groups are late."""


@dataclass(frozen=True, slots=True)
class StreamProgram:
    """A dataflow with a queue, and a ``log`` of decisions that it repeats first.

    Where it is ``saved_after`` a result, the run goes back to the checkpoint at the end. A queue that takes
    ``whole_steps`` decides nothing. A filter ``loses`` groups. ``loaded`` has the weights in flight of each dispatch:
    for ranks of even and of odd numbers, before which token which version is loaded; such a program needs its roles
    in processes of their own.
    """

    flow: Dataflow[..., Any]
    log: tuple[Decision, ...]
    saved_after: int | None = None
    whole_steps: bool = False
    loses: bool = False
    loaded: tuple[tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]], ...] = ()

    @property
    def name(self) -> str:
        """As the report has it."""
        return self.flow.body.__name__

    @property
    def in_flight(self) -> bool:
        """Whether weights arrive during calls."""
        return bool(self.loaded)

    @property
    def batches(self) -> list[q.Questions]:
        """The batches of its loader while the log is repeated."""
        return self.more(0, STEPS)

    def more(self, first: int, last: int = 2 * STEPS) -> list[q.Questions]:
        """Batches from the first one on."""
        return [q.questions(step, QUESTIONS) for step in range(first, last)]

    def model(self, plan: Plan) -> StreamModel:
        """The model of its results in a plan."""
        ranks = plan.deployment["sampler"].mesh.world_size
        return StreamModel(ranks, QUESTIONS, self.whole_steps, self.loses, in_flight=self.in_flight)

    def repeated(self, plan: Plan) -> list[Decision]:
        """The log to repeat, with the loads of each rank of a plan's sampler."""
        [node] = [step.node for step in plan.steps if step.label == "sampler.generate"]
        ranks = range(plan.deployment["sampler"].mesh.world_size)
        dispatches = [decision for decision in self.log if decision.kind == "dispatch"]
        loads = [
            replace(dispatch, kind="load", prompts=(), call=(number, node, rank), loaded=tuple(by_rank[rank % 2]))
            for number, (dispatch, by_rank) in enumerate(zip(dispatches, self.loaded, strict=False))
            for rank in ranks
        ]
        return [*self.log, *loads]


def _dispatch(version: int, first: int, *prompts: int) -> Decision:
    return Decision("dispatch", "queue", version, tuple(range(first, first + len(prompts))), prompts)


def _take(version: int, *groups: int, masked: tuple[int, ...] = ()) -> Decision:
    return Decision("take", "queue", version, groups, masked=masked)


def _gone(kind: Any, version: int, *groups: int) -> Decision:
    return Decision(kind, "queue", version, groups)


LAGGED = (
    *(_dispatch(0, 0, 0), _dispatch(0, 1, 1), _dispatch(0, 2, 2)),
    *(_take(0, 0), _dispatch(1, 3, 3)),
    *(_take(1, 1), _dispatch(2, 4, 4)),
    *(_take(2, 2), _dispatch(3, 5, 5)),
    *(_take(3, 3), _take(4, 4), _take(5, 5)),
)
"""A lag of 2, under "wait": the only decisions that it can make. A group is a step."""

DROPPED = (
    *(_dispatch(0, 0, 0, 1, 2, 3), _dispatch(0, 4, 4, 5, 6, 7)),
    *(_take(0, 1, 3, 4, 6), _dispatch(1, 8, 8, 9, 10, 11)),
    *(_take(1, 5, 7, 8, 10), _dispatch(2, 12, 12, 13, 14, 15)),
    _gone("drop", 2, 0, 2),  # of version 0: 2 updates late
    *(_take(2, 9, 11, 12, 13), _dispatch(3, 16, 16, 17, 18, 19)),
    *(_take(3, 14, 15, 16, 17), _dispatch(4, 20, 20, 21, 22, 23)),
    *(_take(4, 18, 20, 21, 22),),
)
"""A lag of 1, as in the following: places for 8 groups."""

REFILLED = (
    *(_dispatch(0, 0, 0, 1, 2, 3), _dispatch(0, 4, 4, 5, 6, 7)),
    *(_take(0, 2, 3, 4, 5), _dispatch(1, 8, 8, 9, 10, 11)),
    *(_take(1, 6, 7, 8, 9), _dispatch(2, 12, 12, 13, 14, 15)),
    _gone("drop", 2, 0, 1),
    *(_take(2, 10, 11, 12, 13), _dispatch(3, 16, 0, 1, 16, 17)),  # prompts 0 and 1 again
    *(_take(3, 14, 15, 16, 17), _dispatch(4, 20, 18, 19, 20, 21)),
    *(_take(4, 18, 19, 20, 21),),
)

MASKED = (
    *(_dispatch(0, 0, 0, 1, 2, 3), _dispatch(0, 4, 4, 5, 6, 7)),
    *(_take(0, 1, 3, 4, 6), _dispatch(1, 8, 8, 9, 10, 11)),
    *(_take(1, 5, 7, 8, 10), _dispatch(2, 12, 12, 13, 14, 15)),
    *(_take(2, 0, 2, 9, 11, masked=(0, 2)), _dispatch(3, 16, 16, 17, 18, 19)),
    *(_take(3, 12, 13, 16, 17), _dispatch(4, 20, 20, 21, 22, 23)),
    *(_take(4, 14, 15, 18, 20, masked=(14, 15)),),
)

FILTERED = (
    *(_dispatch(0, 0, 0, 1, 2, 3), _dispatch(0, 4, 4, 5, 6, 7)),
    *(_gone("lose", 0, 1), _gone("lose", 0, 4, 7)),
    *(_take(0, 2, 3, 5, 6), _dispatch(1, 8, 8, 9, 10, 11)),
    *(_gone("lose", 1, 10), _dispatch(1, 12, 12, 13, 14, 15), _gone("lose", 1, 13)),
    *(_take(1, 8, 9, 11, 12), _dispatch(2, 16, 16, 17, 18, 19)),
    *(_gone("drop", 2, 0), _gone("lose", 2, 16, 19), _dispatch(2, 20, 0, 20, 21, 22), _gone("lose", 2, 23)),
    *(_take(2, 14, 15, 17, 18),),
)
"""The filter loses the groups of questions 1, 4, 7 and so on."""

ARRIVING = (
    *(_dispatch(0, 0, 0, 1, 2, 3), _dispatch(0, 4, 4, 5, 6, 7), _dispatch(0, 8, 8, 9, 10, 11)),
    *(_take(0, 0, 1, 2, 3), _dispatch(1, 12, 12, 13, 14, 15)),
    *(_take(1, 4, 5, 6, 7), _dispatch(2, 16, 16, 17, 18, 19)),
    *(_take(2, 8, 9, 10, 11), _dispatch(3, 20, 20, 21, 22, 23)),
    *(_take(3, 12, 13, 14, 15), _take(4, 16, 17, 18, 19), _take(5, 20, 21, 22, 23)),
)
"""A lag of 2, under "wait"."""

LOADED = (
    ([(0, 0)], [(0, 0)]),
    ([(0, 0), (2, 1)], [(0, 0), (3, 1)]),
    ([(0, 1), (3, 2)], [(0, 1)]),
    ([(0, 2)], [(0, 1), (1, 2), (2, 3)]),
    ([(0, 2), (1, 3), (2, 4)], [(0, 3)]),
    ([(0, 4)], [(0, 3), (3, 5)]),
)

STREAMS: tuple[StreamProgram, ...] = (
    StreamProgram(q.lagged, LAGGED, whole_steps=True),
    StreamProgram(q.dropping, DROPPED),
    StreamProgram(q.refilling, REFILLED),
    StreamProgram(q.masking, MASKED),
    StreamProgram(q.filtering, FILTERED, loses=True),
    StreamProgram(q.arriving, ARRIVING, loaded=LOADED),
    StreamProgram(q.resuming, LAGGED, saved_after=2, whole_steps=True),
    StreamProgram(q.resuming_groups, REFILLED, saved_after=3),
)


def _pool(*sizes: int) -> ResourcePool:
    return ResourcePool(sizes, use_gpu=False)


def _deployment(sampler: ResourcePool, learner: ResourcePool, mesh: Mesh, *, colocate: bool = True) -> Deployment:
    return Deployment(
        sampler=place(q.SuiteSampler, pool=sampler, colocate=colocate),
        learner=place(q.SuiteLearner, pool=learner, mesh=mesh, colocate=colocate),
    )


def _one_pool() -> Deployment:
    pool = _pool(4)
    return _deployment(pool, pool, Mesh(dp=2, tp=2))


def _own_processes() -> Deployment:
    pool = _pool(2)
    return _deployment(pool, pool, Mesh(dp=2), colocate=False)


def _apart() -> Deployment:
    left, right = _pool(2, 2).split([2, 2])
    return _deployment(left.merge(right), _pool(2), Mesh(tp=2, order=("tp", "dp", "pp")))


STREAM_DEPLOYMENTS: dict[str, Callable[[], Deployment]] = {
    "one pool": _one_pool,
    "own processes": _own_processes,
    "pools apart": _apart,
}


@dataclass
class StreamProcesses:
    """The processes on which the programs of a deployment run one after another; other ones after a problem."""

    where: str
    launch: Callable[[CompiledPlan], Running]

    def __post_init__(self) -> None:
        self._deployment = STREAM_DEPLOYMENTS[self.where]()
        self._running: Running | None = None

    def runs(self, program: StreamProgram) -> bool:
        """Whether a program can run here: weights in flight do not reach a process whose own calls make them."""
        return not (program.in_flight and self.where == "one pool")

    def problem(self, program: StreamProgram) -> str | None:
        """The mistake in a program's results, or in the decisions that it makes; None if there is none."""
        problem: str | None = "it did not end"
        try:
            problem = _problem(program, self._started(program.flow.compile(self._deployment, {B: QUESTIONS})))
        finally:
            if problem is not None:
                self.close()
        return problem

    def _started(self, plan: CompiledPlan) -> Running:
        if self._running is None:
            self._running = self.launch(plan)
            return self._running
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "HF746", HfWarning)  # one after another, each with weights of its own
            return self._running.also(plan)

    def close(self) -> None:
        """End the processes."""
        running, self._running = self._running, None
        if running is not None:
            running.close()


def _problem(program: StreamProgram, running: Running) -> str | None:
    """Repeat the log, and continue from its end."""
    with TemporaryDirectory() as folder:
        replayed, log = Path(folder, "replayed"), Path(folder, "log")
        logged = program.repeated(running.plan)
        replayed.write_text(to_lines(logged), "utf-8")
        stream = running.stream(program.batches, replay=replayed, log=log)
        results = list(islice(stream, program.saved_after))
        if program.saved_after is not None:
            return _problem_of_checkpoint(program, running, results, replayed, Path(folder, "checkpoint"))
        if problem := _difference(program, running.plan, logged, results):
            return f"in a run that repeats a log, {problem}"
        seconds = SECONDS if running.decides and not running.decides_by_time else None
        results += running.stream(program.more(running.batches_read), log=log, seconds=seconds)
        decisions = from_lines(log.read_text("utf-8"))
        problem = _broken(running, decisions) or _difference(program, running.plan, decisions, results)
        return f"in a run that decides by itself, {problem}" if problem else None


def _problem_of_checkpoint(
    program: StreamProgram, running: Running, results: Sequence[Any], log: Path, checkpoint: Path
) -> str | None:
    """Save, and repeat the rest of the log; then go back to the checkpoint, and repeat it again."""
    running.save(checkpoint)
    remaining = program.batches[running.batches_read :]
    for after in ("save", "load"):
        if after == "load":
            running.load(checkpoint)
        all_results = [*results, *running.stream(remaining, replay=log)]
        if problem := _difference(program, running.plan, program.repeated(running.plan), all_results):
            return f"after a {after} of the checkpoint behind result {len(results) - 1}, {problem}"
    return None


def _broken(running: Running, decisions: Sequence[Decision]) -> str | None:
    """The laws that decisions break."""
    specs = [queue.spec for queue in running.queues]
    problems = [text for spec in specs for text in broken_laws(spec, decisions)]
    try:
        if running.decides:
            check_prompts(QueueLinks(), specs, decisions)
    except BrokenQueueError as error:
        problems.append(str(error))
    return "\n".join(problems) or None


def _difference(
    program: StreamProgram, plan: Plan, decisions: Sequence[Decision], results: Sequence[Any]
) -> str | None:
    """The first difference from the results that the decisions imply."""
    expected = list(program.model(plan).results(decisions))
    if len(results) != len(expected):
        return f"{len(expected)} results are right, got {len(results)}"
    for number, (right, result) in enumerate(zip(expected, results, strict=True)):
        if difference := first_difference(right, result):
            return f"result {number}, {difference}: {difference.expected} is right, got {difference.actual}"
    return None
