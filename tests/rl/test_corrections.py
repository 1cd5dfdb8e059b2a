"""Corrections for another engine's samples: against plain floats, and what they leave as it is."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from hfdsl.errors import ConfigError
from hfdsl.rl.corrections import Correction
from hfdsl.rl.losses import Clip, PolicyLoss, Reinforce, SequenceClip
from hfdsl.rl.masked import Aggregation
from tests.rl import oracle
from tests.rl.cases import Case, cases

LOSSES: tuple[PolicyLoss, ...] = (
    Clip(0.2, 0.28, dual=3.0, kl=0.1, entropy=0.01),
    SequenceClip(0.1, 0.1, kl=0.1),
    Reinforce(entropy=0.01),
)
corrections = st.builds(
    Correction,
    level=st.sampled_from(["token", "sequence"]),
    outside=st.sampled_from(["truncate", "mask"]),
    low=st.floats(0, 1),
    high=st.floats(1, 5),
)
masking = corrections.map(lambda correction: replace(correction, outside="mask"))


def terms_of(loss: PolicyLoss, case: Case, new: torch.Tensor, engine: torch.Tensor | None) -> Any:
    old, advantages = case.log_probs(2), case.scores(3)[:, None]
    reference, entropy = case.log_probs(5), case.column(6).abs()
    return loss(
        new, old, advantages, case.mask, reference_log_probs=reference, entropy=entropy, engine_log_probs=engine
    )


def near_a_bound(case: Case, old: torch.Tensor, engine: torch.Tensor, correction: Correction) -> bool:
    """Whether a ratio is so near a bound that rounding decides on which side it is."""
    gaps = (old - engine) * case.mask
    ratios = (gaps.sum(-1) if correction.level == "sequence" else gaps).exp()
    return any(((ratios - bound).abs() < 1e-9).any() for bound in (correction.low, correction.high))


def expected_weights(correction: Correction, trainer: list[float], engine: list[float]) -> list[float]:
    level, outside, low, high = correction.level, correction.outside, correction.low, correction.high
    return oracle.importance_weights(trainer, engine, level, outside, low, high)


@given(cases(), corrections, st.floats(0.1, 2))
def test_weights_are_those_of_plain_floats(case: Case, correction: Correction, scale: float) -> None:
    old = case.log_probs(2)
    engine = old + case.column(7, scale)
    assume(not near_a_bound(case, old, engine, correction))
    weight, kept_mask, outside = correction(old, case.spoilt(engine), case.mask)
    rows = zip(case.tokens(old), case.tokens(engine), strict=True)
    expected = [expected_weights(correction, *row) for row in rows]
    torch.testing.assert_close(weight, case.placed([[0.0 if math.isnan(x) else x for x in row] for row in expected]))
    assert torch.equal(kept_mask, case.placed([[float(not math.isnan(x)) for x in row] for row in expected]) == 1)
    assert torch.equal(kept_mask, case.mask & ~outside) or correction.outside == "truncate"
    assert not (outside & ~case.mask).any()


@given(cases(), corrections, st.floats(0.1, 30))
def test_weights_are_within_the_bounds(case: Case, correction: Correction, scale: float) -> None:
    old = case.log_probs(2)
    weight, kept_mask, _ = correction(old, old + case.column(7, scale), case.mask)
    assert ((correction.low <= weight[kept_mask]) & (weight[kept_mask] <= correction.high)).all()
    assert (weight[~kept_mask] == 0).all()


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(case=cases(), correction=corrections)
def test_log_probs_that_agree_correct_nothing(loss: PolicyLoss, case: Case, correction: Correction) -> None:
    results = []
    for corrected, engine in ((None, None), (correction, None), (correction, case.log_probs(2))):
        new = case.log_probs(1).requires_grad_()
        terms = terms_of(replace(loss, correction=corrected), case, new, engine)
        results.append([*terms, *torch.autograd.grad(terms.loss.sum(), new)])
        assert terms.engine_gap.abs().max() == terms.engine_kl.abs().max() == terms.engine_outside.max() == 0
    for result in results[1:]:
        assert all(torch.equal(value, expected) for value, expected in zip(result, results[0], strict=True))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(case=cases(), correction=masking)
def test_a_masked_token_has_no_part_in_any_gradient(loss: PolicyLoss, case: Case, correction: Correction) -> None:
    """Neither has it one of its own, nor do the others change with it."""
    old = case.log_probs(2)
    engine = old + case.column(7)
    kept_mask = correction(old, engine, case.mask).kept
    gradients = []
    for shift in (0.0, 1.5):
        new = (case.log_probs(1) - shift * (case.mask & ~kept_mask)).requires_grad_()
        terms = terms_of(replace(loss, correction=correction), case, new, engine)
        gradients.append(torch.autograd.grad((terms.loss * loss.weights(case.mask)).sum(), new)[0])
        assert (terms.loss[~kept_mask] == 0).all()
    assert torch.equal(gradients[0], gradients[1])
    assert (gradients[0][~kept_mask] == 0).all()


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@given(case=cases(), correction=corrections)
def test_masked_tokens_count_where_a_loss_is_averaged(aggregation: Any, case: Case, correction: Correction) -> None:
    old, advantages = case.log_probs(2), case.column(3)
    engine = old + case.column(7)
    assume(not near_a_bound(case, old, engine, correction))
    loss = Reinforce(correction=correction, aggregation=aggregation, constant=7.0)
    terms = loss(case.log_probs(1), old, advantages, case.mask, engine_log_probs=engine)
    rows = zip(*(case.tokens(x) for x in (case.log_probs(1), old, engine, advantages)), strict=True)
    expected = [
        [
            0.0 if math.isnan(weight) else -weight * advantage * log_prob
            for log_prob, advantage, weight in zip(
                new, advantage_row, expected_weights(correction, trainer, sampled), strict=True
            )
        ]
        for new, trainer, sampled, advantage_row in rows
    ]
    total = (terms.loss * loss.weights(case.mask)).sum().item()
    assert total == pytest.approx(oracle.aggregated(expected, aggregation, 7.0), abs=1e-12)


@given(cases())
def test_metrics_of_the_gap(case: Case) -> None:
    old = case.log_probs(2)
    engine = old + case.column(7, 0.3)
    terms = terms_of(Clip(kl=0.1, correction=Correction(high=1.2)), case, case.log_probs(1), case.spoilt(engine))
    pairs = zip(case.tokens(engine), case.tokens(old), strict=True)
    expected = [[oracle.kl("k3", q, p) for q, p in zip(*pair, strict=True)] for pair in pairs]
    torch.testing.assert_close(terms.engine_kl, case.placed(expected))
    torch.testing.assert_close(terms.engine_gap, (engine - old).abs() * case.mask)
    assert torch.equal(terms.engine_outside == 1, ((old - engine).exp() > 1.2) & case.mask)


def test_the_weighted_gradient_is_that_of_the_trainers_policy() -> None:
    """Summed over all tokens with the engine's probabilities, untruncated weights give the trainer's expectation."""
    logits = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64, requires_grad=True)
    engine = torch.tensor([0.1, -0.4, 0.6], dtype=torch.float64).log_softmax(0)
    advantages, mask = torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64), torch.ones(3, 1)
    trainer = logits.log_softmax(0)
    expected = torch.autograd.grad(-(trainer.exp() * advantages[:, 0]).sum(), logits, retain_graph=True)[0]
    for loss in (Clip(correction=Correction(high=math.inf)), Reinforce(correction=Correction(high=math.inf))):
        terms = loss(trainer[:, None], trainer.detach()[:, None], advantages, mask, engine_log_probs=engine[:, None])
        [gradient] = torch.autograd.grad((engine.exp() * terms.loss[:, 0]).sum(), logits, retain_graph=True)
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"high": 0.9}, "HF940: Correction: high must be at least 1, got 0.9"),
        ({"low": 1.5}, "HF940: Correction: low must be at least 0 and at most 1, got 1.5"),
        (
            {"level": "tokens"},
            "HF940: Correction: level takes 'token' or 'sequence', got 'tokens'; did you mean 'token'?",
        ),
        ({"outside": "drop"}, "HF940: Correction: outside takes 'truncate' or 'mask', got 'drop'"),
    ],
)
def test_values_without_a_meaning_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(text)):
        Correction(**values)
