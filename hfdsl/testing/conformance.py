"""The conformance suite: small programs that every backend must run like plain Python, and fail like other backends.

Programs without queues run step by step, and must match an eager run; those with queues are ``suite_streams``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from hfdsl.deploy.deployment import Deployment, place
from hfdsl.deploy.pools import ResourcePool
from hfdsl.errors import HfError, ResourceError
from hfdsl.graph.dataflow import Dataflow
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.protocols.mesh import Mesh
from hfdsl.rl.batches import B
from hfdsl.runtime.backend import Lowering
from hfdsl.runtime.running import Running
from hfdsl.testing import suite_programs as p
from hfdsl.testing.arguments import names_of, nothing, refused, several_of
from hfdsl.testing.compare import first_difference
from hfdsl.testing.node_values import RESULT, eager_steps, observed
from hfdsl.testing.suite_streams import STREAMS, StreamProcesses, StreamProgram
from hfdsl.types.batches import Batch
from hfdsl.types.dims import Dim
from hfdsl.types.html import preformatted

__tracebackhide__ = True  # pytest shows the user's own lines

AnyBackend: TypeAlias = Literal["local", "ray"] | Lowering

DEADLINE = 60.0
"""The seconds for a call of a backend that may never answer."""


@dataclass(frozen=True, slots=True)
class SuiteProgram:
    """A dataflow with the rows of its steps.

    The expected results are those of an eager run or, if they depend on the mesh, those of ``expected``.
    """

    flow: Dataflow[..., Any]
    rows: tuple[int, ...] = (8, 8)
    hint: bool = True
    expected: Callable[[Deployment, int], Any] | None = None

    @property
    def name(self) -> str:
        """As the report has it."""
        return self.flow.body.__name__

    @property
    def batches(self) -> list[tuple[Batch, ...]]:
        """The input of every step."""
        return [(p.rows(count, self.hint),) for count in self.rows]

    def compiled(self, deployment: Deployment) -> CompiledPlan:
        """Its plan; a number of rows that changes from step to step stays open."""
        fixed: dict[type[Dim], int] = {B: self.rows[0]} if len(set(self.rows)) == 1 else {}
        return self.flow.compile(deployment, {p.K: 3, **fixed})


def _lists(deployment: Deployment, rows: int) -> Any:
    """Outputs of ranks and stages: numbers that depend on the mesh alone."""

    def places(mesh: Mesh) -> list[list[int]]:
        coordinates = [mesh.coordinates(rank) for rank in range(mesh.world_size)]
        return [[rank, at.pp, at.dp, at.tp, rows] for rank, at in enumerate(coordinates)]

    a, b = deployment["a"].mesh, deployment["b"].mesh
    echoed = [[rank, *entry] for rank, entry in enumerate(places(b))]
    return PerRank(places(a)), PerRank(places(b)), PerStage(range(a.pp)), PerRank(echoed)


PROGRAMS: tuple[SuiteProgram | StreamProgram, ...] = (
    SuiteProgram(p.splits),
    SuiteProgram(p.absent, hint=False),
    SuiteProgram(p.functions),
    SuiteProgram(p.padding, (5, 7, 1)),
    SuiteProgram(p.groups, (4, 4)),
    SuiteProgram(p.filters, (8, 12, 8)),
    SuiteProgram(p.nothing),
    SuiteProgram(p.balance),
    SuiteProgram(p.streams),
    SuiteProgram(p.collectives),
    SuiteProgram(p.lists, expected=_lists),
    SuiteProgram(p.states, (8, 8, 8)),
    *STREAMS,
)
"""Each of another name: their plans run on the same processes."""

FAULTS: dict[Dataflow[..., Any], tuple[str, str]] = {
    p.raising: ("HF806", "ValueError: bad rows"),
    p.shortening: ("HF805", "faulty.shortens"),
    p.writing: ("HF703", "faulty.writes"),
}
"""Programs that fail: the code of the error, and a part of its text."""


def _pool(*sizes: int) -> ResourcePool:
    return ResourcePool(sizes, use_gpu=False)


def _deployment(a: Any, b: Any, others: ResourcePool, meshes: tuple[Mesh, Mesh], colocate: bool = True) -> Deployment:
    return Deployment(
        a=place(p.Role, 1, pool=a, mesh=meshes[0], colocate=colocate),
        b=place(p.Role, by=2, pool=b, mesh=meshes[1], colocate=colocate),
        trainer=place(p.Trainer, pool=a, colocate=colocate),
        engine=place(p.Engine, pool=others, colocate=colocate),
    )


def _one_pool() -> Deployment:
    pool = _pool(4)
    return _deployment(pool, pool, pool, (Mesh(dp=2, tp=2, gen_tp=1), Mesh(pp=2, dp=2)))


def _own_processes() -> Deployment:
    pool = _pool(2)
    return _deployment(pool, pool, pool, (Mesh(dp=2), Mesh(tp=2)), colocate=False)


def _apart() -> Deployment:
    left, right = _pool(2, 2).split([2, 2])
    meshes = Mesh(tp=2, order=("tp", "dp", "pp")), Mesh(pp=2)
    return _deployment(left, _pool(1).merge(_pool(1)), right, meshes)


DEPLOYMENTS: dict[str, Callable[[], Deployment]] = {
    "one pool": _one_pool,
    "own processes": _own_processes,
    "pools apart": _apart,
}


@dataclass(frozen=True, slots=True)
class SuiteOutcome:
    """The outcome of a program under a deployment; ``problem`` is None if it is correct."""

    program: str
    deployment: str
    seconds: float
    problem: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class SuiteReport:
    """The outcomes of a backend; ``print(report)`` shows one line per program."""

    backend: str
    outcomes: tuple[SuiteOutcome, ...]

    @property
    def ok(self) -> bool:
        """Whether every program conforms."""
        return not self.problems

    @property
    def problems(self) -> tuple[SuiteOutcome, ...]:
        """The outcomes of the programs that do not conform."""
        return tuple(outcome for outcome in self.outcomes if outcome.problem is not None)

    def __repr__(self) -> str:
        return f"<conformance of {self.backend!r}: {len(self.problems)} of {len(self.outcomes)} programs fail>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return preformatted(str(self))

    def __str__(self) -> str:
        names = list(dict.fromkeys(outcome.program for outcome in self.outcomes))
        places = list(dict.fromkeys(outcome.deployment for outcome in self.outcomes))
        marks = {
            (outcome.program, outcome.deployment): "ok" if outcome.problem is None else "FAILS"
            for outcome in self.outcomes
        }
        width = max(map(len, names), default=0)

        def line(name: str, cells: Sequence[str]) -> str:
            padded = [f"{cell:{len(place)}}" for cell, place in zip(cells, places, strict=True)]
            return "  ".join([f"{name:{width}}", *padded]).rstrip()

        table = [line("", places), *(line(n, [marks.get((n, place), "-") for place in places]) for n in names)]
        failures = [f"{problem.program}, {problem.deployment}:\n{problem.problem}" for problem in self.problems]
        count, seconds = len(self.outcomes), sum(outcome.seconds for outcome in self.outcomes)
        passed = count - len(failures)
        head = f"conformance of {self.backend!r}: {passed} of {count} as plain Python has it, {seconds:.1f} s"
        return "\n\n".join([head + "\n" + "\n".join(table), *failures])


def run_suite(
    backend: AnyBackend,
    programs: Sequence[SuiteProgram | StreamProgram] = PROGRAMS,
    faults: bool = True,
    deployments: str | Sequence[str] = (),
) -> SuiteReport:
    """Run the conformance suite on a backend: ``"local"``, ``"ray"``, or a lowering of your own.

    Every program runs as several steps under every deployment (or those that are named), all programs of one on the
    same processes, and must match the eager run bit for bit. A program with a queue repeats a log in which groups are
    late, and decides by itself; its decisions must keep the laws of queues, and its results must follow from them. With
    ``faults``, the run must report each failing role with its code, and end there.

    Raises:
        DefinitionError: HF921 for what is not a program and for an unknown deployment, HF922 without a
            program.
        ResourceError: HF518 for an unknown backend.

    >>> report = run_suite("local", deployments=["one pool"])
    >>> report.ok, len(report.outcomes)
    (True, 24)
    """
    where_to = names_of("run_suite", "deployments=", deployments or None, list(DEPLOYMENTS), "deployment")
    takes = "programs in a list, each a SuiteProgram or a StreamProgram"
    listed = several_of("run_suite", "programs", takes, programs)
    for program in listed:
        if not isinstance(program, (SuiteProgram, StreamProgram)):
            raise refused("run_suite", "programs", takes, program)
    if not listed:
        raise nothing("run_suite", "it has no program")
    if not callable(backend) and backend not in ("local", "ray"):
        raise ResourceError("HF518", f"no backend {backend!r}; there are 'local' and 'ray', and lowerings of your own")
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
    outcomes: list[SuiteOutcome] = []
    steps = [program for program in listed if isinstance(program, SuiteProgram)]
    streams = [program for program in listed if isinstance(program, StreamProgram)]
    for where in where_to:
        outcomes += _programs(backend, where, DEPLOYMENTS[where](), steps) if steps else ()
        outcomes += _streams(backend, where, streams)
    for flow, expected in FAULTS.items() if faults else ():
        outcomes.append(_timed(flow.body.__name__, "faults", partial(_fault, backend, flow, *expected)))
    return SuiteReport(name, tuple(outcomes))


def _timed(program: str, where: str, run: Callable[[], str | None]) -> SuiteOutcome:
    start = time.perf_counter()
    try:
        problem = run()
    except Exception as error:  # noqa: BLE001  # whatever a new backend does wrong is a line of the report
        problem = f"{type(error).__name__}: {error}"
    return SuiteOutcome(program, where, time.perf_counter() - start, problem)


def _programs(
    backend: AnyBackend, where: str, deployment: Deployment, programs: Sequence[SuiteProgram]
) -> Iterator[SuiteOutcome]:
    """All programs on the same processes."""
    plans = [program.compiled(deployment) for program in programs]
    start = time.perf_counter()
    try:
        first = plans[0].launch(backend)
    except Exception as error:  # noqa: BLE001  # as above
        yield SuiteOutcome("launch", where, time.perf_counter() - start, f"{type(error).__name__}: {error}")
        return
    yield SuiteOutcome("launch", where, time.perf_counter() - start)
    with first:
        running = {program.name: first if program is programs[0] else None for program in programs}
        for program, plan in zip(programs, plans, strict=True):

            def run(program: SuiteProgram = program, plan: CompiledPlan = plan) -> str | None:
                running[program.name] = launched = running[program.name] or first.also(plan)
                return _run(backend, program, deployment, launched)

            yield _timed(program.name, where, run)
        if (states := running.get(p.states.body.__name__)) is not None:
            yield _timed("saved state", where, partial(_saved, states))


def _streams(backend: AnyBackend, where: str, programs: Sequence[StreamProgram]) -> Iterator[SuiteOutcome]:
    """All programs with queues on the same processes, as long as nothing goes wrong."""
    processes = StreamProcesses(where, lambda plan: plan.launch(backend, deadline=DEADLINE))
    try:
        for program in programs:
            if processes.runs(program):
                yield _timed(program.name, where, partial(processes.problem, program))
    finally:
        processes.close()


def _run(backend: AnyBackend, program: SuiteProgram, deployment: Deployment, running: Running) -> str | None:
    """The difference from the eager run, and the first node that has it."""
    for number, (step, batches) in enumerate(
        zip(eager_steps(program.flow, deployment, program.batches), program.batches, strict=True)
    ):
        wanted = step.values[RESULT]
        if program.expected is not None:
            wanted = program.expected(deployment, len(batches[0]))
        difference = first_difference(wanted, running.step(*batches))
        if difference is not None:
            node = _first_node(backend, program, deployment)
            return f"step {number}, {difference}: {difference.expected} is right, got {difference.actual}{node}"
    return None


def _first_node(backend: AnyBackend, program: SuiteProgram, deployment: Deployment) -> str:
    """The first place where the values of a program are wrong, with the value of every node observed."""
    plan = observed(program.compiled(deployment))
    with plan.launch(backend) as running:
        for step, batches in zip(eager_steps(program.flow, deployment, program.batches), program.batches, strict=True):
            values = running.step(*batches)
            for node, value in step.values.items():
                if node == RESULT or isinstance(value, (PerRank, PerStage)):
                    continue
                if first_difference(value, values[node]):
                    return f"; the first node with another value is '{plan.node(node).label}'"
    return "; every node makes what it should, so it goes wrong on the way"


def _saved(running: Running) -> str | None:
    """A run continues from the state that was saved after a step."""
    batch = p.rows(8)
    with tempfile.TemporaryDirectory() as folder:
        running.save(folder)
        expected = running.step(batch)
        running.load(folder)
        difference = first_difference(expected, running.step(batch))
    return f"after load, {difference}: {difference.expected} is right, got {difference.actual}" if difference else None


def _fault(backend: AnyBackend, flow: Dataflow[..., Any], code: str, text: str) -> str | None:
    deployment = Deployment(faulty=place(p.Faulty, pool=_pool(2)))
    plan, batch = flow.compile(deployment, {B: 8, p.K: 3}), p.rows(8)
    with plan.launch(backend, deadline=DEADLINE) as running:
        for expected_code, holds in ((code, text), ("HF808", "has been broken since step 0")):
            try:
                running.step(batch)
            except HfError as error:
                if error.code != expected_code or holds not in error.message:
                    return f"{expected_code} with {holds!r} is right, got {error}"
            else:
                return f"{expected_code} is right, and it gave a result"
    return None
