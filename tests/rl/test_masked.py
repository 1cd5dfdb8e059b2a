"""Masked sums, means, whitening and the weights of an aggregation."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.rl.advantages import globally_normalized
from hfdsl.rl.masked import (
    Aggregation,
    aggregated,
    lengths,
    masked,
    masked_mean,
    masked_sum,
    token_weights,
    whitened,
)
from tests.rl import oracle
from tests.rl.cases import Case, Ranks, cases, flat, shares

MODES: tuple[Aggregation, ...] = get_args(Aggregation)


def by_ranks(
    make: Callable[[slice, Callable[[torch.Tensor], torch.Tensor]], torch.Tensor], rows: int, ranks: int
) -> torch.Tensor:
    """What every rank makes of its own rows with sums over all ranks, joined."""
    reduce = Ranks()
    while True:
        parts = []
        for rows_of_rank in shares(rows, ranks):
            reduce.next_rank()
            parts.append(make(rows_of_rank, reduce))
        if not reduce.next_round():
            return torch.cat(parts)


@given(cases())
def test_sums_and_means(case: Case) -> None:
    x = case.column(1)
    rows = case.tokens(x)
    assert lengths(case.mask).tolist() == [len(row) for row in rows]
    for spoilt in (x, case.spoilt(x)):
        assert masked_sum(spoilt, case.mask, -1).tolist() == pytest.approx([sum(row) for row in rows])
        assert masked_mean(spoilt, case.mask, -1).tolist() == pytest.approx([oracle.mean(row) for row in rows])
        assert masked_sum(spoilt, case.mask).item() == pytest.approx(sum(map(sum, rows)))
        assert masked_mean(spoilt, case.mask).item() == pytest.approx(oracle.mean(flat(rows)))


def test_padding_gets_no_gradient() -> None:
    x = torch.tensor([[1.0, float("nan"), float("inf")]], requires_grad=True)
    masked_mean(x, torch.tensor([[True, False, False]])).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0, 0.0, 0.0]]


@given(cases())
def test_whitened_tokens_have_mean_0_and_deviation_1(case: Case) -> None:
    x = 3.0 + case.column(1)
    white = whitened(case.spoilt(x), case.mask)
    tokens = flat(case.tokens(white))
    assert torch.equal(white, masked(white, case.mask))
    if len(tokens) >= 2:
        assert oracle.mean(tokens) == pytest.approx(0.0, abs=1e-9)
        assert oracle.deviation(tokens) == pytest.approx(1.0, rel=1e-4)
        assert flat(case.tokens(whitened(x, case.mask, center=False) - white)) == pytest.approx(
            [oracle.mean(flat(case.tokens(x)))] * len(tokens)
        )
    else:
        assert tokens == [0.0] * len(tokens)


def test_whitening_equal_numbers_gives_0() -> None:
    assert whitened(torch.full((2, 2), 7.0), torch.ones(2, 2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_whitening_extremes() -> None:
    x = torch.tensor([[3e38, -3e38, 3e38, 1e-38]])
    white = whitened(x, torch.ones(1, 4))
    assert white.isfinite().all()
    assert white.abs().max() < 2


@given(cases(), st.integers(1, 4))
def test_ranks_whiten_as_the_whole_batch(case: Case, ranks: int) -> None:
    x = case.column(1, scale=5.0)
    joined = by_ranks(lambda rows, reduce: whitened(x[rows], case.mask[rows], reduce), len(x), ranks)
    torch.testing.assert_close(joined, whitened(x, case.mask), rtol=1e-12, atol=1e-12)
    joined = by_ranks(lambda rows, reduce: globally_normalized(x[rows], case.mask[rows], 0.9, reduce), len(x), ranks)
    torch.testing.assert_close(joined, globally_normalized(x, case.mask, 0.9), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@given(case=cases())
def test_aggregation(mode: Aggregation, case: Case) -> None:
    terms = case.column(1)
    expected = oracle.aggregated(case.tokens(terms), mode, constant=7.0)
    assert aggregated(case.spoilt(terms), case.mask, mode, constant=7.0).item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
@given(case=cases(), ranks=st.integers(1, 4))
def test_shares_of_ranks_and_micro_batches_add_up(mode: Aggregation, case: Case, ranks: int) -> None:
    terms = case.column(1)
    weights = by_ranks(
        lambda rows, reduce: token_weights(case.mask[rows], mode, reduce, constant=3.0), len(case.mask), ranks
    )
    torch.testing.assert_close(weights, token_weights(case.mask, mode, constant=3.0))
    parts = [(terms[rows] * weights[rows]).sum() for rows in shares(len(terms), 3)]
    torch.testing.assert_close(torch.stack(parts).sum(), aggregated(terms, case.mask, mode, constant=3.0))


@pytest.mark.parametrize("mode", ["token-mean", "sequence-mean-token-mean"])
@given(case=cases())
def test_a_mean_of_ones_is_one(mode: Aggregation, case: Case) -> None:
    assert aggregated(torch.ones(case.mask.shape), case.mask, mode).item() == pytest.approx(float(case.mask.any()))


@pytest.mark.parametrize("mode", MODES)
def test_responses_of_one_token_are_aggregated_alike(mode: Aggregation) -> None:
    terms, mask = torch.tensor([[1.0, 0.0], [4.0, 0.0]]), torch.tensor([[True, False], [True, False]])
    assert aggregated(terms, mask, mode).item() == 2.5


@pytest.mark.parametrize("mode", MODES)
def test_a_row_without_tokens_counts_for_nothing(mode: Aggregation) -> None:
    terms = torch.tensor([[1.0, 3.0], [float("nan"), float("nan")]])
    mask = torch.tensor([[True, True], [False, False]])
    assert aggregated(terms, mask, mode) == aggregated(terms[:1], mask[:1], mode)
    assert aggregated(terms[1:], mask[1:], mode) == 0
