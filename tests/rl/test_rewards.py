"""Rewards at every token, from scores, KL, length and a teacher."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given

from hfdsl.rl.kl import Estimator
from hfdsl.rl.rewards import distillation_reward, kl_penalized, overlong_penalty, token_rewards
from tests.rl import oracle
from tests.rl.cases import Case, cases


@given(cases())
def test_the_score_is_the_reward_of_the_last_token(case: Case) -> None:
    scores = case.scores(1)
    expected = [
        [0.0] * (len(row) - 1) + [score] if row else []
        for row, score in zip(case.tokens(case.column(2)), scores.tolist(), strict=True)
    ]
    assert torch.equal(token_rewards(scores, case.mask), case.placed(expected))


@given(cases())
def test_the_score_of_a_response_without_tokens_is_nobodys(case: Case) -> None:
    scores = torch.full((len(case.mask),), torch.nan)
    rewards = token_rewards(scores, case.mask)
    assert rewards[~case.mask.any(-1)].tolist() == [[0.0] * case.mask.shape[1]] * int((~case.mask.any(-1)).sum())


@pytest.mark.parametrize("kind", get_args(Estimator))
@given(case=cases())
def test_kl_in_the_reward(kind: Estimator, case: Case) -> None:
    rewards, policy, reference = case.column(1), case.log_probs(2), case.log_probs(3)
    rows = zip(*(case.tokens(x) for x in (rewards, policy, reference)), strict=True)
    expected = [[r - 0.3 * oracle.kl(kind, p, q) for r, p, q in zip(*row, strict=True)] for row in rows]
    spoilt_rewards, old, ref = (case.spoilt(x) for x in (rewards, policy, reference))
    penalized = kl_penalized(spoilt_rewards, old, ref, case.mask, 0.3, kind)
    torch.testing.assert_close(penalized, case.placed(expected))


@given(cases())
def test_a_teacher_rewards_what_it_would_have_said(case: Case) -> None:
    student, teacher = case.log_probs(1), case.log_probs(2)
    rewards = distillation_reward(case.spoilt(student), case.spoilt(teacher), case.mask)
    torch.testing.assert_close(rewards, teacher - student)
    assert distillation_reward(student, student, case.mask).abs().max() == 0


def test_overlong_responses_lose_up_to_one() -> None:
    longest, buffer = 10, 4
    mask = torch.arange(12) < torch.arange(13)[:, None]
    expected = []
    for length in range(13):  # the three cases of the paper's equation
        if length <= longest - buffer:
            expected.append(0.0)
        elif length <= longest:
            expected.append(((longest - buffer) - length) / buffer)
        else:
            expected.append(-1.0)
    assert overlong_penalty(mask, longest, buffer).tolist() == expected
