"""A body may not write into what it was given, wherever it runs."""

from __future__ import annotations

import pytest
import torch

import hfdsl as hf
from hfdsl import Add, Dispatch, f32, register
from hfdsl.errors import WiringError


class B(hf.Dim):
    """Rows."""


class P(hf.Dim):
    """Tokens of a prompt."""


class R(hf.Dim):
    """Tokens of a response."""


class Scores(hf.Batch):
    reward: f32[B]


class Values(hf.Batch):
    values: f32[B, R]


class Whole(hf.Batch):
    values: f32[B, Add[P, R]]


class Responses(hf.Batch):
    prompt: f32[B, P]
    response: f32[B, R]


class Clamp(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def in_place(self, scores: Scores) -> Scores:
        scores.reward.tensor[:1].view(-1).clamp_(max=1.0)  # through a view
        return scores

    @register(Dispatch.DP_PROTO)
    def copied(self, scores: Scores) -> Scores:
        reward = scores.reward.tensor.clone()
        reward.clamp_(max=1.0)
        return Scores(reward=reward)


@hf.function
def doubled(scores: Scores) -> Scores:
    scores.reward.tensor.mul_(2)
    return scores


@hf.dataflow
def clamp(scores: Scores, role: Clamp) -> Scores:
    return role.in_place(scores)


@hf.dataflow
def clamp_copy(scores: Scores, role: Clamp) -> Scores:
    return role.copied(scores)


@hf.dataflow
def double(scores: Scores, role: Clamp) -> Scores:
    return doubled(role.copied(scores))


def deployment() -> hf.Deployment:
    return hf.Deployment(role=hf.place(Clamp, pool=hf.ResourcePool([2], use_gpu=False)))


def scores() -> Scores:
    return Scores(reward=torch.tensor([3.0, 0.5]))


def test_a_role_that_writes_into_its_argument_is_reported() -> None:
    message = "HF703: 'role.in_place' wrote into column 'reward' of its argument 'scores' in place"
    with pytest.raises(WiringError, match=message):
        clamp(scores(), Clamp())
    with clamp.compile(deployment()).launch() as running, pytest.raises(WiringError, match=message):
        running.step(scores())


def test_a_function_that_writes_into_its_argument_is_reported() -> None:
    with double.compile(deployment()).launch() as running, pytest.raises(WiringError, match="HF703: 'doubled' wrote"):
        running.step(scores())


def test_a_copy_may_be_written() -> None:
    rewards = scores()
    assert clamp_copy(rewards, Clamp()).reward.tensor.tolist() == [1.0, 0.5]
    assert rewards.reward.tensor.tolist() == [3.0, 0.5]


# -- widths


@hf.function
def first_tokens(values: Values) -> Values:
    return Values(values=values.values.tensor[:, :2])


@hf.function
def joined(responses: Responses) -> Whole:
    return Whole(values=torch.cat([responses.prompt.tensor, responses.response.tensor[:, 1:]], 1))


@hf.function
def generated(prompt: f32[B, P]) -> Values:
    return Values(values=torch.zeros(len(prompt.tensor), 7))


@hf.function
def longer(first: f32[B, R], second: f32[B, R]) -> Values:
    return Values(values=second.tensor)


class Trimming(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def values(self, values: Values) -> Values:
        return Values(values=values.values.tensor[:, : 3 - self.rank])


@hf.dataflow
def trim(values: Values) -> Values:
    return first_tokens(values)


@hf.dataflow
def join(responses: Responses) -> Whole:
    return joined(responses)


@hf.dataflow
def generate(responses: Responses) -> Values:
    return generated(responses.prompt)


@hf.dataflow
def compare(values: Values, others: Values) -> Values:
    return longer(values.values, others.values)


@hf.dataflow
def trim_on_ranks(values: Values, role: Trimming) -> Values:
    return role.values(values)


def test_a_result_is_as_wide_as_the_arguments_say() -> None:
    with pytest.raises(WiringError, match=r"HF805.*'first_tokens' returned column 'values' of width 2 .* have R = 3"):
        trim(Values(values=torch.zeros(4, 3)))


def test_a_sum_of_dims_is_as_wide_as_its_terms() -> None:
    responses = Responses(prompt=torch.zeros(4, 2), response=torch.zeros(4, 3))
    with pytest.raises(WiringError, match=r"width 4 .* have P\+R = 5"):
        join(responses)


def test_a_width_that_the_arguments_do_not_have_is_free() -> None:
    responses = Responses(prompt=torch.zeros(4, 2), response=torch.zeros(4, 3))
    assert generate(responses).values.tensor.shape == (4, 7)


def test_a_width_of_which_the_arguments_have_two_is_free() -> None:
    """That they differ is the mistake of what made them."""
    values, others = (Values(values=torch.zeros(4, width)) for width in (2, 3))
    assert compare(values, others).values.tensor.shape == (4, 3)


def test_every_rank_holds_its_result_against_its_arguments() -> None:
    trimming = hf.Deployment(role=hf.place(Trimming, pool=hf.ResourcePool([2], use_gpu=False)))
    with (
        trim_on_ranks.compile(trimming, {B: 4}).launch("local") as running,
        pytest.raises(WiringError, match=r"HF805.*width 2 on rank 1, where its arguments have R = 3"),
    ):
        running.step(Values(values=torch.zeros(4, 3)))
