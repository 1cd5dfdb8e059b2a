"""Backends that lack what a run with queues needs: errors with a code that say what it is, before any wrong result."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.errors import CheckpointError, HfError, ResourceError
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.plan import Plan
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.backend import Submission
from hfdsl.runtime.local import LocalBackend
from hfdsl.runtime.running import Running
from tests.runtime import in_flight_programs as flights
from tests.runtime.losing_backend import LosingBackend, Losses
from tests.runtime.queue_programs import B, deployment, flow, rows
from tests.runtime.timed_backend import TimedBackend


class Basic:
    """A backend that can do what every backend can, and declares nothing else."""

    hidden = ("save_queues", "load_queues", "read_payloads")

    def __init__(self, plan: Plan, seed: int) -> None:
        self._local = LocalBackend(plan, seed)

    def __getattr__(self, name: str) -> Any:
        if name in self.hidden:
            raise AttributeError(name)
        return getattr(self._local, name)


class Stepwise(LocalBackend):
    """Written before there were queues."""

    def run(self, submission: Submission) -> Any:
        return super().run(replace(submission, queued=None))


class Unloading(LocalBackend):
    """Loads the states of roles, and nothing of the queues."""

    def load_queues(self, folder: str, plan: str, files: Any) -> None:
        return

    def read_payloads(self, folder: str, saved: Sequence[Any]) -> list[Sequence[Any]]:
        return []


class Unwriting(LocalBackend):
    """Says that it has written files, and has not."""

    def save_queues(self, folder: str, plan: str, pending: Any) -> Any:
        return {"judge": [], "engine": [{}]}


class Unrouted(LocalBackend):
    """Does not pass on what only the first call of a segment has."""

    def run(self, submission: Submission) -> Any:
        return super().run(replace(submission, specs=[None] * len(submission.specs)))


def launched(backend: type[Any] | None, late: Late = "wait") -> Running:
    def lowering(plan: Plan, *, seed: int, **_: object) -> Any:
        return LocalBackend(plan, seed) if backend is None else backend(plan, seed)

    return flow.given(lag=2, late=late).compile(deployment(), dims={B: 4}).launch(lowering)


def continued(backend: type[Any], late: Late, at: str, folder: Path) -> None:
    """A stream, a save with rows in the queue, or a run that continues from there, on a backend."""
    with launched(None if at == "load" else backend, late) as running:
        list(islice(running.stream(rows(6)), None if at == "stream" else 2))
        running.save(folder)
    with launched(backend, late) as running:
        running.load(folder)
        list(running.stream(rows(6)[running.batches_read :]))


ASKS = "has not delivered it. A backend of your own passes Submission.payloads and Submission.queued to Executor.run"


@pytest.mark.parametrize(
    ("backend", "late", "at", "code", "texts"),
    [
        (Stepwise, "drop", "stream", "HF518", ["'actor.update' on rank 0 reads column 'x' of 'queue' (", ASKS]),
        (Stepwise, "refill", "load", "HF518", ["'actor.update' on rank 0 reads column 'x' of 'queue' (", ASKS]),
        (
            Unrouted,
            "wait",
            "stream",
            "HF518",
            ["rank 0 of 'actor' gets calls of 'flow.first_sync' without their routes: "],
        ),
        (
            *(Basic, "wait", "save", "HF908"),
            ["Basic cannot write the contents of queues ('queue' of lag 2 has 2 of 3 batches)", "once the stream has"],
        ),
        (
            *(Basic, "drop", "save", "HF908"),
            ["('queue' of lag 2 has 12 groups), since it lacks save_queues, read_payloads, load_queues; save once"],
        ),
        (
            Basic,
            "wait",
            "load",
            "HF905",
            ["Basic cannot load the contents of queues (", 'load this checkpoint on "local"'],
        ),
        (Basic, "drop", "load", "HF905", ["('queue' of lag 2 has 12 groups), since it lacks save_queues"]),
        (Unwriting, "wait", "save", "HF518", ["Unwriting.save_queues returned 1 files of 'engine' in 'flow', whose 2"]),
        (Unwriting, "drop", "save", "HF518", ["Unwriting.save_queues returned 1 files of 'engine' in 'flow', whose 2"]),
        (
            *(Unloading, "wait", "load", "HF518"),
            ["'actor.update' on rank 0 reads column 'x' of 'engine.generate' (", ") through the queue at ", ASKS],
        ),
        (
            Unloading,
            "drop",
            "load",
            "HF518",
            ["Unloading.read_payloads returned [] payloads by dispatch of the queues ("],
        ),
    ],
)
def test_what_a_backend_lacks_is_named(
    backend: type[Any], late: Late, at: str, code: str, texts: Sequence[str], tmp_path: Path
) -> None:
    with pytest.raises(ResourceError if code == "HF518" else CheckpointError) as error:
        continued(backend, late, at, tmp_path / "saved")
    assert error.value.code == code
    for text in texts:
        assert text in error.value.message


@pytest.mark.parametrize("late", ["wait", "drop"])
def test_a_backend_that_keeps_no_queues_runs_a_stream_to_its_end_and_saves_then(late: Late, tmp_path: Path) -> None:
    with launched(Basic, late) as running:
        assert len(list(running.stream(rows(6)))) == 6
        if late == "wait":  # of a queue that decides, a checkpoint has counts
            running.save(tmp_path / "saved")


@hf.dataflow
def trained(prompts: flights.Prompts, engine: flights.Engine, actor: flights.Actor) -> flights.Trained:
    """Weights go to the engine between its calls."""
    trained = actor.update(hf.queue(engine.generate(prompts), lag=2, late="wait"))
    hf.sync(actor, engine)
    return trained


class Polling(TimedBackend):
    """Reports when calls end, and counts how often it is closed."""

    def __init__(self, plan: Plan, seed: int) -> None:
        super().__init__(plan, seed, {})
        self.closed = 0

    def close(self) -> None:
        self.closed += 1
        super().close()


class Declaring(Polling):
    """Says that weights arrive while its calls run."""

    weights_in_flight = True


PLACES = flights.flight_deployment()

REFUSED = (
    r"HF765: 'in_flight' sends weights in flight, and Polling does not declare .* \(weights_in_flight\): leave out"
)


def compiled(program: hf.Dataflow[..., Any]) -> CompiledPlan:
    return program.compile(PLACES, {flights.B: 4, flights.R: flights.TOKENS})


@pytest.mark.filterwarnings("ignore:HF746")
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("backend", [Basic, Declaring, Polling])
def test_weights_in_flight_need_a_backend_that_delivers_them(backend: type[Any], added: bool) -> None:
    """One that reports when calls end has to declare it; to another one calls come after the weights that they take."""
    backends = list[Any]()

    def lowering(plan: Plan, *, seed: int, **_: object) -> Any:
        backends.append(backend(plan, seed))
        return backends[-1]

    refused = pytest.raises(HfError, match=REFUSED) if backend is Polling else nullcontext()
    if added:
        with compiled(trained).launch(lowering) as running, refused:
            running.also(compiled(flights.in_flight))
    else:
        with refused, compiled(flights.in_flight).launch(lowering) as running:
            assert len(list(running.stream(flights.prompts(3, 4)))) == 3
    assert [each.closed for each in backends if backend is Polling] == [1] * (backend is Polling)


def test_weights_in_flight_cannot_come_with_another_plan_to_a_run_that_recovers() -> None:
    def lowering(plan: Plan, *, seed: int, **_: object) -> Any:
        return LosingBackend(plan, seed, Losses({}))

    text = "HF765: 'in_flight' sends weights in flight, which no run with retries= can repeat: leave out retries= or"
    with compiled(trained).launch(lowering, retries=hf.Retries()) as running, pytest.raises(HfError, match=text):
        running.also(compiled(flights.in_flight))
