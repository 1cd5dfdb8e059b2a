"""From a trainer to the first token of vLLM on another GPU: weights into vLLM's memory, and through the host.

    python -m benchmarks.gpu.engine_syncs                                    # on two GPUs, 1.26B in bfloat16
    python -m benchmarks.gpu.engine_syncs --hidden 4096 --layers 32 --inner 11008 --share 1    # 6.74B
    python -m benchmarks.gpu.engine_syncs --hidden 64 --layers 2 --vocabulary 200 --engine MODULE:CLASS    # anywhere

A step is ``hf.sync`` and one token of one short prompt, which vLLM samples once it has the new weights. Steps begin
after a pause, as after an update, in which the copy to host memory ends. Beside it are the same call without a sync,
and one raw broadcast of as many bytes between the same GPUs. Steps with digests are verified: those of vLLM's memory,
or of the host's. The weights are random; both roles load them from a file, which takes seconds for 7B, and draws of a
host minutes. ``--engine`` is another class of engine, as ``module:name``.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest import mock

import ray
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from transformers import AutoConfig

import hfdsl as hf
from benchmarks.gpu.timing import GPUS, seconds
from benchmarks.training.models import END, llama
from hfdsl.protocols import worker as workers
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, P, Prompts, R, Rollout
from hfdsl.rl.engines import handle as handles
from hfdsl.rl.workers.layouts import state_parameters

PROMPT: Final = 16
ENGINE: Final = "ENGINE_OF_THE_BENCHMARK"
"""The variable with the class of engine, if it is not vLLM's."""

LIMIT: Final = 600.0
"""The most seconds of a launch, and of a step."""


# -- roles -------------------------------------------------------------------------------------------------------------


class IntoEngine(w.Sampler):
    """A sampler that may use another class of engine."""

    state_parameters = staticmethod(state_parameters)  # again, since the constructor is its own

    def __init__(self, config: w.SamplerConfig) -> None:
        engine = os.environ.get(ENGINE)
        if not engine:
            super().__init__(config)
            return
        handles.ENGINES["vllm"] = engine
        with mock.patch.object(handles, "installed_version", return_value="0.32.0"):  # vLLM need not be there
            super().__init__(config)

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.reads("policy")
    def is_direct(self) -> bool:
        """Whether the last weights have arrived in the engine's memory."""
        copy: Any = self.copy
        return copy.shared.newest is not None


class ThroughHost(IntoEngine):
    """A sampler that a plan might offload, so that its engine shares nothing."""

    state_parameters = staticmethod(state_parameters)

    def __init__(self, config: w.SamplerConfig) -> None:
        rank = workers.current_rank
        token = rank.set(replace(rank.get() or workers.RankContext(), offloads=True))
        super().__init__(config)
        rank.reset(token)


WAYS: Final[Mapping[str, type[IntoEngine]]] = {"host": ThroughHost, "engine": IntoEngine}
"""The roles, by where their weights arrive."""


@hf.dataflow
def ready(prompts: Prompts, actor: w.Actor, sampler: IntoEngine) -> Rollout:
    hf.sync(actor, sampler)
    return sampler.generate(prompts, greedy=True)


@hf.dataflow
def sampled(prompts: Prompts, sampler: IntoEngine) -> tuple[Rollout, hf.PerRank[bool]]:
    return sampler.generate(prompts, greedy=True), sampler.is_direct()


# -- by hand -----------------------------------------------------------------------------------------------------------


def by_hand(rank: int, port: int, size: int, times: int) -> None:
    """A rank of two that broadcast one tensor."""
    if GPUS:
        torch.cuda.set_device(rank)
    backend = "nccl" if GPUS else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    flat = torch.zeros(size, dtype=torch.uint8, device="cuda" if GPUS else "cpu")
    duration = seconds(lambda: dist.broadcast(flat, 0), times)
    if rank == 0:
        row("one broadcast, by hand", size, duration)
    dist.destroy_process_group()


def broadcast(size: int, times: int) -> None:
    """Print the row of a broadcast by hand."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=by_hand, args=(rank, port, size, times)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(LIMIT)
        process.kill()


# -- by hfdsl ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def saved(model: w.ModelConfig, folder: str) -> w.ModelConfig:
    """The model with random weights in a folder."""
    settings = dict(model.config or {})
    AutoConfig.for_model(settings.pop("model_type"), **settings).save_pretrained(folder)
    device = "cuda" if GPUS else "cpu"
    weights = dict[str, torch.Tensor]()
    for parameter in state_parameters(w.ReferenceConfig(model))["policy"]:
        weight = torch.ones(parameter.shape, dtype=getattr(torch, parameter.dtype), device=device)
        weights[parameter.name.removeprefix("model.")] = (
            weight.normal_(std=0.02) if weight.dim() > 1 else weight
        ).cpu()
    if GPUS:
        torch.cuda.empty_cache()  # one of the roles needs the memory
    save_file(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})
    return replace(model, config=None, path=folder)


def measure(args: argparse.Namespace, role: type[IntoEngine], model: w.ModelConfig) -> None:
    """Print the rows of a way."""
    generation = w.GenerationConfig(1, engine="vllm", cache_tokens=4096)
    pools = [hf.ResourcePool([1], use_gpu=GPUS) for _ in range(2)]
    actor = w.ActorConfig(model, replace(generation, engine="plain"))
    sampler = hf.place(role, w.SamplerConfig(model, generation), pool=pools[1])
    deployment = hf.Deployment(actor=hf.place(w.Actor, actor, pool=pools[0]), sampler=sampler)
    sizes: dict[type[hf.Dim], int] = {B: 1, P: PROMPT, R: 1}
    ids = torch.arange(2, 2 + PROMPT)[None]
    prompts = Prompts(ids=ids, mask=torch.ones_like(ids, dtype=torch.bool), task=[{}])
    plan = ready.compile(deployment, sizes)
    size = sum(parameter.bytes for parameter in state_parameters(w.SamplerConfig(model, generation))["policy"])
    with plan.launch("ray", timeout=LIMIT, deadline=LIMIT, worker_env={ENGINE: args.engine}) as running:
        alone = running.also(sampled.compile(deployment, sizes))

        durations = defaultdict[str, list[float]](list)

        def plain() -> None:
            running.step(prompts)
            for node, (begin, end) in running.timeline.nodes.items():
                durations[node].append(end - begin)

        def verified() -> None:
            with running.verifying("policy"):
                running.step(prompts)

        step = paused(plain, args)
        way = "into vLLM's memory" if all(alone.step(prompts)[1]) else "through the host"
        row(f"{way}: sync and first token", size, step)
        for node, spent in durations.items():
            print(f"  {node}: {median(spent[2:]) * 1e3:.2f} ms, at best {min(spent) * 1e3:.2f}", flush=True)
        row("  with digests on both sides", size, paused(verified, args))
        row("  first token without a sync", 0, paused(lambda: alone.step(prompts), args))


def paused(call: Callable[[], object], args: argparse.Namespace) -> float:
    """The median seconds of calls after pauses; the first two warm up."""
    durations = []
    for _ in range(args.times + 2):
        time.sleep(args.pause)
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return median(durations[2:])


def row(way: str, size: int, duration: float) -> None:
    speed = f"{size / duration / 1e9:.1f} GB/s" if size else ""
    print(f"{way:48} {size / 1e9:8.3f} GB {duration * 1e3:9.2f} ms {speed:>11}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--inner", type=int, default=0, help="the width of the MLP, 2.75 times the hidden one if 0")
    parser.add_argument("--share", type=int, default=2, help="heads of queries to each head of keys and values")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds before each step")
    parser.add_argument("--engine", default="", help="the class of engine, instead of vLLM")
    parser.add_argument("--ways", nargs="+", default=[*WAYS], choices=WAYS, help="where weights arrive")
    args = parser.parse_args()
    if GPUS:
        print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    config = llama(args.hidden, args.layers, args.vocabulary, 512, args.inner or None, share=args.share)
    model = w.ModelConfig(config=config, dtype=args.dtype, end_tokens=(END,))
    sizes = state_parameters(w.ReferenceConfig(model))["policy"]
    broadcast(sum(parameter.bytes for parameter in sizes), args.times)
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    with TemporaryDirectory() as folder:
        on_disk = saved(model, folder)
        for way in args.ways:
            measure(args, WAYS[way], on_disk)
    ray.shutdown()


if __name__ == "__main__":
    main()
