"""What the ready-made roles make does not depend on how rows are split over ranks, nor on who samples where."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.batches import ActorMetrics, Experience, Prompts
from hfdsl.rl.dataflows.supervised import supervised
from tests.rl.workers import tiny
from tests.rl.workers.programs import ALONE, ROWS, SIZES, advantages, apart, everything, numbers, policy, tensors

BY_TOKENS = w.BatchingConfig(tokens=25)


@cache
def ran(dp: int, batching: w.BatchingConfig) -> tuple[Any, dict[str, torch.Tensor]]:
    """A step of everything on so many ranks, and what the policy's weights are then."""
    roles = tiny.deployment(
        dp,
        actor=replace(tiny.ACTOR, batching=batching),
        critic=replace(tiny.CRITIC, batching=batching),
        reference=replace(tiny.REFERENCE, batching=batching),
        reward=tiny.VERIFIER,
    )
    with everything.compile(roles, SIZES).launch("local", seed=3) as running:
        values = running.step(tiny.prompts(ROWS))
        return values, running.also(policy.compile(roles)).step()


def test_responses_end_at_unlike_lengths() -> None:
    rollout = ran(1, tiny.FIXED)[0][0]
    lengths = rollout.response_mask.tensor.sum(1)
    ids, mask = rollout.ids.tensor[:, -tiny.RESPONSE :], rollout.response_mask.tensor
    assert len(lengths.unique()) > 2
    assert (ids[~mask] == tiny.PAD).all()
    assert (rollout.log_probs.tensor[~mask] == 0).all()
    for row, length in enumerate(lengths):
        ends = torch.isin(ids[row, :length], torch.tensor([1, 2, 3]))
        assert not ends[:-1].any()
        assert ends[-1] or length == tiny.RESPONSE


@pytest.mark.parametrize("dp", [2, 4])
def test_rows_are_bit_equal_on_any_number_of_ranks(dp: int) -> None:
    on_one_rank, many = ran(1, tiny.FIXED)[0], ran(dp, tiny.FIXED)[0]
    for alone, split in zip((*on_one_rank[:4], on_one_rank[4][0]), (*many[:4], many[4][0]), strict=True):
        assert tensors(alone)
        for name, column in tensors(alone).items():
            assert torch.equal(column, tensors(split)[name]), name


@pytest.mark.parametrize(("dp", "batching"), [(2, tiny.FIXED), (4, tiny.FIXED), (1, BY_TOKENS), (2, BY_TOKENS)])
def test_updates_are_those_of_one_rank_and_one_micro_batch(dp: int, batching: w.BatchingConfig) -> None:
    (on_one_rank, weights), (many, split_weights) = ran(1, w.BatchingConfig(rows=ROWS)), ran(dp, batching)
    assert torch.equal(on_one_rank[0].ids.tensor, many[0].ids.tensor)
    torch.testing.assert_close(on_one_rank[4][1].values.tensor, many[4][1].values.tensor, rtol=1e-3, atol=1e-4)
    for alone, split in zip((*on_one_rank[5], *on_one_rank[6]), (*many[5], *many[6]), strict=True):
        assert numbers(split) == pytest.approx(numbers(alone), rel=1e-3, abs=1e-5)
    for name, weight in weights.items():
        torch.testing.assert_close(split_weights[name], weight, rtol=1e-3, atol=1e-4, msg=name)
    assert on_one_rank[5][0].kl.value == 0 < on_one_rank[5][2].kl.value
    assert on_one_rank[6][0].clipped.value == 0 < on_one_rank[6][2].clipped.value


@hf.dataflow
def never_synced(prompts: Prompts, actor: w.Actor, sampler: w.Sampler, reward: w.Reward) -> ActorMetrics:
    rollout = sampler.generate(prompts)
    return actor.update(hf.merge(Experience, rollout, advantages(rollout, reward.score(prompts, rollout))), loss=ALONE)


def deployed(train: hf.ResourcePool, roll: hf.ResourcePool) -> hf.Deployment:
    """The sampler starts with other weights than the actor."""
    config = w.SamplerConfig(replace(tiny.MODEL, seed=9), tiny.GENERATION, batching=tiny.FIXED)
    return hf.Deployment(
        actor=hf.place(w.Actor, tiny.ACTOR, pool=train),
        sampler=hf.place(w.Sampler, config, pool=roll),
        reward=hf.place(w.Verifier, tiny.VERIFIER, pool=train),
    )


TRAIN, ROLL = hf.ResourcePool([2], use_gpu=False, name="train"), hf.ResourcePool([4], use_gpu=False, name="roll")


def test_a_sampler_on_a_pool_of_its_own_gives_what_it_gives_beside_the_actor() -> None:
    def steps(roles: hf.Deployment) -> Any:
        with apart.compile(roles, SIZES).launch("local") as running:
            return [running.step(tiny.prompts(ROWS, seed)) for seed in range(3)]

    for together, split in zip(steps(deployed(TRAIN, TRAIN)), steps(deployed(TRAIN, ROLL)), strict=True):
        for rollout, actual in zip(together[:3], split[:3], strict=True):
            assert all(torch.equal(column, tensors(actual)[name]) for name, column in tensors(rollout).items())
        _, likeliest, own, metrics = split
        assert torch.equal(likeliest.ids.tensor, own.ids.tensor)
        assert numbers(metrics) == numbers(together[3])


def test_a_sampler_that_is_never_synced_is_found() -> None:
    assert never_synced.check(deployed(TRAIN, ROLL), SIZES).codes == ("HF510",)


def test_imitation_learns() -> None:
    roles = tiny.deployment(2, actor=tiny.ACTOR)
    with supervised.compile(roles, SIZES).launch("local") as running:
        losses = [running.step(tiny.demonstrations(ROWS)).loss.value for _ in range(8)]
    assert losses[-1] < losses[0] / 2
