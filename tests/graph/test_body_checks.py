"""A body may not write into what it was given, wherever it runs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Add, Dispatch, f32, register
from hfdsl.errors import WiringError
from hfdsl.graph.body_checks import inputs_unchanged


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


def write(column: torch.Tensor, how: str, places: slice) -> None:
    """Write at some places of a tensor, around torch's count of writes or through a view."""
    match how:
        case "numpy":
            column.numpy().reshape(-1)[places] += 1
        case "data":
            column.data.view(-1)[places] += 1
        case "from_numpy":
            torch.from_numpy(column.numpy()).view(-1)[places] += 1
        case "detach":
            column.detach().view(-1)[places] += 1
        case "view":
            column.view(-1)[places] += 1


class Through(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def write(self, values: Values, how: str, place: int) -> Values:
        write(values.values.tensor, how, slice(place, place + 1))
        return values


@hf.dataflow
def through(values: Values, role: Through, *, how: str, place: int) -> Values:
    return role.write(values, how, place)


WRITES = ("numpy", "data", "from_numpy", "detach", "view")


@pytest.mark.parametrize("how", WRITES)
@given(rows=st.integers(1, 8), width=st.integers(1, 6), data=st.data())
def test_any_way_to_write_into_an_argument_is_reported(how: str, rows: int, width: int, data: st.DataObject) -> None:
    values = Values(values=torch.zeros(rows, width))
    place = data.draw(st.integers(0, rows * width - 1))
    with pytest.raises(WiringError, match=r"HF703: 'role.write' wrote into column 'values' of its argument 'values'"):
        through(values, Through(), how=how, place=place)


@pytest.mark.parametrize("how", WRITES)
@given(width=st.integers(1, 300), data=st.data())
def test_a_write_into_a_column_of_a_large_table_is_reported(how: str, width: int, data: st.DataObject) -> None:
    values = torch.zeros(60_000 // width, width)
    of_a_column = slice(data.draw(st.integers(0, width - 1)), None, width)
    with pytest.raises(WiringError, match="HF703"), inputs_unchanged("body", {"values": Values(values=values)}):
        write(values, how, of_a_column)


@pytest.mark.parametrize("values", [torch.full((300, 80), torch.nan), torch.ones(3, 4)[:1, ::4], torch.ones(2, 4).T])
def test_what_is_only_read_through_numpy_is_not_reported(values: torch.Tensor) -> None:
    with inputs_unchanged("body", {"values": Values(values=values)}):
        assert values.numpy().copy().shape == values.shape


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
