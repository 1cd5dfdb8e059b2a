"""A PPO step and an asynchronous program whose calls fail as files say, and count how often they train each prompt.

Each process writes its PID into the folder, so that it can be killed from outside, too. A call that fails first writes
when; its file is gone by then, so that the call succeeds when it is repeated.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f64, i64, register
from hfdsl.plan.compiled import CompiledPlan

ROWS, STEPS, BODY_SECONDS = 8, 400, 0.01
FOLDER = "BENCHMARK_FAULTS_FOLDER"


class B(hf.Dim):
    """Rows: one prompt each."""


class Prompts(hf.Batch):
    number: i64[B]
    x: f64[B]


class Rollout(Prompts):
    y: f64[B]


class Values(hf.Batch):
    value: f64[B]


class Scores(hf.Batch):
    score: f64[B]


class Experience(Rollout):
    advantage: f64[B]


class Metrics(hf.Batch):
    """``trained`` and ``twice`` count prompts: those that were trained so far, and those more than once."""

    loss: hf.Metric[float, Literal["mean"]]
    weight: hf.Metric[float, Literal["first"]]
    trained: hf.Metric[int, Literal["max"]]
    twice: hf.Metric[int, Literal["max"]]


class Weights(hf.Batch):
    weight: hf.Metric[float, Literal["max"]]


def prompts(step: int) -> Prompts:
    """Those of a step, which no other step has."""
    number = torch.arange(step * ROWS, (step + 1) * ROWS)
    return Prompts(number=number, x=torch.sin(number.double()))


def fail(label: str, worker: hf.Worker) -> None:
    """Fail here if a file with the name of this call and rank says how."""
    time.sleep(BODY_SECONDS)
    file = Path(os.environ[FOLDER]) / f"{label} {worker.rank}"
    try:
        how = file.read_text()
        file.unlink()
    except FileNotFoundError:
        return
    (file.parent / "struck").write_text(f"{time.time()} {os.getpid()}")
    if how == "raise":
        raise ValueError(f"bad numbers in {label}")
    if how == "exit":
        os._exit(3)
    if how == "hang":
        while True:
            time.sleep(0.05)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(1)  # until the signal has arrived


class Role(hf.Worker):
    """What all roles have: a process that says who it is, and a collective."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        (Path(os.environ[FOLDER]) / f"pid {type(self).__name__.lower()} {self.rank}").write_text(str(os.getpid()))

    def total(self, values: torch.Tensor) -> float:
        """The sum over ranks, in which the peers of a rank that fails wait for it."""
        return float(self.axis("dp").all_reduce(values.sum()))


class Learner(Role):
    """A weight that learns, and how often each prompt was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones((), dtype=torch.float64)
        self.counts = torch.zeros(ROWS * STEPS, dtype=torch.int64)

    def learn(self, loss: float, rate: float) -> None:
        """Move the weight."""
        noise = float(torch.rand(()))  # of the rank's own stream
        self.weight = self.weight - rate * self.total(torch.tensor(loss + 0.1 * noise, dtype=torch.float64))

    def state(self) -> dict[str, torch.Tensor]:
        self.total(self.weight)
        return {"weight": self.weight, "counts": self.counts}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.weight, self.counts = state["weight"], state["counts"].clone()


class Actor(Learner):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout:
        fail("actor.generate", self)
        return sample(self, prompts, self.weight)

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, experience: Experience) -> Metrics:
        fail("actor.update", self)
        number = experience.number.tensor
        self.counts += self.axis("dp").all_reduce(torch.bincount(number, minlength=len(self.counts)))
        loss = self.total(experience.advantage.tensor * experience.y.tensor) / ROWS
        self.learn(loss, 1e-2)
        fail("end of actor.update", self)
        return Metrics(
            loss=loss,
            weight=float(self.weight),
            trained=int((self.counts > 0).sum()),
            twice=int((self.counts > 1).sum()),
        )

    @register(Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> Weights:
        fail("actor.weights", self)
        return Weights(weight=float(self.weight))

    def held_weights(self, state: str) -> dict[str, torch.Tensor]:
        """What is compared by ``verify``."""
        return {state: self.weight.reshape(1)}


class Engine(Role):
    """Samples with the weights that it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones((), dtype=torch.float64)

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout:
        fail("engine.generate", self)
        return sample(self, prompts, self.weight)

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: Weights) -> None:
        fail("engine.load", self)
        self.weight = torch.tensor(weights.weight.value, dtype=torch.float64)

    def held_weights(self, state: str) -> dict[str, torch.Tensor]:
        """What is compared by ``verify``."""
        return {state: self.weight.reshape(1)}

    def state(self) -> dict[str, torch.Tensor]:
        return {"weight": self.weight}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.weight = state["weight"]


def sample(role: Role, prompts: Prompts, weight: torch.Tensor) -> Rollout:
    """Responses, with the streams of each row and of the rank."""
    draws = hf.current_call().uniforms(1)[:, 0].double() + torch.rand(len(prompts)).double()
    y = prompts.x.tensor * weight + draws + 0.01 * role.total(prompts.x.tensor)
    return Rollout(number=prompts.number, x=prompts.x, y=y)


class Critic(Learner):
    @register(Dispatch.DP_PROTO)
    @hf.reads("values")
    def values(self, rollout: Rollout) -> Values:
        fail("critic.values", self)
        return Values(value=rollout.y.tensor * self.weight)

    @register(Dispatch.DP_PROTO)
    @hf.writes("values")
    def update(self, experience: Experience) -> None:
        fail("critic.update", self)
        self.learn(self.total(experience.advantage.tensor) / ROWS, 1e-3)


class Reward(Role):
    @register(Dispatch.DP_PROTO)
    def score(self, rollout: Rollout) -> Scores:
        fail("reward.score", self)
        return Scores(score=rollout.y.tensor - 0.1 * self.total(rollout.y.tensor))


class Reference(Role):
    @register(Dispatch.DP_PROTO)
    def scores(self, rollout: Rollout) -> Scores:
        fail("reference.scores", self)
        return Scores(score=torch.cos(rollout.y.tensor))


@hf.function(rows=hf.Whole)
def advantages(rollout: Rollout, scores: Scores, reference: Scores, values: Values) -> Experience:
    """Whitened over the batch."""
    advantage = scores.score.tensor + 0.1 * reference.score.tensor - values.value.tensor
    return Experience(
        number=rollout.number,
        x=rollout.x,
        y=rollout.y,
        advantage=(advantage - advantage.mean()) / (advantage.std() + 1e-6),
    )


@hf.dataflow
def ppo(prompts: Prompts, actor: Actor, critic: Critic, reward: Reward, reference: Reference) -> Metrics:
    rollout = actor.generate(prompts)
    values, scores, base = critic.values(rollout), reward.score(rollout), reference.scores(rollout)
    experience = advantages(rollout, scores, base, values)
    critic.update(experience)
    return actor.update(experience)


@hf.dataflow
def synced(prompts: Prompts, actor: Actor, engine: Engine, critic: Critic, reward: Reward) -> Metrics:
    hf.sync(actor, engine)
    rollout = engine.generate(prompts)
    scores = reward.score(rollout)
    experience = advantages(rollout, scores, scores, critic.values(rollout))
    critic.update(experience)
    return actor.update(experience)


@hf.dataflow
def evaluated(prompts: Prompts, actor: Actor, reward: Reward) -> Scores:
    return reward.score(actor.generate(prompts))


@hf.dataflow
def queued(prompts: Prompts, engine: Engine, actor: Actor, critic: Critic, reward: Reward) -> Metrics:
    rollout = engine.generate(prompts)
    scores = reward.score(rollout)
    batch = hf.queue(advantages(rollout, scores, scores, critic.values(rollout)), lag=2, late="wait")
    metrics = actor.update(batch)
    hf.sync(actor, engine)
    return metrics


CALLS = {
    "ppo": (
        "actor.generate",
        "critic.values",
        "reward.score",
        "reference.scores",
        "critic.update",
        "actor.update",
        "end of actor.update",
    ),
    "synced": (
        "actor.weights",
        "engine.load",
        "engine.generate",
        "reward.score",
        "critic.values",
        "critic.update",
        "actor.update",
        "end of actor.update",
    ),
    "queued": (
        "engine.generate",
        "reward.score",
        "critic.values",
        "actor.update",
        "end of actor.update",
        "actor.weights",
        "engine.load",
    ),
}
"""Where a program can fail; rank 1 exports no weights."""

EVALUATION_CALLS = "actor.generate", "reward.score"

LAYOUTS = {
    "ppo": ("colocated", "split", "merged", "relayed"),
    "synced": ("colocated", "split", "merged", "relayed"),
    "queued": ("split", "merged"),
}


def compiled(program: str, layout: str, deadline: float | None) -> CompiledPlan:
    """A program with all roles in two processes, or in pools of their own, or on both halves of a merged pool."""

    def pool(*processes: int) -> hf.ResourcePool:
        return hf.ResourcePool([*processes], use_gpu=False)

    first = pool(2) if layout != "merged" else pool(1).merge(pool(1))
    second, third = (first, first) if layout == "colocated" else (pool(2), pool(1))
    optimize = hf.Optimize(relay=True) if layout == "relayed" else hf.Optimize()

    def place(role: type[hf.Worker], where: hf.ResourcePool) -> Any:
        return hf.place(role, pool=where, deadline=deadline)

    if program == "ppo":
        deployment = hf.Deployment(
            actor=place(Actor, first),
            critic=place(Critic, second),
            reward=place(Reward, second if layout == "merged" else third),
            reference=place(Reference, third),
        )
        return ppo.compile(deployment, optimize=optimize)
    deployment = hf.Deployment(
        actor=place(Actor, first),
        engine=place(Engine, second),
        critic=place(Critic, second),
        reward=place(Reward, third),
    )
    return (synced if program == "synced" else queued).compile(deployment, optimize=optimize)
