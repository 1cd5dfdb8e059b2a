"""What the plugin accepts, and what it says of the marked lines; a check says the same."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, assert_type, overload

import torch

import hfdsl as hf
from hfdsl import Add, Dispatch, Div, Mul, bf16, bool_, f32, i64, register


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


b = TypeVar("b")
t = TypeVar("t")
x = TypeVar("x")
T = Add[P, R]
Pairs = Mul[x, Literal[2]]


class Prompts(hf.Batch):
    ids: i64[B, P]
    mask: bool_[B, P]
    answer: hf.Obj[str, B]


class Rollout(hf.Batch):
    ids: i64[B, Add[R, P]]
    mask: bool_[B, R]
    log_probs: f32[B, R]
    half: bf16[B, R]
    whole: f32[B, T]
    double: f32[B, Mul[Literal[2], R]]
    sum: f32[B, Add[R, R]]


class Eight(hf.Batch):
    values: f32[Mul[B, Literal[8]], R]


class Values(hf.Batch):
    values: f32[B, R]


class Wide(hf.Batch):
    values: f32[B, Add[R, P]]


class Judged(Rollout):
    values: f32[B, R]


class Actor(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        raise NotImplementedError

    @register(Dispatch.THREE_D_PROTO)
    def update(self, ids: i64[B, T], log_probs: f32[B, R], scale: float = 1.0) -> Values:
        return Values(values=log_probs)

    @register(Dispatch.THREE_D_PROTO)
    def eight(self, values: f32[Mul[B, Literal[8]], R]) -> Eight:
        return Eight(values=values)

    @register(Dispatch.THREE_D_PROTO)
    def maybe(self, prompts: Prompts, limit: int | None = None) -> Wide:
        return Wide(values=torch.zeros(1, 1))

    @register(Dispatch.ONE_TO_ALL)
    def gather(self, prompts: Prompts) -> Values:
        raise NotImplementedError

    @register(Dispatch.ALL_TO_ALL)
    def each(self, values: Values, scale: float = 1.0, *, name: str = "") -> float:
        raise NotImplementedError


@hf.function
def whiten(x: f32[b, t]) -> f32[b, t]:
    return f32(x.tensor)


@hf.function
def masked(x: f32[b, t], mask: bool_[b, t]) -> f32[b, t]:
    return f32(x.tensor * mask.tensor)


@hf.function
def fold(x: f32[b, Pairs[t]]) -> f32[b, t]:
    raise NotImplementedError


@hf.function
def unfold(x: f32[b, t]) -> f32[b, Mul[Literal[2], t]]:
    raise NotImplementedError


@hf.function
def lowest(values: hf.PerRank[Values]) -> Values:
    return values[0]


@overload
def either(value: f32[B, R]) -> f32[B, R]: ...
@overload
def either(value: bf16[B, R]) -> bf16[B, R]: ...
def either(value: Any) -> Any:
    return value


@hf.dataflow
def right(prompts: Prompts, actor: Actor) -> f32[B, Add[P, R]]:
    rollout = actor.generate(hf.repeat(prompts, 8))
    values = actor.update(rollout.ids, log_probs=rollout.log_probs)
    assert_type(whiten(rollout.whole), f32[B, Add[R, P]])
    assert_type(fold(rollout.double), f32[B, R])
    assert_type(fold(rollout.sum), f32[B, R])
    assert_type(unfold(rollout.log_probs), f32[B, Add[R, R]])
    assert_type(fold(rollout.log_probs), f32[B, Div[R, Literal[2]]])
    masked(rollout.log_probs, rollout.mask)
    eight = actor.eight(rollout.log_probs)
    actor.update(rollout.ids, actor.eight(eight.values).values)
    per_rank = actor.gather(prompts)
    assert_type(actor.each(per_rank, name=["a", "b"]), hf.PerRank[float])
    assert_type(actor.each(values=per_rank, scale=[0.5, 1.0]), hf.PerRank[float])
    hf.merge(Judged, rollout, values)
    wide = Wide(values=rollout.whole)
    actor.maybe(prompts, None)
    lowest(per_rank)
    assert_type(either(rollout.log_probs), f32[B, R])
    assert_type(either(rollout.half), bf16[B, R])
    return wide.values


@hf.dataflow
def wrong(prompts: Prompts, actor: Actor) -> None:
    rollout = actor.generate(prompts)
    values = actor.update(rollout.ids, rollout.log_probs)
    actor.update(rollout.ids, rollout.whole)  # E: HF210
    actor.update(prompts.ids, log_probs=rollout.log_probs)  # E: HF210
    actor.update(rollout.ids, rollout.half)  # E: HF220
    whiten(rollout.mask)  # E: HF220
    masked(rollout.log_probs, mask=prompts.mask)  # E: HF210
    masked(fold(rollout.double), prompts.mask)  # E: HF210
    Wide(values=rollout.log_probs)  # E: HF210
    Wide(values=rollout.half)  # E: HF220
    actor.generate(values)  # E: HF204
    actor.generate(actor.gather(prompts))  # E: HF401
    whiten(actor.gather(prompts))  # E: HF401
    actor.each(values)  # E: HF401
    lowest(values)  # E: HF401
    hf.merge(Judged, rollout)  # E: HF204
    hf.merge(Judged, rollout, values, hf.repeat(values, 1))  # E: HF205
    hf.merge(Values, Wide(values=rollout.whole))  # E: HF210
    actor.each(actor.gather(prompts), names=["a"])  # E: call-arg
