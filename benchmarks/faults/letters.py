"""A policy to train that counts how often each prompt was trained; with a queue, and without one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.rl.batches import Prompts, Rollout, Scores

LETTERS, WIDTH = "abcdefghijklmnopqrst", 3
PROMPTS = len(LETTERS) ** WIDTH
BODY_SECONDS = 0.02


class Experience(Rollout, Scores):
    """Responses and their scores."""


class Metrics(hf.Batch):
    """``trained`` and ``twice`` count prompts: those that were trained so far, and those more than once."""

    loss: hf.Metric[float, Literal["mean"]]
    weight: hf.Metric[float, Literal["first"]]
    trained: hf.Metric[int, Literal["max"]]
    twice: hf.Metric[int, Literal["max"]]


@dataclass(frozen=True)
class PolicyConfig:
    """The number of tokens."""

    size: int


class Policy(hf.Worker):
    """From the last letter of a prompt to the response."""

    def __init__(self, config: PolicyConfig) -> None:
        torch.set_num_threads(1)
        self.table = torch.nn.Embedding(config.size, config.size)
        self.optimizer = torch.optim.Adam(self.table.parameters(), lr=0.05)
        self.counts = torch.zeros(config.size**WIDTH, dtype=torch.int64)

    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        time.sleep(BODY_SECONDS)
        ids, mask = prompts.ids.tensor, prompts.mask.tensor
        with torch.no_grad():
            log_probs = self.table(ids[:, -1]).log_softmax(-1)
        draws = hf.current_call().uniforms(1)
        response = (log_probs.exp().cumsum(-1) < draws).sum(-1, keepdim=True).clamp(max=log_probs.shape[-1] - 1)
        real = torch.ones(len(ids), 1, dtype=torch.bool)
        return Rollout(
            ids=torch.cat([ids, response], 1),
            mask=torch.cat([mask, real], 1),
            response_mask=real,
            log_probs=log_probs.gather(-1, response),
        )

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=4)
    def update(self, experience: Experience) -> Metrics:
        time.sleep(BODY_SECONDS)
        ids, size = experience.ids.tensor, self.table.num_embeddings
        number = (ids[:, :-1] * size ** torch.arange(WIDTH)).sum(-1)
        self.counts += self.axis("dp").all_reduce(torch.bincount(number, minlength=len(self.counts)))
        log_probs = self.table(ids[:, -2]).log_softmax(-1).gather(-1, ids[:, -1:])[:, 0]
        noise = torch.rand(len(ids))  # of the rank's own stream
        loss = -(log_probs * (experience.score.tensor + 0.1 * noise)).mean()
        [gradient] = torch.autograd.grad(loss, [self.table.weight])
        self.table.weight.grad = self.axis("dp").all_reduce(gradient, "mean")
        self.optimizer.step()
        return Metrics(
            loss=float(loss.detach()),
            weight=float(self.table.weight.detach().double().sum()),
            trained=int((self.counts > 0).sum()),
            twice=int((self.counts > 1).sum()),
        )

    @register(Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in self.table.state_dict().items()}

    def state(self) -> dict[str, Any]:
        return {"table": self.table.state_dict(), "adam": self.optimizer.state_dict(), "counts": self.counts}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.table.load_state_dict(state["table"])
        self.optimizer.load_state_dict(state["adam"])
        self.counts = state["counts"].clone()


class Guesser(Policy):
    """What samples in the place of a policy."""

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout:
        return super().generate(prompts)

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, Any]) -> None:
        self.table.load_state_dict(weights)


class Next(hf.Worker):
    """A higher score for a letter nearer to the next one."""

    @register(Dispatch.DP_PROTO)
    def score(self, rollout: Rollout) -> Scores:
        ids = rollout.ids.tensor
        return Scores(score=1 - (ids[:, -2] + 1 - ids[:, -1]).abs() / 16)


@hf.dataflow
def synchronous(prompts: Prompts, policy: Policy, reward: Next) -> Metrics:
    """Samples, scores, and an update."""
    rollout = policy.generate(prompts)
    return policy.update(hf.merge(Experience, rollout, reward.score(rollout)))


@hf.dataflow
def asynchronous(prompts: Prompts, policy: Policy, guesser: Guesser, reward: Next) -> Metrics:
    """The same, while the policy learns."""
    rollout = guesser.generate(prompts)
    batch = hf.queue(hf.merge(Experience, rollout, reward.score(rollout)), lag=2, late="wait")
    metrics = policy.update(batch)
    hf.sync(policy, guesser)
    return metrics
