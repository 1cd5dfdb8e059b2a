"""Advantages against the papers' formulas, and what is known of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.rl.advantages import (
    above_baseline,
    discounted_returns,
    gae,
    globally_normalized,
    group_centered,
    group_normalized,
    leave_one_out,
    leave_one_out_normalized,
    spread_over_tokens,
)
from hfdsl.rl.rewards import token_rewards
from tests.rl import oracle
from tests.rl.cases import Case, cases, flat

discounts = st.floats(0, 1)
GROUPED: tuple[Callable[[torch.Tensor, int], torch.Tensor], ...] = (group_normalized, group_centered, leave_one_out)
groups = st.tuples(st.integers(1, 4), st.integers(2, 5))
scores = groups.flatmap(
    lambda shape: st.tuples(
        st.lists(st.floats(-100, 100), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]), st.just(shape[1])
    )
)


# -- GAE


@given(cases(), discounts, discounts)
def test_gae(case: Case, gamma: float, lam: float) -> None:
    rewards, values = case.column(1), case.column(2)
    rows = zip(case.tokens(rewards), case.tokens(values), strict=True)
    expected = case.placed([oracle.gae(r, v, gamma, lam) for r, v in rows])
    advantages, returns = gae(case.spoilt(rewards), case.spoilt(values), case.mask, gamma, lam)
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, expected + values)


@given(cases(), discounts)
def test_with_lambda_1_it_is_returns_minus_values(case: Case, gamma: float) -> None:
    rewards, values = case.column(1), case.column(2)
    advantages, returns = gae(rewards, values, case.mask, gamma, lam=1.0)
    expected = case.placed([oracle.returns(row, gamma) for row in case.tokens(rewards)])
    torch.testing.assert_close(advantages, expected - values)
    torch.testing.assert_close(returns, expected)
    torch.testing.assert_close(discounted_returns(case.spoilt(rewards), case.mask, gamma), expected)


@given(cases(), discounts)
def test_with_lambda_0_it_is_the_td_error(case: Case, gamma: float) -> None:
    rewards, values = case.column(1), case.column(2)
    expected = [
        [r + gamma * after - v for r, v, after in zip(row, held, [*held, 0.0][1:], strict=True)]
        for row, held in zip(case.tokens(rewards), case.tokens(values), strict=True)
    ]
    torch.testing.assert_close(gae(rewards, values, case.mask, gamma, lam=0.0)[0], case.placed(expected))


@given(cases(), discounts, discounts)
def test_a_perfect_critic_leaves_no_advantage(case: Case, gamma: float, lam: float) -> None:
    rewards = case.column(1)
    values = discounted_returns(rewards, case.mask, gamma)
    advantages, returns = gae(rewards, values, case.mask, gamma, lam)
    torch.testing.assert_close(advantages, torch.zeros_like(advantages))
    torch.testing.assert_close(returns, values)


@given(cases(), discounts, discounts)
def test_more_padding_changes_no_bit(case: Case, gamma: float, lam: float) -> None:
    rewards, values = case.column(1).float(), case.column(2).float()
    tight = gae(rewards, values, case.mask, gamma, lam)
    pad = torch.full((len(case.mask), 3), torch.nan)
    mask = torch.cat([case.mask, torch.zeros_like(pad, dtype=torch.bool)], 1)
    wide = gae(torch.cat([rewards, pad], 1), torch.cat([values, pad], 1), mask, gamma, lam)
    for tight_column, wide_column in zip(tight, wide, strict=True):
        assert torch.equal(torch.nn.functional.pad(tight_column, (0, 3)), wide_column)


def test_gae_keeps_the_dtype_and_its_arguments() -> None:
    rewards, values, mask = torch.ones(1, 3), torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool)
    advantages, returns = gae(rewards, values, mask)
    assert advantages.dtype is returns.dtype is torch.float32
    assert torch.equal(rewards, torch.ones(1, 3))
    assert torch.equal(values, torch.ones(1, 3))


def test_extreme_rewards_stay_finite() -> None:
    rewards = torch.tensor([[3e38, -3e38, 1e-38]])
    advantages, _ = gae(rewards, torch.zeros(1, 3), torch.ones(1, 3), lam=1.0)
    assert advantages.isfinite().all()
    for make in GROUPED:
        assert make(torch.tensor([3e38, -3e38]), 2)[:1].isnan().sum() == 0
    assert group_normalized(torch.tensor([3e38, -3e38, 0.0, 1e-38]), 2).isfinite().all()


# -- groups


@given(scores)
def test_of_a_group(given_scores: tuple[list[float], int]) -> None:
    rewards, group = given_scores
    column = torch.tensor(rewards, dtype=torch.float64)
    formulas = {
        group_normalized: lambda r, mates, _: (r - oracle.mean(mates)) / (oracle.deviation(mates) + 1e-4),
        group_centered: lambda r, mates, _: r - oracle.mean(mates),
        leave_one_out: lambda r, _, others: r - oracle.mean(others),
    }
    for make, formula in formulas.items():
        assert make(column, group).tolist() == pytest.approx(oracle.grouped(rewards, group, formula), abs=1e-6)


@given(scores)
def test_rloo_is_n_over_n_minus_1_of_dr_grpo(given_scores: tuple[list[float], int]) -> None:
    rewards, group = torch.tensor(given_scores[0], dtype=torch.float64), given_scores[1]
    torch.testing.assert_close(leave_one_out(rewards, group), group_centered(rewards, group) * group / (group - 1))


@pytest.mark.parametrize("make", GROUPED)
@given(given_scores=scores, shift=st.floats(-10, 10))
def test_a_group_is_compared_with_itself(
    make: Callable[[torch.Tensor, int], torch.Tensor], given_scores: tuple[list[float], int], shift: float
) -> None:
    rewards, group = torch.tensor(given_scores[0], dtype=torch.float64), given_scores[1]
    advantages = make(rewards, group)
    torch.testing.assert_close(
        advantages.view(-1, group).sum(1), torch.zeros(len(rewards) // group, dtype=torch.float64)
    )
    torch.testing.assert_close(make(rewards + shift, group), advantages, rtol=1e-5, atol=1e-6)
    assert torch.equal(make(torch.full((group,), 0.25), group), torch.zeros(group))
    joined = torch.cat([make(part, group) for part in rewards.split(group)])
    assert torch.equal(joined, advantages)


@given(st.lists(st.integers(-4, 4), min_size=4, max_size=4), st.sampled_from([2, 4]))
def test_a_response_is_left_out_of_its_baseline_and_of_its_scale(quarters: list[int], group: int) -> None:
    rewards = [quarter / 4 for quarter in quarters]
    advantages = leave_one_out_normalized(torch.tensor(rewards, dtype=torch.float64), group)

    def formula(reward: float, _: list[float], others: list[float]) -> float:
        spread = oracle.deviation(others) + 1e-6 if len(set(others)) > 1 else 1.0
        return (reward - oracle.mean(others)) / spread

    assert advantages.tolist() == pytest.approx(oracle.grouped(rewards, group, formula))


@pytest.mark.parametrize("make", [*GROUPED, leave_one_out_normalized])
def test_groups_that_are_none(make: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    with pytest.raises(hf.SizeError, match=r"^HF314: a group of 1 has no "):
        make(torch.ones(4), 1)
    with pytest.raises(hf.SizeError, match=r"^HF313: rewards have 5 rows, which do not make whole groups of 2$"):
        make(torch.ones(5), 2)
    assert make(torch.zeros(0), 2).tolist() == []


# -- without groups


@given(cases())
def test_remax(case: Case) -> None:
    sampled, greedy = case.scores(1), case.scores(2)
    expected = spread_over_tokens(sampled - greedy, case.mask)
    advantages = above_baseline(token_rewards(sampled, case.mask), greedy, case.mask)
    torch.testing.assert_close(advantages, expected)
    same = above_baseline(token_rewards(greedy, case.mask), greedy, case.mask)
    assert same.abs().max() == 0


@given(cases())
def test_reinforce_plus_plus(case: Case) -> None:
    rewards = case.column(1)
    rows = [oracle.returns(row, 1.0) for row in case.tokens(rewards)]
    tokens = flat(rows)
    advantages = globally_normalized(case.spoilt(rewards), case.mask)
    if len(tokens) >= 2:
        centre, spread = oracle.mean(tokens), oracle.deviation(tokens)
        expected = case.placed([[(x - centre) / (spread**2 + 1e-8) ** 0.5 for x in row] for row in rows])
        torch.testing.assert_close(advantages, expected)
    else:
        assert advantages.abs().max() == 0


@given(cases())
def test_spread_over_tokens(case: Case) -> None:
    advantages = case.scores(1)
    spread = spread_over_tokens(advantages, case.mask)
    assert torch.equal(spread, advantages[:, None] * case.mask)
