"""Padding of responses in bodies of the user's, on the ready-made records."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

import hfdsl as hf
from hfdsl import bool_, f32, i64
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl import masked as formulas
from hfdsl.rl.advantages import discounted_returns
from hfdsl.rl.batches import (
    ActorMetrics,
    Advantages,
    B,
    Experience,
    P,
    Prompts,
    R,
    ReferenceLogProbs,
    Rewards,
    Rollout,
    Scores,
)
from hfdsl.rl.functions import normalized_returns
from hfdsl.rl.losses import Clip
from hfdsl.rl.masked import masked_mean, whitened
from hfdsl.rl.rewards import kl_penalized, token_rewards
from hfdsl.rl.workers import Actor


class Width(hf.Dim):
    """Tokens that are never padded."""


class Responses(hf.Batch):
    mask: bool_[B, Width]
    gain: f32[B, Width]


class Spread(Advantages):
    spread: hf.Metric[float, Literal["mean"]]


def codes(function: Any, *, of: str = "advantages") -> tuple[str, ...]:
    """The codes of a step whose policy learns from what a function makes of a rollout and its advantages."""

    @hf.dataflow
    def of_advantages(prompts: Prompts, gains: Advantages, scores: Scores, actor: Actor) -> ActorMetrics:
        rollout = actor.generate(prompts)
        return actor.update(hf.merge(Experience, rollout, function(rollout, gains, scores)), loss=Clip())

    @hf.dataflow
    def of_rewards(prompts: Prompts, ref: ReferenceLogProbs, scores: Scores, actor: Actor) -> ActorMetrics:
        rollout = actor.generate(prompts)
        rewards = function(rollout, ref, scores)
        return actor.update(hf.merge(Experience, rollout, normalized_returns(rollout, rewards)), loss=Clip())

    flow: Dataflow[..., Any] = of_advantages if of == "advantages" else of_rewards
    return flow.check(None, {B: 8, P: 4, R: 4}).codes


# -- masks of ones


@hf.function(rows=hf.Whole)
def over_ones(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    return Advantages(advantage=whitened(gains.advantage.tensor, torch.ones_like(gains.advantage.tensor)))


@hf.function(rows=hf.Whole)
def over_named_ones(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    every = torch.ones(rollout.log_probs.tensor.shape).bool()
    return Advantages(advantage=gains.advantage.tensor - formulas.masked_mean(gains.advantage.tensor, mask=every))


@hf.function(rows=hf.Whole)
def over_the_mask(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    return Advantages(advantage=whitened(gains.advantage.tensor, rollout.response_mask.tensor))


@hf.function(rows=hf.Whole)
def over_some(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    chosen = torch.ones_like(rollout.response_mask.tensor) & (rollout.response_mask.tensor)
    return Advantages(advantage=whitened(gains.advantage.tensor, chosen))


@hf.function(rows=hf.Whole)
def summed_over_all(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    """Padding of ready advantages is 0, and a discounted sum from the end does not change."""
    gain = gains.advantage.tensor
    every = torch.ones_like(gain).bool()
    return Advantages(advantage=discounted_returns(formulas.masked(gain, every), every))


@hf.function
def over_a_fixed_length(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    gain = gains.advantage.tensor
    share = formulas.masked_mean(gain, torch.ones_like(gain), dim=1)
    return Advantages(advantage=share[:, None] * rollout.response_mask.tensor)


@hf.function(rows=hf.Whole)
def over_responses(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    """The scores of responses have no padding."""
    score = scores.score.tensor
    normal = whitened(score, torch.ones_like(score))
    return Advantages(advantage=normal[:, None] * rollout.response_mask.tensor)


@pytest.mark.parametrize("function", [over_ones, over_named_ones], ids=lambda function: function.__name__)
def test_a_mask_of_ones_is_no_mask(function: Any) -> None:
    assert codes(function) == ("HF355",)


@pytest.mark.parametrize(
    "function",
    [over_the_mask, over_some, summed_over_all, over_a_fixed_length, over_responses],
    ids=lambda f: f.__name__,
)
def test_masks_that_are_meant(function: Any) -> None:
    assert codes(function) == ()


# -- statistics


@hf.function(rows=hf.Whole)
def scaled(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    return Advantages(advantage=gains.advantage.tensor / (gains.advantage.tensor.std() + 1e-6))


@hf.function(rows=hf.Whole)
def less_mean(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    gain = gains.advantage.tensor.float()
    mean = torch.mean(gain)
    gain -= mean
    return Advantages(advantage=gain * rollout.response_mask.tensor)


@hf.function
def less_its_own_mean(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    gain = gains.advantage.tensor
    return Advantages(advantage=gain - gain.mean(-1)[:, None])


@hf.function
def scaled_by_its_own(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    gain = gains.advantage.tensor
    return Advantages(advantage=gain / (gain.std(dim=1, keepdim=True) + 1e-6))


@hf.function
def of_a_part(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    """Of all rows in a function that may get some of them: HF338."""
    gain = gains.advantage.tensor
    return Advantages(advantage=gain - gain.mean())


@hf.function(rows=hf.Whole)
def with_a_mask(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    gain, mask = gains.advantage.tensor, rollout.response_mask.tensor
    picked = gain[mask]
    return Advantages(advantage=(gain - picked.mean()) / (picked.std() + 1e-6))


@hf.function(rows=hf.Whole)
def by_hand(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    gain, mask = gains.advantage.tensor, rollout.response_mask.tensor.float()
    mean = (gain * mask).sum() / mask.sum()
    spread = (((gain - mean) ** 2 * mask).sum() / mask.sum()).sqrt()
    return Advantages(advantage=(gain - mean) / spread)


@hf.function(rows=hf.Whole)
def by_a_formula(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    return Advantages(
        advantage=gains.advantage.tensor - masked_mean(gains.advantage.tensor, rollout.response_mask.tensor)
    )


@hf.function
def sum_over_a_fixed_length(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    length = gains.advantage.tensor.mean(1, keepdim=True)
    return Advantages(advantage=length * rollout.response_mask.tensor)


@hf.function(rows=hf.Whole)
def with_a_spread_to_report(rollout: Rollout, gains: Advantages, scores: Scores) -> Spread:
    return Spread(advantage=gains.advantage.tensor, spread=float(gains.advantage.tensor.std()))


@hf.function(rows=hf.Whole)
def over_rows(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    score = scores.score.tensor
    normal = (score - score.mean()) / score.std()
    return Advantages(advantage=normal[:, None] * rollout.response_mask.tensor)


@hf.function(rows=hf.Whole)
def in_a_branch(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    gain = gains.advantage.tensor
    if len(gain) > 1:
        gain = gain * rollout.response_mask.tensor
    return Advantages(advantage=gain / gain.std())


@hf.function(rows=hf.Whole)
def filled_in_place(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    gain = gains.advantage.tensor.clone()
    gain.masked_fill_(~rollout.response_mask.tensor, float("nan"))
    return Advantages(advantage=gain - gain.mean())


@pytest.mark.parametrize(
    "function", [scaled, less_mean, less_its_own_mean, scaled_by_its_own], ids=lambda function: function.__name__
)
def test_a_statistic_of_tokens_has_no_padding(function: Any) -> None:
    assert codes(function) == ("HF355",)


def test_a_statistic_of_a_part_of_the_rows_is_one_mistake() -> None:
    assert codes(of_a_part) == ("HF338",)


@pytest.mark.parametrize(
    "function",
    [
        with_a_mask,
        by_hand,
        by_a_formula,
        sum_over_a_fixed_length,
        with_a_spread_to_report,
        over_rows,
        in_a_branch,
        filled_in_place,
    ],
    ids=lambda function: function.__name__,
)
def test_statistics_that_are_meant(function: Any) -> None:
    assert codes(function) == ()


# -- the last column


@hf.function
def at_the_last_column(rollout: Rollout, ref: ReferenceLogProbs, scores: Scores) -> Rewards:
    rewards = torch.zeros_like(rollout.log_probs.tensor)
    rewards[:, -1] = scores.score.tensor * 2
    return Rewards(rewards=rewards)


@hf.function
def after_a_formula(rollout: Rollout, ref: ReferenceLogProbs, scores: Scores) -> Rewards:
    mask = rollout.response_mask.tensor
    zero = torch.zeros_like(rollout.log_probs.tensor)
    rewards = kl_penalized(zero, rollout.log_probs.tensor, ref.ref_log_probs.tensor, mask, 0.1)
    rewards[:, -1] += scores.score.tensor
    return Rewards(rewards=rewards)


@hf.function
def at_the_last_token(rollout: Rollout, ref: ReferenceLogProbs, scores: Scores) -> Rewards:
    return Rewards(rewards=token_rewards(scores.score.tensor, rollout.response_mask.tensor))


@hf.function
def less_what_never_ends(rollout: Rollout, ref: ReferenceLogProbs, scores: Scores) -> Rewards:
    """Only a response that was cut has the last column."""
    rewards = token_rewards(scores.score.tensor, rollout.response_mask.tensor)
    cut = rollout.response_mask.tensor[:, -1]
    rewards[:, -1] -= 0.5 * cut
    return Rewards(rewards=rewards)


class Verdicts(Scores):
    was_cut: f32[B]


@hf.function
def less_what_was_cut(rollout: Rollout, ref: ReferenceLogProbs, scores: Verdicts) -> Rewards:
    """The same, as another one says which responses were cut."""
    rewards = token_rewards(scores.score.tensor, rollout.response_mask.tensor)
    rewards[:, -1] -= scores.was_cut.tensor
    return Rewards(rewards=rewards)


@pytest.mark.parametrize("function", [at_the_last_column, after_a_formula], ids=lambda function: function.__name__)
def test_a_score_is_not_put_into_padding(function: Any) -> None:
    assert codes(function, of="rewards") == ("HF355",)


@pytest.mark.parametrize("function", [at_the_last_token, less_what_never_ends], ids=lambda function: function.__name__)
def test_numbers_at_tokens(function: Any) -> None:
    assert codes(function, of="rewards") == ()


def test_what_padding_does() -> None:
    """Why it matters: the same responses in wider columns have other numbers."""
    gains, mask = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([[True, True], [True, False]])
    wide, wide_mask = (torch.cat([x, torch.zeros_like(x)], dim=1) for x in (gains, mask))
    assert gains.std() != wide.std()
    assert torch.equal(whitened(gains, mask), whitened(wide, wide_mask)[:, :2])


# -- where nothing is claimed


class Sampler(Actor):
    @hf.register(hf.Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def to_the_end(self, prompts: Prompts) -> Rollout:
        ids = torch.zeros(len(prompts.ids.tensor), 8, dtype=torch.int64)
        every = torch.ones_like(ids, dtype=torch.bool)
        return Rollout(ids=ids, mask=every, response_mask=every[:, 4:], log_probs=ids[:, 4:].float())

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def until_it_ends(self, prompts: Prompts) -> Rollout:
        raise NotImplementedError


@hf.dataflow
def of_full_responses(
    prompts: Prompts, gains: Advantages, scores: Scores, actor: Sampler, *, full: bool = True
) -> ActorMetrics:
    rollout = actor.to_the_end(prompts) if full else actor.until_it_ends(prompts)
    return actor.update(hf.merge(Experience, rollout, over_ones(rollout, gains, scores)), loss=Clip())


def test_full_responses_have_no_padding() -> None:
    assert of_full_responses.check(None, {B: 8, P: 4, R: 4}).codes == ()
    assert of_full_responses.given(full=False).check(None, {B: 8, P: 4, R: 4}).codes == ("HF355",)


@hf.function
def repeated(scores: Scores, rollout: Rollout) -> Advantages:
    return Advantages(advantage=scores.score.tensor[:, None].expand_as(rollout.log_probs.tensor))


@hf.function(rows=hf.Whole)
def log_ratio_scaled(rollout: Rollout, ref: ReferenceLogProbs) -> Advantages:
    ratio = rollout.log_probs.tensor - ref.ref_log_probs.tensor
    return Advantages(advantage=ratio / ratio.std().clamp_min(1e-6))


@hf.dataflow
def of_repeated_scores(prompts: Prompts, scores: Scores, actor: Actor) -> ActorMetrics:
    rollout = actor.generate(prompts)
    gains = scaled(rollout, repeated(scores, rollout), scores)
    return actor.update(hf.merge(Experience, rollout, gains), loss=Clip())


@hf.dataflow
def of_log_probs(prompts: Prompts, ref: ReferenceLogProbs, actor: Sampler) -> ActorMetrics:
    rollout = actor.until_it_ends(prompts)
    return actor.update(hf.merge(Experience, rollout, log_ratio_scaled(rollout, ref)), loss=Clip())


def test_scores_that_are_repeated_for_all_tokens() -> None:
    """Their mean and spread over all columns are those of the scores, but log-probs differ from token to token."""
    assert of_repeated_scores.check(None, {B: 8, P: 4, R: 4}).codes == ()
    assert of_log_probs.check(None, {B: 8, P: 4, R: 4}).codes == ("HF355",)


@hf.function(rows=hf.Whole)
def of_dims_of_its_own(responses: Responses) -> Responses:
    gain = responses.gain.tensor
    return Responses(mask=torch.ones_like(gain, dtype=torch.bool), gain=(gain - gain.mean()) / gain.std())


class Learner(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def learn(self, responses: Responses) -> ActorMetrics:
        raise NotImplementedError


@hf.dataflow
def other_dims(responses: Responses, learner: Learner) -> ActorMetrics:
    return learner.learn(of_dims_of_its_own(responses))


class Own(hf.Dim):
    """Tokens of responses, in records of the user's."""


class OwnResponses(hf.Batch):
    ids: i64[B, P]
    log_probs: f32[B, Own]


class Written(OwnResponses):
    response_mask: bool_[B, Own]


class Masks(hf.Batch):
    completion_mask: bool_[B, Own]


class Unpadded(OwnResponses):
    response_mask: bool_[B, P]


class OwnRewards(hf.Batch):
    reward: f32[B, Own]


class OwnPolicy(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def write(self, prompts: Scores) -> Written:
        raise NotImplementedError

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def write_to_the_end(self, prompts: Scores) -> Written:
        every = torch.ones(len(prompts.score.tensor), 4, dtype=torch.bool)
        return Written(ids=every.long(), log_probs=every.float(), response_mask=every)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def learn(self, rewards: OwnRewards) -> ActorMetrics:
        raise NotImplementedError


@hf.function
def at_the_end(responses: Written, scores: Scores) -> OwnRewards:
    rewards = torch.zeros_like(responses.log_probs.tensor)
    rewards[:, -1] += scores.score.tensor
    return OwnRewards(reward=rewards)


@hf.function
def after_another_mask(responses: Written, masks: Masks, scores: Scores) -> OwnRewards:
    rewards = 0.1 * responses.log_probs.tensor * masks.completion_mask.tensor
    rewards[:, -1] -= scores.score.tensor
    return OwnRewards(reward=rewards)


@hf.function
def in_a_mask_of_its_own(mask: bool_[B, Own], action_mask: bool_[B, Own], scores: Scores) -> OwnRewards:
    rewards = torch.zeros(mask.tensor.shape)
    rewards[:, -1] = scores.score.tensor * 2
    return OwnRewards(reward=rewards)


KL = 0.05


@hf.function
def after_a_penalty(responses: Written, scores: Scores) -> OwnRewards:
    log_probs = responses.log_probs.tensor
    rewards = -KL * (log_probs.exp() - log_probs)
    rewards[:, -1] += scores.score.tensor
    return OwnRewards(reward=rewards)


@hf.function
def after_a_penalty_where_it_ends(responses: Written, scores: Scores) -> OwnRewards:
    log_probs = responses.log_probs.tensor
    rewards = -KL * (log_probs.exp() - log_probs)
    rewards[:, -1] += scores.score.tensor * responses.response_mask.tensor[:, -1]
    return OwnRewards(reward=rewards)


@hf.function
def where_it_ends(responses: Written, scores: Scores) -> OwnRewards:
    return OwnRewards(reward=token_rewards(scores.score.tensor, responses.response_mask.tensor))


@hf.function
def if_it_was_cut(responses: Written, scores: Scores) -> OwnRewards:
    rewards = torch.zeros_like(responses.log_probs.tensor)
    rewards[:, -1] += scores.score.tensor * responses.response_mask.tensor[:, -1]
    return OwnRewards(reward=rewards)


@hf.function
def without_a_mask(responses: OwnResponses, scores: Scores) -> OwnRewards:
    rewards = torch.zeros_like(responses.log_probs.tensor)
    rewards[:, -1] += scores.score.tensor
    return OwnRewards(reward=rewards)


@hf.function
def beside_a_mask_of_prompts(responses: Unpadded, scores: Scores) -> OwnRewards:
    rewards = torch.zeros_like(responses.log_probs.tensor)
    rewards[:, -1] += scores.score.tensor
    return OwnRewards(reward=rewards)


@hf.function(rows=hf.Whole)
def less_a_mean(responses: Written, scores: Scores) -> OwnRewards:
    """Statistics over padding are reported of the ready dims alone."""
    return OwnRewards(reward=responses.log_probs.tensor - responses.log_probs.tensor.mean())


def own_codes(function: Any, *, to_the_end: bool = False) -> tuple[str, ...]:
    @hf.dataflow
    def own(prompts: Scores, other: Unpadded, masks: Masks, policy: OwnPolicy) -> ActorMetrics:
        written = policy.write_to_the_end(prompts) if to_the_end else policy.write(prompts)
        if function is after_another_mask:
            return policy.learn(after_another_mask(written, masks, prompts))
        if function is in_a_mask_of_its_own:
            return policy.learn(in_a_mask_of_its_own(masks.completion_mask, written.response_mask, prompts))
        return policy.learn(function(other if function is beside_a_mask_of_prompts else written, prompts))

    return tuple(code for code in own.check(None, {B: 8, P: 4, Own: 4}).codes if code == "HF355")


@pytest.mark.parametrize(
    "function",
    [at_the_end, after_another_mask, after_a_penalty, in_a_mask_of_its_own],
    ids=lambda function: function.__name__,
)
def test_a_mask_says_that_dims_of_the_users_have_padding(function: Any) -> None:
    assert own_codes(function) == ("HF355",)
    assert own_codes(function, to_the_end=True) == ()


@pytest.mark.parametrize(
    "function",
    [
        where_it_ends,
        after_a_penalty_where_it_ends,
        if_it_was_cut,
        without_a_mask,
        beside_a_mask_of_prompts,
        less_a_mean,
    ],
    ids=lambda function: function.__name__,
)
def test_numbers_in_dims_of_the_users(function: Any) -> None:
    assert own_codes(function) == ()


@hf.dataflow
def of_verdicts(prompts: Prompts, ref: ReferenceLogProbs, verdicts: Verdicts, actor: Actor) -> ActorMetrics:
    rollout = actor.generate(prompts)
    rewards = less_what_was_cut(rollout, ref, verdicts)
    return actor.update(hf.merge(Experience, rollout, normalized_returns(rollout, rewards)), loss=Clip())


def test_numbers_of_responses_that_were_cut() -> None:
    assert of_verdicts.check(None, {B: 8, P: 4, R: 4}).codes == ()


@hf.dataflow
def only_reported(rollout: Rollout, gains: Advantages, scores: Scores) -> Advantages:
    return scaled(rollout, gains, scores)


def test_dims_of_its_own_and_what_nothing_learns_from_are_left_alone() -> None:
    assert other_dims.check(None, {B: 8, Width: 4}).codes == ()
    assert only_reported.check(None, {B: 8, P: 4, R: 4}).codes == ()
