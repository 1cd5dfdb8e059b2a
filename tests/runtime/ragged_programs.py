"""Programs with ragged columns, for every backend; a module of its own, since workers import it."""

from __future__ import annotations

from typing import TypeVar

import torch

import hfdsl as hf
from hfdsl import Dispatch, Ragged, f32, i64, register


class B(hf.Dim): ...


class R(hf.Dim): ...


b = TypeVar("b")
t = TypeVar("t")


class Prompts(hf.Batch):
    number: i64[B]


class Tokens(hf.Batch):
    ids: i64[B, Ragged[R]]
    number: i64[B]


class Lengths(hf.Batch):
    length: i64[B]
    total: i64[B]


class Actor(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Tokens:
        """Row n has n % 4 tokens, which are n."""
        numbers = prompts.number.tensor
        return Tokens(ids=i64([torch.full((n % 4,), n) for n in numbers.tolist()]), number=numbers)


class Critic(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def record(self, tokens: Tokens) -> Lengths:
        rows = tokens.ids.rows
        return Lengths(length=torch.tensor([len(row) for row in rows]), total=torch.stack([row.sum() for row in rows]))

    @register(Dispatch.DP_PROTO, pad="cycle")
    def twice(self, ids: i64[B, Ragged[R]]) -> i64[B, Ragged[R]]:
        return i64(ids.tensor * 2)

    @register(Dispatch.DP_PROTO)
    def padded(self, tokens: Tokens) -> i64[B, R]:
        """To the longest row of the rank, which is not that of the batch."""
        return i64(torch.nn.utils.rnn.pad_sequence(tokens.ids.rows, batch_first=True))

    @register(Dispatch.ONE_TO_ALL)
    def everywhere(self, tokens: Tokens) -> Tokens:
        return tokens


@hf.function
def dense(ids: i64[b, Ragged[t]]) -> i64[b]:
    return i64(torch.tensor([len(row) for row in ids.rows]))


@hf.function
def last(tokens: hf.PerRank[Tokens]) -> Tokens:
    return tokens[-1]


@hf.function
def long(tokens: Tokens) -> hf.bool_[B]:
    return hf.bool_(torch.tensor([len(row) > 1 for row in tokens.ids.rows]))


@hf.dataflow
def program(
    prompts: Prompts, actor: Actor, critic: Critic
) -> tuple[Tokens, list[Lengths], i64[B, Ragged[R]], i64[B], Tokens, Tokens]:
    tokens = actor.generate(prompts)
    parts = [critic.record(part) for part in hf.minibatches(hf.repeat(tokens, 2), 2)]
    doubled = critic.twice(tokens.ids)
    again = Tokens(ids=doubled, number=tokens.number)
    return tokens, parts, doubled, dense(doubled), last(critic.everywhere(again)), hf.filter(again, long(again))


@hf.function
def scale(ids: i64[B, Ragged[R]]) -> f32[B]:
    ids.rows[0].mul_(2)
    return f32(torch.zeros(len(ids.rows)))


@hf.dataflow
def writes(prompts: Prompts, actor: Actor) -> f32[B]:
    return scale(actor.generate(prompts).ids)


@hf.dataflow
def padded_by_each_rank(prompts: Prompts, actor: Actor, critic: Critic) -> i64[B, R]:
    return critic.padded(actor.generate(prompts))
