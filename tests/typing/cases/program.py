"""The program of the reference, complete: it must be clean under mypy --strict and pyright, with no plugin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar, assert_type

import torch

import hfdsl as hf
from hfdsl import Add, Dispatch, Div, Execute, Mul, bool_, f32, i64, register


class B(hf.Dim):
    """Rows of a batch: one prompt, or one prompt-response pair."""


class P(hf.Dim):
    """Prompt tokens, left-padded."""


class R(hf.Dim):
    """Response tokens, right-padded."""


T = Add[P, R]
GROUP = 8

b = TypeVar("b")
t = TypeVar("t")


@dataclass(frozen=True)
class PolicyConfig:
    mini_batch: int = 16
    learning_rate: float = 1e-6


# -- records


class Prompts(hf.Batch):
    ids: i64[B, P]
    mask: bool_[B, P]
    answer: hf.Obj[str, B]


class Rollout(hf.Batch):
    ids: i64[B, T]
    response_mask: bool_[B, R]
    log_probs: f32[B, R]


class Answered(Rollout):
    answer: hf.Obj[str, B]


class RefLogProbs(hf.Batch):
    log_probs: f32[B, R]


class Scores(hf.Batch):
    reward: f32[B]


class Judged(Scores):
    log_probs: f32[B, R]


class Values(hf.Batch):
    values: f32[B, R]


class Advantages(hf.Batch):
    advantages: f32[B, R]
    returns: f32[B, R]


class PackedPairs(hf.Batch):
    pairs: f32[Div[B, Literal[2]], Mul[R, Literal[2]]]


class ActorMetrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]
    tokens: hf.Metric[int, Literal["sum"]]


# -- roles


class Actor(hf.Worker):
    def __init__(self, config: PolicyConfig) -> None:
        self.config = config

    @register(Dispatch.THREE_D_ALL_MICRO_DP)
    def generate(self, prompts: Prompts) -> Rollout:
        ids = prompts.ids.tensor
        assert_type(ids, torch.Tensor)
        assert_type(prompts.answer.objects, list[str])
        width = max(len(answer) for answer in prompts.answer.objects)
        return Rollout(
            ids=torch.cat([ids, ids.new_zeros(len(prompts), width)], dim=1),
            response_mask=ids.new_ones(len(prompts), width) > 0,
            log_probs=ids.new_zeros(len(prompts), width).float(),
        )

    @register(Dispatch.THREE_D_PROTO, pad="repeat_last")
    def log_probs(self, rollout: Rollout) -> RefLogProbs:
        return RefLogProbs(log_probs=rollout.log_probs)  # a column of the same type, or a tensor

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % mini_batch == 0")
    def update(
        self, rollout: Rollout, ref: RefLogProbs, advantages: Advantages, scale: float = 1.0
    ) -> ActorMetrics:
        call = hf.current_call()
        noise = call.uniforms(rollout.log_probs.tensor.shape[1])
        loss = (advantages.advantages.tensor * rollout.log_probs.tensor - ref.log_probs.tensor + noise).mean()
        mean = self.axis("dp").all_reduce(loss, "mean")
        return ActorMetrics(loss=float(mean) * scale, tokens=int(rollout.response_mask.tensor.sum()))

    @register(Dispatch.ONE_TO_ALL)
    def memory(self) -> float:
        return 0.5

    @register(Dispatch.THREE_D_PP_ONLY)
    def layers(self) -> int:
        return 3

    @register("ONE_TO_ALL")
    def free(self) -> float:
        return 0.5

    @register("MEGATRON_PP_ONLY")
    def depth(self) -> int:
        return 3

    @register(Dispatch.ALL_TO_ALL)
    def reserve(self, fraction: float, name: str) -> bool:
        return fraction < 0.9 and bool(name)

    @register(Dispatch.ALL_TO_ALL, Execute.RANK_ZERO)
    def save(self, path: str) -> str:
        return path


class Critic(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def values(self, rollout: Rollout) -> Values:
        return Values(values=rollout.log_probs.tensor)


class Reference(hf.Worker):
    def __init__(self, config: PolicyConfig, *, frozen: bool = True) -> None:
        self.config = config

    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, rollout: Rollout) -> RefLogProbs:
        return RefLogProbs(log_probs=rollout.log_probs.tensor)


class Reward(hf.Worker):
    @register("DP_PROTO")
    def score(self, rollout: Rollout) -> Scores:
        return Scores(reward=torch.zeros(len(rollout)))


# -- functions


@hf.function
def whiten(x: f32[b, t]) -> f32[b, t]:
    return f32(x.tensor - x.tensor.mean())


@hf.function(rows=hf.Grouped(GROUP))
def group_advantages(scores: Scores, rollout: Rollout) -> Advantages:
    groups = scores.reward.tensor.view(-1, GROUP)
    centered = (groups - groups.mean(1, keepdim=True)).view(-1, 1)
    everywhere = centered.expand_as(rollout.log_probs.tensor).contiguous()
    return Advantages(advantages=everywhere, returns=everywhere)


@hf.function(rows=hf.Whole)
def summary(metrics: ActorMetrics) -> float:
    return metrics.loss.value


@hf.function
def lowest(memory: hf.PerRank[float]) -> float:
    return min(memory)


# -- dataflows


@hf.dataflow
def grpo(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, GROUP))
    scores = reward.score(rollout)
    ref = reference.log_probs(rollout)
    return actor.update(rollout, ref, group_advantages(scores, rollout))


@hf.dataflow
def ppo(
    prompts: Prompts, actor: Actor, critic: Critic, reference: Reference, reward: Reward
) -> tuple[list[ActorMetrics], Judged, float]:
    rollout = actor.generate(prompts)
    answered = Answered(
        ids=rollout.ids, response_mask=rollout.response_mask, log_probs=rollout.log_probs, answer=prompts.answer
    )
    scores = reward.score(answered)  # a record that derives from the one that is taken
    values = critic.values(rollout)
    white = whiten(values.values)
    assert_type(white, f32[B, R])
    ref = reference.log_probs(rollout=rollout)
    advantages = Advantages(advantages=white, returns=values.values)
    metrics: list[ActorMetrics] = []
    parts = zip(hf.minibatches(rollout, 4), hf.minibatches(ref, 4), hf.minibatches(advantages, 4), strict=True)
    for some_rollout, some_ref, some_advantages in parts:
        metrics.append(actor.update(some_rollout, some_ref, advantages=some_advantages, scale=0.5))
    judged = hf.merge(Judged, scores, ref)
    assert_type(judged, Judged)
    return metrics, judged, summary(metrics[-1])


@hf.dataflow
def lists(actor: Actor) -> tuple[hf.PerRank[bool], hf.PerStage[int], float, str]:
    memory = actor.memory()
    assert_type(memory, hf.PerRank[float])
    ready = actor.reserve(memory, hf.PerRank(["a", "b"]))
    assert_type(ready, hf.PerRank[bool])
    assert_type(actor.reserve([0.5, 0.25], ["a", "b"]), hf.PerRank[bool])
    assert_type(actor.free(), hf.PerRank[float])
    assert_type(actor.depth(), hf.PerStage[int])
    layers = actor.layers()
    assert_type(layers, hf.PerStage[int])
    return ready, layers, lowest(memory), actor.save("here")


@hf.dataflow
def twice(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> tuple[ActorMetrics, ActorMetrics]:
    return grpo(prompts, actor, reference, reward), grpo(prompts, actor=actor, reference=reference, reward=reward)


# -- from graph to run


def main(loader: Iterable[Prompts]) -> None:
    train, score = hf.ResourcePool([4, 4]), hf.ResourcePool([2], use_gpu=False)
    left, right = score.split([1, 1])
    deployment = hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=train, mesh=hf.Mesh(dp=4, tp=2, gen_tp=1)),
        reference=hf.place(Reference, PolicyConfig(), frozen=True, pool=train, mesh=hf.Mesh(dp=8)),
        reward=hf.place(Reward, pool=left.merge(right), colocate=False),
    )
    report = grpo.check(deployment, dims={B: 64, P: 512, R: 512})
    if not report.ok:
        print(report, report.codes, report.json())
    rows = {B: 64}
    print(grpo.check(deployment, dims=rows))
    plan = grpo.compile(deployment, dims={B: 64, P: 512, R: 512})
    with plan.launch(backend="local", seed=1) as running:
        for prompts in loader:
            metrics = running.step(prompts)
            print(metrics, running.steps, running.timings)


def eagerly(prompts: Prompts) -> None:
    config = PolicyConfig()
    metrics = grpo(prompts, Actor(config), Reference(config), Reward())
    assert_type(metrics, ActorMetrics)
    assert_type(metrics.loss.value, float)
    assert_type(metrics.tokens.value, int)
    assert_type(prompts[2:4], Prompts)
    assert_type(whiten(f32[B, R](torch.zeros(2, 3))).tensor, torch.Tensor)
