"""Roles with a result of every kind, for fakes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import hfdsl as hf
from hfdsl import Add, Dispatch, Mul, bf16, bool_, f32, i64, register, u8


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


class Prompts(hf.Batch):
    ids: i64[B, P]
    task: hf.Obj[dict[str, Any], B]


class Made(hf.Batch):
    ids: i64[B, Add[P, R]]
    mask: bool_[B, R]
    tokens: i64[B, hf.Ragged[R]]
    hidden: bf16[B, R, Literal[4]]
    kinds: u8[B]
    keep: bool_[B]
    task: hf.Obj[dict[str, Any], B]
    text: hf.Obj[str, B]
    hint: f32[B] | None = None


class Twice(hf.Batch):
    x: f32[Mul[B, Literal[2]]]


class Numbers(hf.Batch):
    total: hf.Metric[float, Literal["sum"]]
    mean: hf.Metric[float, Literal["mean"]]
    count: hf.Metric[int, Literal["sum"]]


@dataclass(frozen=True)
class Point:
    x: int
    name: str
    rest: tuple[int, ...] = ()


class Model(hf.Worker):
    """Its constructor would load what is not there."""

    def __init__(self, path: str, *, heads: int) -> None:
        raise OSError(path)

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def make(self, prompts: Prompts) -> Made:
        raise NotImplementedError

    @register(Dispatch.DP_PROTO)
    def twice(self, rollout: Made) -> Twice:
        raise NotImplementedError

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def learn(self, rollout: Made) -> Numbers:
        raise NotImplementedError

    @register(Dispatch.DP_PROTO)
    def loose(self, ids: i64[B, P]) -> f32[B, P]:
        raise NotImplementedError

    @register(Dispatch.ONE_TO_ALL)
    def point(self) -> Point:
        raise NotImplementedError

    @register(Dispatch.ONE_TO_ALL)
    def odd(self) -> memoryview:
        raise NotImplementedError

    @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, float]:
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class Engine(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, float]) -> None:
        raise NotImplementedError

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def answer(self, prompts: Prompts) -> Made:
        raise NotImplementedError


@hf.dataflow
def whole(prompts: Prompts, model: Model, engine: Engine) -> tuple[Made, Made, Twice, Numbers, f32[B, P]]:
    rollout = model.make(prompts)
    numbers = model.learn(rollout)
    hf.sync(model, engine)
    return rollout, engine.answer(prompts), model.twice(rollout), numbers, model.loose(prompts.ids)
