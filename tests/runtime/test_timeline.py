"""The timeline of a run: every process's time is accounted for, transfers have their bytes, and predictions hold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import hfdsl as hf
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.payloads import DRIVER_PROCESS
from hfdsl.plan.plan import DRIVER
from hfdsl.plan.predict import durations, predict
from hfdsl.plan.timeline import Interval, Timeline, read_trace
from tests.nightly import examples
from tests.plan.oracle import B, Program, R, batch_of, programs, some_rows
from tests.runtime import queue_programs as queued
from tests.runtime import sleeping_programs as p

many = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@many
@given(programs())
def test_calls_and_waiting_fill_the_step_of_every_process(program: Program) -> None:
    plan = program.dataflow().compile(program.deployment(), dims={B: program.rows, R: 2})
    with plan.launch() as running:
        running.step(batch_of(some_rows(program.rows, 0)))
        timeline = running.timeline
    calls = sorted((call.name, call.process[1]) for call in timeline.calls)
    assert calls == sorted((step.label, rank) for step in plan.steps for rank in step.ranks)
    assert running.timings.keys() == {step.label for step in plan.steps}
    by_process: dict[Any, list[Interval]] = {}
    for interval in timeline.intervals:
        assert timeline.start <= interval.start <= interval.stop <= timeline.stop
        if interval.process[0] != DRIVER and interval.kind != "fused":
            by_process.setdefault(interval.process, []).append(interval)
    for intervals in by_process.values():
        intervals.sort(key=lambda interval: (interval.start, interval.stop))
        assert all(before.stop <= after.start for before, after in pairwise(intervals))
        assert (intervals[0].start, intervals[-1].stop, intervals[-1].kind) == (timeline.start, timeline.stop, "wait")
    reading = {interval.name: interval for interval in timeline.intervals if interval.process == DRIVER_PROCESS}[
        "reads the result"
    ]
    for transfer in timeline.transfers:
        assert transfer.sent <= transfer.arrived, "no reader starts before what it reads was given"
        assert transfer.target != DRIVER_PROCESS or transfer.arrived <= reading.stop


def naps(*, own_pools: bool) -> CompiledPlan:
    shared = hf.ResourcePool([1], use_gpu=False)
    pools = [hf.ResourcePool([1], use_gpu=False) if own_pools else shared for _ in range(3)]
    places = {name: hf.place(p.Sleeper, pool=pool) for name, pool in zip("abc", pools, strict=True)}
    return p.naps.compile(hf.Deployment(**places), dims={p.B: 4})


def rows() -> p.Rows:
    return p.Rows(x=torch.zeros(4))


def order(timeline: Timeline) -> list[str]:
    """Who starts after whose end: nodes by stage."""
    nodes = timeline.nodes
    return sorted(nodes, key=lambda name: sum(stop <= nodes[name][0] for _, stop in nodes.values()))


def test_transfers_have_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p, "SECONDS", 0.0)
    with naps(own_pools=True).launch() as running:
        assert running.timeline.intervals == ()
        running.step(rows())
        transfers = {(t.source[0], t.target[0]): (t.name, t.bytes) for t in running.timeline.transfers}
    assert transfers == {
        (DRIVER, "a"): ("rows (x)", 16),
        ("a", "b"): ("a.doze (x)", 16),
        ("a", "c"): ("a.doze (x)", 16),
        ("b", DRIVER): ("b.doze (x)", 16),
        ("c", DRIVER): ("c.doze (x)", 16),
    }


def test_a_trace_has_the_steps_of_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p, "SECONDS", 0.0)
    outer, inner = tmp_path / "outer.json", tmp_path / "inner.json"
    with naps(own_pools=True).launch() as running:
        running.step(rows())
        with running.trace(outer):
            running.step(rows())
            with running.trace(inner):
                running.step(rows())
            running.step(rows())
        running.step(rows())
    assert [step.number for step in read_trace(outer.read_text())] == [1, 2, 3]
    assert [step.number for step in read_trace(inner.read_text())] == [2]


def test_a_trace_ends_with_the_last_whole_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p, "SECONDS", 0.0)
    with naps(own_pools=True).launch() as running, running.trace(tmp_path / "t.json"):
        running.step(rows())
        monkeypatch.setattr(p, "SECONDS", -1.0)  # which sleep refuses
        with pytest.raises(hf.RoleError):
            running.step(rows())
    assert [step.number for step in read_trace((tmp_path / "t.json").read_text())] == [0]


@pytest.mark.parametrize("lag", [1, 3])
def test_a_trace_shows_stages_and_the_batches_between_them(lag: int, tmp_path: Path) -> None:
    steps, file = 6, tmp_path / "t.json"
    plan = queued.flow.given(lag=lag, late="wait").compile(queued.deployment(), dims={queued.B: 4})
    with plan.launch() as running, running.trace(file):
        assert len([*running.stream(queued.rows(steps))]) == steps
    events = json.loads(file.read_text())
    stages = {event["name"]: event["args"]["stage"] for event in events if event.get("cat") == "call"}
    assert stages == {step.label: plan.split.of[step.node] for step in plan.steps}
    levels = [event["args"]["batches"] for event in events if event.get("cat") == "queue"]
    assert len(levels) == 2 * steps
    assert levels[-1] == 0
    assert max(levels) == lag + 1, "the first update begins once the engine is ahead"
    assert all(0 <= level <= lag + 1 for level in levels)


@dataclass(frozen=True)
class Run:
    """A plan that ran, and the file with its trace."""

    plan: CompiledPlan
    timeline: Timeline
    trace: Path


@pytest.fixture(scope="module")
def runs(ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """In one process, and each role in one of its own."""
    folder, recorded = tmp_path_factory.mktemp("traces"), {}
    for name in ("shared", "apart"):
        plan = naps(own_pools=name == "apart")
        with plan.launch("ray") as running, running.trace(folder / name):
            for _ in range(2):
                running.step(rows())
            recorded[name] = Run(plan, running.timeline, folder / name)
    return recorded


@pytest.mark.nightly
@pytest.mark.parametrize("recorded", ["shared", "apart"])
def test_a_prediction_has_the_order_of_the_run(runs: dict[str, Run], recorded: Literal["shared", "apart"]) -> None:
    assert runs["shared"].timeline.overlaps == frozenset()
    assert runs["apart"].timeline.overlaps == {("b.doze", "c.doze")}
    takes = durations(read_trace(runs[recorded].trace.read_text()))
    for name, run in runs.items():
        prediction = predict(run.plan, takes)
        assert prediction.timeline.overlaps == run.timeline.overlaps
        assert order(prediction.timeline) == order(run.timeline)
        assert len(prediction.critical) == (3 if name == "shared" else 2)
