"""Roles that sleep: what they take is known, so that all above it is waiting."""

from __future__ import annotations

import time

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register


class B(hf.Dim):
    """Rows."""


class Start(hf.Batch):
    start: f32[B]


class Rolled(hf.Batch):
    rolled: f32[B]


class First(hf.Batch):
    first: f32[B]


class Second(hf.Batch):
    second: f32[B]


class Third(hf.Batch):
    third: f32[B]


class Updated(hf.Batch):
    updated: f32[B]


class Role(hf.Worker):
    """What all roles share: how long a call takes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def napped(self, *columns: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return sum(columns, torch.ones(len(columns[0])))


class Actor(Role):
    @register(Dispatch.DP_PROTO)
    def generate(self, start: Start) -> Rolled:
        return Rolled(rolled=self.napped(start.start.tensor))

    @register(Dispatch.DP_PROTO)
    def update(self, first: First, second: Second, third: Third) -> Updated:
        return Updated(updated=self.napped(first.first.tensor, second.second.tensor, third.third.tensor))


class Reference(Role):
    @register(Dispatch.DP_PROTO)
    def infer(self, rolled: Rolled) -> First:
        return First(first=self.napped(rolled.rolled.tensor))


class Critic(Role):
    @register(Dispatch.DP_PROTO)
    def infer(self, rolled: Rolled) -> Second:
        return Second(second=self.napped(rolled.rolled.tensor))

    @register(Dispatch.DP_PROTO)
    def update(self, first: First, second: Second, third: Third) -> Updated:
        return Updated(updated=self.napped(first.first.tensor, second.second.tensor, third.third.tensor))


class Reward(Role):
    @register(Dispatch.DP_PROTO)
    def infer(self, rolled: Rolled) -> Third:
        return Third(third=self.napped(rolled.rolled.tensor))


@hf.dataflow
def pair(rolled: Rolled, reference: Reference, critic: Critic) -> tuple[First, Second]:
    return reference.infer(rolled), critic.infer(rolled)


@hf.dataflow
def ppo(start: Start, actor: Actor, reference: Reference, critic: Critic, reward: Reward) -> tuple[Updated, Updated]:
    rolled = actor.generate(start)
    first, second, third = reference.infer(rolled), critic.infer(rolled), reward.infer(rolled)
    return critic.update(first, second, third), actor.update(first, second, third)


ROLES = {"actor": Actor, "reference": Reference, "critic": Critic, "reward": Reward}


def deployment(seconds: float, ranks: int, names: tuple[str, ...] = tuple(ROLES)) -> hf.Deployment:
    """A pool for each of these roles."""
    return hf.Deployment(
        **{
            name: hf.place(ROLES[name], seconds, pool=hf.ResourcePool([ranks], use_gpu=False, name=name))
            for name in names
        }
    )
