"""Programs whose rows are balanced by their lengths, for every backend; a module of its own: workers import it."""

from __future__ import annotations

from typing import Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, Ragged, bool_, f32, i64, register


class B(hf.Dim): ...


class R(hf.Dim): ...


class Prompts(hf.Batch):
    number: i64[B]
    length: i64[B]
    hint: i64[B] | None = None


class Rollout(hf.Batch):
    ids: i64[B, R]
    mask: bool_[B, R]
    noise: f32[B, R]


class Values(hf.Batch):
    values: f32[B, R]
    row: i64[B]


class Load(hf.Batch):
    """The tokens of a rank: of the one with most, and of all."""

    most: hf.Metric[int, Literal["max"]]
    total: hf.Metric[int, Literal["sum"]]


class Tokens(hf.Batch):
    ids: i64[B, Ragged[R]]


RESPONSE = 8


def noise(rows: int) -> torch.Tensor:
    """Numbers of each row's own; of none where nothing is running as a plan."""
    return hf.current_call().uniforms(RESPONSE) if rows else torch.zeros(0, RESPONSE)


class Actor(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        mask = torch.arange(RESPONSE) < prompts.length.tensor[:, None]
        ids = prompts.number.tensor[:, None] * mask
        return Rollout(ids=ids, mask=mask, noise=noise(len(prompts)))

    @register(Dispatch.THREE_D_PROTO, balance="mask")
    def sample(self, rollout: Rollout) -> Rollout:
        return Rollout(ids=rollout.ids, mask=rollout.mask, noise=noise(len(rollout)) * rollout.mask.tensor)

    @register(Dispatch.THREE_D_PROTO, balance="rollout.mask")
    def update(self, rollout: Rollout, values: Values) -> Load:
        tokens = int(rollout.mask.tensor.sum())
        assert values.values.tensor.shape == rollout.ids.tensor.shape
        return Load(most=tokens, total=tokens)

    @register(Dispatch.DP_PROTO, balance="length")
    def early(self, prompts: Prompts) -> Prompts:
        return Prompts(number=prompts.number.tensor + 1, length=prompts.length, hint=prompts.hint)

    @register(Dispatch.DP_PROTO, balance="hint")
    def hinted(self, prompts: Prompts) -> Prompts:
        return Prompts(number=prompts.number.tensor * 2, length=prompts.length, hint=prompts.hint)


class Critic(hf.Worker):
    @register(Dispatch.DP_PROTO, balance="mask")
    def evaluate(self, rollout: Rollout) -> Values:
        rows = torch.tensor(hf.current_call().rows)
        return Values(values=rollout.ids.tensor.float() + rollout.noise.tensor, row=rows)

    @register(Dispatch.DP_PROTO, balance="mask", pad="cycle", rows=hf.Grouped(2))
    def pairs(self, rollout: Rollout) -> Values:
        """The better one of two, for both."""
        values = rollout.ids.tensor.view(-1, 2, RESPONSE).amax(1, keepdim=True).expand(-1, 2, -1).flatten(0, 1)
        return Values(values=values.float(), row=torch.tensor(hf.current_call().rows))

    @register(Dispatch.DP_PROTO)
    def tokens(self, prompts: Prompts) -> Tokens:
        pairs = zip(prompts.number.tensor.tolist(), prompts.length.tensor.tolist(), strict=True)
        return Tokens(ids=i64([torch.full((length,), number) for number, length in pairs]))

    @register(Dispatch.DP_PROTO, balance="tokens.ids")
    def ragged(self, tokens: Tokens) -> Tokens:
        return Tokens(ids=i64([row * 3 for row in tokens.ids.rows]))

    @register(Dispatch.DP_PROTO, balance="ids")
    def longest(self, ids: i64[B, Ragged[R]]) -> Load:
        most = sum(len(row) for row in ids.rows)
        return Load(most=most, total=most)


@hf.function
def doubled(values: Values) -> Values:
    return Values(values=values.values.tensor * 2, row=values.row)


@hf.dataflow
def train(prompts: Prompts, actor: Actor, critic: Critic) -> tuple[Rollout, Values, Values, Load]:
    rollout = actor.sample(actor.generate(prompts))
    values = doubled(critic.evaluate(rollout))
    return rollout, values, critic.pairs(rollout), actor.update(rollout, values)


@hf.dataflow
def wired(prompts: Prompts, actor: Actor, critic: Critic) -> tuple[Values, Load]:
    """One column weighs the rows of all calls, whatever record it is handed on in."""
    made = actor.generate(prompts)
    sampled = actor.sample(made)
    rollout = Rollout(ids=sampled.ids, mask=made.mask, noise=sampled.noise)
    values = doubled(critic.evaluate(rollout))
    return values, actor.update(rollout, values)


@hf.dataflow
def lengths(prompts: Prompts, critic: Critic) -> tuple[Tokens, Load]:
    tokens = critic.ragged(critic.tokens(prompts))
    return tokens, critic.longest(tokens.ids)


@hf.dataflow
def given(prompts: Prompts, actor: Actor) -> Prompts:
    return actor.hinted(actor.early(prompts))


@hf.dataflow
def kept(prompts: Prompts, actor: Actor, critic: Critic) -> tuple[Rollout, Values]:
    rollout = actor.generate(prompts)
    some = hf.fill(hf.filter(rollout, critic_keeps(rollout)), 8)
    return actor.sample(some), critic.evaluate(some)


@hf.function
def critic_keeps(rollout: Rollout) -> bool_[B]:
    return bool_(rollout.mask.tensor.sum(1) != 2)
