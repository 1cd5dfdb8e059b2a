"""A PPO step of four roles, each node of which fails as a file says: it ends, stops, raises, or never returns."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.runtime.running import Running

FOLDER, PADDING = "FAULTS_FOLDER", "FAULTS_PADDING"

Layout = Literal["colocated", "split", "merged"]

NODES = ("actor.generate", "critic.values", "reward.score", "actor.update")


class B(hf.Dim): ...


class Prompts(hf.Batch):
    x: f32[B]


class Rollout(hf.Batch):
    y: f32[B]


class Values(hf.Batch):
    value: f32[B]


class Scores(hf.Batch):
    score: f32[B]


class Metrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


def fail(label: str, worker: Role) -> None:
    """Fail here if a file with the name of this node and rank says how."""
    file = Path(os.environ[FOLDER]) / f"{label} {worker.rank}"
    if not file.exists():
        return
    how = file.read_text()
    if how.startswith("once "):
        file.unlink()
        how = how.removeprefix("once ")
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(1)  # until the signal has arrived
    elif how == "exit":
        os._exit(3)
    elif how == "raise":
        raise ValueError("bad numbers")
    elif how == "hang":
        hang()
    elif how == "slow":
        (file.parent / "reached").touch()
        time.sleep(3)
    elif how == "skip":
        worker.skips = True


def hang() -> None:
    while True:
        time.sleep(0.05)


class Role(hf.Worker):
    skips = False

    def total(self, values: torch.Tensor) -> float:
        """A collective, in which the peers of a rank that fails wait for it."""
        return 0.0 if self.skips else float(self.axis("dp").all_reduce(values.sum()))


class Actor(Role):
    def __init__(self) -> None:
        fail("actor.__init__", self)
        self.weight = torch.ones(())
        self.padding = torch.zeros(int(os.environ.get(PADDING, "0")), dtype=torch.uint8)

    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        fail("actor.generate", self)
        return Rollout(y=prompts.x.tensor * self.weight + self.total(prompts.x.tensor))

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout, values: Values, scores: Scores) -> Metrics:
        fail("actor.update", self)
        loss = self.total((scores.score.tensor - values.value.tensor) * rollout.y.tensor)
        self.weight = self.weight - 1e-6 * loss
        return Metrics(loss=loss)

    def state(self) -> dict[str, torch.Tensor]:
        fail("actor.state", self)
        return {"weight": self.weight, "padding": self.padding}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        fail("actor.load_state", self)
        self.weight = state["weight"]


class Critic(Role):
    @register(Dispatch.DP_PROTO)
    def values(self, rollout: Rollout) -> Values:
        fail("critic.values", self)
        return Values(value=rollout.y.tensor / (1 + abs(self.total(rollout.y.tensor))))


class Reward(Role):
    @register(Dispatch.DP_PROTO)
    def score(self, rollout: Rollout) -> Scores:
        fail("reward.score", self)
        return Scores(score=rollout.y.tensor - self.total(rollout.y.tensor))


@hf.dataflow
def ppo(prompts: Prompts, actor: Actor, critic: Critic, reward: Reward) -> Metrics:
    rollout = actor.generate(prompts)
    values, scores = critic.values(rollout), reward.score(rollout)
    return actor.update(rollout, values, scores)


def deployment(layout: Layout, *, actor_deadline: float | None = None) -> hf.Deployment:
    """All roles in one pool, or a pool for each, or the actor on two pools that are merged to one."""

    def pool(*processes: int) -> hf.ResourcePool:
        return hf.ResourcePool([*processes], use_gpu=False)

    first = pool(1).merge(pool(1)) if layout == "merged" else pool(2)
    second = first if layout == "colocated" else pool(2)
    third = pool(2) if layout == "split" else second
    return hf.Deployment(
        actor=hf.place(Actor, pool=first, deadline=actor_deadline),
        critic=hf.place(Critic, pool=second),
        reward=hf.place(Reward, pool=third),
    )


def set_deadline(running: Running, seconds: float) -> None:
    """Set the deadline of the next steps: the first one, in which processes import and meet, takes far longer."""
    backend: Any = running._processes.backend
    backend._calls.seconds = seconds


def end_processes(running: Running, group: str) -> None:
    """Let a run that is broken continue after a loss: all that its processes are stuck in is in this group."""
    backend: Any = running._processes.backend
    for process in backend._groups[group].hf_processes:
        os.kill(process.pid, signal.SIGKILL)
    running._processes.broken = None
