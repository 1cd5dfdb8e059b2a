"""An actor whose weights change without learning, and samplers that report where the newest weights are."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.protocols.worker import RankContext, current_rank
from hfdsl.rl import workers as w
from hfdsl.rl.batches import Prompts, Rollout
from hfdsl.rl.models.copies import EngineCopy
from hfdsl.rl.workers.layouts import state_parameters


class Changing(w.Actor):
    @register(Dispatch.ONE_TO_ALL)
    @hf.writes("policy")
    def change(self) -> int:
        """Give every weight another value."""
        with torch.no_grad():
            for parameter in self.policy.parameters():
                parameter.mul_(-1.01 if parameter.ndim > 1 else 1.01)
        return 0


class Watched(w.Sampler):
    copy: EngineCopy

    @register(Dispatch.ONE_TO_ALL)
    @hf.reads("policy")
    def is_direct(self) -> bool:
        """Whether the last weights have arrived in the engine's memory."""
        return self.copy.shared.newest is not None

    @register(Dispatch.ONE_TO_ALL)
    @hf.reads("policy")
    def wrong_on_host(self) -> int:
        """How many weights of a checkpoint are others than those that the engine has."""
        held = {name: part.tensor.cpu() for name, part in self.held_weights("policy").items()}
        return sum(not torch.equal(weight, held[name]) for name, weight in self.state().items())

    @register(Dispatch.ONE_TO_ALL)
    @hf.reads("policy")
    def kill(self) -> bool:
        """Kill the engine, and return whether its memory alone may have the newest weights."""
        process, alone = self.copy.engine.process, self.copy.shared.newest is not None
        os.kill(process.pid, signal.SIGKILL)
        process._process.wait()
        return alone


class ThroughHost(Watched):
    """A sampler that a plan might offload, so that its engine shares nothing."""

    state_parameters = staticmethod(state_parameters)  # again, since the constructor is its own

    def __init__(self, config: w.SamplerConfig) -> None:
        token = current_rank.set(replace(current_rank.get() or RankContext(), offloads=True))
        try:
            super().__init__(config)
        finally:
            current_rank.reset(token)


@hf.dataflow
def synced(
    prompts: Prompts, actor: Changing, sampler: Watched
) -> tuple[Rollout, hf.PerRank[bool], hf.PerRank[int], hf.PerRank[int]]:
    hf.sync(actor, sampler)
    rollout = sampler.generate(prompts, greedy=True)
    return rollout, sampler.is_direct(), sampler.wrong_on_host(), actor.change()


@hf.dataflow
def killed(
    prompts: Prompts, actor: Changing, sampler: Watched
) -> tuple[Rollout, hf.PerRank[bool], hf.PerRank[int], hf.PerRank[int]]:
    hf.sync(actor, sampler)
    alone = sampler.kill()
    rollout = sampler.generate(prompts, greedy=True)
    return rollout, alone, sampler.wrong_on_host(), actor.change()
