"""What a step costs: time, CPU, bytes through the driver, memory. Linux, and one driver process at a time."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from benchmarks.dataplane import resident_memory

MIB = 2**20

VARIABLES = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_preallocate_plasma_memory": "1",
}
"""The environment in which ``cluster`` imports Ray."""


@contextmanager
def cluster(store_mib: int, cpus: int = 64) -> Iterator[Any]:
    """A Ray cluster of our own, and its module. Its store's pages exist from the start, as in a job that runs for long.

    The CPUs are Ray's count of slots and no promise about the machine. Token authentication, which is the same for
    every path, is off. Where this process is in a cluster already, it is that one.
    """
    os.environ |= VARIABLES
    import ray

    if ray.is_initialized():
        yield ray
        return
    ray.init(
        address="local",
        num_cpus=cpus,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=store_mib * MIB,
    )
    try:
        yield ray
    finally:
        ray.shutdown()


# -- processes


NO_WORKERS = {"ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent"}
"""The titles of workers that have no work, which Ray may end at any time, and of Ray's own processes."""


def processes(prefix: str = "ray::") -> list[int]:
    """The processes below this one whose title begins so: Ray's workers, except for idle ones."""
    parents, titles = {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            titles[int(folder.name)] = (folder / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue

    def below(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == os.getpid():
                return True
        return False

    return [pid for pid, title in titles.items() if title.startswith(prefix) and title not in NO_WORKERS and below(pid)]


def cpu_seconds(pids: Iterable[int]) -> float:
    """The CPU time that these processes have used; none for one that has ended."""
    total = 0
    for pid in pids:
        try:
            total += time.clock_gettime_ns(~pid << 3 | 2)  # the kernel's id of a process's CPU clock
        except OSError:
            continue
    return total / 1e9


def own_cpu_seconds() -> float:
    """The CPU time of this process, with all of its threads, by ``getrusage``."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def loopback_bytes() -> int:
    """What has passed the machine's loopback device: everything that is sent by sockets, by whomever."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    return 0


@dataclass
class Serialized:
    """Bytes that Ray serializes and deserializes in this process: put, get, arguments and results of tasks."""

    sent: int = 0
    received: int = 0

    def install(self) -> Self:
        """Count from now on."""
        from ray._private.serialization import SerializationContext as Context

        serialize, deserialize = Context.serialize, Context._deserialize_object

        def counted_serialize(context: Any, value: Any) -> Any:
            serialized = serialize(context, value)
            self.sent += serialized.total_bytes
            return serialized

        def counted_deserialize(context: Any, data: Any, *rest: Any) -> Any:
            self.received += memoryview(data).nbytes if data else 0
            return deserialize(context, data, *rest)

        Context.serialize = counted_serialize  # type: ignore[assignment,method-assign]
        Context._deserialize_object = counted_deserialize  # type: ignore[assignment,method-assign]
        return self


# -- steps


@dataclass(frozen=True)
class Cost:
    """What one step took: milliseconds, and bytes."""

    wall: float
    driver_cpu: float
    workers_cpu: float
    sent: float
    received: float
    loopback: float


def cost(step: Callable[[], object], workers: Sequence[int], serialized: Serialized) -> Cost:
    """Make a step and measure it."""
    sent, received, loopback = serialized.sent, serialized.received, loopback_bytes()
    busy, own_before, start = cpu_seconds(workers), own_cpu_seconds(), time.perf_counter()
    step()
    wall, used = time.perf_counter() - start, own_cpu_seconds() - own_before
    return Cost(
        wall * 1e3,
        used * 1e3,
        (cpu_seconds(workers) - busy) * 1e3,
        serialized.sent - sent,
        serialized.received - received,
        loopback_bytes() - loopback,
    )


@dataclass(frozen=True)
class Summary:
    """Medians of many steps, the fastest one, and the peak of the driver's memory above what it held before, in MiB."""

    wall: float
    best: float
    driver_cpu: float
    workers_cpu: float
    sent: float
    received: float
    loopback: float
    memory: float

    @classmethod
    def of(cls, costs: Sequence[Cost], memory: float) -> Self:
        """Of the costs of the steps of one path. CPU and bytes are means: their clocks may be coarse."""
        walls = [cost.wall for cost in costs]
        means = {f.name: statistics.fmean(getattr(cost, f.name) for cost in costs) for f in fields(Cost)}
        return cls(**(means | {"wall": statistics.median(walls), "best": min(walls), "memory": memory}))


def interleaved(
    steps: Mapping[str, Callable[[], object]],
    times: int,
    workers: Sequence[int],
    serialized: Serialized,
    before: Callable[[str], object] = lambda name: None,
    pause: float = 0.03,
) -> dict[str, list[Cost]]:
    """So many steps of each path, all paths in turn; ``before`` is called with a path's name, outside of its time.

    The pause lets Ray free what the step before left behind.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in steps}
    for _ in range(times):
        for name, step in steps.items():
            before(name)
            time.sleep(pause)
            costs[name].append(cost(step, workers, serialized))
    return costs


class MemoryWatch:
    """This process's anonymous memory, watched by another process every two milliseconds."""

    def __init__(self) -> None:
        command = [sys.executable, "-S", resident_memory.__file__, str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def _answer(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        return int(self._process.stdout.readline())

    def peak(self, step: Callable[[], object]) -> float:
        """MiB that a step takes above what was held before it, after free memory has gone back to the system."""
        gc.collect()
        give_back_free_memory()
        held = self._answer()
        step()
        return (self._answer() - held) / 1024

    def close(self) -> None:
        """End the other process."""
        self._process.communicate()


def give_back_free_memory() -> None:
    """Have the C library return what it holds in reserve, so that a peak within the reserve is seen."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


# -- for people


def machine() -> str:
    """What the numbers were measured on."""
    model = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}, {versions()}; load {load}"


def versions() -> str:
    """The packages that the numbers depend on."""
    from importlib.metadata import PackageNotFoundError, version

    versions_found = []
    for name in ("ray", "torch", "verl", "tensordict", "TransferQueue"):
        try:
            versions_found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(versions_found)


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many digits that matter; nothing for None."""
    if value is None:
        return ""
    integer_digits = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{max(0, digits - integer_digits)}f}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
