"""The utilization of GPUs while calls run alone, sampled by nvidia-smi, for predictions of runs in which calls overlap.

A worked example: generation runs from 0 to 6 s, and an update from 6 to 8 s. A sample at 3.5 s says that kernels ran in
40% of the time since 2.5 s, so it is one of generation. One at 6.2 s belongs to neither::

    seconds     0    1    2    3    4    5    6    7    8
    calls       [generate                     ][update    ]
    samples                [40 %]           [70 %]
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from datetime import datetime
from statistics import mean
from threading import Thread
from types import TracebackType
from typing import NamedTuple, Self

from hfdsl.plan.timeline import Timeline

WINDOW = 1.0
"""The longest period in seconds over which a driver averages the utilization."""

QUERY = ("nvidia-smi", "--query-gpu=timestamp,index,utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200")


class Sample(NamedTuple):
    """The utilization of a GPU in the ``WINDOW`` before a time, in seconds since the epoch."""

    time: float
    gpu: int
    utilization: float


def parsed(line: str) -> Sample | None:
    """A line of nvidia-smi; None for a GPU that reports no utilization."""
    timestamp, gpu, percent = (cell.strip() for cell in line.split(","))
    if not percent.isdigit():
        return None
    time = datetime.strptime(timestamp, "%Y/%m/%d %H:%M:%S.%f").astimezone()  # nvidia-smi prints local time
    return Sample(time.timestamp(), int(gpu), int(percent) / 100)


def utilization_of_calls(samples: Sequence[Sample], steps: Iterable[Timeline]) -> dict[str, float]:
    """The mean utilization while the calls of each node ran, on the GPU that was busiest then.

    Only samples whose whole window is within a call count, so calls shorter than that have none.
    """
    by_call: dict[str, dict[int, list[float]]] = {}
    for timeline in steps:
        for call in timeline.calls:
            for sample in samples:
                if call.start <= sample.time - WINDOW and sample.time <= call.stop:
                    by_call.setdefault(call.name, {}).setdefault(sample.gpu, []).append(sample.utilization)
    return {name: max(map(mean, by_gpu.values())) for name, by_gpu in by_call.items()}


class UtilizationSampler:
    """Samples the GPUs of this machine within a ``with``; without nvidia-smi there are no ``samples``."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader = Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        if shutil.which(QUERY[0]) is not None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            command = [*QUERY, f"--id={visible}"] if visible else [*QUERY]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._reader.join()
            self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout or () if self._process is not None else ():
            sample = parsed(line)
            self.samples += [sample] if sample is not None else []
