"""The trace of a run with dynamic queues, against the log of their decisions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from hfdsl.plan.plan import Plan
from hfdsl.plan.timeline import read_trace
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.decisions import Decision, read_log
from hfdsl.runtime.queues import tracing
from hfdsl.runtime.queues.loop import QueuedId
from hfdsl.runtime.queues.tracing import TimedWorld
from hfdsl.runtime.schedule import QueueBatch
from tests.runtime.network_model import Network
from tests.runtime.stage_model import Case
from tests.runtime.test_stage_networks import BESIDE, FILTERED, JOINED, SERIES
from tests.runtime.test_stage_stream import STRAGGLER
from tests.runtime.timed_backend import TimedBackend

Event: TypeAlias = dict[str, Any]

CASES: dict[str, Case | Network] = {
    "drop": STRAGGLER,
    "refill": replace(STRAGGLER, late="refill"),
    "mask": replace(STRAGGLER, late="mask"),
    "wait": replace(STRAGGLER, late="wait", batch=3, lag=2, steps=20),
    "filter": replace(STRAGGLER, program="choosing", drops=0b1010101, steps=20),
    "series": SERIES,
    "beside": BESIDE,
    "joined": JOINED,
    "filter in series": FILTERED,
}
LOSSES: dict[str, set[str]] = {
    "drop": {"drop"},
    "refill": {"refill"},
    "mask": {"mask"},
    "wait": set(),
    "filter": {"lose"},
    "series": {"refill"},
    "beside": {"drop"},
    "joined": {"refill"},
    "filter in series": {"lose"},
}
"""What each case must lose groups to, among others."""


def traced(case: Case | Network, folder: Path, backend: Any = "local", **options: Any) -> tuple[Plan, list[Event]]:
    with case.launched(backend) as running, running.trace(folder / "trace"):
        list(running.stream(case.loader(), log=folder / "log", **options))
    return running.plan, json.loads((folder / "trace").read_text())


def lates(case: Case | Network) -> Mapping[str, Late]:
    specs = [case.spec] if isinstance(case, Case) else case.specs
    return {spec.name: spec.late for spec in specs}


def logged_losses(case: Case | Network, log: list[Decision]) -> Iterator[tuple[str, str, int, int]]:
    late = lates(case)
    for decision in log:
        if decision.kind == "lose":
            yield "lose", decision.queue, decision.version, len(decision.groups)
        elif decision.kind == "drop":
            yield late[decision.queue], decision.queue, decision.version, len(decision.groups)
        elif decision.masked:
            yield "mask", decision.queue, decision.version, len(decision.masked)


def traced_losses(events: list[Event]) -> list[tuple[str, str, int, int]]:
    losses = [(event["name"], event["args"]) for event in events if event.get("cat") == "loss"]
    return [(kind, args["queue"], args["version"], args["groups"]) for kind, args in losses]


def logged_counts(log: list[Decision], queue: str) -> dict[tuple[str, int], int]:
    """The groups in a queue after its first, second, ... decision of each kind."""
    counts, count, number = dict[tuple[str, int], int](), 0, Counter[str]()
    for decision in log:
        if decision.queue == queue:
            count += len(decision.groups) * (1 if decision.kind == "dispatch" else -1)
            counts[decision.kind, number[decision.kind]] = count
            number[decision.kind] += 1
    return counts


@pytest.mark.parametrize("name", CASES)
def test_every_decision_that_loses_groups_is_in_the_trace(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    _, events = traced(case, tmp_path, seconds=case.seconds)
    losses = traced_losses(events)
    assert sorted(losses) == sorted(logged_losses(case, read_log(tmp_path / "log")))
    assert {kind for kind, *_ in losses} >= LOSSES[name]


@pytest.mark.parametrize("name", CASES)
def test_the_counter_of_a_queue_has_the_groups_of_the_log_when_calls_begin(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    plan, events = traced(case, tmp_path, seconds=case.seconds)
    begin: dict[tuple[int, int], float] = {}  # by stage and step, the start of the first call
    for event in (event for event in events if event.get("cat") == "call"):
        step = event["args"]["stage"], event["args"]["step"]
        begin[step] = min(event["ts"], begin.get(step, event["ts"]))
    log = read_log(tmp_path / "log")
    feeding = {plan.split.producer(node) for node, _ in plan.split.queues}
    left = sum([*logged_counts(log, queue).values()][-1] for queue in lates(case))
    for queue, (node, _) in zip(lates(case), plan.split.queues, strict=True):
        feeds, reads = plan.split.producer(node), plan.split.of[node.id]
        counter = f"groups in '{queue}' from stage {feeds} to {reads} of {plan.name}"
        levels = [(event["ts"], event["args"]) for event in events if event["name"] == counter]
        times = [at for at, _ in levels]
        assert times == sorted(times)
        counts = logged_counts(log, queue)
        checked = Counter[str]()
        for kind, stage in ("dispatch", feeds), ("take", reads):
            for number, decision in enumerate(each for each in log if (each.kind, each.queue) == (kind, queue)):
                if (stage, number) not in begin:
                    assert stage in feeding
                    checked["unwritten"] += kind == "dispatch"
                    continue
                index = sum(at <= begin[stage, number] for at in times) - 1
                before, now = levels[max(index - 1, 0)][1], levels[index][1]
                assert now["running"] + now["ready"] == counts[kind, number]
                if kind == "take":  # only groups that have ended
                    assert before["running"] == now["running"]
                    assert before["ready"] - now["ready"] >= len(decision.groups)
                checked[kind] += 1
        assert min(checked["dispatch"], checked["take"]) > 2
        assert checked["unwritten"] <= left, "a step is written once all of its groups have left the queues"
        assert levels[-1][1]["running"] == 0


@pytest.mark.parametrize("name", CASES)
def test_calls_have_the_stages_of_the_program(name: str, tmp_path: Path) -> None:
    plan, events = traced(CASES[name], tmp_path)
    calls = [(event["name"], event["args"]) for event in events if event.get("cat") == "call"]
    assert {label: args["stage"] for label, args in calls} == {
        step.label: plan.split.of[step.node] for step in plan.steps
    }
    assert all(args["plan"] == f"{plan.name}.{args['stage']}" for _, args in calls)


def test_a_trace_with_queues_reads_back_with_the_calls_of_every_stage(tmp_path: Path) -> None:
    plan, events = traced(STRAGGLER, tmp_path, seconds=STRAGGLER.seconds)
    steps = read_trace((tmp_path / "trace").read_text())
    assert sum(len(step.calls) for step in steps) == sum(event.get("cat") == "call" for event in events)
    assert {call.name for step in steps for call in step.calls} == {step.label for step in plan.steps}


def test_a_repeated_log_and_processes_show_their_decisions(tmp_path: Path) -> None:
    case, (first, again, timed) = STRAGGLER, (tmp_path / name for name in ("first", "again", "timed"))
    for folder in (first, again, timed):
        folder.mkdir()
    _, events = traced(case, first, seconds=case.seconds)
    _, repeated = traced(case, again, replay=first / "log")
    assert traced_losses(repeated) == traced_losses(events)

    def processes(plan: Plan, seed: int, **_: Any) -> TimedBackend:
        return TimedBackend(plan, seed, case.seconds)

    _, of_processes = traced(case, timed, processes)
    assert traced_losses(of_processes) == list(logged_losses(case, read_log(timed / "log")))
    assert traced_losses(of_processes)


def test_a_trace_that_begins_within_a_stream_begins_with_the_groups_at_that_time(tmp_path: Path) -> None:
    case, file = STRAGGLER, tmp_path / "trace"
    with case.launched() as running:
        stream = running.stream(case.loader(), log=tmp_path / "log", seconds=case.seconds)
        for _ in range(3):
            next(stream)
        before = read_log(tmp_path / "log")
        with running.trace(file):
            list(stream)
    events = json.loads(file.read_text())
    first = next(event["args"] for event in events if event.get("cat") == "queue")
    [*_, left] = logged_counts(before, "queue").values()
    [following, *_] = logged_counts(read_log(tmp_path / "log")[len(before) :], "queue").values()
    assert first["running"] + first["ready"] in (left, left + following)
    after = read_log(tmp_path / "log")[len(before) :]
    assert traced_losses(events) == list(logged_losses(case, after))


@dataclass
class SlowWorld:
    """A world in which everything takes a second on a clock."""

    clock: float = 0.0

    def accepts(self, stage: int) -> bool:
        self.clock += 1
        return stage == 0

    def dispatch(
        self, stage: int, numbers: Sequence[int], prompts: Sequence[int], version: int, batch: QueueBatch | None
    ) -> None:
        self.clock += 1

    def idle(self) -> bool:
        self.clock += 1
        return True

    def train(self, batches: Sequence[QueueBatch]) -> None:
        self.clock += 1

    def ended(self) -> Sequence[QueuedId] | None:
        self.clock += 1
        return [(0, 3)]


def test_a_decision_has_the_time_before_its_calls_and_an_end_that_after_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = SlowWorld()
    monkeypatch.setattr(tracing, "time", lambda: world.clock)
    timed = TimedWorld(world, 0.0)
    world.clock = 10.0
    assert (timed.accepts(0), timed.noted) == (True, 10.0)
    world.clock = 20.0  # while the loader reads
    timed.dispatch(0, [0], [0], 0, None)
    assert timed.noted == 20.0
    world.clock = 30.0
    assert (timed.idle(), timed.noted) == (True, 30.0)
    timed.train([])
    assert timed.noted == 30.0
    assert (timed.ended(), timed.noted) == ([(0, 3)], world.clock)
