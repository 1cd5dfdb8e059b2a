"""A column from one process to another on GPUs: in plans, by hfdsl's transport alone, Ray's own, NCCL and a copy.

python benchmarks/gpu/transports.py            # needs two GPUs of one host, and CuPy for Ray's NCCL transport
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import ray
import torch
import torch.distributed as dist

import hfdsl as hf
from hfdsl.runtime import direct
from hfdsl.runtime.parcel import Parcel, seal

MIB = 2**20
ROWS = 4


class B(hf.Dim):
    """Rows."""


class R(hf.Dim):
    """Numbers of a row."""


class Asked(hf.Batch):
    x: hf.f32[B]


class Column(hf.Batch):
    x: hf.f32[B, R]


class Total(hf.Batch):
    total: hf.Metric[float, Literal["sum"]]


class Maker(hf.Worker):
    """A role with a resident column."""

    def __init__(self, size: int) -> None:
        self.column = torch.randn(ROWS, size // 4 // ROWS, device="cuda")

    @hf.register(hf.Dispatch.DP_PROTO)
    def make(self, asked: Asked) -> Column:
        return Column(x=self.column)


class Reader(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def read(self, column: Column) -> Total:
        x = column.x.tensor.view(-1)
        return Total(total=float(x[:: max(1, x.numel() // 1024)].double().sum()))


@hf.dataflow
def move(asked: Asked, maker: Maker, reader: Reader) -> Total:
    return reader.read(maker.make(asked))


def in_a_plan(size: int, times: int, *, one_gpu: bool, direct: bool) -> float:
    """Milliseconds of a step that moves a column from role to role."""
    pool, other = hf.ResourcePool([1]), hf.ResourcePool([1])
    reader = hf.place(Reader, pool=pool, colocate=False) if one_gpu else hf.place(Reader, pool=other)
    places = hf.Deployment(maker=hf.place(Maker, size, pool=pool), reader=reader)
    plan = move.compile(places, {B: ROWS, R: size // 4 // ROWS}, optimize=hf.Optimize(direct=direct))
    asked = Asked(x=torch.zeros(ROWS))
    with plan.launch("ray", deadline=300) as running:
        return timed(lambda: running.step(asked), times if direct else 1, 3 if direct else 1)


def plans(sizes: Sequence[int], times: int) -> dict[str, list[float | None]]:
    """The same by whole steps, each way."""
    ways = {
        "two GPUs: a plan": {"one_gpu": False, "direct": True},
        "one GPU: a plan": {"one_gpu": True, "direct": True},
        "object store: a plan": {"one_gpu": False, "direct": False},
    }
    return {name: [in_a_plan(max(size, 4 * ROWS), times, **way) for size in sizes] for name, way in ways.items()}


class Process:
    """One process on one GPU, with a resident column of each size."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.columns: dict[int, torch.Tensor] = {}

    def keep(self, size: int) -> None:
        self.columns.clear()
        torch.cuda.empty_cache()
        self.columns[size] = torch.randn(max(1, size // 4), device="cuda")
        torch.cuda.synchronize()

    def ship(self, size: int) -> Any:
        return {"x": self.columns[size]}

    def seal(self, size: int) -> Any:
        return seal({"x": self.columns[size]})

    def read(self, value: Any) -> float:
        if isinstance(value, Parcel):
            value = value.open()
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
    found: list[float] = []
    for _ in range(times + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        act()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return statistics.median(found[3:])


def timed(act: Callable[[], Any], times: int, warm: int = 2) -> float:
    found: list[float] = []
    for _ in range(times + warm):
        start = time.perf_counter()
        act()
        found.append((time.perf_counter() - start) * 1e3)
    return statistics.median(found[warm:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--mib", type=int, nargs="*", default=[256, 4096])
    args = parser.parse_args()
    ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=12 * 2**30)
    direct.register()
    remote: Any = ray.remote  # its types do not know the option
    process = remote(enable_tensor_transport=True)(Process)
    a, c = (process.options(num_gpus=0.4).remote(rank) for rank in (0, 2))
    ray.get([a.keep.remote(4), c.keep.remote(4)])
    b = process.options(num_gpus=1).remote(1)
    ray.get(b.keep.remote(4))
    port = ray.get(a.__ray_call__.remote(free_port))
    ray.get([one.join.remote(f"tcp://127.0.0.1:{port}") for one in (a, b)])

    start = time.perf_counter()
    links = direct.Links([a, b, c], 120)
    print(f"links joined in {time.perf_counter() - start:.2f} s")
    start = time.perf_counter()
    from ray.experimental.collective import create_collective_group

    create_collective_group([a, b, c], backend="nccl")
    print(f"Ray's collective group made in {time.perf_counter() - start:.2f} s")

    def moved(reader: Any, transport: str, size: int, sealed: bool) -> Callable[[], Any]:
        method = a.seal if sealed else a.ship
        if transport:
            method = method.options(tensor_transport=transport)
        return lambda: ray.get(reader.read.remote(method.remote(size)))

    sizes = [4, *(mib * MIB for mib in args.mib)]
    cells: dict[str, list[float | None]] = {"raw NCCL, two GPUs": [None], "device copy, one GPU": [None]}
    for size in sizes:
        ray.get(a.keep.remote(size))
        want = ray.get(a.total.remote(size))
        if size > 4:
            cells["raw NCCL, two GPUs"].append(ray.get([one.raw.remote(size, args.times) for one in (a, b)])[0])
            cells["device copy, one GPU"].append(ray.get(a.copy.remote(size, args.times)))
        for name, reader, transport, sealed in (
            ("two GPUs: Ray's NCCL", b, "nccl", False),
            ("two GPUs: hfdsl", b, direct.TRANSPORT, True),
            ("object store", b, "", False),
            ("one GPU: Ray's CUDA IPC", c, "cuda_ipc", False),
            ("one GPU: hfdsl", c, direct.TRANSPORT, True),
        ):
            act = moved(reader, transport, size, sealed)
            start = time.perf_counter()
            if act() != want:
                print(f"WRONG: {name} {size}")
            first = time.perf_counter() - start
            if size == 4:
                print(f"{name}: first {first * 1e3:.0f} ms")
            if not transport and size > 4:
                cells.setdefault(name, []).append(first * 1e3)  # seconds each: once is enough
            else:
                cells.setdefault(name, []).append(timed(act, args.times))
    links.close()
    for one in (a, b, c):
        ray.kill(one)
    show(cells | plans(sizes, args.times), args.mib)
    ray.shutdown()


def show(cells: Mapping[str, Sequence[float | None]], mib: Sequence[int]) -> None:
    print("\n| ms | empty | " + " | ".join(f"{size} MiB" for size in mib) + " |\n|---|---:|" + "---:|" * len(mib))
    for name, values in cells.items():
        print(f"| {name} | " + " | ".join("" if value is None else f"{value:.2f}" for value in values) + " |")


def free_port(_: Any) -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
