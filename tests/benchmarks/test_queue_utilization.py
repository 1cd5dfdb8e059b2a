"""The utilization of GPUs that the benchmark of queues attributes to calls."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.queues.utilization import Sample, UtilizationSampler, parsed, utilization_of_calls
from hfdsl.plan.timeline import Interval, Timeline


def step(*calls: tuple[str, int, float, float]) -> Timeline:
    intervals = tuple(Interval((name, rank), "call", name, start, stop) for name, rank, start, stop in calls)
    return Timeline("flow", 0, 0.0, 20.0, intervals)


def test_a_sample_counts_for_the_call_that_its_whole_second_is_in() -> None:
    """The worked example of the module, and another step of the same calls."""
    samples = [Sample(3.5, 0, 0.4), Sample(6.2, 0, 0.7), Sample(13.0, 0, 0.6), Sample(17.9, 0, 0.9)]
    steps = [
        step(("generate", 0, 0.0, 6.0), ("update", 0, 6.0, 8.0)),
        step(("generate", 0, 10.0, 16.0), ("update", 0, 16.0, 18.0), ("load", 0, 18.0, 18.5)),
    ]
    assert utilization_of_calls(samples, steps) == {"generate": pytest.approx(0.5), "update": pytest.approx(0.9)}


@pytest.mark.parametrize(("time_of_sample", "counts"), [(0.99, False), (1.0, True), (6.0, True), (6.01, False)])
def test_a_sample_that_reaches_beyond_a_call_does_not_count(time_of_sample: float, counts: bool) -> None:
    attributed = utilization_of_calls([Sample(time_of_sample, 0, 0.5)], [step(("generate", 0, 0.0, 6.0))])
    assert attributed == ({"generate": 0.5} if counts else {})


def test_a_call_has_the_utilization_of_the_busiest_gpu() -> None:
    """That is the one it ran on: in a run without a queue, calls run one after another."""
    samples = [Sample(3.0, 0, 0.0), Sample(3.0, 1, 0.8), Sample(4.0, 0, 0.0), Sample(4.0, 1, 0.6)]
    assert utilization_of_calls(samples, [step(("generate", 0, 0.0, 6.0))]) == {"generate": pytest.approx(0.7)}


def test_lines_of_nvidia_smi() -> None:
    local = datetime(2026, 1, 2, 3, 4, 5, 250_000).astimezone()
    assert parsed("2026/01/02 03:04:05.250, 1, 47\n") == Sample(local.timestamp(), 1, 0.47)
    assert parsed("2026/01/02 03:04:05.250, 1, [N/A]\n") is None


def test_samples_are_read_while_nvidia_smi_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text('#!/bin/sh\nwhile true; do date "+%Y/%m/%d %H:%M:%S.000, 3, 25"; sleep 0.02; done\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    before = datetime.now(UTC).timestamp()
    with UtilizationSampler() as sampler:
        until = time.monotonic() + 30
        while len(sampler.samples) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert len(sampler.samples) >= 2
    assert {(sample.gpu, sample.utilization) for sample in sampler.samples} == {(3, 0.25)}
    assert abs(sampler.samples[0].time - before) < 60
    after = len(sampler.samples)
    time.sleep(0.05)
    assert len(sampler.samples) == after, "it has ended"


def test_without_nvidia_smi_there_are_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with UtilizationSampler() as sampler:
        pass
    assert sampler.samples == []
