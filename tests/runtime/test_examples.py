"""The worked examples at the heads of modules are what happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hfdsl.plan.payloads import PayloadKey
from hfdsl.plan.plan import Plan
from hfdsl.runtime import step
from hfdsl.runtime.backend import Submission
from hfdsl.runtime.local import LocalBackend
from hfdsl.runtime.messages import SegmentResult
from hfdsl.runtime.rank import executor
from hfdsl.runtime.rank.store import PayloadContent
from hfdsl.runtime.running import Running
from hfdsl.runtime.step import StepRun
from tests.runtime.example_programs import B, deployment, filtered, prompts

EVENTS: list[str] = []


class Watched(LocalBackend):
    """Writes down what the driver asks of it."""

    def __init__(self, plan: Plan, seed: int) -> None:
        super().__init__(plan, seed)
        self._keys: dict[int, PayloadKey] = {}
        self._driver_payloads = 0

    def _named(self, handle: Any) -> str:
        return "({}, {}, {})".format(*self._keys[id(handle)])

    def put(self, plan: Plan, content: PayloadContent) -> Any:
        handle = super().put(plan, content)
        self._keys[id(handle)] = (-1, -1, self._driver_payloads)
        self._driver_payloads += 1
        EVENTS.append(f"put {self._named(handle)}")
        return handle

    def run(self, submission: Submission) -> list[tuple[SegmentResult, list[Any]]]:
        call, segment = submission.call, submission.segment
        outcomes = super().run(submission)
        for rank, handles, sends, (_, sent) in zip(
            segment.ranks, submission.payloads, submission.sends, outcomes, strict=True
        ):
            self._keys |= {id(handle): payload.key for handle, payload in zip(sent, sends, strict=True)}
            received = ", ".join(map(self._named, handles)) or "nothing"
            EVENTS.append(f"run {call.segment} on rank {rank} of {segment.group} with {received}")
        return outcomes

    def get(self, handles: Sequence[Any]) -> list[PayloadContent]:
        if handles:
            EVENTS.append(f"get {', '.join(map(self._named, handles))}")
        return super().get(handles)


def launched() -> Running:
    def lowering(plan: Plan, *, seed: int, timeout: float, deadline: float, worker_env: Mapping[str, str]) -> Watched:
        return Watched(plan, seed)

    running: Running = filtered.compile(deployment(), dims={B: 4}).launch(lowering)
    return running


def lines(module: Any) -> list[str]:
    """The lines of a module's docstring, with single spaces."""
    return [" ".join(line.split()) for line in module.__doc__.splitlines()]


def test_a_step_asks_its_backend_as_its_example_says() -> None:
    with launched() as running:
        EVENTS.clear()
        result = running.step(prompts())
    assert result.x.tensor.tolist() == [20.0, 30.0, 50.0]
    shown = [line for line in lines(step) if line.startswith(("put (", "run ", "get ("))]
    assert len(shown) == len(EVENTS)
    assert all(line.startswith(f"{event} ") for line, event in zip(shown, EVENTS, strict=True))


def test_the_tasks_are_those_of_the_example() -> None:
    with launched() as running:
        running.step(prompts())
        record = running._runner.record
    assert record is not None
    labels = {step.node: step.label for step in record.plan.steps}
    table = []
    for segment, routes in record.log.routes.items():
        for rank, task in routes.tasks[segment].items():
            (received,), (payload,) = routes.receives[segment][rank], task.sends
            ((rows,),) = [part.rows or () for part in payload.slices]
            keeps = ", ".join(map(str, task.keeps)) or "-"
            drops = ", ".join(str(node) for nodes in task.drops.values() for node in nodes)
            sends = f"{payload.key}: rows {rows[0]}:{rows[1]}"
            table.append(f"{segment} {rank} {received} {labels[task.steps[0]]} {sends} {keeps} {drops}")
    shown = lines(executor)
    start = shown.index("segment rank receives runs sends keeps drops") + 1
    assert shown[start : start + len(table)] == table
    assert shown[start + len(table)] == ""


def test_handles_are_kept_for_reads_that_are_still_unknown_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[PayloadKey]] = []
    original = StepRun._resolve

    def watched(self: StepRun, number: int) -> None:
        seen.append(set(self._handles))
        original(self, number)
        seen.append(set(self._handles))

    monkeypatch.setattr(StepRun, "_resolve", watched)
    with launched() as running:
        running.step(prompts())
    pending_payloads, mask = {(1, 0, 0), (1, 1, 0)}, {(2, 0, 0), (2, 1, 0)}
    assert seen == [pending_payloads | mask, pending_payloads], (
        "the prompts have been submitted, the mask has been read"
    )
