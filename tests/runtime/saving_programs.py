"""A program whose roles keep something: replicas, a share a rank, an optimizer, and a reward that keeps nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register


class B(hf.Dim):
    """Rows."""


class Rows(hf.Batch):
    x: f32[B]


class Scores(hf.Batch):
    y: f32[B]


class Trained(Rows):
    y: f32[B]


class Result(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]
    weight: hf.Metric[float, Literal["first"]]


class Actor(hf.Worker):
    """Two weights, one of them tied, trained by Adam on noisy rows."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(2, 1).double()
        self.tied = self.model.weight
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.seen = 0

    @register(Dispatch.DP_PROTO)
    def draw(self, rows: Rows) -> Rows:
        return Rows(x=rows.x.tensor + hf.current_call().uniforms(1)[:, 0])

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, trained: Trained) -> Result:
        features = torch.stack([trained.x.tensor, torch.randn(len(trained))], 1).double()
        loss = ((self.model(features)[:, 0] - trained.y.tensor) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.model.parameters():
            parameter.grad = self.axis("dp").all_reduce(parameter.grad, "mean")
        self.optimizer.step()
        self.seen += len(trained)
        return Result(loss=float(loss.detach()), weight=float(self.model.weight.sum().detach()))

    def state(self) -> Mapping[str, Any]:
        """All replicas have the same."""
        return {
            "model": self.model.state_dict(),
            "tied": self.tied,
            "optimizer": self.optimizer.state_dict(),
            "seen": self.axis("dp").all_reduce(self.seen),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        assert state["tied"].data_ptr() == state["model"]["weight"].data_ptr()
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.seen = state["seen"] // self.axis("dp").size


class Critic(hf.Worker):
    """Each rank keeps what no other has."""

    def __init__(self) -> None:
        self.total = torch.zeros(3)

    @register(Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Scores:
        self.total += rows.x.tensor.sum() * (self.rank + 1)
        return Scores(y=rows.x.tensor * 2 + self.total[0])

    def state(self) -> Mapping[str, Any]:
        return {"total": self.total}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.total = state["total"].clone()


class Sieve(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def keep(self, rows: Rows) -> Rows:
        return rows


@hf.dataflow
def learn(rows: Rows, actor: Actor, critic: Critic, sieve: Sieve) -> Result:
    drawn = actor.draw(sieve.keep(rows))
    return actor.update(hf.merge(Trained, drawn, critic.score(drawn)))


@hf.dataflow
def look(rows: Rows, actor: Actor, critic: Critic, sieve: Sieve) -> Rows:
    return actor.draw(sieve.keep(rows))


def deployment(actors: int = 2, *, own_pools: bool = False) -> hf.Deployment:
    first = hf.ResourcePool([2], use_gpu=False, name="first")
    second = hf.ResourcePool([2], use_gpu=False, name="second") if own_pools else first
    actor_pool = hf.ResourcePool([actors], use_gpu=False, name="actors") if actors != 2 else first
    return hf.Deployment(
        actor=hf.place(Actor, pool=actor_pool), critic=hf.place(Critic, pool=second), sieve=hf.place(Sieve, pool=second)
    )


def batch(step: int) -> Rows:
    return Rows(x=torch.arange(8.0) + step)
