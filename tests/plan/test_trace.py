"""Traces: what is written is JSON that Perfetto takes, and what is read is what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hfdsl.plan.payloads import DRIVER_PROCESS
from hfdsl.plan.timeline import (
    Interval,
    MemoryLevel,
    QueueLoss,
    QueueSample,
    TimedTransfer,
    Timeline,
    TraceFile,
    read_trace,
)

A, B = ("train", 0), ("score", 1)


def step(number: int, start: float) -> Timeline:
    intervals = (
        Interval(DRIVER_PROCESS, "driver", "submits", start, start + 0.5),
        Interval(process=A, kind="call", name="actor.generate", start=start + 1.0, stop=start + 2.0, rows=4),
        Interval(B, "wait", "waits for actor.generate", start, start + 2.5),
        Interval(B, "call", "reward.score", start + 2.5, start + 3.0),
    )
    transfer = TimedTransfer(
        source=A, target=B, name="actor.generate (ids)", bytes=64, sent=start + 2.0, arrived=start + 2.5
    )
    return Timeline(
        plan="grpo",
        number=number,
        start=start,
        stop=start + 4.0,
        intervals=intervals,
        transfers=(transfer,),
        levels=(MemoryLevel(A, start + 2.0, 128),),
    )


def events(file: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(file.read_text())
    return events


def test_a_row_a_group_and_in_it_a_row_a_rank(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    step(3, 1e9).save(file)
    named = {(e["name"], e["pid"], e.get("tid")): e["args"].get("name") for e in events(file) if e["ph"] == "M"}
    processes = {name: pid for (kind, pid, _), name in named.items() if kind == "process_name"}
    assert processes.keys() == {"driver", "train", "score"}
    assert named["thread_name", processes["score"], 1] == "rank 1"
    slices = {(e["pid"], e["tid"], e["cat"], e["name"], e["ts"], e["dur"]) for e in events(file) if e["ph"] == "X"}
    assert slices == {
        (processes["driver"], 0, "step", "grpo", 0.0, 4e6),
        (processes["driver"], 0, "driver", "submits", 0.0, 5e5),
        (processes["train"], 0, "call", "actor.generate", 1e6, 1e6),
        (processes["score"], 1, "wait", "waits for actor.generate", 0.0, 2.5e6),
        (processes["score"], 1, "call", "reward.score", 2.5e6, 5e5),
    }


def test_a_transfer_starts_within_its_maker_and_ends_where_its_reader_starts(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    with TraceFile(file) as trace:
        trace.add(step(0, 0.0))
        trace.add(step(1, 10.0))
    flows = [e for e in events(file) if e.get("cat") == "transfer"]
    assert [(e["ph"], e["id"]) for e in flows] == [("s", 1), ("f", 1), ("s", 2), ("f", 2)]
    for e in flows:
        [open_slice] = [
            s for s in events(file)
            if s["ph"] == "X" and s["cat"] == "call" and (s["pid"], s["tid"]) == (e["pid"], e["tid"])
            and s["ts"] <= e["ts"] < s["ts"] + s["dur"]
        ]  # fmt: skip  # one slice is open there
        assert open_slice["name"] == ("actor.generate" if e["ph"] == "s" else "reward.score")
        assert e["args"] == {"bytes": 64}


def test_a_file_reads_back_as_written(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    with TraceFile(file) as trace:
        trace.add(step(0, 5.0))
        trace.add(step(1, 15.0))
    first, second = read_trace(file.read_text())
    assert (first.plan, first.number, first.start, first.stop) == ("grpo", 0, 0.0, 4.0)
    assert (second.number, second.start) == (1, 10.0)
    assert second.nodes == step(1, 15.0).nodes
    assert [(call.process, call.rows) for call in first.calls] == [(A, 4), (B, None)]


def sample(time: float, *losses: QueueLoss, ready: int = 0, queue: str = "queue1") -> QueueSample:
    return QueueSample(plan="grpo", queue=queue, stages=(0, 1), time=time, running=2, ready=ready, losses=losses)


def test_a_counter_of_a_queue_is_written_when_it_changes_and_a_loss_whenever_it_happens(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    with TraceFile(file) as trace:
        trace.add_queue(sample(4.0))
        trace.add_queue(sample(4.5))
        trace.add(step(0, 5.0))
        trace.add_queue(sample(6.0, QueueLoss("drop", version=3, groups=2)))
        trace.add_queue(sample(6.5, queue="queue2"))
        trace.add_queue(sample(7.0, QueueLoss("lose", version=4, groups=1), ready=1))
    counts = [(e["name"], e["ts"], e["args"]) for e in events(file) if e["ph"] == "C" and e["cat"] == "queue"]
    assert counts == [
        ("groups in 'queue1' from stage 0 to 1 of grpo", 0.0, {"running": 2, "ready": 0}),
        ("groups in 'queue2' from stage 0 to 1 of grpo", 2.5e6, {"running": 2, "ready": 0}),
        ("groups in 'queue1' from stage 0 to 1 of grpo", 3e6, {"running": 2, "ready": 1}),
    ]
    losses = [(e["name"], e["ts"], e["args"]) for e in events(file) if e["ph"] == "i"]
    assert losses == [
        ("drop", 2e6, {"plan": "grpo", "queue": "queue1", "version": 3, "groups": 2}),
        ("lose", 3e6, {"plan": "grpo", "queue": "queue1", "version": 4, "groups": 1}),
    ]
    [driver] = [e["pid"] for e in events(file) if e["name"] == "process_name" and e["args"]["name"] == "driver"]
    assert {e["pid"] for e in events(file) if e.get("cat") in ("queue", "loss")} == {driver}
    [read] = read_trace(file.read_text())
    assert (read.start, read.nodes) == (1.0, step(0, 5.0).nodes)


def test_a_trace_of_queues_without_steps_has_none(tmp_path: Path) -> None:
    file = tmp_path / "none.json"
    with TraceFile(file) as trace:
        trace.add_queue(sample(4.0))
    assert read_trace(file.read_text()) == ()


def test_a_trace_without_steps_is_one(tmp_path: Path) -> None:
    with TraceFile(tmp_path / "none.json"):
        pass
    assert read_trace((tmp_path / "none.json").read_text()) == ()


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '[{"ph": "X", "name": "f", "cat": "call"}]', '[{"ph": "X"}]', '{"traceEvents": []}']
)
def test_files_that_are_no_trace_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_trace(text)
