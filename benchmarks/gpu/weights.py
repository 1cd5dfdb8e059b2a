"""The weights of a 7B model from trainers to rollouts on other GPUs: hfdsl's ways beside Ray's own and raw NCCL.

python benchmarks/gpu/weights.py --sources 1 --readers 1       # one GPU each
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import ray
import torch
import torch.distributed as dist

import hfdsl as hf
from hfdsl.runtime.transports import broadcast, direct
from hfdsl.runtime.transports.serialization import PickledValue, pickle_value


class B(hf.Dim):
    """Rows."""


class Asked(hf.Batch):
    x: hf.f32[B]


class Seen(hf.Batch):
    tensors: hf.Metric[int, Literal["max"]]


class Trainer(hf.Worker):
    """A role with the model's weights."""

    def __init__(self, layers: int) -> None:
        self.state = Process(layers, source=True).state

    @hf.register(hf.Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, Any]:
        return self.state


class Engine(hf.Worker):
    """A role that is given them."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, Any]) -> None:
        self.state = weights

    @hf.register(hf.Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.reads("policy")
    def seen(self, request: Asked) -> Seen:
        torch.cuda.synchronize()
        return Seen(tensors=len(self.state))


@hf.dataflow
def synced(request: Asked, trainer: Trainer, engine: Engine) -> Seen:
    hf.sync(trainer, engine)
    return engine.seen(request)


def in_a_plan(layers: int, sources: int, readers: int, times: int, trace: str | None = None) -> float:
    """Seconds of a step that brings the weights of a role, each of whose ``sources`` ranks has them all, to another."""
    places = hf.Deployment(
        trainer=hf.place(Trainer, layers, pool=hf.ResourcePool([sources])),
        engine=hf.place(Engine, pool=hf.ResourcePool([readers])),
    )
    step_seconds: list[float] = []
    with synced.compile(places, {B: 1}).launch("ray", deadline=300) as running:
        for _ in range(times + 2):
            start = time.perf_counter()
            running.step(Asked(x=torch.zeros(1)))
            step_seconds.append(time.perf_counter() - start)
        if trace is not None:
            with running.trace(trace):
                running.step(Asked(x=torch.zeros(1)))
    return statistics.median(step_seconds[2:])


def deal(sources: int, readers: int) -> list[list[int]]:
    """Which readers each of several holders of the same weights serves: as even as can be, neighbors together."""
    small, more = divmod(readers, sources)
    starts = [small * source + min(source, more) for source in range(sources + 1)]
    return [list(range(start, end)) for start, end in pairwise(starts)]


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Of a 7B Llama, with fewer layers where asked."""
    hidden, inner, words = 4096, 11008, 32000
    weight_shapes: dict[str, tuple[int, ...]] = {"embed": (words, hidden), "norm": (hidden,), "head": (words, hidden)}
    for layer in range(layers):
        weight_shapes |= {f"{layer}.{name}": (hidden, hidden) for name in "qkvo"}
        weight_shapes |= {
            f"{layer}.gate": (inner, hidden),
            f"{layer}.up": (inner, hidden),
            f"{layer}.down": (hidden, inner),
        }
        weight_shapes |= {f"{layer}.norm1": (hidden,), f"{layer}.norm2": (hidden,)}
    return weight_shapes


class Process:
    """One process on one GPU with the model's weights."""

    def __init__(self, layers: int, source: bool) -> None:
        torch.manual_seed(0)
        self.state = {
            name: torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()
            if source
            else torch.zeros(shape, dtype=torch.bfloat16, device="cuda")
            for name, shape in shapes(layers).items()
        }
        self.group: Any = None
        torch.cuda.synchronize()

    def join(self, ranks: list[int]) -> None:
        self.group = direct.member().communicator(ranks)
        self.broadcast()

    def broadcast(self) -> None:
        broadcast.broadcast(list(self.state.values()), self.group)
        torch.cuda.synchronize()

    def one_by_one(self) -> None:
        options = dist.BroadcastOptions()
        for tensor in self.state.values():
            self.group.broadcast([tensor], options).wait()
        torch.cuda.synchronize()

    def raw(self, size: int, times: int) -> float:
        """GB/s of a broadcast of one large buffer."""
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        options = dist.BroadcastOptions()
        durations: list[float] = []
        for _ in range(times + 2):
            torch.cuda.synchronize()
            start = time.perf_counter()
            self.group.broadcast([x], options).wait()
            torch.cuda.synchronize()
            durations.append(time.perf_counter() - start)
        return size / statistics.median(durations[2:]) / 1e9

    def ship(self) -> Any:
        return self.state

    def seal(self) -> Any:
        return pickle_value(self.state)

    def load(self, state: Any) -> None:
        state = state.load() if isinstance(state, PickledValue) else state
        for name, tensor in state.items():
            self.state[name].copy_(tensor)
        torch.cuda.synchronize()

    def adopt(self, state: Any) -> int:
        state = state.load() if isinstance(state, PickledValue) else state
        torch.cuda.synchronize()
        return len(state)

    def total(self) -> float:
        return sum(float(tensor.view(torch.int16).sum(dtype=torch.int64)) for tensor in self.state.values())

    def clear(self) -> None:
        for tensor in self.state.values():
            tensor.zero_()
        torch.cuda.synchronize()


def with_plans(args: argparse.Namespace, before: list[Any], raw: float) -> None:
    """The rows of whole steps, with few weights and with all."""
    for process in before:
        ray.kill(process)
    for name, count in (("a plan's hf.sync, no layers", 0), ("a plan's hf.sync", args.layers)):
        size = sum(2 * torch.Size(shape).numel() for shape in shapes(count).values())
        took = in_a_plan(count, args.sources, args.readers, args.times, args.trace)
        speed = size / took / 1e9
        print(f"| {name}, {size / 1e9:.1f} GB | {took * 1e3:.1f} | {speed:.0f} | {speed / raw:.0%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=int, default=1)
    parser.add_argument("--readers", type=int, default=1)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--trace", metavar="FILE", help="where to write a step of the plan with all weights")
    args = parser.parse_args()
    ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=2 * 2**30)
    direct.register()
    remote: Any = ray.remote  # its types do not know the option
    process = remote(enable_tensor_transport=True)(Process)
    sources = [process.options(num_gpus=1).remote(args.layers, True) for _ in range(args.sources)]
    readers = [process.options(num_gpus=1).remote(args.layers, False) for _ in range(args.readers)]
    everyone = [*sources, *readers]
    direct.Links(everyone, 120)
    served = deal(args.sources, args.readers)
    groups = [[source, *(args.sources + target for target in ones)] for source, ones in enumerate(served) if ones]
    start = time.perf_counter()
    ray.get([everyone[rank].join.remote(group) for group in groups for rank in group])
    print(f"groups {groups} made in {time.perf_counter() - start:.2f} s")
    try:
        from ray.experimental.collective import create_collective_group

        create_collective_group(everyone, backend="nccl")
    except Exception as error:  # noqa: BLE001  # CuPy may be missing: the rows of Ray's own NCCL are left out
        print("no group of Ray's:", error)

    size = sum(2 * torch.Size(shape).numel() for shape in shapes(args.layers).values())
    want = ray.get(sources[0].total.remote())
    members = [everyone[rank] for group in groups for rank in group]

    def parcels(transport: str, method: str, take: str) -> Callable[[], Any]:
        def act() -> None:
            calls = []
            for group in groups:
                state = getattr(everyone[group[0]], method).options(tensor_transport=transport).remote()
                calls += [getattr(everyone[rank], take).remote(state) for rank in group[1:]]
            ray.get(calls)

        return act

    raw = min(ray.get([member.raw.remote(2**30, args.times) for member in members]))
    rows: dict[str, Callable[[], Any]] = {
        "Ray's NCCL transport, a dict": parcels("nccl", "ship", "load"),
        "hfdsl's transport, a dict, copied into place": parcels(direct.TRANSPORT, "seal", "load"),
        "hfdsl's transport, a dict, as it arrives": parcels(direct.TRANSPORT, "seal", "adopt"),
        "broadcast, tensor by tensor": lambda: ray.get([member.one_by_one.remote() for member in members]),
        "hfdsl's broadcast": lambda: ray.get([member.broadcast.remote() for member in members]),
    }
    print(f"\n{size / 1e9:.1f} GB in {len(shapes(args.layers))} tensors, {args.sources} to {args.readers}")
    print("| way | ms | GB/s a reader | of raw NCCL |\n|---|---:|---:|---:|")
    print(f"| raw NCCL broadcast of 1 GiB | | {raw:.0f} | |")
    for name, act in rows.items():
        ray.get([reader.clear.remote() for reader in readers])
        times: list[float] = []
        for _ in range(args.times + 1):
            start = time.perf_counter()
            act()
            times.append(time.perf_counter() - start)
        took = statistics.median(times[1:])
        wrong = (
            ""
            if "as it arrives" in name or all(ray.get(reader.total.remote()) == want for reader in readers)
            else " WRONG"
        )
        print(
            f"| {name}{wrong} | {took * 1e3:.1f} | {size / took / 1e9:.0f} | {size / took / 1e9 / raw:.0%} |",
            flush=True,
        )
    with_plans(args, everyone, raw)
    ray.shutdown()


if __name__ == "__main__":
    main()
