"""Programs with optional columns, for every backend; a module of its own, since workers import it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register


class B(hf.Dim): ...


class R(hf.Dim): ...


class Prompts(hf.Batch):
    ids: i64[B, R]
    hint: hf.Obj[str, B] | None = None


class Rollout(Prompts):
    values: f32[B, R] | None = None


class Marked(Prompts):
    keep: hf.bool_[B] | None = None


class Experience(hf.Batch):
    ids: i64[B, R]
    values: f32[B, R]


class Sums(hf.Batch):
    total: f32[B]
    hints: hf.Obj[str, B]


@dataclass(frozen=True)
class Config:
    with_values: bool = True
    ranks_with_values: tuple[int, ...] = (0, 1, 2, 3)


class Actor(hf.Worker):
    def __init__(self, config: Config) -> None:
        self.config = config

    @register(Dispatch.DP_PROTO)
    @hf.provides("values", when="with_values")
    def generate(self, prompts: Prompts) -> Rollout:
        return self.made(prompts)

    @register(Dispatch.DP_PROTO)
    def undeclared(self, prompts: Prompts) -> Rollout:
        return self.made(prompts)

    @register(Dispatch.DP_PROTO)
    def mark(self, prompts: Prompts) -> Marked:
        keep = prompts.ids.tensor[:, 0] % 4 == 0
        return Marked(ids=prompts.ids, hint=prompts.hint, keep=hf.bool_(keep) if self.config.with_values else None)

    def made(self, prompts: Prompts) -> Rollout:
        present = self.config.with_values and self.rank in self.config.ranks_with_values
        halves = prompts.ids.tensor.float() / 2
        return Rollout(ids=prompts.ids, hint=prompts.hint, values=f32(halves) if present else None)


def sums(ids: torch.Tensor, values: f32[B, R] | None, hint: hf.Obj[str, B] | None) -> Sums:
    total = values.tensor.sum(1) if values is not None else -ids.sum(1).float()
    return Sums(total=total, hints=hint.objects if hint is not None else ["none"] * len(ids))


class Critic(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def record(self, rollout: Rollout) -> Sums:
        return sums(rollout.ids.tensor, rollout.values, rollout.hint)

    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def columns(self, ids: i64[B, R], values: f32[B, R] | None, hint: hf.Obj[str, B] | None = None) -> Sums:
        return sums(ids.tensor, values, hint)

    @register(Dispatch.DP_PROTO)
    def needs(self, experience: Experience) -> Sums:
        return sums(experience.ids.tensor, experience.values, None)


@hf.dataflow
def carries(prompts: Prompts, actor: Actor, critic: Critic) -> tuple[Rollout, Sums, Sums, Sums, list[Sums]]:
    rollout = actor.generate(prompts)
    again = Rollout(ids=rollout.ids, values=rollout.values)
    parts = [critic.record(part) for part in hf.minibatches(hf.repeat(rollout, 2), 2)]
    loose = critic.columns(rollout.ids, rollout.values, rollout.hint)
    return rollout, critic.record(rollout), loose, critic.columns(again.ids, again.values, again.hint), parts


@hf.dataflow
def needs(prompts: Prompts, actor: Actor, critic: Critic) -> Sums:
    rollout = actor.undeclared(prompts)
    return critic.needs(Experience(ids=rollout.ids, values=hf.present(rollout.values)))


@hf.dataflow
def passes(prompts: Prompts, actor: Actor, critic: Critic) -> Sums:
    return critic.record(actor.undeclared(prompts))


@hf.function
def both(left: Marked, right: Prompts) -> Sums:
    return sums(left.ids.tensor + right.ids.tensor, None, left.hint)


@hf.dataflow
def filtered(prompts: Prompts, actor: Actor) -> tuple[Sums, Marked]:
    marked = actor.mark(prompts)
    left, right = hf.filter(marked, hf.present(marked.keep)), hf.filter(prompts, hf.present(marked.keep))
    return both(left, right), hf.fill(left, 6)


@hf.dataflow
def declared(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(prompts)


def batch(hint: bool, rows: int = 8) -> Prompts:
    hints = [f"h{i}" for i in range(rows)]
    return Prompts(ids=torch.arange(rows * 2).view(rows, 2), hint=hf.Obj(hints) if hint else None)
