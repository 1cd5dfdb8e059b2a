"""A sampler with an engine, and the exchanges that send it weights, in this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import torch

import hfdsl as hf
from hfdsl.plan.resharding import compile_schedule
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.protocols.call import Call, in_call
from hfdsl.protocols.layouts import Parameter, Replicas
from hfdsl.rl.batches import Prompts, Rollout
from hfdsl.rl.models.copies import EngineCopy
from hfdsl.runtime.digests import Digests
from hfdsl.runtime.weights import exchange
from hfdsl.runtime.weights.exchange import ArrivingWeights, Exported, exported
from hfdsl.runtime.weights.messages import pack


def random_weights(parameters: Sequence[Parameter], seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Weights of a model, around 1 where they are the factors of a norm."""
    draw = torch.Generator().manual_seed(seed)
    return {each.name: torch.randn(each.shape, generator=draw) * scale + (len(each.shape) == 1) for each in parameters}


class Syncs:
    """A sampler with parameters of a state, and the schedule by which it receives them from one other rank."""

    def __init__(self, sampler: Any, parameters: Sequence[Parameter], bucket_bytes: int = 8192) -> None:
        self.sampler, mesh = sampler, hf.Mesh()
        schedule = compile_schedule(parameters, Replicas(), mesh, Replicas(), mesh, bucket_bytes=bucket_bytes)
        self.step = ScheduledSync(
            state="policy",
            export=0,
            load=1,
            schedule=schedule,
            source_layout=Replicas(),
            target_layout=Replicas(),
        )

    @property
    def copy(self) -> EngineCopy:
        """What the sampler samples with."""
        copy: EngineCopy = self.sampler.copy
        return copy

    @property
    def is_direct(self) -> bool:
        """Whether the engine's memory has the newest weights, and the sampler has it open."""
        return self.copy.shared.newest is not None

    def sync(self, weights: Mapping[str, torch.Tensor], midway: Callable[[], None] | None = None) -> Digests | None:
        """Exchange weights, and return their digests; ``midway`` is called once half of the messages have arrived."""
        [column] = dict(exported([self.step], 0, weights, "actor.weights")).values()
        assert isinstance(column, Exported)
        arriving = ArrivingWeights(self.step, 0, {0: column.arriving()}, "sampler.load")
        arriving.digest()
        messages, half = 0, sum(map(len, self.step.schedule.messages_to(0))) // 2
        assert half > 1

        def packed(*arguments: Any) -> None:
            nonlocal messages
            messages += 1
            if messages == half and midway is not None:
                midway()
            pack(*arguments)

        with mock.patch.object(exchange, "pack", packed):
            arriving.load(self.sampler, self.sampler.load, in_place=True)
        taken = arriving.digests()
        return None if taken is None else taken.digests()

    def rollout(self, prompts: Prompts) -> Rollout:
        """Greedy responses."""
        with in_call(Call(seed=0, step=0, node=0, rank=0, row_count=len(prompts))):
            rollout: Rollout = self.sampler.generate(prompts, greedy=True)
        return rollout

    def kill(self) -> None:
        """Kill the engine's process, as a host without memory does."""
        process = self.copy.engine.process
        if process.alive:
            os.kill(process.pid, signal.SIGKILL)
            process._process.wait()
