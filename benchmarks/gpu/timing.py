"""Seconds of work on GPUs: by the clock of the host, and by that of the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

GPUS = torch.cuda.is_available()


def wait() -> None:
    if GPUS:
        torch.cuda.synchronize()


def seconds(function: Callable[[], Any], times: int, finish: Callable[[], None] = wait) -> float:
    """The median of some calls, after two that warm up; ``finish`` waits for what a call has begun."""
    durations = []
    for _ in range(times + 2):
        finish()
        start = time.perf_counter()
        function()
        finish()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations[2:])


def busy(work: Callable[[], object], times: int) -> float:
    """The median seconds of some calls by the clock of a GPU, after two that warm up."""
    spans = list[float]()
    for _ in range(times + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        spans.append(start.elapsed_time(end) / 1e3)
    return statistics.median(spans[2:])
