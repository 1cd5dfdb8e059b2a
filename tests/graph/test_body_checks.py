"""A body may not write into what it was given, wherever it runs."""

from __future__ import annotations

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.errors import WiringError


class B(hf.Dim):
    """Rows."""


class Scores(hf.Batch):
    reward: f32[B]


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
