"""A column from one process to another on GPUs: in plans, by hfdsl's transport alone, Ray's own, NCCL and a copy.

python benchmarks/gpu/transports.py            # two GPUs of one host; Ray's NCCL transport is left out without CuPy
python benchmarks/gpu/transports.py --skip "object store"      # rows whose names have these words; they take longest
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal

import ray
import torch
import torch.distributed as dist

import hfdsl as hf
from hfdsl.runtime.transports import direct
from hfdsl.runtime.transports.serialization import PickledValue, pickle_value

MIB = 2**20
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = 4


class B(hf.Dim):
    """Rows."""


class R(hf.Dim):
    """Numbers of a row."""


class Asked(hf.Batch):
    """Of which size the column is to be, in bytes."""

    size: hf.i64[B]


class Column(hf.Batch):
    x: hf.f32[B, R]


class Total(hf.Batch):
    total: hf.Metric[float, Literal["sum"]]


class Maker(hf.Worker):
    """A role with a resident column of each size."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.columns = {size: torch.randn(ROWS, size // 4 // ROWS, device=DEVICE) for size in sizes}

    @hf.register(hf.Dispatch.DP_PROTO)
    def make(self, request: Asked) -> Column:
        return Column(x=self.columns[int(request.size.tensor[0])])


class Reader(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def read(self, column: Column) -> Total:
        x = column.x.tensor.view(-1)
        return Total(total=float(x[:: max(1, x.numel() // 1024)].double().sum()))


@hf.dataflow
def move(request: Asked, maker: Maker, reader: Reader) -> Total:
    return reader.read(maker.make(request))


@contextmanager
def planned(
    sizes: Sequence[int], *, one_gpu: bool, direct: bool, launch: Literal["local", "ray"] = "ray"
) -> Iterator[Callable[[int], Any]]:
    """A step that moves a column of a size from role to role."""
    pool, second_pool = hf.ResourcePool([1]), hf.ResourcePool([1])
    reader = hf.place(Reader, pool=pool, colocate=False) if one_gpu else hf.place(Reader, pool=second_pool)
    places = hf.Deployment(maker=hf.place(Maker, sizes, pool=pool), reader=reader)
    plan = move.compile(places, {B: ROWS}, optimize=hf.Optimize(direct=direct))
    with plan.launch(launch, deadline=300) as running:
        yield lambda size: running.step(Asked(size=torch.full((ROWS,), size)))


def plans(sizes: Sequence[int], args: argparse.Namespace) -> dict[str, list[float | None]]:
    """The same by whole steps, each way."""
    ways: dict[str, Any] = {
        "two GPUs: a plan": {"one_gpu": False, "direct": True},
        "one GPU: a plan": {"one_gpu": True, "direct": True},
        "object store: a plan": {"one_gpu": False, "direct": False},
    }
    cells: dict[str, list[float | None]] = {}
    for name, way in ways.items():
        if skipped(name, args):
            continue
        say(f"{name}: starts")
        with planned([max(size, 4 * ROWS) for size in sizes], **way) as step:
            for size in sizes:
                slow = not way["direct"] and size > 4
                value = timed(lambda: step(max(size, 4 * ROWS)), 1 if slow else args.times, 3)  # noqa: B023
                cells.setdefault(name, []).append(print_row(name, size, value))
    return cells


class Process:
    """One process on one GPU, with a resident column of each size."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.columns: dict[int, torch.Tensor] = {}

    def keep(self, sizes: Sequence[int]) -> None:
        self.columns = {size: torch.randn(max(1, size // 4), device="cuda") for size in sizes}
        torch.cuda.synchronize()

    def ship(self, size: int) -> Any:
        return {"x": self.columns[size]}

    def seal(self, size: int) -> Any:
        return pickle_value({"x": self.columns[size]})

    def read(self, value: Any) -> float:
        if isinstance(value, PickledValue):
            value = value.load()
        x: torch.Tensor = value["x"].cuda()
        return float(x[:: max(1, x.numel() // 1024)].double().sum())

    def total(self, size: int) -> float:
        return self.read({"x": self.columns[size]})

    def join(self, address: str) -> None:
        dist.init_process_group("nccl", init_method=address, rank=self.rank, world_size=2)

    def raw(self, size: int, times: int) -> float:
        """Milliseconds of one NCCL send or receive, the median of some."""
        x = torch.empty(size // 4, device="cuda")
        return timed_on_device(lambda: dist.send(x, 1) if self.rank == 0 else dist.recv(x, 0), times)

    def copy(self, size: int, times: int) -> float:
        x, y = torch.empty(size // 4, device="cuda"), torch.empty(size // 4, device="cuda")
        return timed_on_device(lambda: y.copy_(x), times)


def timed_on_device(act: Callable[[], Any], times: int) -> float:
    millis: list[float] = []
    for _ in range(times + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        act()
        end.record()
        end.synchronize()
        millis.append(start.elapsed_time(end))
    return statistics.median(millis[3:])


def timed(act: Callable[[], Any], times: int, warm: int = 2) -> float:
    millis: list[float] = []
    for _ in range(times + warm):
        start = time.perf_counter()
        act()
        millis.append((time.perf_counter() - start) * 1e3)
    return statistics.median(millis[warm:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--mib", type=int, nargs="*", default=[256, 4096])
    parser.add_argument("--skip", nargs="*", default=[], metavar="WORDS", help="rows whose name has one of these")
    args = parser.parse_args()
    sizes = [4, *(mib * MIB for mib in args.mib)]
    ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=12 * 2**30)
    say("Ray runs")
    cells = alone(sizes, args)
    show(cells, args.mib)
    compare(cells, args.mib)
    show(plans(sizes, args), args.mib)
    ray.shutdown()


def alone(sizes: Sequence[int], args: argparse.Namespace) -> dict[str, list[float | None]]:
    """Each transport by bare actors."""
    direct.register()
    remote: Any = ray.remote  # its types do not know the option
    process = remote(enable_tensor_transport=True)(Process)
    a, c = (process.options(num_gpus=0.4).remote(rank) for rank in (0, 2))
    ray.get([a.keep.remote(sizes), c.keep.remote([])])
    b = process.options(num_gpus=1).remote(1)
    ray.get(b.keep.remote([]))
    port = ray.get(a.__ray_call__.remote(free_port))
    ray.get([process.join.remote(f"tcp://127.0.0.1:{port}") for process in (a, b)])
    say("three processes run")
    links = direct.Links([a, b, c], 120)
    say("links are joined")
    cells: dict[str, list[float | None]] = {}
    for name, processes, method in (("raw NCCL, two GPUs", (a, b), "raw"), ("device copy, one GPU", (a,), "copy")):
        if not skipped(name, args):
            values = [
                ray.get([getattr(process, method).remote(size, args.times) for process in processes])[0]
                for size in sizes[1:]
            ]
            cells[name] = [None, *(print_row(name, size, value) for size, value in zip(sizes[1:], values, strict=True))]
    rows = [
        ("two GPUs: hfdsl", b, direct.TRANSPORT),
        ("one GPU: hfdsl", c, direct.TRANSPORT),
        ("two GPUs: hfdsl, mapped again", b, direct.TRANSPORT),
        ("one GPU: hfdsl, mapped again", c, direct.TRANSPORT),
        ("one GPU: Ray's CUDA IPC", c, "cuda_ipc"),
        ("two GPUs: Ray's NCCL", b, "nccl"),
        ("object store", b, ""),
    ]
    for name, reader, transport in rows:
        if skipped(name, args):
            continue
        if transport == "nccl":
            if find_spec("cupy") is None:
                say(f"{name}: left out, there is no CuPy")
                continue
            from ray.experimental.collective import create_collective_group

            create_collective_group([a, b, c], backend="nccl")
            say("Ray's collective group is made")
        if name.endswith("mapped again"):
            ray.get(links.unmap_after_transfers())
        cells[name] = [moved(name, a, reader, transport, size, args.times) for size in sizes]
    links.close()
    for worker in (a, b, c):
        ray.kill(worker)
    return cells


def moved(name: str, maker: Any, reader: Any, transport: str, size: int, times: int) -> float:
    """Milliseconds of a column's way from process to process."""
    method = maker.seal if transport == direct.TRANSPORT else maker.ship
    if transport:
        method = method.options(tensor_transport=transport)

    def act() -> Any:
        return ray.get(reader.read.remote(method.remote(size)))

    start = time.perf_counter()
    total = act()
    first = (time.perf_counter() - start) * 1e3
    if total != ray.get(maker.total.remote(size)):
        say(f"WRONG: {name} {size}")
    once = not transport and size > 4  # seconds each
    return print_row(name, size, first if once else timed(act, times), f", the first {first:.0f} ms")


START = time.perf_counter()


def say(text: str) -> None:
    """What has been done, at once."""
    print(f"[{time.perf_counter() - START:6.1f} s] {text}", flush=True)


def print_row(name: str, size: int, value: float, more: str = "") -> float:
    say(f"{name}, {f'{size // MIB} MiB' if size > 4 else 'empty'}: {value:.2f} ms{more}")
    return value


def skipped(name: str, args: argparse.Namespace) -> bool:
    return any(words in name for words in args.skip)


def show(cells: Mapping[str, Sequence[float | None]], mib: Sequence[int]) -> None:
    print("\n| ms | empty | " + " | ".join(f"{size} MiB" for size in mib) + " |\n|---|---:|" + "---:|" * len(mib))
    for name, values in cells.items():
        print(f"| {name} | " + " | ".join("" if value is None else f"{value:.2f}" for value in values) + " |")
    print(flush=True)


def compare(cells: Mapping[str, Sequence[float | None]], mib: Sequence[int]) -> None:
    """Transfers above the empty one beside the bare copy of their bytes."""
    for name, values in cells.items():
        bare = cells.get("raw NCCL, two GPUs" if name.startswith("two GPUs") else "device copy, one GPU")
        if ":" not in name or bare is None or values[0] is None:
            continue
        for size, value, least in zip(mib, values[1:], bare[1:], strict=True):
            if value is not None and least is not None:
                above = value - values[0]
                print(
                    f"{name}, {size} MiB: {above:.2f} ms above its empty transfer, {above / least:.2f}x {least:.2f} ms"
                )
    print(flush=True)


def free_port(_: Any) -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
